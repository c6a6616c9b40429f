"""What swapping costs: a call for each layer's keys and values of each stretch of slots, and the host link's bytes."""

from __future__ import annotations

import pytest

from kvlab.errors import UsageError
from kvlab.moves import SwapIn, SwapOut

FIG_19A_MS = {  # PagedAttention, SOSP'23: swap in + out, by block size
    1: 137.44, 2: 89.27, 4: 61.04, 8: 47.10, 16: 40.15, 32: 36.56, 64: 34.91, 128: 33.87, 256: 33.41,
}  # fmt: skip


def test_a_swap_is_priced_by_copies_and_bytes(build):
    cost = build(host_bytes=1 << 30).cost  # Llama-3-8B: 32 layers, 128 KiB a token
    one = 64 * 1.25e-6 + 100 * 131072 / (32e9 * 0.8)
    assert cost.moves([SwapOut(0, 0, 100)]) == pytest.approx(one)
    assert cost.moves([SwapIn(0, 50, 100)]) == pytest.approx(one)
    assert cost.moves([SwapOut(0, 0, 50), SwapOut(90, 50, 50)]) == pytest.approx(one + 64 * 1.25e-6)


def test_small_blocks_make_swapping_slow_as_published(build):
    """Fig. 19a by its own scale, blocks apart from each other: of how many tokens it is not said (vllm #12)."""
    cost = build("OPT-13B", gpu="a100_40", host_bytes=1 << 30, dtype="float16").cost

    def seconds(size: int) -> float:
        places = [2 * size * index for index in range(1024 // size)]
        return cost.moves([SwapOut(place, 0, size) for place in places] + [SwapIn(0, place, size) for place in places])

    for size, published in FIG_19A_MS.items():
        assert seconds(size) / seconds(256) == pytest.approx(published / FIG_19A_MS[256], rel=0.06), size


@pytest.mark.parametrize(
    ("key", "value"),
    [("gpu__host_link_gb_s", None), ("cost__host_call_us", None), ("cost__efficiency__host_link", 1.5)],
)
def test_what_swapping_costs_must_be_known_where_there_is_a_host(build, key, value):
    build(**{key: value})
    with pytest.raises(UsageError, match=key.split("__")[-1]):
        build(host_bytes=1 << 30, **{key: value})
