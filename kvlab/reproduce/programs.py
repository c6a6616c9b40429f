"""Programs that call a model again and again: a call's prompt goes on from what an earlier one had.

Calls that nobody waits for are on their way together; so many programs at a time. A simulated run says tokens that
depend on a sequence and a position alone, so that a prompt can hold an answer before it is served.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvlab import simulate
from kvlab.engine.columns import Ended
from kvlab.engine.sequence import Sequence as Served
from kvlab.engine.simulated import SimulatedEngine, hashed
from kvlab.record.outcomes import Outcomes
from kvlab.record.series import Thinned
from kvlab.record.step import merged
from kvlab.reproduce.frame import Lab
from kvlab.reproduce.serving import SIMULATED
from kvlab.request import Request
from kvlab.workload.content import Words
from kvlab.workload.make import Workload
from kvlab.workload.stream import of_list

EVERYBODY = 1 << 40
Tokens = NDArray[np.int32]


class Piece(NamedTuple):
    """Tokens that a name stands for: the same name is the same text."""

    name: int
    tokens: int


class Call(NamedTuple):
    """One prompt and its answer."""

    new: tuple[Piece, ...]  # what it adds to the call before it
    output: int  # tokens
    after: int | None = None  # which call of its program is before it; None: it begins one
    answered: bool = True  # whether that call's answer is part of the prompt, too


Program = list[Call]  # a call comes behind the one that it goes on from


class Result(NamedTuple):
    prompt_tokens: int
    hit_tokens: int
    duration_s: float

    @property
    def hit_rate(self) -> float:
        """Percent of the prompts' tokens."""
        return 100 * self.hit_tokens / self.prompt_tokens


def serve(lab: Lab, overrides: Sequence[str], programs: Sequence[Program], together: int, share: bool = True) -> Result:
    """Every call of the programs, so many programs at a time. share=False: no request finds what another computed."""
    config = lab.compose([*SIMULATED, *overrides])
    planned = simulate.plan(config)
    planned.workload = of_list(Workload([], [], planned.workload.about), int(config["max_len"]))
    over = Over()
    engine = simulate.make_engine(config, planned, Outcomes(over, EVERYBODY), Thinned(EVERYBODY, merged))
    assert isinstance(engine, SimulatedEngine)
    caller = Caller(programs, int(config["seed"]), planned.shape.vocab, share)
    enqueue(engine, caller.begin(together))
    while engine.step() or over.ids:
        enqueue(engine, [one for id in over.take() for one in caller.go_on(id)])
    tally = engine.scheduler.tally
    if tally.num_ended < (count := sum(map(len, programs))):
        raise RuntimeError(f"{' '.join(overrides)}: {tally.num_ended} of {count} calls ended")
    return Result(tally.input_tokens, tally.hit_tokens, engine.clock.now())


def enqueue(engine: SimulatedEngine, requests: Iterable[Request]) -> None:
    for request in requests:
        engine.scheduler.enqueue(replace(request, arrival_s=engine.clock.now()))


class Over:
    """Takes the ids of requests that have finished."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def one(self, sequence: Served) -> None:
        if sequence.outcome != "finished":
            raise RuntimeError(f"request {sequence.id}: {sequence.outcome}, {sequence.reason}")
        self.ids.append(sequence.id)

    def many(self, ended: Ended, most: int) -> None:
        raise NotImplementedError("calls are served one by one")

    def take(self) -> list[int]:
        ids, self.ids = self.ids, []
        return ids


class Caller:
    """Makes a request of a call as soon as the call before it has its answer."""

    def __init__(self, programs: Sequence[Program], seed: int, vocab: int, share: bool) -> None:
        self.programs, self.share = programs, share
        self.words, self.answer = Words(seed, vocab), hashed(vocab)
        self.rest = iter(range(len(programs)))
        self.left: dict[int, int] = {}  # calls of a program that is under way
        self.made: list[tuple[int, int, Tokens]] = []  # program, call and prompt of each request

    def begin(self, count: int) -> list[Request]:
        return [one for _, number in zip(range(count), self.rest, strict=False) for one in self._open(number)]

    def _open(self, number: int) -> list[Request]:
        self.left[number] = len(self.programs[number])
        return self._follow(number, None, np.empty(0, np.int32), np.empty(0, np.int32))

    def go_on(self, id: int) -> list[Request]:
        """What may be asked once that request is done; another program, where it was the last one of its own."""
        number, index, prompt = self.made[id]
        output = self.programs[number][index].output
        said = self.answer(np.full(output, id), len(prompt) + np.arange(output))
        self.left[number] -= 1
        return self._follow(number, index, prompt, said) if self.left[number] else self.begin(1)

    def _follow(self, number: int, index: int | None, prompt: Tokens, said: Tokens) -> list[Request]:
        calls = self.programs[number]
        return [
            self._request(number, follower, np.concatenate([prompt, said]) if call.answered else prompt)
            for follower, call in enumerate(calls)
            if call.after == index
        ]

    def _request(self, number: int, index: int, before: Tokens) -> Request:
        call, id = self.programs[number][index], len(self.made)
        prompt = np.concatenate([before, *(self.words.of(*piece) for piece in call.new)]).astype(np.int32)
        prompt.flags.writeable = False
        self.made.append((number, index, prompt))
        length = len(prompt)
        return Request(
            id, length, call.output, length + call.output, prompt=prompt, space=0 if self.share else id
        )  # fmt: skip
