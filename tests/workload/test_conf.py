"""Every workload in conf/ makes requests as it stands, and none lacks a knob that the others share."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from kvlab.errors import UsageError
from kvlab.workload import quantiles
from kvlab.workload.make import make
from kvlab.workload.sources import COMMON, FILES, OF_FILES

FOLDER = Path(__file__).resolve().parents[2] / "conf/workload"
NAMES = (
    "lognormal",
    "uniform",
    "fixed",
    "listed",
    "azure_conv",
    "sharegpt",
    "arxiv",
    "sharegpt_sosp23",
    "alpaca_sosp23",
)


def node(name):
    config = OmegaConf.create({"max_len": 4096, "workload": OmegaConf.load(FOLDER / f"{name}.yaml")})
    return OmegaConf.to_container(config, resolve=True)["workload"]


@pytest.mark.parametrize("name", NAMES)
def test_defaults_run(name):
    workload = make(node(name), seed=0, max_len=4096, vocab=49152)
    assert workload.info["num_requests"] == 64
    assert len(workload.requests) >= 40
    assert workload.info["name"] == name


def test_shared_knobs_have_the_same_defaults_everywhere():
    first, *others = [{knob: node(name)[knob] for knob in COMMON if knob != "name"} for name in NAMES]
    assert all(other == first for other in others)


@pytest.mark.parametrize("name", FILES)
def test_workloads_of_files_have_every_knob_and_name_what_they_lack(name):
    found = node(name)
    assert set(found) == {*COMMON, *OF_FILES.get(name, ())}
    with pytest.raises(UsageError, match=f"workload={name}: needs workload.path"):
        make(found, seed=0, max_len=4096, vocab=49152)


def test_lognormal_is_capped_at_max_len():
    assert node("lognormal")["cap"] == 4096


@pytest.mark.parametrize("name", quantiles.table_names())
def test_tables_are_small_and_carry_their_licence(name):
    path = quantiles.table_folder() / f"{name}.json"
    assert path.stat().st_size < 40_000
    info = make({"name": name, "num_requests": 1}, seed=0, max_len=20000, vocab=None).info
    assert info["synthetic"] is True
    assert info["licence"] in ("CC-BY-4.0", "Apache-2.0", "MIT")
    assert info["published"]
    assert info["attribution"]
    assert info["changes"]
