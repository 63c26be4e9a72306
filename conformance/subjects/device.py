"""Device functions that published kernels call and that may not be installed beside them."""

import triton
import triton.language as tl


@triton.jit
def load_pointer(address_ptr, element_type: tl.constexpr):
    """The pointer to ``element_type`` whose address, a uint64, is at ``address_ptr``."""
    return tl.load(address_ptr).to(tl.pointer_type(element_type))
