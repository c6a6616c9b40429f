"""Which page group lies where: what a virtual store has mapped, checked on every move.

One physical page group may lie under several virtual ones and has memory once. A strategy that maps over what
is mapped, unmaps what is not mapped or drops what still is has a bug: AssertionError.
"""

from __future__ import annotations

from collections import Counter


class Ledger:
    """Page groups by virtual and by physical number, and how often they were moved."""

    def __init__(self, virtual_groups: int, physical_groups: int) -> None:
        self.virtual_groups, self.physical_groups = virtual_groups, physical_groups
        self.physical: dict[int, int] = {}  # virtual page group -> what lies under it
        self.places: Counter[int] = Counter()  # physical page group -> virtual ones that it lies under
        self.backed: set[int] = set()  # physical page groups once mapped and not dropped since
        self.maps = self.unmaps = 0
        self.created = self.released = 0  # page groups of memory; the difference is what is backed

    def check_map(self, virtual: int, physical: int) -> None:
        assert 0 <= virtual < self.virtual_groups, f"virtual page group {virtual} of {self.virtual_groups}"
        assert 0 <= physical < self.physical_groups, f"physical page group {physical} of {self.physical_groups}"
        assert virtual not in self.physical, f"virtual page group {virtual} is mapped already"

    def map(self, virtual: int, physical: int) -> None:
        self.physical[virtual] = physical
        self.places[physical] += 1
        self.created += physical not in self.backed
        self.backed.add(physical)
        self.maps += 1

    def back_all(self) -> None:
        """All physical page groups have memory from the start."""
        self.backed.update(range(self.physical_groups))
        self.created = self.physical_groups

    def check_unmap(self, virtual: int) -> None:
        assert virtual in self.physical, f"virtual page group {virtual} is not mapped"

    def unmap(self, virtual: int) -> None:
        self.places[self.physical.pop(virtual)] -= 1
        self.unmaps += 1

    def check_drop(self, physical: int) -> None:
        assert not self.places[physical], f"physical page group {physical} is still mapped"
        assert physical in self.backed, f"physical page group {physical} has no memory to drop"

    def drop(self, physical: int) -> None:
        self.backed.remove(physical)
        self.released += 1

    def close(self) -> None:
        """Everything is unmapped and dropped at once."""
        self.released += len(self.backed)
        self.physical.clear()
        self.places.clear()
        self.backed.clear()

    def check_mapped(self, first: int, last: int) -> None:
        """Every virtual page group in [first, last] has memory."""
        missing = [virtual for virtual in range(first, last + 1) if virtual not in self.physical]
        assert not missing, f"virtual page groups {missing} are not mapped"
