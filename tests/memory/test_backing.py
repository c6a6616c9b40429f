"""A pool's memory that a thread backs: all of it is there when it is waited for, and what goes wrong is told there."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import resource
import threading

import pytest
import torch

from kvlab.errors import UsageError
from kvlab.memory import host_vmm
from kvlab.memory.backing import Backing, begin_backing
from kvlab.memory.build import build_store
from kvlab.memory.dense import DenseStore
from kvlab.memory.faults import fail
from kvlab.memory.host_vmm import PAGE_BYTES, VmmError
from kvlab.strategies.paged import Paged
from kvlab.strategies.vattention import VAttention
from kvlab.strategy import Memory

LAYERS, HEADS, DIM = 3, 2, 16
TOKEN_BYTES = 2 * LAYERS * HEADS * DIM * 4


def memory(**values):
    given = {"bytes": 100 * TOKEN_BYTES, "token_bytes": TOKEN_BYTES, "max_len": 50, "max_seqs": 4, "chunk": 50}
    return Memory(**given | {"windows": (None,) * LAYERS, "page_group_bytes": 2 * LAYERS * PAGE_BYTES} | values)


def open_files():
    return len(os.listdir("/proc/self/fd"))


def test_no_page_is_missing_when_it_has_been_waited_for():
    """Whoever writes every page afterwards waits for the operating system at none of them."""
    pages = 3000
    backing = Backing(pages * PAGE_BYTES)
    base = backing.wait().base
    assert backing.pool.committed_bytes() == pages * PAGE_BYTES
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    ctypes.memset(base, 7, pages * PAGE_BYTES)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < pages // 10
    backing.close()
    assert backing.pool.committed_bytes() == 0


def test_all_of_it_is_zero_whatever_its_size():
    """The last of the buffers of zeros is a part of one."""
    pages = 2 * host_vmm._ZEROS_BYTES // PAGE_BYTES + 3
    backing = Backing(pages * PAGE_BYTES - 1)
    assert backing.nbytes == pages * PAGE_BYTES
    assert not backing.wait().tensor(torch.uint8, (backing.nbytes,)).any()
    backing.close()


def test_a_pool_takes_more_calls_than_one(monkeypatch):
    monkeypatch.setattr(host_vmm, "_MOST_BUFFERS", 1)
    pages = 3 * host_vmm._ZEROS_BYTES // PAGE_BYTES
    backing = Backing(pages * PAGE_BYTES)
    backing.wait()
    assert backing.pool.committed_bytes() == pages * PAGE_BYTES
    backing.close()


@pytest.mark.parametrize("strategy", [Paged(memory(), block_size=8), Paged(memory(tile=16), block_size=16)])
def test_a_store_over_what_was_begun_is_as_large_as_one_without(strategy):
    stores = [
        build_store(strategy, LAYERS, HEADS, DIM, torch.float32, backing=backing)
        for backing in (begin_backing(strategy), None)
    ]
    begun, plain = ((s.committed_bytes(), s.accounted_bytes(), s.layer(1)[0].shape) for s in stores)
    assert begun == plain
    for store in stores:
        store.close()
        assert store.committed_bytes() == 0


def test_memory_on_demand_is_not_begun():
    assert begin_backing(VAttention(memory())) is None


def test_what_others_are_going_to_take_counts():
    """A pool that left no room for the model's weights was begun, and the process killed when they were loaded."""
    with pytest.raises(UsageError, match="allowed is at most what is free, 0; lower pool_bytes"):
        Backing(PAGE_BYTES, beside=1 << 60)


def test_the_system_runs_out_of_memory_in_the_thread(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files = open_files()
    monkeypatch.setattr(os, "pwritev", full)
    backing = Backing(PAGE_BYTES)
    with pytest.raises(VmmError, match="pwritev: .*No space left"):
        DenseStore(1, 1, HEADS, DIM, torch.float32, backing=backing)
    gc.collect()
    assert open_files() == files


@pytest.mark.parametrize("kind", ["pool", "reservation", "map"])
def test_a_refused_call_leaves_nothing(kind):
    files, threads = open_files(), threading.active_count()
    with fail(kind, 1), pytest.raises(VmmError, match="refused"):
        DenseStore(LAYERS, 100, HEADS, DIM, torch.float32)
    gc.collect()
    assert (open_files(), threading.active_count()) == (files, threads)


def test_closing_waits_for_the_thread(monkeypatch):
    """Its memory was taken away under it, and the process died."""
    begun, go_on, write = threading.Event(), threading.Event(), os.pwritev

    def slow(*arguments):
        begun.set()
        go_on.wait(10)
        return write(*arguments)

    monkeypatch.setattr(os, "pwritev", slow)
    backing = Backing(PAGE_BYTES)
    begun.wait(10)
    closing = threading.Thread(target=backing.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    assert backing.pool.committed_bytes() == 0
    go_on.set()
    closing.join()
    with pytest.raises(ValueError, match="closed"):
        backing.reservation.tensor(torch.uint8, (1,))
    backing.close()


def test_the_thread_ends_with_its_work():
    before = {thread.name for thread in threading.enumerate()}
    backing = Backing(PAGE_BYTES)
    backing.wait()
    for thread in threading.enumerate():
        if thread.name not in before:
            thread.join(10)
    assert {thread.name for thread in threading.enumerate()} == before
    backing.close()
