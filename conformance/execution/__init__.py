"""Launches in a child process, on buffers whose every neighbour is a fence. Nothing a kernel does reaches the suite
itself.
"""
