"""kvlab bench tune: what it asks the tuner for, and what it says; the kernels themselves need a GPU."""

from __future__ import annotations

import json

import pytest
import torch

from kvlab.errors import UsageError
from kvlab.harness import cli


@pytest.fixture
def bench():
    """Imported only when tests run: whoever imports kernels first decides whether they are interpreted."""
    from kvlab.bench import tune

    return tune


@pytest.fixture
def candidates():
    from kvlab.kernels.gpu.tuning import candidates

    return candidates


@pytest.fixture
def timed(bench, candidates, monkeypatch, tmp_path):
    """The keys that were asked for. Each candidate takes longer than the next, and the last does not fit."""
    asked = []

    def tune(key, launch, path=None):
        asked.append(key)
        *fit, large = candidates(key)
        seconds = {config: (index + 1) / 1e6 for index, config in enumerate(reversed(fit))}
        return bench.Tuned(fit[-1], seconds, {large: "out of resource"})

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(bench, "tune", tune)
    monkeypatch.setattr(bench, "launch_of", lambda key, shape: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return asked


def test_both_kernels_over_rows_and_blocks(timed, candidates, capsys, tmp_path):
    out = tmp_path / "table.md"
    shape = ["q_heads=12", "kv_heads=4", "dtype=bfloat16", "block_sizes=1,64"]
    assert cli.main(["bench", "tune", "device=cuda", *shape, "--out", str(out)]) == 0
    assert [(key.kind, key.block_size, key.groups) for key in timed] == [
        (kind, size, 3) for kind in ("decode", "prefill") for size in (None, 1, 64)
    ]
    said = capsys.readouterr().out
    assert out.read_text() in said
    line = next(line for line in said.splitlines() if "decode" in line and "blocks of 64" in line)
    tried = len(candidates(timed[2]))
    assert f"| 1.0 | {tried - 1}.0 |" in " ".join(line.split()), (
        "the fastest, and the committed one, the last to be tried"
    )
    assert str(tmp_path / "kvlab" / "gpu_configs.json") in said


def test_json_has_every_candidate(timed, candidates, capsys):
    assert cli.main(["bench", "tune", "device=cuda", "block_sizes=16", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["kind"] for row in rows] == ["decode", "decode", "prefill", "prefill"]
    for key, row in zip(timed, rows, strict=True):
        assert len(row["took"]) + len(row["failed"]) == len(candidates(key))
        assert row["failed"][0]["reason"] == "out of resource"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "device=cpu: kernels are tuned on a GPU; allowed is device=cuda"),
        (["device=cuda", "attention=sdpa"], "attention=sdpa: allowed with kvlab bench tune are device, batch"),
        (["device=cuda", "--only", "paged"], "--only: allowed with kvlab bench bookkeeping only"),
    ],
)
def test_wrong_use(arguments, words, capsys):
    assert cli.main(["bench", "tune", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(bench):
    with pytest.raises(UsageError, match="torch finds no CUDA device"):
        next(bench.tune_all(bench.keys_of(["float16"], 64, [16], 1), bench.Shape(2, 64, 2)))
