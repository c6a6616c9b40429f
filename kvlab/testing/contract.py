"""The contract: many random lives, on memories of the contract's choosing, then a search for a short failure.

`StrategyContract` is what a test file inherits; `lives` is what `kvlab check` runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kvlab.strategy import Memory, Strategy
from kvlab.testing import honesty
from kvlab.testing.life import Life
from kvlab.testing.memories import SETTINGS, SHORT, Setting
from kvlab.testing.rule import RuleError
from kvlab.testing.watchdog import watched

Make = Callable[[Memory], Strategy]
MakeFor = Callable[[Setting], Strategy]


@dataclass
class Report:
    """What lives exercised."""

    lives: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    memories: Counter[str] = field(default_factory=Counter)  # name -> lives


class LifeError(AssertionError):
    """A life that did not go well: its seed, its memory, why, and the command that repeats it."""

    def __init__(self, seed: int, setting: Setting, cause: Exception, repeat: str, report: Report) -> None:
        self.cause, self.repeat, self.report = cause, repeat, report
        self.rule = cause.rule if isinstance(cause, RuleError) else type(cause).__name__
        why = str(cause) if isinstance(cause, RuleError) else f"raised {type(cause).__name__}: {cause}"
        super().__init__(f"{why}\n  seed {seed}, memory '{setting.name}': {setting.memory}\n  repeat: {repeat}")


def lives(
    make_for: MakeFor,
    seeds: Iterable[int],
    steps: int,
    repeat: str = "kvlab check NAME",
    progress: Callable[[Report], None] = lambda report: None,
) -> Report:
    """One life a seed, each on the next memory.

    Raises LifeError for the first that fails, and ValueError if the strategy refuses every memory.
    """
    report, usable = Report(), acceptable(make_for)
    for seed in seeds:
        setting = usable[seed % len(usable)]
        try:
            with watched():
                life = Life(make_for(setting), seed)
                honesty.longest_is_reached(make_for(setting))
                report.seen += life.live(steps)
        except Exception as error:  # a strategy may raise anything
            command = f"{repeat} --seed {seed} --steps {steps}"
            raise LifeError(seed, setting, error, command, report) from error
        report.lives += 1
        report.memories[setting.name] += 1
        progress(report)
    if report.seen["cache probed"] > 40 and not report.seen["hits"]:  # promises nothing, and keeps that
        cause = RuleError("hit", f"of {report.seen['admitted']} arrivals none hit, though many prefixes were told")
        raise LifeError(seed, setting, cause, f"{repeat} --seeds {report.lives} --steps {steps}", report)
    return report


def acceptable(make_for: MakeFor, settings: Iterable[Setting] = SETTINGS) -> list[Setting]:
    """The memories on which the strategy promises to hold a sequence of a token at least."""
    usable, reasons = [], []
    for setting in settings:
        try:
            longest = make_for(setting).longest
        except ValueError as error:
            reasons.append(f"{setting.name}: {error}")
            continue
        if longest >= 1:
            usable.append(setting)
        else:
            reasons.append(f"{setting.name}: longest = {longest}")
    if not usable:
        raise ValueError(f"no memory of the contract suits it: {'; '.join(reasons)}")
    return usable


class StrategyContract:
    """Inherit, and say how your strategy is made:

        class TestMine(StrategyContract):
            make = Mine

    or, with arguments, `def make(self, memory): return Mine(memory, block_size=8)`.
    """

    seeds, steps = 32, 100  # random lives
    examples = 60  # histories that the state machine tries, each on a memory of its own

    def make(self, memory: Memory) -> Strategy:
        raise NotImplementedError("say `make = MyStrategy`, or write a method make(self, memory)")

    def test_random_lives(self) -> None:
        lives(lambda setting: self.make(setting.memory), range(self.seeds), self.steps, self._repeat())

    def test_state_machine(self) -> None:
        from kvlab.testing.machine import explore

        for setting in acceptable(lambda setting: self.make(setting.memory), SHORT):
            explore(self.make, setting.memory, self.examples)

    def _repeat(self) -> str:
        from kvlab.testing.script import target

        return f"kvlab check {target(self.make, SETTINGS[0].memory)}"
