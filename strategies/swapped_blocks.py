"""Blocks that are swapped once, however many sequences share them.

While forks share a block nobody writes it, so one copy on the host is everybody's: the first who is swapped out
pays for it, and the first who comes back brings it along for the others. Twins says which blocks lie in both places.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvlab.strategy import Arrival, Grant, Memory, Strategy, SwapIn, SwapOut, ceil_div, runs


class Twins:
    """Blocks of the device whose first tokens lie on the host too: copied out once, whoever asks for it next."""

    def __init__(self) -> None:
        self.of: dict[int, tuple[int, int]] = {}  # block -> the host's, and how many tokens they have in common
        self.back: dict[int, dict[int, None]] = {}  # the host's -> blocks, newest last

    def __eq__(self, other: object) -> bool:
        """A refusal leaves them as they were."""
        return isinstance(other, Twins) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Twins({vars(self)})"

    def pair(self, block: int, host: int, tokens: int) -> None:
        """They have so many tokens in common; whatever the block had in common with another is of no more use."""
        self.part(block)
        self.of[block] = host, tokens
        self.back.setdefault(host, {})[block] = None

    def part(self, block: int) -> None:
        """The block is somebody else's now, or about to hold something else."""
        if block in self.of:
            host, _ = self.of.pop(block)
            del self.back[host][block]
            if not self.back[host]:
                del self.back[host]

    def forget(self, host: int) -> None:
        """The host's block is free."""
        for block in self.back.pop(host, {}):
            del self.of[block]

    def written(self, block: int, tokens: int) -> None:
        """What comes behind the block's first `tokens` is about to be written."""
        if block in self.of and self.of[block][1] > tokens:
            self.part(block)

    def on_host(self, block: int, tokens: int) -> int:
        """The host's block that holds the block's first `tokens`; -1: none does."""
        host, common = self.of.get(block, (-1, 0))
        return host if common >= tokens else -1

    def on_device(self, host: int, tokens: int) -> int:
        """A block that holds so many tokens of the host's; -1: none does."""
        return next((block for block in self.back.get(host, ()) if self.of[block][1] >= tokens), -1)


class SwappedBlocks(Strategy):
    """Swapping for strategies whose sequences share blocks; a host block is as large as one of theirs."""

    block_size: int
    free: list[int]  # blocks; the next one is the last
    sharers: dict[int, int]  # block -> its owners beyond the first

    def __init__(self, memory: Memory, block_size: int) -> None:
        super().__init__(memory, block_size)
        self.twins = Twins()

    def swap_out(self, seq: int, length: int) -> bool:
        size = self.block_size
        blocks = self.table[seq][: ceil_div(length, size)].tolist()
        tokens = [min(size, length - start) for start in range(0, length, size)]
        kept = list(map(self.twins.on_host, blocks, tokens))
        moved = [index for index, host in enumerate(kept) if host < 0]
        if len(moved) > self.host.free:
            return False
        for host in kept:
            if host >= 0:
                self.host.share(host)
        fresh = self.host.take(len(moved))
        for index, host in zip(moved, fresh, strict=True):
            kept[index] = host
            if blocks[index] in self.sharers:
                self.twins.pair(blocks[index], host, tokens[index])
        total = sum(tokens[index] for index in moved)
        self.moves += [SwapOut(*run) for run in self.stretches([blocks[index] for index in moved], fresh, total)]
        self.release(seq)
        self.host.kept[seq] = [kept]
        return True

    def swap_in(self, arrival: Arrival) -> Grant | None:
        kept = self.host.kept[arrival.seq][0]
        here = self.in_place(kept, arrival.length)
        if len(kept) - len(here) > len(self.free) or not self.table.spare:
            return None
        self.table.open(arrival.seq, here)
        self.join(here)
        return self.bring(arrival, kept)

    def forget(self, seq: int) -> None:
        for host in self.host.give(seq):
            self.twins.forget(host)

    def in_place(self, kept: list[int], length: int) -> list[int]:
        """The first blocks of a swapped sequence, as far as they are full and still others' on the device."""
        here = []
        for host in kept[: length // self.block_size]:
            block = self.twins.on_device(host, self.block_size)
            if block < 0:
                break
            here.append(block)
        return here

    def join(self, blocks: list[int]) -> None:
        """One owner more for each of these blocks, which others own."""
        for block in blocks:
            self.sharers[block] = self.sharers.get(block, 0) + 1

    def bring(self, arrival: Arrival, kept: list[int]) -> Grant:
        """Give a swapped sequence whose table holds what is here already the rest of its blocks; as many are free."""
        seq, size = arrival.seq, self.block_size
        held = self.table.count[seq]
        rest, need, length = kept[held:], len(kept) - held, arrival.length
        blocks = self.free[: -need - 1 : -1]
        del self.free[len(self.free) - need :]
        self.table.append(seq, blocks)
        self.moves += [SwapIn(*run) for run in self.stretches(rest, blocks, length - held * size)]
        self.forget(seq)
        for index, (block, host) in enumerate(zip(self.table[seq].tolist(), kept, strict=True)):
            if host in self.host.users:
                self.twins.pair(block, host, min(size, length - index * size))
        return Grant(length, len(kept) * size)

    def stretches(self, sources: list[int], targets: list[int], tokens: int) -> Iterable[tuple[int, int, int]]:
        """(source, target, tokens) in slots, `tokens` in all: the last block may be filled in part."""
        return runs(self.host.slots(sources)[:tokens], self.host.slots(targets)[:tokens])
