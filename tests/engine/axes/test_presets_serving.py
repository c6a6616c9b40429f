"""Presets and axes in real runs of a tiny model over a tight pool: all make the tokens of requests served alone."""

from __future__ import annotations

import itertools
from pathlib import Path
from random import Random

import pytest

from kvlab.build import AXES
from kvlab.harness import plugins
from kvlab.harness.compose import Composer
from kvlab.run import execute

pytestmark = pytest.mark.usefixtures("one_thread")

CONF = Path(plugins.__file__).parents[1] / "conf"
NAMES = {group: sorted(path.stem for path in CONF.glob(f"{group}/*.yaml")) for group in (*AXES, "preset", "strategy")}
WORK = [
    "model=tiny", "dtype=float64", "engine.clock=steps", "max_len=64", "pool_bytes=192KiB", "page_group_bytes=4096",
    "workload=uniform", "workload.prompt_len={min: 1, max: 30}", "workload.output_len={min: 1, max: 24}",
    "workload.num_requests=16",
]  # fmt: skip


@pytest.fixture(scope="module")
def served(composer: Composer, tmp_path_factory: pytest.TempPathFactory):
    """The result of a run with these overrides; the engine checks that nothing stays held."""
    return lambda *lines: execute(composer.compose([*WORK, *lines]).config, tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def alone(served):
    return served("strategy=paged", "block_size=1", "engine.max_seqs=1")


@pytest.mark.parametrize("name", NAMES["preset"])
def test_every_preset_serves_everybody_the_same_tokens(name: str, served, alone) -> None:
    result = served(f"preset={name}")
    assert (result["num_finished"], result["num_refused"], result["num_failed"]) == (16, 0, 0)
    assert result["output_digest"] == alone["output_digest"]


def mixed(seed: int) -> list[str]:
    """Any strategy under any axes."""
    draw = Random(seed)
    chosen = {group: draw.choice(NAMES[group]) for group in (*AXES, "strategy")}
    if chosen["admission"] == "oracle":
        chosen["forecast"] = "oracle"
    engine = {"chunk": draw.choice(("null", 3, 16)), "token_budget": draw.choice(("null", 8, 40))}
    host = draw.choice((0, 16384))
    settings = [f"engine.{name}={value}" for name, value in engine.items()]
    return [*itertools.starmap("{}={}".format, chosen.items()), *settings, f"host_bytes={host}"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_whatever_the_axes_who_finishes_has_the_same_tokens(seed: int, served, alone) -> None:
    result = served(*mixed(seed))
    ended = [result[f"num_{outcome}"] for outcome in ("finished", "refused", "failed")]
    assert sum(ended) == 16
    if result["num_finished"] == 16:
        assert result["output_digest"] == alone["output_digest"]
