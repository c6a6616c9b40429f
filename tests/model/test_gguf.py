"""GGUF files: read as the format says, and refused in one line when they are not whole."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kvlab.errors import UsageError
from kvlab.model.gguf import GgufFile, halves
from kvlab.model.gguf_header import read_header
from kvlab.model.load import load, shape_of
from kvlab.model.shape import Shape
from kvlab.model.weights import parts

SHAPE = Shape(
    layers=2, q_heads=4, kv_heads=2, head_dim=16, hidden=64, ffn=128, vocab=96,
    rope_theta=10000.0, rms_eps=float(np.float32(1e-5)), tied=False, max_position=256,
)  # fmt: skip

Write = Callable[..., None]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_gguf: Write) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_gguf(tmp_path / "small.gguf", SHAPE)
    return tmp_path / "small.gguf"


def config(path: Path) -> dict[str, Any]:
    return {"name": "smollm2", "path": str(path)}


def refusal(path: Path, dtype: str = "float32") -> str:
    """The line with which the file is refused."""
    with pytest.raises(UsageError) as caught:
        GgufFile(path, path.stem).weights(dtype)
    line = str(caught.value)
    assert "\n" not in line
    assert str(path) in line
    return line


def test_shape_comes_from_the_metadata(path: Path) -> None:
    assert shape_of(config(path)) == SHAPE


def test_weights_are_cached_per_file_and_dtype(path: Path, tmp_path: Path) -> None:
    first = GgufFile(path, "small").weights("float32")
    again = GgufFile(path, "small").weights("float32")
    coarse = GgufFile(path, "small").weights("bfloat16")
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert all(torch.equal(first[name].bfloat16(), coarse[name]) for name in first)
    assert len(list((tmp_path / "cache").rglob("*.safetensors"))) == 2


def test_another_file_at_the_same_path_is_converted_anew(path: Path, write_gguf: Write) -> None:
    before = GgufFile(path, "small").weights("float32")["norm"].clone()
    data = bytearray(path.read_bytes())
    info = GgufFile(path, "small").header.tensors["output_norm.weight"]
    data[info.start : info.start + 4] = struct.pack("<f", 7.0)
    path.write_bytes(data)
    after = GgufFile(path, "small").weights("float32")["norm"]
    assert float(after[0]) == 7.0
    assert torch.equal(after[1:], before[1:])


def test_query_rows_turn_halves_again() -> None:
    """A head of 6 rows: ggml's neighbours (0, 1), (2, 3), (4, 5) are our (0, 3), (1, 4), (2, 5)."""
    stored = np.arange(12, dtype=np.float32).reshape(12, 1)
    assert halves(stored, 6)[:, 0].tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def test_same_logits_as_the_checkpoint_directory_it_was_made_from(
    path: Path, tmp_path: Path, logits_of: Callable[..., Tensor], write_checkpoint: Write
) -> None:
    """q and k are permuted by the rule that converters to GGUF publish: halves become neighbours."""
    header = GgufFile(path, "small").header
    tensors = {}
    for name, size in parts(SHAPE).items():
        info = header.tensors[_stored(name)]
        values = np.fromfile(path, np.float32, int(np.prod(size)), offset=info.start).reshape(size)
        if name.endswith((".q", ".k")):
            heads = size[0] // SHAPE.head_dim
            values = np.stack([_unturn(head) for head in np.split(values, heads)]).reshape(size)
        tensors[name] = torch.from_numpy(values)
    write_checkpoint(tmp_path / "directory", SHAPE, tensors)
    ids = list(range(40))
    ours = logits_of(load(config(path), "float32").model, ids)
    theirs = logits_of(load(config(tmp_path / "directory"), "float32").model, ids)
    assert torch.equal(ours, theirs)


