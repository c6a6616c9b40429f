"""Prefix caching in a radix tree over token ids: an edge holds as many blocks as sequences have in common.

As in SGLang (Zheng et al., SGLang: Efficient Execution of Structured Language Model Programs, 2024, 3). Owners
are counted by block, and owners of a block own all before it: so an idle node has only idle ones below it, a
hit may end inside an edge, and only a different continuation splits it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvlab.eviction import Eviction
from kvlab.strategies.cached_blocks import CachedBlocks, Match
from kvlab.strategies.openings import Openings, common
from kvlab.strategy import Memory


@dataclass(slots=True)
class Node:
    """An edge and what is below it. Nodes name each other by number; the root is 0 and has no blocks."""

    parent: int
    depth: int  # blocks above it
    keys: list[bytes] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    children: dict[bytes, int] = field(default_factory=dict)  # by their first key


class Radix(CachedBlocks):
    """Blocks of block_size tokens (SGLang's page): 1 shares to the token.

    evict: leaf takes all idle blocks of a leaf at once, as SGLang; block as many as are needed. partial, for a
    hit that ends inside a block: recompute those tokens, or copy them, as TensorRT-LLM.
    """

    def __init__(
        self,
        memory: Memory,
        block_size: int = 16,
        eviction: Eviction | None = None,
        evict: str = "leaf",
        partial: str = "recompute",
    ) -> None:
        super().__init__(memory, block_size, eviction)
        if evict not in ("leaf", "block"):
            raise ValueError(f"evict={evict}: allowed is leaf, block")
        if partial not in ("recompute", "copy"):
            raise ValueError(f"partial={partial}: allowed is recompute, copy")
        self.whole_leaves, self.copies_partial = evict == "leaf", partial == "copy"
        self.nodes = {0: Node(-1, 0)}
        self.number: dict[int, int] = {}  # published block -> its node
        self.openings = Openings(4 * block_size, 0)
        self.last = 0  # number given last

    # --- the index

    def find(self, keys: Iterator[bytes]) -> Match:
        found, number, at, rest = list[int](), 0, 0, b""
        node = self.nodes[0]
        for key in keys:
            if at == len(node.keys) and key in node.children:
                number, at = node.children[key], 0
                node = self.nodes[number]
            elif at == len(node.keys) or node.keys[at] != key:
                rest = key
                break
            found.append(node.blocks[at])
            at += 1
        return Match(found, rest, *self.part(number, at, rest)) if self.copies_partial else Match(found, rest)

    def publish(self, index: int, before: int, key: bytes, block: int) -> int:
        number = self.number[before] if index else 0
        at = index - self.nodes[number].depth
        after = self.step(number, at, key)
        if after is None:
            self.number[block] = self.grow(number, at, key, block)
            self.published[block] = 1
            return block
        self.counts["duplicates"] += self.block_size
        return self.nodes[after[0]].blocks[after[1] - 1]

    def alike(self, blocks: list[int], rest: bytes) -> int:
        number = self.number[blocks[-1]] if blocks else 0
        node = self.nodes[number]
        at = len(blocks) - node.depth
        if at < len(node.keys):
            return common(node.keys[at], rest, self.openings.block_bytes)
        return self.openings.longest(number, rest)  # behind a node's end: its children's first keys

    def evict(self, count: int) -> tuple[list[int], int]:
        block = self.idle.pop()
        number = self.number[block]
        blocks = self.nodes[number].blocks
        at = blocks.index(block)
        idle = self.idle.among(blocks[:at]) if self.whole_leaves else []
        while idle and idle[-1] == blocks[at - 1]:
            idle.pop()
            at -= 1
        gone = self.cut(number, at)
        return [block for block in gone if block not in self.leaving], len(gone)

    def withdraw(self, block: int) -> None:
        number = self.number[block]
        for gone in self.cut(number, self.nodes[number].blocks.index(block)):
            if gone != block and gone not in self.leaving:
                self.vacate(gone)

    # --- the tree; a place is a node and how many of its blocks were passed

    def step(self, number: int, at: int, key: bytes) -> tuple[int, int] | None:
        """The place behind the block with this key that follows; None: there is none."""
        node = self.nodes[number]
        if at < len(node.keys):
            return (number, at + 1) if node.keys[at] == key else None
        child = node.children.get(key)
        return None if child is None else (child, 1)

    def part(self, number: int, at: int, rest: bytes) -> tuple[int, int]:
        """Of the blocks that follow, the one that begins most like `rest`, and how many tokens; (-1, 0): none."""
        node = self.nodes[number]
        nexts = [(number, at)] if at < len(node.keys) else [(child, 0) for child in node.children.values()]
        best = Match([])
        for child, index in nexts:
            tokens = common(self.nodes[child].keys[index], rest, self.openings.block_bytes)
            if tokens > best.tokens:
                best = Match([], rest, self.nodes[child].blocks[index], tokens)
        return best.source, best.tokens

    def grow(self, number: int, at: int, key: bytes, block: int) -> int:
        """Enter a block at a place; the number of its node."""
        node = self.nodes[number]
        if at < len(node.keys):
            self.split(number, at)
        elif number and not node.children:
            node.keys.append(key)
            node.blocks.append(block)
            return number
        node.children[key] = self.last = self.last + 1
        self.openings.enter(number, key)
        self.nodes[self.last] = Node(number, node.depth + at, [key], [block])
        return self.last

    def split(self, number: int, at: int) -> None:
        """Keep the first `at` blocks of a node; the others and all below become its only child."""
        upper = self.nodes[number]
        self.last += 1
        lower = Node(number, upper.depth + at, upper.keys[at:], upper.blocks[at:], upper.children)
        self.nodes[self.last] = lower
        del upper.keys[at:], upper.blocks[at:]
        upper.children = {lower.keys[0]: self.last}
        if number in self.openings.after:
            self.openings.after[self.last] = self.openings.after.pop(number)
        self.openings.enter(number, lower.keys[0])
        self.number.update(dict.fromkeys(lower.blocks, self.last))
        for child in lower.children.values():
            self.nodes[child].parent = self.last

    def cut(self, number: int, at: int) -> list[int]:
        """Take the blocks of a node from `at` on, and all below it, out of the tree.

        Returned last ones first; a copy may still be to read some.
        """
        node = self.nodes[number]
        blocks, below = node.blocks[at:], list(node.children.values())
        self.openings.after.pop(number, None)
        while below:
            self.openings.after.pop(below[-1], None)
            child = self.nodes.pop(below.pop())
            blocks += child.blocks
            below += child.children.values()
        node.children = {}
        if not at:
            del self.nodes[node.parent].children[node.keys[0]], self.nodes[number]
            self.openings.leave(node.parent, node.keys[0])
        del node.keys[at:], node.blocks[at:]
        self.idle.forget_all(blocks)
        for block in blocks:
            del self.number[block]
            self.published[block] = 0
            self.priority.pop(block, None)
        return blocks[::-1]
