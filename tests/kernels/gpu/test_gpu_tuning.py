"""Which shape a kernel's programs get: committed, or measured here, with a timer that needs no GPU."""

from __future__ import annotations

import json
from itertools import product

import pytest
import torch
from triton.runtime.errors import OutOfResources

from kvlab.bench.tune import Shape, launch_of
from kvlab.errors import UsageError
from kvlab.kernels.gpu import tuning
from kvlab.kernels.gpu.config import Config
from kvlab.kernels.gpu.tuning import DEFAULTS, Key, candidates, choose, config_for, tune

KEY = Key("decode", torch.bfloat16, 128, 16, 4)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The user's cache is an empty one, and nothing is remembered from one test to the next."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config_for.cache_clear()
    yield tmp_path
    config_for.cache_clear()


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(tuning, "_device", lambda: "A GPU")


def test_every_launch_that_is_allowed_gets_a_config():
    sizes = (None, *(2**power for power in range(9)))
    for kind, dtype, head_dim, size, groups in product(
        tuning.KINDS, DTYPES, (16, 64, 80, 96, 128, 256), sizes, (1, 3, 64)
    ):
        config = config_for(kind, dtype, head_dim, size, groups)
        assert config.tile >= 16
        assert config.tile & (config.tile - 1) == 0
        assert config.queries >= 16


def test_a_committed_key_is_found_and_others_say_what_stands_in():
    assert choose(KEY).origin == "committed"
    near = choose(KEY._replace(dtype=torch.float16, block_size=32))
    assert near.config == choose(KEY).config
    assert near.origin == f"committed for {KEY}"


@pytest.mark.parametrize("kind", tuning.KINDS)
def test_the_nearest_holds_as_many_bytes(kind):
    """A head of 80 or 96 is padded to 128 in a program: what fits 64 might not fit it. float32 is never float16's."""
    for dtype, (head_dim, padded) in product(DTYPES, {80: 128, 96: 128, 160: 256, 32: 64}.items()):
        key = Key(kind, dtype, head_dim, 4, 8)
        origin = choose(key).origin
        assert f"heads of {padded} x" in origin, (key, origin)
        assert ("float32" in origin) == (dtype == torch.float32)


def test_what_is_measured_wins_on_that_gpu_alone(gpu, cache):
    other = Config(tile=256, warps=2, stages=2)
    tune(KEY, lambda config: None, seconds=lambda call: 1.0, device="Another GPU")
    assert choose(KEY).origin == "committed"

    tuned = tune(KEY, launched := [].append, seconds=fake_timer(launched, {other: 0.1}))
    assert tuned.config != other, "only candidates are tried"
    assert choose(KEY) == (tuned.config, "measured")
    assert config_for(*KEY) == tuned.config
    assert choose(KEY._replace(groups=8)).origin.startswith("committed"), "a measured choice is for its key alone"
    names = json.loads((cache / "kvlab" / "gpu_configs.json").read_text())
    assert set(names) == {"Another GPU", "A GPU"}


def fake_timer(record, seconds):
    """A timer that runs the call and says what `seconds` says of its config, or more and more."""
    launches = record.__self__

    def timer(call):
        call()
        return seconds.get(launches[-1], float(len(launches)))

    return timer


def test_the_fastest_is_kept_and_each_candidate_runs_once(gpu, tmp_path):
    launched: list[Config] = []
    tried = candidates(KEY)
    path = tmp_path / "mine.json"
    tuned = tune(KEY, launched.append, seconds=fake_timer(launched.append, {tried[3]: 0.5}), path=path)
    assert launched == tried
    assert tuned.config == tried[3]
    assert list(tuned.seconds.values()) == sorted(tuned.seconds.values())
    assert choose(KEY, measured=path) == (tried[3], "measured")
    assert choose(KEY).origin == "committed", "the user's own file is another"


def test_a_second_measurement_replaces_the_first_and_keeps_other_keys(gpu, tmp_path):
    path, tried = tmp_path / "mine.json", candidates(KEY)
    for key, best in ((KEY, tried[1]), (KEY._replace(groups=8), tried[2]), (KEY, tried[0])):
        launched: list[Config] = []
        tune(key, launched.append, seconds=fake_timer(launched.append, {best: 0.0}), path=path)
    assert choose(KEY, measured=path).config == tried[0]
    assert choose(KEY._replace(groups=8), measured=path).config == tried[2]


def test_a_candidate_that_does_not_fit_is_left_out(gpu):
    def launch(config: Config) -> None:
        if config.tile > choose(KEY).config.tile:
            raise OutOfResources(300_000, 200_000, "shared memory")

    tuned = tune(KEY, launch, seconds=lambda call: call() or 1.0)
    assert tuned.failed
    assert all(config.tile > candidates(KEY)[0].tile for config in tuned.failed)
    assert set(tuned.seconds) | set(tuned.failed) == set(candidates(KEY))


def test_nothing_fits(gpu, cache):
    def launch(config: Config) -> None:
        raise OutOfResources(300_000, 200_000, "shared memory")

    with pytest.raises(UsageError, match=r"decode bfloat16, .*: no candidate fits this GPU: out of resource"):
        tune(KEY, launch, seconds=lambda call: call() or 1.0)
    assert not (cache / "kvlab").exists()


def test_the_search_is_small_and_begins_with_the_committed():
    for kind, dtype, head_dim, size in product(tuning.KINDS, DTYPES, (64, 128, 256), (None, 1, 16, 256)):
        key = Key(kind, dtype, head_dim, size, 4)
        tried = candidates(key)
        assert tried[0] == choose(key).config
        assert len(set(tried)) == len(tried) <= 8
        assert all(config.tile >= 16 and config.warps >= 1 and config.stages >= 1 for config in tried)


def test_a_file_of_something_else(gpu, cache):
    path = cache / "kvlab" / "gpu_configs.json"
    path.parent.mkdir()
    path.write_text('{"A GPU": [{"tile": 3}]}')
    with pytest.raises(UsageError, match="not a table of measured choices"):
        config_for(*KEY)


def test_no_such_kernel():
    with pytest.raises(UsageError, match="'encode'.*allowed is decode, prefill"):
        config_for("encode", *KEY[1:])


def test_committed_choices_are_listed_once():
    entries = json.loads(DEFAULTS.read_text())
    keys = [tuple(entry[name] for name in Key._fields) for entry in entries]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("kind", tuning.KINDS)
def test_the_kernels_run_with_every_candidate_that_is_tried(kind, device, tmp_path):
    """The launches of kvlab bench tune, over blocks, small ones."""
    key = Key(kind, torch.float32, 32, 16, 2)
    launch, launched = launch_of(key, Shape(2, 20, 2, device)), []

    def record(config):
        launch(config)
        launched.append(config)

    tuned = tune(key, record, seconds=fake_timer(launched.append, {}), path=tmp_path / "mine.json", device="A GPU")
    assert not tuned.failed
    assert launched == candidates(key)
