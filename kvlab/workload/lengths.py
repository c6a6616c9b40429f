"""Lengths drawn from a formula, without end, or written down, one by one.

The first n requests of a longer workload are the workload of n requests.
Only `random.Random` draws here: Python promises the same numbers in every version.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, repeat
from math import log
from random import Random

from kvlab.errors import UsageError
from kvlab.workload.knobs import Config, number, optional_whole, positive, shown, span, whole
from kvlab.workload.rows import Drawn


def lognormal_lengths(n: int, seed: int, mu: float, sigma: float, cap: int) -> list[int]:
    """Total lengths [n] in tokens, from 1 to `cap`.

    The draw is fixed by a published figure: 2,000 lengths of seed 0 with mu 5.5, sigma 0.9 and
    cap 4,096 add up to 730,840 tokens.
    """
    return list(islice(lognormal_totals(seed, mu, sigma, cap), n))


def lognormal_totals(seed: int, mu: float, sigma: float, cap: int) -> Iterator[int]:
    rng = Random(seed)
    while True:
        yield max(1, min(cap, int(rng.lognormvariate(mu, sigma))))


def split(total: int, prompt_share: float) -> tuple[int, int]:
    """(prompt, output) of a total; each has at least one token, so a total of 1 becomes 2."""
    prompt = max(1, min(total - 1, int(total * prompt_share)))
    return prompt, max(1, total - prompt)


def lognormal(config: Config, seed: int, max_len: int) -> Drawn:
    # exp(50 + 10 sigmas of 10) is still a number; larger values would overflow, and mean nothing.
    sigma = number(config, "sigma", 0, 10)
    mu = number({"mu": _mu(config, sigma)}, "mu", 0, 50)
    cap = optional_whole(config, "cap") or max_len
    share = number(config, "prompt_share", 0, 1)
    pairs = (split(total, share) for total in lognormal_totals(seed, mu, sigma, cap))
    source = f"lognormal total, mu {mu:g}, sigma {sigma:g}, cap {cap}, prompt share {share:g}"
    return Drawn(pairs, {"synthetic": True, "source": source})


def _mu(config: Config, sigma: float) -> object:
    """Given as it is, or by the mean, which then stays the same whatever sigma is."""
    if config.get("mean") is None:
        return config.get("mu")
    return log(positive(config, "mean", 1.0)) - sigma**2 / 2


def uniform(config: Config, seed: int) -> Drawn:
    prompt, output = span(config, "prompt_len"), span(config, "output_len")
    rng = Random(f"{seed} uniform")
    pairs = ((between(rng, *prompt), between(rng, *output)) for _ in repeat(None))
    source = f"uniform, prompt {prompt[0]} to {prompt[1]}, output {output[0]} to {output[1]}"
    return Drawn(pairs, {"synthetic": True, "source": source})


def between(rng: Random, low: int, high: int) -> int:
    # Built on random() alone, the one method whose sequence Python guarantees.
    return low + int(rng.random() * (high - low + 1))


def fixed(config: Config) -> Drawn:
    prompt, output = whole(config, "prompt_len"), whole(config, "output_len")
    source = f"fixed, prompt {prompt}, output {output}"
    return Drawn(repeat((prompt, output)), {"synthetic": True, "source": source})


def listed(config: Config) -> Drawn:
    """The one source with an end: asked for more requests than it lists, it refuses."""
    given = config.get("lengths")
    if not isinstance(given, list) or not given or not all(map(_is_pair, given)):
        allowed = "a list with [prompt, output] of each request, tokens, 1 or more"
        raise UsageError(f"workload.lengths={shown(given):.80}: allowed is {allowed}")
    count = requests_to_draw(config)
    if count > len(given):
        raise UsageError(f"workload.num_requests={count}: allowed is at most {len(given)}, as many as workload.lengths")
    return Drawn(iter([(prompt, output) for prompt, output in given]), {"synthetic": True, "source": "written down"})


def _is_pair(item: object) -> bool:
    return isinstance(item, list) and len(item) == 2 and all(type(part) is int and 1 <= part <= 10**9 for part in item)


def requests_to_draw(config: Config) -> int:
    if config.get("num_requests") is None:
        raise UsageError(
            "workload.num_requests=null: allowed is a whole number, 1 or more; null means every row of a file"
        )
    return whole(config, "num_requests", most=10**6)
