"""A row that is reallocated when it is full: a longer row is taken, the tokens are copied, the old row is left.

What frameworks do without a cache manager. exact: one token more each time, as concatenation does (DynamicCache of
Hugging Face transformers); step: the next multiple of `step` (MLX-LM's KVCache, 256); double: twice the old row.
Nothing is reserved far ahead, but old and new live together until the copy is done, and every copy costs bandwidth.
"""

from __future__ import annotations

from bisect import bisect_left

from kvlab.ranges import Ranges
from kvlab.strategy import Arrival, Copy, Grant, Memory, Move, Strategy, Usage, ceil_div

MODES = ("exact", "step", "double")


class Growing(Strategy):
    """Rows in the first free range that is long enough."""

    def __init__(self, memory: Memory, mode: str = "step", step: int = 256) -> None:
        if mode not in MODES:
            raise ValueError(f"mode={mode}: allowed is {', '.join(MODES)}")
        if not isinstance(step, int) or step < 1:
            raise ValueError(f"step={step}: allowed is a whole number of slots, 1 or more")
        super().__init__(memory)
        self.mode, self.step = mode, step if mode == "step" else 1
        self.total = self.pools[0].slots  # slots
        self.space = Ranges(self.total)
        self.size: dict[int, int] = {}  # slots of each sequence's row
        self.rooms = 0  # slots, of all sequences
        self.leaving: list[tuple[int, int]] = []  # (start, size) of rows that an undrained copy still reads
        steps = range(ceil_div(memory.max_len, self.step))
        self.sure = min(memory.max_len, self.step * bisect_left(steps, True, key=self._stuck))

    @property
    def longest(self) -> int:
        return self.sure

    def admit(self, arrival: Arrival, new: int, leave: int = 0) -> Grant | None:
        if arrival.seq in self.size:
            raise KeyError(f"sequence {arrival.seq} is open already")
        size = self._longer(min(new, arrival.length), 0)
        if self.space.free - size < leave or not self.table.spare:
            return None
        start = self.space.take(size)
        if start is None:
            return None
        self.table.open(arrival.seq, [start])
        self.size[arrival.seq] = size
        self.rooms += size
        return Grant(0, size)

    def extend(self, seq: int, length: int, upto: int) -> int | None:
        size = self.size[seq]
        if upto <= size:
            return size
        longer = self._longer(upto, size)
        target = self.space.take(longer) if upto <= self.memory.max_len else None
        if target is None:
            return None
        start = int(self.table[seq][0])
        self.leaving.append((start, size))
        if length:
            self.moves.append(Copy(start, target, length))
        self.table.put(seq, 0, target)
        self.size[seq] = longer
        self.rooms += longer - size
        return longer

    def release(self, seq: int) -> None:
        size = self.size.pop(seq)
        self.space.give(self.table.close(seq)[0], size)
        self.rooms -= size

    def drain(self) -> list[Move]:
        for start, size in self.leaving:
            self.space.give(start, size)
        self.leaving = []
        return super().drain()

    def usage(self) -> Usage:
        token_bytes, held = self.memory.token_bytes, self.total - self.space.free
        rounded = (held - self.rooms) * token_bytes  # the rows that are being left
        return Usage(held * token_bytes, 0, self.space.free * token_bytes, self._largest(), rounded)

    def _largest(self) -> int:
        if not self.table.spare:
            return 0
        range_slots = self.space.largest
        whole = range_slots if range_slots >= self.memory.max_len else range_slots // self.step * self.step
        return min(whole, self.longest)

    def _longer(self, upto: int, size: int) -> int:
        """Slots of the next row, for `upto` tokens, of a sequence whose row has `size`."""
        if self.mode == "double":
            return min(max(upto, 2 * size), self.memory.max_len)
        return min(ceil_div(upto, self.step) * self.step, self.memory.max_len)

    def _stuck(self, steps: int) -> bool:
        """Whether a lone sequence with so many full steps may find no longer row: the old one may lie in the middle."""
        size = steps * self.step
        larger_side = ceil_div(self.total - size, 2) if size else self.total
        return larger_side < self._longer(size + 1, size)