def _unturn(head: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.concatenate([head[0::2], head[1::2]])


def _stored(name: str) -> str:
    from kvlab.model.gguf import _stored_name

    return _stored_name(name)


@pytest.mark.parametrize("share", [0.0, 0.00001, 0.0005, 0.002, 0.01, 0.3, 0.9, 0.9999])
def test_truncated(path: Path, share: float) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    line = refusal(path)
    assert re.search("truncated|ends at byte|empty", line)


def test_random_damage_to_the_head_never_crashes_or_hangs(path: Path) -> None:
    """A damaged length sent gguf's own reader past the end of the file for as long as it said."""
    whole, draw = path.read_bytes(), random.Random(0)
    head = min(info.start for info in GgufFile(path, "small").header.tensors.values())
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(draw.choice((1, 1, 8))):
            data[draw.randrange(head)] = draw.randrange(256)
        path.write_bytes(data)
        try:
            GgufFile(path, "small")
        except UsageError as error:
            assert "\n" not in str(error)  # noqa: PT017


def test_not_a_gguf_file(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04" + path.read_bytes()[4:])
    assert "not with b'GGUF'" in refusal(path)


def test_missing(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "absent.gguf")


def test_other_architecture(tmp_path: Path, write_gguf: Write) -> None:
    write_gguf(tmp_path / "gpt2.gguf", SHAPE, architecture="gpt2")
    assert "architecture 'gpt2'; allowed is 'llama'" in refusal(tmp_path / "gpt2.gguf")


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "layers without end": (lambda m: m.update({"llama.block_count": 2**32 - 1}), "allowed is at most 4096"),
    "no layers": (lambda m: m.pop("llama.block_count"), "llama.block_count=None"),
    "heads per layer": (lambda m: m.update({"llama.attention.head_count_kv": [2, 1]}), "head_count_kv=[2, 1]"),
    "rotary scaling": (lambda m: m.update({"llama.rope.scaling.type": "yarn"}), "rotary scaling"),
    "windows": (lambda m: m.update({"llama.attention.sliding_window": 64}), "sliding_window=64; allowed is 0"),
    "part of the head turns": (lambda m: m.update({"llama.rope.dimension_count": 8}), "dimension_count=8"),
    "missing tensor": (lambda m: m["tensors"].pop("layers.1.up"), "blk.1.ffn_up.weight is missing"),
    "tensor of another size": (lambda m: m["tensors"].update({"layers.0.k": (16, 64)}), "blk.0.attn_k.weight is"),
    "tensor too many": (lambda m: m["tensors"].update({"extra": (4,)}), "extra.weight has no place"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_not_this_kind_of_llama_is_refused(tmp_path: Path, write_gguf: Write, change: str) -> None:
    how, line = CHANGES[change]
    write_gguf(tmp_path / "other.gguf", SHAPE, change=how)
    assert line in refusal(tmp_path / "other.gguf")


def test_damaged_conversion_is_made_again(path: Path, tmp_path: Path) -> None:
    first = {name: tensor.clone() for name, tensor in GgufFile(path, "small").weights("float32").items()}
    converted = next((tmp_path / "cache").rglob("*.safetensors"))
    converted.unlink()
    converted.write_bytes(b"half a fi")
    again = GgufFile(path, "small").weights("float32")
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_unwritable_cache_is_said(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError, match=r"cannot write .*XDG_CACHE_HOME"):
        GgufFile(path, "small").weights("float32")


def test_the_usual_blocks_are_those_of_the_format() -> None:
    from gguf.constants import GGML_QUANT_SIZES

    from kvlab.model.gguf import BLOCKS

    assert {kind: GGML_QUANT_SIZES[kind] for kind in BLOCKS} == BLOCKS


def test_a_rare_type_and_an_unknown_one() -> None:
    from kvlab.model.gguf import _stored_size

    assert _stored_size((3, 512), 16) == (3, 2 * 66)  # IQ2_XXS
    with pytest.raises(UsageError, match="unknown tensor type 99"):
        _stored_size((3, 512), 99)
    with pytest.raises(UsageError, match="a row of 100 numbers in blocks of 256"):
        _stored_size((3, 100), 12)


def test_strings_are_decoded_when_they_are_looked_at(tmp_path: Path, write_gguf: Write) -> None:
    words = ["<s>", "", "naïve", "日本語", "x" * 300]
    write_gguf(tmp_path / "words.gguf", SHAPE, change=lambda m: m.update({"tokenizer.ggml.tokens": words}))
    found = read_header(tmp_path / "words.gguf").metadata["tokenizer.ggml.tokens"]
    assert (list(found), len(found), found[2], list(found[1:3])) == (words, 5, "naïve", words[1:3])


def test_strings_that_are_none_are_damage_to_the_tokenizer_alone(tmp_path: Path, write_gguf: Write) -> None:
    path, words = tmp_path / "words.gguf", ["naïve", "abc"]
    values = {"model": "gpt2", "pre": "smollm", "tokens": words, "token_type": [1, 1], "merges": ["a b"]}
    write_gguf(path, SHAPE, change=lambda m: m.update({f"tokenizer.ggml.{key}": x for key, x in values.items()}))
    path.write_bytes(path.read_bytes().replace("naïve".encode(), b"na\xff\xfeve"))
    assert load(config(path), "float32").shape == SHAPE
    with pytest.raises(UsageError, match="words.gguf: the tokenizer is damaged"):
        _ = load(config(path), "float32").tokenizer


def test_a_list_of_strings_that_runs_past_the_end(tmp_path: Path, write_gguf: Write) -> None:
    path = tmp_path / "words.gguf"
    write_gguf(path, SHAPE, change=lambda m: m.update({"tokenizer.ggml.tokens": ["one", "two"]}))
    whole, at = path.read_bytes(), path.read_bytes().index(b"one") - 8
    for length in (10**6, 2**63, 2**64 - 1):
        path.write_bytes(whole[:at] + struct.pack("<Q", length) + whole[at + 8 :])
        assert "it ends at byte" in refusal(path)
    path.write_bytes(whole[: at - 8] + struct.pack("<Q", 2**62) + whole[at:])
    assert "it ends at byte" in refusal(path)


def test_a_checksum_that_was_begun_is_as_one_that_was_not(path: Path, tmp_path: Path) -> None:
    source = GgufFile(path, "small", "0" * 64)
    source.begin()
    with pytest.raises(UsageError, match="damaged .sha256 .* expected 0000"):
        source.weights("float32")
    source = GgufFile(path, "small")
    path.unlink()
    source.begin()
    with pytest.raises(UsageError, match="cannot be read"):
        source.weights("float32")
