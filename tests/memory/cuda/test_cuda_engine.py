"""The real engine over a CUDA driver: the same tokens, and whichever call fails, that reason and nothing left."""

from __future__ import annotations

import json

import pytest

from kvlab.engine.executor import RealExecutor
from kvlab.harness.job import run_job
from kvlab.memory import build
from kvlab.memory.cuda.fence import Fence
from kvlab.memory.cuda.vmm import CudaVmm
from kvlab.memory.vmm import HOST
from kvlab.run import execute

PAGE = 4096
OPENING = (
    "cuInit", "cuDeviceGet", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuMemGetAllocationGranularity",
)  # fmt: skip
CALLS = (
    "cuCtxSetCurrent", "cuMemGetInfo", "cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate", "cuMemRelease",
    "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuEventCreate", "cuEventRecord", "cuEventSynchronize",
    "cuEventDestroy", "cuDevicePrimaryCtxRelease",
)  # fmt: skip


@pytest.fixture
def run(tmp_path, config_of, monkeypatch):
    """run(device, name, ...): to its end over that device, or the host where it is None; (result, tokens).

    Every launch begins on the device when its forward pass does, reads what its sequences have, and runs until
    somebody waits for it.
    """
    forward = RealExecutor._forward

    def announced(executor, launch, attention):
        if announced.device is not None and executor.strategy.virtual:
            store, size = executor.store, executor.store._slot_bytes
            first_B = executor.strategy.table.data[launch.row_B, 0].astype(int)
            announced.device.launch(
                [
                    (place.base + int(first) * size, int(stop) * size)
                    for place in store._reservations
                    for first, stop in zip(first_B, launch.stop_B, strict=True)
                ]
            )
        return forward(executor, launch, attention)

    def run(device, name, requests=4, output=10):
        announced.device = device
        monkeypatch.setattr(RealExecutor, "_forward", announced)
        monkeypatch.setattr(build, "open_vmm", lambda _: CudaVmm(device.open()) if device else HOST)
        (tmp_path / "config.json").write_text(json.dumps(config_of(name, requests, output)))
        status = run_job(tmp_path, lambda cfg, directory, say, progress: execute(cfg, directory))
        result = json.loads((tmp_path / "result.json").read_text())
        assert (status == 0) == (result["status"] == "ok")
        outputs = tmp_path / "outputs.jsonl"
        return result, [json.loads(line)["tokens"] for line in outputs.read_text().splitlines()] if not status else []

    return run


@pytest.fixture
def small(new_device):
    return lambda: new_device(1 << 20, PAGE)


@pytest.mark.parametrize("kind", ["device", pytest.param("host", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", ["virtual", "forking", *[pytest.param(n, marks=pytest.mark.slow) for n in ("sliced", "ahead")]]
)
def test_the_same_tokens_as_from_blocks_with_preemption(run, small, nothing_lives, name, kind):
    _, expected = run(None, "paged", 8, 20)
    device = small() if kind == "device" else None
    result, tokens = run(device, name, 8, 20)
    assert (result["status"], tokens) == ("ok", expected)
    assert result["num_preemptions"] > 1
    if device:
        assert not device.dead
        assert device.calls("cuMemMap") > 40
        nothing_lives(device)


def faulted(run, small, nothing_lives, name, picked):
    """Every picked call fails once, each in a run of its own."""
    device = small()
    device.fail("", 0)
    assert run(device, name)[0]["status"] == "ok"
    calls = (*OPENING, *CALLS) if device.name == "standin" else CALLS
    made = {call: device.calls(call) for call in calls}
    assert [call for call in calls if not made[call]] in ([], ["cuCtxSetCurrent"]), "the latter without a thread"
    for call in calls:
        for nth in picked(made[call]):
            device = small()
            device.fail(call, nth)
            result, _ = run(device, name)
            text = f"VmmError: {call}: CUDA_ERROR_OUT_OF_MEMORY"
            assert (result["status"], result["reason"][: len(text)]) == ("failed", text), (call, nth)
            nothing_lives(device)


@pytest.mark.parametrize("name", ["ahead", pytest.param("forking", marks=pytest.mark.slow)])
def test_a_run_ends_failed_whichever_kind_of_call_fails(run, small, nothing_lives, name):
    faulted(run, small, nothing_lives, name, lambda made: sorted({1, made // 2 + 1, made}) if made else ())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["virtual", "sliced", "ahead", "forking"])
def test_a_run_ends_failed_whichever_call_fails(run, small, nothing_lives, name):
    faulted(run, small, nothing_lives, name, lambda made: range(1, made + 1))


@pytest.mark.parametrize("call", ["cuMemMap", "cuMemUnmap", "cuMemRelease", "cuEventSynchronize"])
def test_a_run_ends_failed_where_nothing_works_any_more(run, small, call):
    device = small()
    device.fail(call, 1 if call == "cuMemRelease" else 5, lasting=True)
    result, _ = run(device, "forking")
    assert result["status"] == "failed"
    assert f"{call}: CUDA_ERROR_OUT_OF_MEMORY" in result["reason"]


@pytest.mark.parametrize("name", ["forking", "sliced"])
def test_a_run_that_unmaps_before_the_reader_is_done_is_caught(run, small, monkeypatch, name):
    """The planted fault: nobody waits for the launch that reads what is taken away."""
    monkeypatch.setattr(Fence, "wait", lambda fence: None)
    device = small()
    result, _ = run(device, name, 12, 20)
    assert device.dead
    assert result["status"] == "failed"
    assert "CUDA_ERROR_ILLEGAL_ADDRESS: a kernel touched memory that was not mapped" in result["reason"]
