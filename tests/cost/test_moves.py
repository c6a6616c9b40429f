"""What moves cost: by call, by page, by what was created, beside a launch or before it."""

from __future__ import annotations

import pytest

from kvlab.errors import UsageError
from kvlab.moves import Copy, Drop, Map, Unmap


def test_growing_one_sequence_of_yi_34b_by_a_page_group(build):
    """vAttention 2.3: 120 calls of 40 us, about 5 ms."""
    cost = build("Yi-34B", strategy="vattention", tensor_parallel=2).cost
    assert cost.moves([Map(0, 0)]) == pytest.approx(120 * 40e-6)
    assert cost.moves([Unmap(0)]) == pytest.approx(120 * 34e-6)


def test_sliced_page_groups_are_two_pages(build):
    assert build(strategy="sliced").cost.moves([Map(0, 0)]) == pytest.approx(2 * 40e-6)


def test_memory_is_created_once_until_it_is_dropped(build):
    cost = build(strategy="vattention", vmm="h200_measured").cost
    lazy = build(strategy="vattention", vmm="h200_measured", vmm__create_ahead=False).cost
    mapped, create, release = 64 * 37.3e-6, 64 * 15.2e-6, 64 * 15.5e-6
    for one, first in ((cost, 0.0), (lazy, create)):
        assert one.moves([Map(0, 5)]) == pytest.approx(mapped + first)
        assert one.moves([Unmap(0), Map(0, 5)]) == pytest.approx(mapped + 64 * 22.8e-6)
        assert one.moves([Unmap(0), Drop(5), Map(1, 5)]) == pytest.approx(mapped + 64 * 22.8e-6 + release + create)


def test_moves_beside_a_launch_hide_behind_it(build):
    cost = build(strategy="vattention").cost
    seconds = 64 * 40e-6
    assert cost.beside([Map(0, 0)], seconds + 1e-3) == 0
    assert cost.beside([Map(1, 1)], seconds - 1e-3) == pytest.approx(1e-3)
    serial = build(strategy="vattention", cost__overlap_mapping=False).cost
    assert serial.beside([Map(0, 0)], 1.0) == pytest.approx(seconds)


def test_copies_cost_a_call_and_their_bytes_twice(build):
    cost = build().cost
    bandwidth = 2039e9 * 0.88
    assert cost.moves([Copy(0, 100, 10), Copy(200, 300, 40)]) == pytest.approx(2 * 5e-6 + 2 * 50 * 131072 / bandwidth)
    assert cost.moves([]) == 0


@pytest.mark.parametrize(
    ("vmm", "page", "map_us"),
    [
        ("a100_paper", 65536, 8),
        ("a100_paper", 262144, 9),
        ("a100_paper", 4 << 20, 40),
        ("h200_measured", 16 << 20, 37.3),
    ],
)
def test_prices_by_page_size(build, vmm, page, map_us):
    assert build(strategy="vattention", vmm=vmm, page_group_bytes=page).cost.moves([Map(0, 0)]) == pytest.approx(
        64 * map_us * 1e-6
    )


@pytest.mark.parametrize(
    ("vmm", "page"), [("h200_measured", 65536), ("a100_paper", 524288), ("a100_kvcached", 3 << 20)]
)
def test_pages_without_a_price_are_refused(build, vmm, page):
    with pytest.raises(UsageError, match=f"page_group_bytes={page}: allowed with vmm is .*2097152, or a multiple"):
        build(strategy="vattention", vmm=vmm, page_group_bytes=page)
    build(strategy="paged", vmm=vmm, page_group_bytes=page)  # which maps nothing


def test_measured_prices_go_along_a_line(build):
    line = {
        "page_bytes": [65536, 131072], "map_us": [10, 12], "set_access_us": [0, 0], "unmap_us": [8, 9],
        "create_us": [0, 0], "release_us": [1, 1], "linear": True, "create_ahead": False,
    }  # fmt: skip
    for page, map_us in ((65536, 10), (98304, 11), (196608, 14)):
        cost = build(strategy="sliced", page_group_bytes=page, **{f"vmm__{k}": v for k, v in line.items()}).cost
        assert cost.moves([Map(0, 0)]) == pytest.approx(2 * map_us * 1e-6)
