"""What lanes that compile with triton-ascend share: how a launch is bound, the front end, Ascend's compiler, upstream
MLIR, native code and its cache.
"""
