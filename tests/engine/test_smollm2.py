"""The same text from the real model under every strategy, batched or alone, close choices aside."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlab.errors import UsageError
from kvlab.harness.compose import compose
from kvlab.model.fetch import model_path
from kvlab.model.load import shape_of
from kvlab.record.compare import compare
from kvlab.run import execute

NAMES = sorted(path.stem for path in (Path(__file__).parents[2] / "conf/strategy").glob("*.yaml"))
WORK = ("workload=lognormal", "workload.num_requests=14", "workload.scale=0.6", "max_len=128", "seed=3")


def serve(directory: Path, *overrides: str) -> dict:
    directory.mkdir()
    return execute(compose([*WORK, "engine.clock=steps", *overrides]).config, directory)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """The run that serves one request after the other."""
    try:
        shape_of({"name": "smollm2", "path": None})
    except UsageError as error:
        pytest.skip(f"the model is not at {model_path()}: {error}")
    directory = tmp_path_factory.mktemp("reference") / "alone"
    assert serve(directory, "strategy=contiguous", "engine.max_seqs=1")["mean_batch_size"] == 1
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("strategy", NAMES)
def test_smollm2_says_the_same_under_every_strategy(tmp_path, alone, strategy):
    """float32: a request may part from the reference only where its two best logits were closer than the tie gap."""
    result = serve(tmp_path / strategy, f"strategy={strategy}")
    assert result["num_finished"] == 14
    assert result["mean_batch_size"] > 1
    assert result["os_committed_bytes"] == result["peak_committed_bytes"]
    agreement = compare(alone, tmp_path / strategy)
    assert agreement.wrong == 0, agreement
    assert agreement.same >= 12
