"""A search for the shortest history that breaks a rule; it is printed as a program that repeats it.

The only file that imports hypothesis, which comes with `pip install 'kvlab[test]'`.
"""

from __future__ import annotations

from collections.abc import Callable
from time import process_time
from typing import Any

try:
    from hypothesis import HealthCheck, Phase, Verbosity, settings
    from hypothesis import strategies as st
    from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
except ImportError as error:
    raise ImportError("the state machine needs hypothesis: pip install 'kvlab[test]'") from error

from kvlab.strategy import Memory, Strategy
from kvlab.testing.claims import CLAIMS
from kvlab.testing.operations import History, Operations, replay, shorten
from kvlab.testing.script import program

Make = Callable[[Memory], Strategy]
TOKENS = st.integers(1, 2)
PICK = st.integers(0, 15)
SHRINK_S = 0.8  # of computing: hypothesis' own shrinking, from the first failure


class HistoryError(AssertionError):
    """Its text is the program."""


class Enough(BaseException):
    """Time for shrinking is over; hypothesis lets it through."""


class Machine(RuleBasedStateMachine):
    """The operations, drawn by hypothesis."""

    make: Make
    memory: Memory
    shortest: History | None = None  # of those that failed
    until: float | None = None  # when to stop shrinking

    @initialize()
    def begin(self) -> None:
        if self.until is not None and process_time() > self.until:
            raise Enough
        self.operations, self.history, self.failed = Operations(type(self).make(self.memory)), History(), False

    def running(self) -> bool:
        return hasattr(self, "operations") and bool(self.operations.trial.running)

    def swapped(self) -> bool:
        return hasattr(self, "operations") and bool(self.operations.trial.swapped)

    @rule(prompt=st.lists(TOKENS, min_size=1, max_size=12), new=st.integers(1, 12), leave=st.sampled_from((0, 0, 3)))
    def admit(self, prompt: list[int], new: int, leave: int) -> None:
        self.do("admit", prompt, new, leave)

    @precondition(running)
    @rule(index=PICK, tokens=st.lists(TOKENS, min_size=1, max_size=4))
    def compute(self, index: int, tokens: list[int]) -> None:
        self.do("compute", index, tokens)

    @precondition(running)
    @rule(index=PICK, back=st.integers(0, 3))
    def fork(self, index: int, back: int) -> None:
        self.do("fork", index, back)

    @precondition(running)
    @rule(index=PICK, back=st.integers(1, 3))
    def truncate(self, index: int, back: int) -> None:
        self.do("truncate", index, back)

    @precondition(running)
    @rule(index=PICK)
    def release(self, index: int) -> None:
        self.do("release", index)

    @precondition(running)
    @rule(index=PICK)
    def swap_out(self, index: int) -> None:
        self.do("swap_out", index)

    @precondition(swapped)
    @rule(index=PICK)
    def swap_in(self, index: int) -> None:
        self.do("swap_in", index)

    @precondition(swapped)
    @rule(index=PICK)
    def forget(self, index: int) -> None:
        self.do("forget", index)

    @precondition(running)
    @rule(index=PICK)
    def wrote(self, index: int) -> None:
        self.do("wrote", index)

    @rule()
    def settle(self) -> None:
        self.do("settle")

    @rule()
    def clear(self) -> None:
        self.do("clear")

    @rule(index=st.integers(0, len(CLAIMS) - 1))
    def claim(self, index: int) -> None:
        self.do("claim", index)

    def teardown(self) -> None:
        if hasattr(self, "operations") and not self.failed:
            self.do("end")

    def do(self, name: str, *args: Any) -> None:
        self.history.append((name, args))
        try:
            self.operations.do((name, args))
        except Exception:
            self.failed = True
            type(self).remember(self.history)
            raise

    @classmethod
    def remember(cls, history: History) -> None:
        if cls.until is None:
            cls.until = process_time() + SHRINK_S
        if cls.shortest is None or len(history) <= len(cls.shortest):
            cls.shortest = history


def explore(make: Make, memory: Memory, examples: int) -> None:
    """Try so many histories. Raises HistoryError with the shortest failing one as a program."""
    machine: Any = type("Machine", (Machine,), {"make": staticmethod(make), "memory": memory})
    try:
        run_state_machine_as_test(machine, settings=settings_for(examples))
    except (Exception, Enough):
        if machine.shortest is None:
            raise
        found = replay(make, memory, shorten(make, memory, machine.shortest))
        assert found is not None, "the strategy does not do the same twice"
        raise HistoryError("\n" + program(make, memory, *found)) from None


def settings_for(examples: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        database=None,
        derandomize=True,
        verbosity=Verbosity.quiet,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
