"""From a configuration and a seed to requests: rows, scaled, with arrivals and prompts.

A row that cannot fit is refused on arrival and keeps its id, so that a request has the same id, the
same prompt and the same arrival whatever max_len, scale or pool it meets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from kvlab.errors import UsageError
from kvlab.imports import object_at
from kvlab.request import Request
from kvlab.workload import arrivals
from kvlab.workload.content import Content
from kvlab.workload.knobs import Config, positive, whole
from kvlab.workload.requests import maker
from kvlab.workload.rows import Rows
from kvlab.workload.sources import OWN, check_knobs, find_rows
from kvlab.workload.summary import Refused, summarise


@dataclass(frozen=True, slots=True)
class Workload:
    """What arrives in one run. Ids 0, 1, 2 ... count all arrivals; `requests` lacks those of `refused`."""

    requests: list[Request]  # in order of arrival
    refused: list[Refused]
    info: dict[str, Any]  # for the result file


def make(config: Config, *, seed: int, max_len: int, vocab: int | None, temperature: float = 0.0) -> Workload:
    """The workload of the resolved `workload` node; the same arguments give the same requests anywhere.

    vocab: token ids lie below it; None: lengths only. Raises UsageError for any wrong knob or file.
    """
    check_arguments(seed, max_len, vocab)
    if "_target_" in config:
        return elsewhere(config, seed=seed, max_len=max_len, vocab=vocab, temperature=temperature)
    check_knobs(config)
    rows = find_rows(config, seed, max_len)
    return from_rows(rows, config, seed=seed, max_len=max_len, vocab=vocab, temperature=temperature)


def from_rows(
    rows: Rows, config: Config, *, seed: int, max_len: int, vocab: int | None, temperature: float = 0.0
) -> Workload:
    """The workload of rows that were drawn or read: scaled, with arrivals and prompts.

    Of the node it takes what kvlab.workload.requests reads, scale, arrivals, rate, time_scale and think_s, each as if
    null where absent.
    """
    made = maker(config, seed=seed, max_len=max_len, vocab=vocab, temperature=temperature)
    scale = positive(config, "scale", 1.0)
    rows, times = arrivals.arranged(config, rows.scaled(scale), seed)
    num_cut = sum(length > made.max_tokens for length in rows.output) if made.max_tokens else 0
    rows = rows.cut(made.max_tokens).behind(made.system_prompt)
    refused = refuse(rows, max_len)
    gone = {refusal.id for refusal in refused}
    content: Iterable[Content | None] = rows.content or [None] * len(rows)
    requests = [
        made.request(id, *row)
        for id, row in enumerate(zip(rows.prompt, rows.output, times, content, strict=True))
        if id not in gone
    ]
    info = {
        "name": reported_name(config),
        **rows.origin,
        **summarise(requests, refused),
        "length_scale": scale,
        "num_cut_by_max_tokens": num_cut,
        **made.about,
        "arrivals": arrivals.kind(config),
        "rate_per_s": config.get("rate"),
    }
    return Workload(requests, refused, info)


def elsewhere(config: Config, *, seed: int, max_len: int, vocab: int | None, temperature: float) -> Workload:
    """What a function of another package makes of the same arguments; what its info lacks is filled in."""
    target = str(config["_target_"])
    made = object_at(target, "workload._target_")(
        config, seed=seed, max_len=max_len, vocab=vocab, temperature=temperature
    )
    if not isinstance(made, Workload):
        raise UsageError(f"workload._target_={target}: gave {type(made).__name__}; allowed is a Workload")
    check_requests(made.requests, max_len, target)
    at_once = all(request.arrival_s == 0 for request in made.requests)
    info = {
        "name": config["name"],
        "synthetic": True,
        "source": target,
        **summarise(made.requests, made.refused),
        "length_scale": 1.0,
        "arrivals": "all_at_0" if at_once else "file",
        "rate_per_s": None,
    }
    return replace(made, info={**info, **made.info})


def check_requests(requests: list[Request], max_len: int, target: str) -> None:
    """Raise UsageError for requests that no engine could serve."""
    before = -1, 0.0
    for request in requests:
        id, output_len = request.id, 1 if request.output_len is None else request.output_len
        final = request.prompt_len + output_len
        rules = {
            "ids rise": id > before[0],
            "arrivals rise": request.arrival_s >= before[1],
            "prompt_len and output_len are 1 or more": min(request.prompt_len, output_len) >= 1,
            f"prompt_len + output_len <= limit <= max_len={max_len}": final <= request.limit <= max_len,
            "prompt holds prompt_len ids": request.prompt is None or len(request.prompt) == request.prompt_len,
        }
        if broken := [rule for rule, holds in rules.items() if not holds]:
            raise UsageError(f"workload._target_={target}: request {id} breaks the rule: {broken[0]}")
        before = id, request.arrival_s


def refuse(rows: Rows, max_len: int) -> list[Refused]:
    """The rows that would grow beyond max_len: counted, never cut to fit."""
    return [
        Refused(id, prompt, output, f"{prompt} prompt + {output} output tokens are more than max_len={max_len}")
        for id, (prompt, output) in enumerate(zip(rows.prompt, rows.output, strict=True))
        if prompt + output > max_len
    ]


def check_arguments(seed: int, max_len: int, vocab: int | None) -> None:
    whole({"seed": seed}, "seed", least=0, most=None, where="")
    whole({"max_len": max_len}, "max_len", where="")
    if vocab is not None:
        whole({"vocab": vocab}, "vocab", where="")


def reported_name(config: Config) -> str:
    """A formula's name would be wrong beside lengths that came from a file."""
    return "file" if config.get("path") is not None and config["name"] in OWN else str(config["name"])


def describe(workload: Workload) -> str:
    """One line for people."""
    info = workload.info
    prompt, output = info["prompt_tokens"], info["output_tokens"]
    parts = [f"{info['num_requests']:,} requests" + (f", {info['num_refused']:,} refused" if workload.refused else "")]
    if workload.requests:
        parts.append(f"prompt mean {prompt['mean']:,.0f} p99 {prompt['p99']:,}")
        parts.append(f"output mean {output['mean']:,.0f} p99 {output['p99']:,}")
        parts.append(f"{info['total_tokens']:,} tokens in all")
    if info["length_scale"] != 1:
        parts.append(f"lengths x {info['length_scale']:g}")
    parts.append("all at 0" if info["arrivals"] == "all_at_0" else arrival_words(workload))
    return f"{info['name']} ({'synthetic: ' if info['synthetic'] else ''}{info['source']}): {'; '.join(parts)}"


def arrival_words(workload: Workload) -> str:
    info, last = workload.info, workload.requests[-1].arrival_s if workload.requests else 0.0
    rate = f" at {info['rate_per_s']:g}/s" if info["arrivals"] == "poisson" else ""
    return f"arrivals {info['arrivals']}{rate} over {last:,.1f} s"
