"""The bytes that a run gives a strategy, how it divides them into slots, and how it accounts for them.

Strategies import these from kvlab.strategy.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, lcm
from typing import NamedTuple


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True, slots=True)
class Memory:
    """What a run gives a strategy to manage: the same bytes for every strategy."""

    bytes: int  # for keys and values on the device
    token_bytes: int  # one token's keys and values in every layer
    max_len: int  # tokens: no sequence grows longer
    max_seqs: int  # sequences on the device at once
    chunk: int  # tokens of one sequence that one launch writes, at most
    windows: tuple[int | None, ...] = (None,)  # per layer: last tokens a query reads, itself included; None: all
    page_group_bytes: int = 0  # one page group in all reservations together
    sliced: bool = False  # a reservation holds all layers, so that a page group is two pages
    host_bytes: int = 0  # for keys and values on the host: where swapped sequences lie
    tile: int = 1  # slots whose heads lie among each other (layout=head_major): they have memory together

    def page_groups(self, tokens: int) -> int:
        """Page groups that `tokens` tokens touch, in whole tiles. Tokens per page group need not be whole."""
        return ceil_div(ceil_div(tokens, self.tile) * self.tile * self.token_bytes, self.page_group_bytes)

    def tokens(self, page_groups: int) -> int:
        """Tokens that fit into so many page groups in whole tiles."""
        return page_groups * self.page_group_bytes // self.token_bytes // self.tile * self.tile

    @property
    def align(self) -> int:
        """Tokens after which a tile and a page group begin together; rows start at multiples of it."""
        return lcm(self.page_group_bytes // gcd(self.page_group_bytes, self.token_bytes), self.tile)


class Usage(NamedTuple):
    """Bytes. held + cached + free never changes and is at most memory.bytes."""

    held: int  # owned by live sequences, shared once, written or not
    cached: int  # owned by nobody, contents kept for a hit, evicted at need
    free: int  # owned by nobody, contents worthless, mapped or not
    largest: int  # tokens: the longest arrival without a hit that admit would take whole now
    rounded: int = 0  # of held: beyond every sequence's room (a buddy's round-up, a page group's last part)
    backed: int | None = None  # mapped bytes once the moves are done; None: all


class Pool(NamedTuple):
    """One address space of slots; a slot holds a token in this pool's layers."""

    slots: int
    token_bytes: int


class LayerGroup(NamedTuple):
    """Layers that share one table."""

    layers: tuple[int, ...]
    window: int | None = None
    pool: int = 0

    def first_live(self, length: int) -> int:
        """The first token that a sequence of `length` still reads."""
        return max(0, length - self.window + 1) if self.window else 0
