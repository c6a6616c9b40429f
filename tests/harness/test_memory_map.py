"""The memory map against the accounting: at every step the addresses in each state add up to what the books say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvlab import run, simulate
from kvlab.harness.compose import Composer
from kvlab.record.memory_map import FILE, STATES, MemoryMap
from kvlab.record.outcomes import Outcomes
from kvlab.record.recorder import Recorder
from kvlab.record.series import Thinned
from kvlab.record.step import merged

BASE = [
    "executor=simulated", "model=llama_3_8b", "gpu=h100", "dtype=bfloat16", "pool_bytes=128MiB", "max_len=256",
    "workload.num_requests=20", "workload.shared_prefix=0.5", "workload.mean=90", "workload.cap=250", "engine.chunk=64",
]  # fmt: skip


class Everybody:
    def one(self, sequence: Any) -> None: ...

    def many(self, ended: Any, most: int) -> None: ...


def run_with(config: dict[str, Any], moments: int, addresses: int, monkeypatch: Any) -> Recorder:
    """The run, with a map so fine; its recorder."""
    monkeypatch.setattr(MemoryMap, "of", lambda strategy, _: MemoryMap(strategy, moments, addresses))
    engine = simulate.make_engine(config, simulate.plan(config), Outcomes(Everybody(), 10**6), Thinned(10**6, merged))
    engine.run()
    return engine.recorder


QUICK = (
    ["strategy=contiguous"], ["strategy=buddy"], ["strategy=prefix"], ["strategy=vattention_ahead"],
    ["strategy=vattention", "page_group_bytes=2MiB"], ["strategy=paged", "workload.n=3"],
)  # fmt: skip
SLOW = (
    ["strategy=growing_double"], ["strategy=paged"], ["strategy=token_pool"], ["strategy=radix", "block_size=8"],
    ["strategy=prefix_vllm_queue"], ["strategy=vattention", "workload.n=3"], ["strategy=buddy", "forecast=pow2"],
)  # fmt: skip


@pytest.mark.parametrize("choice", [*QUICK, *(pytest.param(choice, marks=pytest.mark.slow) for choice in SLOW)])
def test_every_address_is_accounted_for(choice: list[str], composer: Composer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each address stands for a token: states counted are the split of the pool, at every step of the run."""
    config = composer.compose([*BASE, *choice]).config
    slots = 2**27 // simulate.plan(config).strategy.memory.token_bytes
    recorder = run_with(config, 10**6, slots, monkeypatch)
    rows, seen = recorder.rows, recorder.map
    assert seen is not None
    assert len(seen.time_s) == len(rows) > 50
    token = recorder.strategy.memory.token_bytes
    counts = np.array([np.bincount(state, minlength=len(STATES)) for state in seen.states]) * token
    of = dict(zip(STATES, counts.T, strict=True))
    said = {name: np.array([getattr(row, name) for row in rows]) for name in rows[0]._fields}
    for name in ("token_state", "reservation", "internal", "cached"):
        assert of[name].tolist() == said[name].tolist(), name
    outside = of["unbacked"] + of["mapped_unused"] + of["free"] + of["rounded"]
    assert outside.tolist() == said["external"].tolist()
    assert (of["rounded"] + of["token_state"] + of["reservation"] + of["internal"]).tolist() == said["held"].tolist()
    if recorder.strategy.virtual:
        assert (counts.sum(1) - of["unbacked"]).tolist() == said["backed"].tolist()
        assert not of["free"].any()
    assert of["token_state"].max() > 0


def test_moments_are_bounded_and_evenly_spread(composer: Composer, monkeypatch: pytest.MonkeyPatch) -> None:
    config = composer.compose([*BASE, "workload.num_requests=300", "strategy=paged"]).config
    recorder = run_with(config, 32, 64, monkeypatch)
    seen, last_s = recorder.map, recorder.rows[-1].time_s
    assert seen is not None
    assert len(recorder.rows) > 500
    assert 16 <= len(seen.time_s) <= 32
    assert len(seen.states) == len(seen.time_s)
    assert np.diff(seen.time_s).max() < last_s / 12
    assert seen.time_s[-1] > 0.9 * last_s


def test_the_map_of_a_run_is_a_file_of_it(composer: Composer, tmp_path: Path) -> None:
    config = composer.compose([*BASE, "strategy=vattention", "engine.memory_map=64"]).config
    assert simulate.execute(config, tmp_path, lambda line: None, None)["status"] == "ok"
    with np.load(tmp_path / FILE) as file:
        assert file["state"].shape == (len(file["time_s"]), len(file["byte"]))
        assert file["names"].tolist() == list(STATES)
        assert int(file["pool_bytes"]) == 2**27
    other = tmp_path / "other"
    other.mkdir()
    simulate.execute({**config, "engine": {**config["engine"], "memory_map": 0}}, other, lambda line: None, None)
    assert not (other / FILE).exists()
    assert (other / "steps.csv").read_text() == (tmp_path / "steps.csv").read_text()


def test_a_real_run_leaves_one_too(composer: Composer, tmp_path: Path) -> None:
    """Beside real memory: what is unbacked is what the store gave no memory."""
    words = ["model=tiny", "dtype=float64", "strategy=vattention", "page_group_bytes=4096", "max_len=64"]
    words += ["workload=fixed", "workload.num_requests=3", "workload.prompt_len=20", "workload.output_len=20"]
    config = composer.compose([*words, "engine.memory_map=64", "engine.threads=1"]).config
    result = run.execute(config, tmp_path)
    assert result["status"] == "ok"
    with np.load(tmp_path / FILE) as file:
        backed = (file["state"] != STATES.index("unbacked")).mean(1) * int(file["pool_bytes"])
        step = int(file["pool_bytes"]) / len(file["byte"])
    assert abs(backed.max() - result["peak_committed_bytes"]) <= step
