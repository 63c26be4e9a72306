"""Deliberately wrong variants of this project's kernels, to measure what the suite finds."""
