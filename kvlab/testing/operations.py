"""What a history is made of: operations with plain arguments, so that a history can be replayed and shortened."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from kvlab.strategy import Memory, Strategy
from kvlab.testing import checks
from kvlab.testing.claims import CLAIMS
from kvlab.testing.rule import RuleError
from kvlab.testing.sequence import Sequence
from kvlab.testing.trial import Trial
from kvlab.testing.watchdog import watched

Operation = tuple[str, tuple[Any, ...]]  # name of a method, its arguments
History = list[Operation]


class Operations:
    """An engine's operations, one at a time, each with every check. `index` picks one of those that run."""

    def __init__(self, strategy: Strategy) -> None:
        self.trial = Trial(strategy, random.Random(0))
        self.log: list[str] = []
        self.trial.log = self.log
        self.longest = min(strategy.longest, strategy.memory.max_len)
        self.count = 0

    @property
    def running(self) -> list[Sequence]:
        return list(self.trial.running.values())

    @property
    def full(self) -> bool:
        return len(self.trial.running) >= self.trial.strategy.memory.max_seqs

    def do(self, operation: Operation) -> None:
        name, args = operation
        with watched():
            getattr(self, name)(*args)

    def admit(self, prompt: list[int], new: int, leave: int) -> None:
        if self.full:
            return
        self.count += 1
        ids = prompt[: self.longest]
        sequence = Sequence(self.count, ids, len(ids), len(ids), self.longest, self.longest)
        self.trial.admit(sequence, new, leave)

    def compute(self, index: int, tokens: list[int]) -> None:
        """A launch for one sequence: of what is known of it, or else of these tokens."""
        if not (sequence := self._pick(index)):
            return
        if sequence.done == len(sequence.ids):
            sequence.lengthen(tokens[: self.longest - sequence.done])
        stop = min(sequence.done + self.trial.strategy.memory.chunk, len(sequence.ids))
        if stop == sequence.done or (stop > sequence.room and not self._grows(sequence, stop)):
            return
        self.trial.settle()
        self.trial.issue([(sequence, stop)])
        self.trial.complete()
        checks.everything(self.trial)

    def fork(self, index: int, back: int) -> None:
        parent = self._pick(index)
        if not parent or not parent.done or self.full:
            return
        self.count += 1
        length = max(1, parent.done - (0 if self.trial.windowed else back))
        child = Sequence(self.count, parent.ids[:length], length, length, parent.limit, parent.expected)
        self.trial.fork(parent, child)

    def truncate(self, index: int, back: int) -> None:
        """Not below what was told as written."""
        if not (sequence := self._pick(index)):
            return
        length = max(1, sequence.told, sequence.done - (0 if self.trial.windowed else back))
        if length < sequence.done:
            sequence.ids, sequence.value, sequence.known = sequence.ids[:length], sequence.value[:length], length
            self.trial.truncate(sequence, length)

    def release(self, index: int) -> None:
        if sequence := self._pick(index):
            self.trial.release(sequence, "released")

    def swap_out(self, index: int) -> None:
        if (sequence := self._pick(index)) and sequence.done:
            self.trial.swap_out(sequence)

    def swap_in(self, index: int) -> None:
        if (sequence := self._pick_swapped(index)) and not self.full:
            self.trial.swap_in(sequence)

    def forget(self, index: int) -> None:
        if sequence := self._pick_swapped(index):
            self.trial.forget(sequence)

    def wrote(self, index: int) -> None:
        if sequence := self._pick(index):
            self.trial.tell(sequence)

    def settle(self) -> None:
        self.trial.settle()

    def clear(self) -> None:
        self.trial.clear()

    def claim(self, index: int) -> None:
        CLAIMS[index](self.trial)

    def end(self) -> None:
        self.trial.settle()
        for sequence in self.running:
            self.trial.release(sequence, "released")
        for sequence in list(self.trial.swapped.values()):
            self.trial.forget(sequence)
        self.trial.settle()
        self.trial.clear()

    def _pick(self, index: int) -> Sequence | None:
        running = self.running
        return running[index % len(running)] if running else None

    def _pick_swapped(self, index: int) -> Sequence | None:
        swapped = list(self.trial.swapped.values())
        return swapped[index % len(swapped)] if swapped else None

    def _grows(self, sequence: Sequence, stop: int) -> bool:
        if self.trial.extend(sequence, stop):
            return True
        if len(self.running) > 1:
            return False
        self.trial.settle()  # what an undrained move still reads is held until then
        if self.trial.extend(sequence, stop):
            return True
        text = f"sequence {sequence.seq} is alone and may not grow from {sequence.done} to {stop}"
        raise RuleError("longest", text, f"strategy.extend({sequence.seq}, {sequence.done}, {stop}) is not None")


def replay(make: Callable[[Memory], Strategy], memory: Memory, history: History) -> tuple[list[str], Exception] | None:
    """The lines of a program up to the failure, and the failure; None: the history goes well."""
    operations = Operations(make(memory))
    try:
        for operation in history:
            operations.do(operation)
    except Exception as error:  # a strategy may raise anything
        return operations.log, error
    return None


def shorten(make: Callable[[Memory], Strategy], memory: Memory, history: History) -> History:
    """Leave out every operation without which the same rule is still broken."""
    found = replay(make, memory, history)
    kind = broken(found)
    index = len(history) - 1
    while index >= 0:
        without = history[:index] + history[index + 1 :]
        if broken(replay(make, memory, without)) == kind:
            history = without
        index -= 1
    return history


def broken(found: tuple[list[str], Exception] | None) -> str | None:
    """The rule, or the kind of error."""
    if found is None:
        return None
    return found[1].rule if isinstance(found[1], RuleError) else type(found[1]).__name__
