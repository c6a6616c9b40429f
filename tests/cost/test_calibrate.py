"""Calibration: the fit, real launches of a tiny model, and files that a simulated run takes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kvlab.bench.fit import TERMS, Launched, fit, observe
from kvlab.cost.model import build_cost
from kvlab.errors import UsageError
from kvlab.harness.cli import main
from kvlab.harness.compose import Composer
from kvlab.model.load import load, shape_of

TRUE = {"launch": 2e-3, "decode_sequence": 3e-5, "prefill_sequence": 4e-4, "token": 5e-6}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch, threads):
    """In a directory of its own, on one thread."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def real():
    with Composer() as composer:
        return composer.compose(["model=tiny", "max_len=512", "engine.max_seqs=16", "engine.threads=1"]).config


class Sized:
    """Stands for a model where only sizes count."""

    shape = shape_of({"name": "SmolLM2-135M"})


def launches(cost, terms):
    """With what they would take, overhead as in `terms`."""
    for new, stop in (
        ([1], [40]),
        ([1] * 8, [90] * 8),
        ([1] * 30, [33] * 30),
        ([64], [64]),
        ([64] * 6, [64] * 6),
        ([500], [500]),
    ):
        new_B, stop_B = np.array(new), np.array(stop)
        prompts, tokens = int((new_B > 1).sum()), int(new_B.sum())
        counts = (1, len(new) - prompts, prompts, tokens)
        extra = sum(terms[name] * count for name, count in zip(TERMS, counts, strict=True))
        yield Launched(new_B, stop_B, len(new), cost.launch(new_B, stop_B, len(new)) + extra)


def fitted(build, terms):
    config = build("SmolLM2-135M", **{f"cost__overhead__{name}_us": 0.0 for name in TERMS}).config
    shape, strategy = Sized.shape, build("SmolLM2-135M").strategy
    return fit(config, Sized, list(launches(build_cost(config, shape, strategy), terms)))


def test_the_fit_finds_what_launches_were_made_of(build):
    found, errors = fitted(build, TRUE)
    assert found == pytest.approx(TRUE, rel=1e-6)
    assert max(map(abs, errors.values())) < 1e-9


def test_no_term_of_the_fit_is_negative(build):
    """Launches quicker than their parts: the terms that would be negative are left out, the others fitted again."""
    found, errors = fitted(build, {**TRUE, "token": -2e-6})
    assert min(found.values()) == 0
    assert found["launch"] > 0
    assert errors["prefill_median"] > 1e-3


def test_launches_of_the_real_engine(real):
    seen = observe(real, load(real["model"], "float32").model, [(2, 12), (3, 20)], decodes=3)
    assert [(launch.new_B.tolist(), launch.stop_B.tolist()) for launch in seen[:3]] == [
        ([12, 12], [12, 12]), ([1, 1], [13, 13]), ([1, 1], [14, 14]),
    ]  # fmt: skip
    assert [len(launch.new_B) for launch in seen] == [2] * 4 + [3] * 4
    assert all(launch.seconds > 0 and launch.samples == len(launch.new_B) for launch in seen)


@pytest.mark.slow
def test_what_is_written_can_be_chosen_and_built(build, capsys):
    """From a tiny model on this machine to a simulated launch of it."""
    assert main(["bench", "calibrate", "model=tiny", "engine.threads=1", "out=mine", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert sorted(str(path) for path in Path().rglob("mine.yaml")) == [
        f"kvlab-conf/{group}/mine.yaml" for group in ("cost", "gpu", "vmm")
    ]
    chosen = ["executor=simulated", "model=tiny", "gpu=mine", "vmm=mine", "cost=mine"]
    with Composer() as composer:
        config = composer.compose(chosen).config
    assert config["gpu"] == {"name": "mine", **printed["gpu"]}
    strategy = build("SmolLM2-135M", strategy="vattention", page_group_bytes=65536).strategy
    cost = build_cost(config, shape_of(config["model"]), strategy)
    assert cost.launch(np.ones(4, int), np.full(4, 100), 4) > 0
    head = Path("kvlab-conf/gpu/mine.yaml").read_text().splitlines()[0]
    assert head.startswith("# Measured by `kvlab bench calibrate out=mine` on ")
    assert head.endswith("; threads: 1;")


def test_wrong_use_is_one_line(capsys):
    """device=cuda measured the CPU in silence."""
    for arguments, line in (
        (["out=a/b"], "out=a/b: allowed is a name of letters"),
        (["executor=simulated"], "executor=simulated: there is nothing to measure"),
        (["device=cuda"], "device=cuda: it measures this machine's CPU; allowed is device=cpu"),
        (["--out", "/proc/kvlab"], "/proc/kvlab: cannot write there"),
        (["model=yi_6b"], "model=Yi-6B has no weights, only sizes"),
        (["--only", "paged"], "--only: allowed with kvlab bench bookkeeping only"),
    ):
        assert main(["bench", "calibrate", *arguments]) == 2
        assert line in capsys.readouterr().err


def test_a_published_model_and_a_gpu_of_ones_own_are_chosen_by_name(tmp_path):
    folder = tmp_path / "kvlab-conf" / "gpu"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("memory_gib: 3\n")
    with Composer() as composer:
        config = composer.compose(["executor=simulated", "model=Llama-3-8B", "gpu=mine"]).config
        assert (config["model"]["name"], config["gpu"]) == ("Llama-3-8B", {"name": "mine", "memory_gib": 3})
        with pytest.raises(UsageError, match="gpu: allowed with executor=simulated only"):
            composer.compose(["gpu=mine"])
        assert not {"gpu", "vmm", "cost"} & set(composer.compose([]).config)
