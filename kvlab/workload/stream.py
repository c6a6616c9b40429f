"""The same workload made as it is needed: for runs of more requests than anybody wants in memory.

Requests are those of kvlab.workload.make, but for sampling seeds, which nobody looks at where nothing is sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvlab.request import Request
from kvlab.sketch import Sketch
from kvlab.workload import arrivals, lengths
from kvlab.workload.knobs import Config, positive
from kvlab.workload.make import Workload, check_arguments, make
from kvlab.workload.requests import Maker, maker
from kvlab.workload.rows import Rows
from kvlab.workload.sources import check_knobs, draw
from kvlab.workload.summary import summarise

AT_ONCE = 4096  # requests drawn together
Pairs = NDArray[np.int64]  # [N, 2] tokens of prompt and output


class Batch(NamedTuple):
    """N requests in order of arrival, of which nothing is known but this; tokens, seconds."""

    id: NDArray[np.int64]
    prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    limit: NDArray[np.int64]
    arrival_s: NDArray[np.float64]

    def each(self) -> Iterator[tuple[int, int, int, int, float]]:
        return zip(*(column.tolist() for column in self), strict=True)


@dataclass(frozen=True, slots=True)
class Stream:
    """num_requests: arrivals, those included that max_len refuses, which `requests` and `times` lack."""

    requests: Callable[[], Iterator[Request]]  # in order of arrival
    times: Callable[[], Iterator[float]]  # their arrivals, without making them
    batches: Callable[[], Iterator[Batch]] | None  # the same requests; None: there is more to them than a batch says
    num_requests: int
    least_limit: int  # no request declares less
    about: dict[str, Any]  # for the result file, but for what `lengths` adds up
    lengths: Lengths


class Lengths:
    """Adds the lengths up while requests are made; percentiles are sketched."""

    def __init__(self) -> None:
        self.refused = self.total = 0
        self.parts = Sketch(), Sketch()

    def add(self, pair_N2: Pairs, refused: int = 0) -> None:
        self.refused += refused
        self.total += int(pair_N2.sum())
        for part, length_N in zip(self.parts, pair_N2.T, strict=True):
            part.add(length_N.astype(np.float64))

    def summary(self) -> dict[str, Any]:
        prompt, output = self.parts
        return {
            "num_refused": self.refused,
            "prompt_tokens": prompt.spread(),
            "output_tokens": output.spread(),
            "total_tokens": self.total,
        }


def stream(config: Config, *, seed: int, max_len: int, vocab: int | None) -> Stream:
    """The workload of the resolved `workload` node. What a file or another package gives is held whole."""
    check_arguments(seed, max_len, vocab)
    if "_target_" in config or config.get("path") is not None:
        return of_list(make(config, seed=seed, max_len=max_len, vocab=vocab), max_len)
    check_knobs(config)
    return Drawn(config, seed, max_len, vocab).stream()


class Drawn:
    """Requests whose lengths and arrivals are drawn: the same ones each time that somebody asks."""

    def __init__(self, config: Config, seed: int, max_len: int, vocab: int | None) -> None:
        self.config, self.seed, self.max_len = config, seed, max_len
        self.count, self.scale = lengths.requests_to_draw(config), positive(config, "scale", 1.0)
        self.kind, self.rate = arrivals.kind(config), positive(config, "rate", 1.0)
        self.made = maker(config, seed=seed, max_len=max_len, vocab=vocab)
        self.lengths_alone, self.summed = vocab is None and self.made.plain, Lengths()

    def stream(self) -> Stream:
        batches = self.batches if self.lengths_alone else None
        least = self.max_len if self.made.max_tokens is None else 1
        return Stream(self.requests, self.times, batches, self.count, least, self.about(), self.summed)

    def counted(self) -> Iterator[tuple[Batch, int]]:
        """Batches, each with how many were refused between its requests."""
        first = 0
        when = arrivals.poisson_times(self.rate, self.seed) if self.kind == "poisson" else repeat(0.0)
        source = draw(self.config, self.seed, self.max_len)
        left = islice(source.pairs, self.count)
        while len(raw := np.fromiter(chain.from_iterable(islice(left, AT_ONCE)), np.int64)):
            pair_N2 = _shaped(source.origin, raw.reshape(-1, 2), self.scale, self.made)
            id_N = np.arange(first, first + len(pair_N2))
            arrival_s_N = np.fromiter(islice(when, len(pair_N2)), np.float64)
            fits_N = pair_N2.sum(axis=1) <= self.max_len
            prompt_N, output_N = pair_N2[fits_N].T
            limit_N = _limits(self.made, prompt_N)
            yield Batch(id_N[fits_N], prompt_N, output_N, limit_N, arrival_s_N[fits_N]), int((~fits_N).sum())
            first += len(pair_N2)

    def batches(self) -> Iterator[Batch]:
        for batch, refused in self.counted():
            self.summed.add(np.stack((batch.prompt, batch.output), axis=1), refused)
            yield batch

    def requests(self) -> Iterator[Request]:
        for id, prompt, output, limit, time in chain.from_iterable(map(Batch.each, self.batches())):
            if self.lengths_alone:
                yield Request(id, prompt, output, limit, time)
            else:
                yield self.made.request(id, prompt, output, time, None)

    def times(self) -> Iterator[float]:
        return chain.from_iterable(batch.arrival_s.tolist() for batch, _ in self.counted())

    def about(self) -> dict[str, Any]:
        return {
            "name": str(self.config["name"]),
            **draw(self.config, self.seed, self.max_len).origin,
            "num_requests": self.count,
            "length_scale": self.scale,
            **self.made.about,
            "arrivals": self.kind,
            "rate_per_s": self.config.get("rate"),
        }


def of_list(workload: Workload, max_len: int) -> Stream:
    """Requests that exist already."""
    made = workload.requests
    summed = Lengths()
    pair_N2 = np.array([(one.prompt_len, one.output_len or 0) for one in made], np.int64).reshape(-1, 2)
    summed.add(pair_N2, len(workload.refused))

    arrival_s_N = np.array([one.arrival_s for one in made], np.float64)

    def batches() -> Iterator[Batch]:
        id_N, limit_N = np.array([(one.id, one.limit) for one in made], np.int64).reshape(-1, 2).T
        prompt_N, output_N = pair_N2.T
        yield Batch(id_N, prompt_N, output_N, limit_N, arrival_s_N)

    return Stream(
        lambda: iter(made),
        lambda: iter(arrival_s_N.tolist()),
        batches if all(map(_is_plain, made)) else None,
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


def _shaped(origin: dict[str, Any], pair_N2: Pairs, scale: float, made: Maker) -> Pairs:
    """As kvlab.workload.make shapes rows."""
    if scale == 1 and made.max_tokens is None and not made.system_prompt:
        return pair_N2
    prompts, outputs = pair_N2.T.tolist()
    rows = Rows(prompts, outputs, origin).scaled(scale).cut(made.max_tokens).behind(made.system_prompt)
    return np.array((rows.prompt, rows.output), np.int64).T


def _limits(made: Maker, prompt_N: NDArray[np.int64]) -> NDArray[np.int64]:
    """As Maker.limit says."""
    if made.max_tokens is None:
        return np.full(len(prompt_N), made.max_len)
    return np.minimum(made.max_len, prompt_N + made.max_tokens)


def _is_plain(one: Request) -> bool:
    """Whether a batch says all that there is to it."""
    plain = (one.n, one.beams, one.priority, one.space) == (1, 0, 0, 0)
    return plain and one.prompt is None and one.output_len is not None
