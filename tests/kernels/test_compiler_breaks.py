"""What can go wrong with compiled kernels on the way: each ends in a kernel, or in one line that says why not."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from kvlab.kernels import best, compiler, copy, decode, layer, prefill, write
from kvlab.kernels.compiler import CompileError, load

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

LOAD = """
import sys
from pathlib import Path
from kvlab.kernels.compiler import load
print(load(Path(sys.argv[1]), (), Path(sys.argv[2])).answer())
"""


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "answer.c"
    path.write_text("int large[9999] = {1};\nint answer(void) { return 42; }\n")
    return path


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def command(source, cache):
    return [sys.executable, "-c", LOAD, str(source), str(cache)]


def answer(source, cache):
    """Of a process of its own: what has been loaded once is never read again."""
    done = subprocess.run(command(source, cache), capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.strip()


def fake(tmp_path, monkeypatch, text):
    """A compiler of ours is the first in the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "cc").write_text(text)
    (folder / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    compiler._version.cache_clear()


@pytest.mark.parametrize("damage", ["empty", "header", "half", "last byte", "zeros", "other bytes"])
def test_a_damaged_library_is_compiled_anew(source, cache, damage):
    """After a full disk or a crash every start ended with SIGBUS, or with SIGSEGV where the rest was zeros; what could
    be told from its size ran in torch for ever."""
    assert answer(source, cache) == (0, "42")
    (library,) = cache.iterdir()
    whole = library.read_bytes()
    library.write_bytes(
        {
            "empty": b"",
            "header": whole[:1000],
            "half": whole[: len(whole) // 2],
            "last byte": whole[:-1],
            "zeros": whole[:1000] + bytes(len(whole) - 1000),
            "other bytes": whole[:-500] + bytes(400) + whole[-100:],
        }[damage]
    )
    assert answer(source, cache) == (0, "42")
    assert library.read_bytes() == whole
    assert list(cache.iterdir()) == [library]


def test_many_that_compile_at_once_end_with_one(source, cache):
    processes = [subprocess.Popen(command(source, cache), stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate()[0].strip() for process in processes] == ["42"] * 4
    assert len(list(cache.iterdir())) == 1


def test_one_that_is_killed_while_it_compiles_leaves_no_library(source, cache, tmp_path, monkeypatch):
    half = 'while [ "$1" != -o ]; do shift; done; echo half >"$2"; sleep 60'
    fake(tmp_path, monkeypatch, f'#!/bin/sh\ncase "$*" in *--version) ;; *) {half};; esac\n')
    process = subprocess.Popen(command(source, cache), start_new_session=True)
    while not any(path.stat().st_size for path in cache.glob("*")):
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not list(cache.glob("*.so"))
    monkeypatch.undo()
    assert answer(source, cache) == (0, "42")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("garbage", "cannot be run: Exec format error"),
        ("#!/nowhere/sh\n", "cannot be run: No such file or directory"),
        ("#!/bin/sh\nexit 3\n", "failed: status 3, and no message"),
        ("#!/bin/sh\nkill -9 $$\n", "failed: status -9, and no message"),
        ("#!/bin/sh\nexit 0\n", "failed: status 0, and no message"),  # and no library
        ('#!/bin/sh\necho "x.c:1: error: \\377" >&2; exit 1\n', "failed: x.c:1: error: "),
    ],
)
def test_a_broken_compiler_is_one_line(source, cache, tmp_path, monkeypatch, text, line):
    """A file of that name that is no program ended in a traceback."""
    fake(tmp_path, monkeypatch, text)
    with pytest.raises(CompileError, match=f"^{tmp_path}/bin/cc {line}") as wrong:
        load(source, (), cache)
    assert "\n" not in str(wrong.value)
    assert not list(cache.glob("*"))


@pytest.mark.parametrize("what", ["_cpu", "_version", "FLAGS"])
def test_another_cpu_compiler_or_flag_has_a_library_of_its_own(source, cache, monkeypatch, what):
    """A home folder that machines share holds one for each of them."""
    load(source, (), cache)
    other = ("-O0", *compiler.FLAGS) if what == "FLAGS" else lambda *_: "another"
    monkeypatch.setattr(compiler, what, other)
    load(source, (), cache)
    assert len(list(cache.iterdir())) == 2


KERNELS = {  # how each is got, and what the result is where it is not to be had
    "decode": lambda: decode.kernel.__wrapped__(torch.float32, 64, 3)[0],
    "prefill": lambda: prefill.kernel.__wrapped__(torch.float32, 64, 3),
    "write": write.kernel.__wrapped__,
    "copy": copy.kernel.__wrapped__,
    "layer": lambda: layer.functions.__wrapped__(torch.float32),
    "best": best._function.__wrapped__,
}


@pytest.fixture
def lines(caplog):
    compiler._warn.cache_clear()
    with caplog.at_level(logging.WARNING):
        yield lambda: [record.getMessage() for record in caplog.records]


def test_without_a_compiler_there_is_one_line(monkeypatch, lines):
    """There were three, of attention, of layers and of tokens, with the same reason."""
    monkeypatch.setattr(compiler.shutil, "which", lambda _: None)
    assert [get() for get in KERNELS.values() for _ in "12"] == [None] * 12
    assert lines() == ["no C compiler: attention, layers and copies run in torch, several times slower"]


@pytest.mark.parametrize("name", KERNELS)
def test_each_kernel_that_alone_cannot_be_compiled_is_named(name, monkeypatch, lines):
    """Prompts, writing and copying went through torch in silence: another kernel was to have said so."""

    def full(*_):
        raise CompileError("its disk is full")

    monkeypatch.setattr(compiler, "_is_whole", lambda _: False)
    monkeypatch.setattr(compiler, "_compile", full)
    assert KERNELS[name]() is None
    assert len(lines()) == 1
    assert lines()[0].endswith(" in torch, which is slower: its disk is full")
