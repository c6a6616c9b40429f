"""The same workload made as it is needed: for runs of more requests than anybody wants in memory.

Requests are those of kvlab.workload.make, but for sampling seeds, which nobody looks at where nothing is sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any

import numpy as np

from kvlab.request import Request
from kvlab.sketch import Sketch
from kvlab.workload import arrivals, lengths
from kvlab.workload.knobs import Config, positive
from kvlab.workload.make import Workload, check_arguments, make
from kvlab.workload.requests import Maker, maker
from kvlab.workload.rows import Rows
from kvlab.workload.sources import check_knobs, draw
from kvlab.workload.summary import summarise

AT_ONCE = 4096  # lengths added up together
Pair = tuple[int, int]  # tokens of prompt and output


@dataclass(frozen=True, slots=True)
class Stream:
    """num_requests: arrivals, those included that max_len refuses, which `requests` and `times` lack."""

    requests: Callable[[], Iterator[Request]]  # in order of arrival
    times: Callable[[], Iterator[float]]  # their arrivals, without making them
    num_requests: int
    least_limit: int  # no request declares less
    about: dict[str, Any]  # for the result file, but for what `lengths` adds up
    lengths: Lengths


class Lengths:
    """Adds the lengths up while requests are made; percentiles are sketched."""

    def __init__(self) -> None:
        self.refused, self.waiting = 0, list[Pair]()
        self.total, self.parts = 0, (Sketch(), Sketch())

    def add(self, pair: Pair) -> None:
        self.waiting.append(pair)
        if len(self.waiting) == AT_ONCE:
            self._flush()

    def summary(self) -> dict[str, Any]:
        self._flush()
        prompt, output = self.parts
        return {
            "num_refused": self.refused,
            "prompt_tokens": prompt.spread(),
            "output_tokens": output.spread(),
            "total_tokens": self.total,
        }

    def _flush(self) -> None:
        pair_N2 = np.array(self.waiting, np.float64).reshape(-1, 2)
        self.waiting.clear()
        self.total += int(pair_N2.sum())
        for part, length_N in zip(self.parts, pair_N2.T, strict=True):
            part.add(length_N)


def stream(config: Config, *, seed: int, max_len: int, vocab: int | None) -> Stream:
    """The workload of the resolved `workload` node. What a file or another package gives is held whole."""
    check_arguments(seed, max_len, vocab)
    if "_target_" in config or config.get("path") is not None:
        return of_list(make(config, seed=seed, max_len=max_len, vocab=vocab), max_len)
    check_knobs(config)
    count, scale = lengths.requests_to_draw(config), positive(config, "scale", 1.0)
    kind, rate = arrivals.kind(config), positive(config, "rate", 1.0)
    made = maker(config, seed=seed, max_len=max_len, vocab=vocab)
    lengths_alone, summed = vocab is None and made.plain, Lengths()

    def pairs() -> Iterator[Pair]:
        drawn = draw(config, seed, max_len)
        return (_shaped(drawn.origin, pair, scale, made) for pair in islice(drawn.pairs, count))

    def times() -> Iterator[float]:
        return arrivals.poisson_times(rate, seed) if kind == "poisson" else repeat(0.0)

    def requests() -> Iterator[Request]:
        for id, (pair, time) in enumerate(zip(pairs(), times(), strict=False)):
            if sum(pair) > max_len:
                summed.refused += 1
                continue
            summed.add(pair)
            if lengths_alone:
                yield Request(id, *pair, made.limit(pair[0]), time)
            else:
                yield made.request(id, *pair, time, None)

    return Stream(
        requests,
        lambda: (time for pair, time in zip(pairs(), times(), strict=False) if sum(pair) <= max_len),
        count,
        max_len if made.max_tokens is None else 1,
        {
            "name": str(config["name"]),
            **draw(config, seed, max_len).origin,
            "num_requests": count,
            "length_scale": scale,
            **made.about,
            "arrivals": kind,
            "rate_per_s": config.get("rate"),
        },
        summed,
    )


def of_list(workload: Workload, max_len: int) -> Stream:
    """Requests that exist already."""
    made = workload.requests
    summed = Lengths()
    summed.refused = len(workload.refused)

    def requests() -> Iterator[Request]:
        for request in made:
            summed.add((request.prompt_len, request.output_len or 0))
            yield request

    return Stream(
        requests,
        lambda: (request.arrival_s for request in made),
        len(made) + len(workload.refused),
        min((request.limit for request in made), default=max_len),
        {key: value for key, value in workload.info.items() if key not in summarise([], [])}
        | {"num_requests": len(made) + len(workload.refused)},
        summed,
    )


def describe(made: Stream) -> str:
    """One line for people, before anything was drawn."""
    about = made.about
    when = "all at 0" if about["arrivals"] == "all_at_0" else f"arrivals {about['arrivals']}"
    rate = f" at {about['rate_per_s']:g}/s" if about["arrivals"] == "poisson" else ""
    kind = "synthetic: " if about["synthetic"] else ""
    return f"{about['name']} ({kind}{about['source']}): {made.num_requests:,} requests; {when}{rate}"


def _shaped(origin: dict[str, Any], pair: Pair, scale: float, made: Maker) -> Pair:
    """As kvlab.workload.make shapes a row."""
    if scale == 1 and made.max_tokens is None and not made.system_prompt:
        return pair
    rows = Rows([pair[0]], [pair[1]], origin).scaled(scale).cut(made.max_tokens).behind(made.system_prompt)
    return rows.prompt[0], rows.output[0]
