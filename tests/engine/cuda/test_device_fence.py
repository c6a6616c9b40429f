"""Launches that go on while moves are carried out: nothing is taken from under them, and whatever fails says so.

On the emulator a launch reads what its sequences have until somebody waits for an event behind it.
"""

from __future__ import annotations

import gc

import pytest
import torch

from kvlab.build import build_strategy
from kvlab.engine.cuda.executor import DeviceExecutor
from kvlab.engine.real import real_engine
from kvlab.memory.cuda.fence import Fence
from kvlab.memory.host_vmm import VmmError
from kvlab.model.load import load

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="what the emulator sees")
SDPA = {"_target_": "kvlab.engine.attentions.sdpa.Sdpa"}  # quicker than interpreting


@pytest.fixture
def run(config, work, new_platform, monkeypatch):
    """run(name, prepare): to the end over a scarce pool; the driver, and the engine. prepare(driver) comes first."""
    answers = DeviceExecutor._answers

    def announced(executor, launch):
        store, size = executor.store, executor.store._slot_bytes
        first_B = executor.strategy.table.data[launch.row_B, 0].astype(int)
        executor.platform.driver.launch(
            [
                (place.base + int(first) * size, int(stop) * size)
                for place in store._reservations
                for first, stop in zip(first_B, launch.stop_B, strict=True)
            ]
        )
        return answers(executor, launch)

    monkeypatch.setattr(DeviceExecutor, "_answers", announced)

    def serve(name, prepare=lambda driver: None):
        platform, cfg = new_platform(), config(name, pool_tokens=48, attention=SDPA)
        model, strategy = load(cfg["model"], cfg["dtype"]).model, build_strategy(cfg, 1024, 2, 48 * 1024)
        serve.platform = platform
        with real_engine(cfg, model, strategy, work(8, seed=2, longest=22), platform=platform) as engine:
            prepare(platform.driver)
            engine.run()
        return platform.driver, engine

    return serve


@pytest.mark.parametrize("name", ["vattention_ahead", "vattention_sliced"])
def test_nothing_is_taken_from_under_a_launch(run, name):
    driver, engine = run(name)
    assert driver.calls["cuMemUnmap"] > 0
    assert engine.scheduler.tally.preemptions > 0
    assert not driver.dead


def test_unmapping_without_waiting_is_caught(run, monkeypatch):
    """The planted fault."""
    monkeypatch.setattr(Fence, "wait", lambda fence: None)
    with pytest.raises(VmmError, match="ILLEGAL_ADDRESS"):
        run("vattention_sliced")
    assert run.platform.driver.dead


@pytest.mark.parametrize("call", ["cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuEventRecord"])
def test_a_call_that_fails_in_the_middle_leaves_nothing(run, call):
    with pytest.raises(VmmError, match=f"{call}: CUDA_ERROR_OUT_OF_MEMORY"):
        run("vattention_ahead", lambda driver: driver.fail(call, 4))
    gc.collect()
    assert not any(run.platform.driver.live().values()), run.platform.driver.live()
