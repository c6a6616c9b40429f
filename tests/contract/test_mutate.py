"""Mutants differ from their source in one place, and say where."""

from __future__ import annotations

from kvlab.testing.mutate import mutants

SOURCE = '''
class Stack:
    def __init__(self, size: int = 3) -> None:
        if size < 1:
            raise ValueError("allowed is 1 or more")
        self.free = list(range(size))

    def take(self, count: int) -> list[int] | None:
        """Not now: None."""
        if count > len(self.free):
            return None
        taken = self.free[-count:]
        del self.free[len(self.free) - count :]
        self.counts["taken"] += count
        return taken
'''


def changed() -> dict[tuple[str, str, str], str]:
    return {(mutant.kind, mutant.before, mutant.after): mutant.source for mutant in mutants(SOURCE)}


def test_bookkeeping_is_changed():
    assert set(changed()) == {
        ("condition negated", "if count > len(self.free):", "if not count > len(self.free):"),
        ("dropped", "if count > len(self.free):", "pass"),
        ("guard removed", "if count > len(self.free):", "if True:"),
        ("comparison", "count > len(self.free)", "count >= len(self.free)"),
        ("dropped", "del self.free[len(self.free) - count:]", "pass"),
        ("one off", "len(self.free) - count:", "len(self.free) - count + 1:"),
        ("+, -", "len(self.free) - count", "len(self.free) + count"),
    }


def test_a_mutant_runs_and_differs():
    source = changed()["comparison", "count > len(self.free)", "count >= len(self.free)"]
    module: dict = {}
    exec(source, module)
    assert module["Stack"](3).take(3) is None


def test_a_mutant_says_where():
    first = mutants(SOURCE)[0]
    assert (first.where, first.line) == ("Stack.take", 10)
