"""The Ascend compile audit: what the NPU's own compiler makes of a kernel, on a machine without an NPU."""
