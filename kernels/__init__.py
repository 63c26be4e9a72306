"""Slot-mapping kernels in Triton (Ascend, CUDA, interpreter) and in plain torch. They need nothing else of this
project."""
