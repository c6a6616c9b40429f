"""Free ranges of slots: the first one that is long enough, joined again when its neighbours are free.

A tree over the slots holds the length of the free range that begins at each (0: none begins there), every
inner node the larger of its two children. So taking, giving and asking for the longest cost the same with
one free range as with thousands: a walk of about log2(slots) nodes.
"""

from __future__ import annotations


class Ranges:
    """Slots [0, slots), all free at first."""

    def __init__(self, slots: int) -> None:
        self.free = slots
        self.leaves = 1 << max(0, slots - 1).bit_length()
        self.longest_at = [0] * (2 * self.leaves)  # node 1 is the root, a slot's leaf is at leaves + slot
        self.begins: dict[int, int] = {}  # slot after a free range -> its first
        if slots:
            self._put(0, slots)

    @property
    def largest(self) -> int:
        """Slots of the longest free range."""
        return self.longest_at[1]

    def size(self, slots: int) -> int:
        """Slots that a request for so many takes: just those."""
        return slots

    def take(self, size: int) -> int | None:
        """First slot of the lowest free range that is long enough, cut from its front."""
        if size > self.longest_at[1]:
            return None
        node = 1
        while node < self.leaves:
            node *= 2
            if self.longest_at[node] < size:
                node += 1
        start = node - self.leaves
        self._cut(start, size)
        return start

    def give(self, start: int, size: int) -> None:
        """Slots [start, start + size) are free again."""
        self.free += size
        stop = start + size
        after = self._length(stop)
        if after:
            self._drop(stop)
        before = self.begins.get(start)
        if before is not None:
            self._drop(before)
            start = before
        self._put(start, stop + after - start)

    def widen(self, start: int, size: int, want: int) -> int | None:
        """Grow a range that is taken to `want` slots where what follows it is free; its first slot, or None."""
        if self._length(start + size) < want - size:
            return None
        self._cut(start + size, want - size)
        return start

    def _length(self, start: int) -> int:
        return self.longest_at[self.leaves + start] if start < self.leaves else 0

    def _cut(self, start: int, size: int) -> None:
        self.free -= size
        rest = self._drop(start) - size
        if rest:
            self._put(start + size, rest)

    def _drop(self, start: int) -> int:
        length = self._length(start)
        del self.begins[start + length]
        self._set(start, 0)
        return length

    def _put(self, start: int, length: int) -> None:
        self.begins[start + length] = start
        self._set(start, length)

    def _set(self, start: int, length: int) -> None:
        tree, node = self.longest_at, self.leaves + start
        tree[node] = length
        while node > 1:
            node //= 2
            left, right = tree[2 * node], tree[2 * node + 1]
            longer = left if left > right else right
            if tree[node] == longer:
                return
            tree[node] = longer
