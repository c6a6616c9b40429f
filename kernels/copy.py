"""Copy keys and values from slots to slots."""

from __future__ import annotations

from torch import Tensor


def copy(k_SHD: Tensor, v_SHD: Tensor, source: int, target: int, tokens: int) -> None:
    """Slots [source, source + tokens) to [target, target + tokens); the two never overlap."""
    assert abs(source - target) >= tokens, f"{tokens} tokens from {source} to {target} overlap"
    for kv_SHD in (k_SHD, v_SHD):
        kv_SHD[target : target + tokens] = kv_SHD[source : source + tokens]
