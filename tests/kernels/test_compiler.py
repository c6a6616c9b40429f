"""The compiler's cache, and what happens without a compiler."""

from __future__ import annotations

import logging
import shutil
import subprocess

import pytest
import torch

from kvlab.kernels import compiler, decode
from kvlab.kernels.compiler import CompileError, load

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "answer.c"
    path.write_text("int answer(void) { return ANSWER; }\n")
    return path


@needs_compiler
def test_a_library_is_compiled_once_for_each_definition_and_source(source, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    assert load(source, ("ANSWER=42",), cache).answer() == 42
    assert load(source, ("ANSWER=43",), cache).answer() == 43
    assert len(list(cache.iterdir())) == 2, "no temporary file stays"

    monkeypatch.setattr(compiler, "_compile", lambda *_: pytest.fail("compiled again"))
    assert load(source, ("ANSWER=42",), cache).answer() == 42
    monkeypatch.undo()

    source.write_text("int answer(void) { return -ANSWER; }\n")
    assert load(source, ("ANSWER=42",), cache).answer() == -42


@needs_compiler
def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(source, tmp_path):
    source.write_text("int answer(void) { return nonsense; }\n")
    with pytest.raises(CompileError, match="cc failed: .*answer"):
        load(source, (), tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


@needs_compiler
def test_a_cache_that_cannot_be_written_is_named(source, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CompileError, match="cannot keep compiled kernels"):
        load(source, ("ANSWER=1",), tmp_path / "file" / "cache")


@needs_compiler
def test_a_library_that_cannot_be_loaded_is_named(source, tmp_path, monkeypatch):
    monkeypatch.setattr(compiler, "_compile", lambda *arguments: arguments[-1].write_bytes(b"cut"))
    with pytest.raises(CompileError, match=r"cannot load a compiled kernel: .*answer-\w+\.so"):
        load(source, ("ANSWER=1",), tmp_path)


@needs_compiler
def test_loading_the_kernel_leaves_denormals_alone():
    """-ffast-math did not: linked into a library, it made torch flush 1e-40 to zero."""
    assert decode.kernel(torch.float32, 64, 3)[1].startswith("c, ")
    assert float(torch.tensor([1e-40]) * 1) != 0.0


def test_without_a_compiler_torch_is_named_and_said_once(monkeypatch, caplog):
    decode.kernel.cache_clear()
    compiler._warn.cache_clear()
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert decode.kernel(torch.float32, 64, 3) == (None, "torch: no C compiler")
    assert [record.getMessage() for record in caplog.records] == [
        "no C compiler: attention, layers and copies run in torch, several times slower"
    ]
    decode.kernel.cache_clear()


def test_types_without_a_kernel_are_named():
    assert decode.kernel(torch.float16, 64, 3) == (None, "torch: no C kernel for torch.float16")


@needs_compiler
def test_the_kernel_compiles_without_warnings(tmp_path):
    """At the warnings a reviewer would turn on."""
    source = decode.Path(decode.__file__).with_name("decode.c")
    for element in decode.ELEMENTS.values():
        flags = [*compiler.FLAGS, "-Wall", "-Wextra", "-Werror", f"-D{element}", "-DHEAD_DIM=64", "-DGROUPS=3"]
        subprocess.run(["cc", *flags, "-o", str(tmp_path / "kernel.so"), str(source), "-lm"], check=True)


@needs_compiler
def test_a_header_that_changed_is_compiled_anew(source, tmp_path):
    """Whether the source includes it or another header does."""
    (tmp_path / "outer.h").write_text('#include "inner.h"\n')
    (tmp_path / "inner.h").write_text("#define HEADER 1\n")
    source.write_text('#include "outer.h"\nint answer(void) { return HEADER; }\n')
    assert load(source, (), tmp_path / "cache").answer() == 1
    (tmp_path / "inner.h").write_text("#define HEADER 2\n")
    assert load(source, (), tmp_path / "cache").answer() == 2
    (tmp_path / "other.h").write_text("#define HEADER 3\n")
    load(source, (), tmp_path / "cache")
    assert len(list((tmp_path / "cache").iterdir())) == 2, "a header of others changes nothing"
