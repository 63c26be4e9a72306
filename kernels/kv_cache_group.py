"""What a block table has to know of vLLM's ``KVCacheGroupSpec``, read by name: the engine need not be installed."""

from __future__ import annotations


def holds_recurrent_state(kv_cache_group: object) -> bool:
    """Whether the group holds recurrent (Mamba) state: the whole of it on every rank, and no slots."""
    return _is_a("MambaSpec", getattr(kv_cache_group, "kv_cache_spec", None))


def compress_ratio(kv_cache_group: object) -> int:
    """How many positions share one entry of the group's cache, 1 where nothing is compressed."""
    spec = getattr(kv_cache_group, "kv_cache_spec", None)
    if not _is_a("UniformTypeKVCacheSpecs", spec):
        return 1
    layers = getattr(spec, "kv_cache_specs", {})
    return int(getattr(next(iter(layers.values()), None), "compress_ratio", 1))


def _is_a(name: str, spec: object) -> bool:
    return any(each.__name__ == name for each in type(spec).__mro__)
