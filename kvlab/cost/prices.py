"""What moves cost: driver calls by page and by page size, copies by bytes, swaps by copies and by the host link.

The prices are those of a strategy's move list alone; who sends the same moves pays the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from kvlab.cost.nodes import Node
from kvlab.errors import UsageError
from kvlab.moves import Copy, Drop, Map, Move, SwapIn, SwapOut, Unmap
from kvlab.strategy import Strategy

CALLS = ("map_us", "set_access_us", "unmap_us", "create_us", "release_us")


class PagePrices:
    """Seconds of each call on one page of a given size."""

    def __init__(self, node: Node, page_bytes: int) -> None:
        """UsageError: no price is known for pages of that size."""
        sizes = node.rising("page_bytes")
        prices = {name: node.beside(name, sizes, "page_bytes") for name in CALLS}
        linear = node.flag("linear")
        if not linear:
            _check_size(node.name, sizes, page_bytes)
        self.map, self.set_access, self.unmap, self.create, self.release = (
            _price(sizes, prices[name], page_bytes, linear) * 1e-6 for name in CALLS
        )
        self.create_ahead = node.flag("create_ahead")


def _check_size(name: str, sizes: list[float], page_bytes: int) -> None:
    if page_bytes in sizes or (page_bytes > sizes[-1] and page_bytes % sizes[-1] == 0):
        return
    known = ", ".join(f"{size:.0f}" for size in sizes)
    raise UsageError(f"page_group_bytes={page_bytes}: allowed with {name} is {known}, or a multiple of the last")


def _price(sizes: list[float], prices: list[float], page_bytes: int, linear: bool) -> float:
    """linear: between sizes, and on from the last two. Else the price of the largest size that is not larger."""
    if not linear or len(sizes) == 1:
        return prices[max(0, bisect_right(sizes, page_bytes) - 1)]
    right = min(max(1, bisect_right(sizes, page_bytes)), len(sizes) - 1)
    slope = (prices[right] - prices[right - 1]) / (sizes[right] - sizes[right - 1])
    return max(0.0, prices[right - 1] + slope * (page_bytes - sizes[right - 1]))


class HostLink(NamedTuple):
    """What a copy to the host or from there takes; every layer's keys and its values are one each."""

    call_s: float
    bytes_per_s: float  # one way


class MovePrices:
    """Seconds of a list of moves. Remembers which page groups have memory, so each list is asked for once, in order."""

    def __init__(
        self,
        pages: PagePrices | None,
        strategy: Strategy,
        copy_call_s: float,
        copy_bytes_per_s: float,
        link: HostLink | None = None,
    ) -> None:
        """`pages` None: a strategy without virtual memory. copy_bytes_per_s: bytes copied, each read and written.

        `link` None: nothing is swapped.
        """
        self.pages, self.copy_call_s, self.link = pages, copy_call_s, link
        self.copy_token_s = [2 * pool.token_bytes / copy_bytes_per_s for pool in strategy.pools]
        self.token_bytes = [pool.token_bytes for pool in strategy.pools]
        self.swap_calls = [2 * len(_layers(strategy, pool)) for pool in range(len(strategy.pools))]
        self.page_calls = [_pages(strategy, pool) for pool in range(len(strategy.pools))]
        self.backed: set[tuple[int, int]] = set()
        self.dropped: set[tuple[int, int]] = set()

    def seconds(self, moves: Iterable[Move]) -> float:
        return sum(map(self._one, moves), 0.0)

    def _one(self, move: Move) -> float:
        if isinstance(move, Copy):
            return self.copy_call_s + move.tokens * self.copy_token_s[move.pool]
        if isinstance(move, SwapOut | SwapIn):
            return self._swap(move)
        assert self.pages is not None, f"{move}: the strategy says that it has no virtual memory"
        return self.page_calls[move.pool] * self._page(move, self.pages)

    def _swap(self, move: SwapOut | SwapIn) -> float:
        assert self.link is not None, f"{move}: there is no room on the host"
        size = move.tokens * self.token_bytes[move.pool]
        return self.swap_calls[move.pool] * self.link.call_s + size / self.link.bytes_per_s

    def _page(self, move: Map | Unmap | Drop, pages: PagePrices) -> float:
        if isinstance(move, Unmap):
            return pages.unmap
        place = (move.pool, move.physical)
        if isinstance(move, Drop):
            self.backed.discard(place)
            self.dropped.add(place)
            return pages.release
        made = place in self.dropped or not (pages.create_ahead or place in self.backed)
        self.backed.add(place)
        self.dropped.discard(place)
        return pages.map + pages.set_access + (pages.create if made else 0.0)


def _pages(strategy: Strategy, pool: int) -> int:
    """Pages in one of the pool's page groups: one for each layer's keys and one for its values, or two when sliced."""
    return 2 if strategy.memory.sliced else 2 * len(_layers(strategy, pool))


def _layers(strategy: Strategy, pool: int) -> set[int]:
    return {layer for group in strategy.groups if group.pool == pool for layer in group.layers}
