"""Named traces without their files: a small table of quantiles of a public trace, and draws from it.

A table has the quantiles of the prompt length, and those of the output length for each of 20 equally
large groups of requests by prompt length, so that long prompts keep the outputs that go with them.
experiments/make_quantiles.py makes the tables from the real files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvlab.workload.rows import Drawn, Rows

GROUPS = 20
AT_ONCE = 1024  # rows drawn together
# Half-percent steps, and finer ones where a long tail would otherwise be a straight line to the maximum.
LEVELS = [*np.linspace(0, 0.995, 200).round(4).tolist(), 0.996, 0.997, 0.998, 0.999, 0.9995, 1.0]
GROUP_LEVELS = [*np.linspace(0, 0.99, 100).round(4).tolist(), 0.995, 0.998, 1.0]


def table_folder() -> Path:
    return Path(__file__).parent / "tables"


def table_names() -> list[str]:
    return sorted(path.stem for path in table_folder().glob("*.json"))


def build(prompt: list[int], output: list[int]) -> dict[str, Any]:
    """The quantile table of a trace, as plain lists of whole numbers."""
    by_prompt = np.argsort(prompt, kind="stable")
    groups = np.array_split(np.array(output)[by_prompt], GROUPS)
    return {
        "rows": len(prompt),
        "max_total": int((np.array(prompt) + np.array(output)).max()),
        "levels": LEVELS,
        "prompt": np.quantile(prompt, LEVELS).round().astype(int).tolist(),
        "group_levels": GROUP_LEVELS,
        "output": [np.quantile(group, GROUP_LEVELS).round().astype(int).tolist() for group in groups],
    }


def draw(name: str, n: int, seed: int) -> Rows:
    """n rows from the table called `name`; the first ones do not depend on n."""
    return drawn(name, seed).rows(n)


def drawn(name: str, seed: int) -> Drawn:
    """Rows from the table called `name`."""
    table = json.loads((table_folder() / f"{name}.json").read_text())
    return Drawn(_pairs(table, Random(f"{seed} quantiles")), origin(table))


def _pairs(table: dict[str, Any], rng: Random) -> Iterator[tuple[int, int]]:
    while True:
        yield from _some(table, np.array([(rng.random(), rng.random()) for _ in range(AT_ONCE)]))


def _some(table: dict[str, Any], uniform_N2: NDArray[np.float64]) -> Iterator[tuple[int, int]]:
    u_N, v_N = uniform_N2.T
    prompt_N = np.interp(u_N, table["levels"], table["prompt"]).round().astype(int)
    output_N = np.empty(len(u_N), dtype=int)
    for index, quantiles in enumerate(table["output"]):
        here = (u_N * len(table["output"])).astype(int) == index
        output_N[here] = np.interp(v_N[here], table["group_levels"], quantiles).round()
    # The files themselves were filtered by total length; a drawn pair must not be longer than any real one.
    output_N = np.maximum(1, np.minimum(output_N, table["max_total"] - prompt_N))
    return zip(prompt_N.tolist(), output_N.tolist(), strict=True)


def origin(table: dict[str, Any]) -> dict[str, Any]:
    source = f"quantiles of {table['source']}, {table['rows']:,} rows"
    return {"synthetic": True, "source": source} | {
        key: table[key] for key in ("published", "licence", "attribution", "changes")
    }
