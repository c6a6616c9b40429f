"""A Llama model in a GGUF file: its shape, its tokenizer and its weights, dequantised.

Rows of q and k are stored in ggml's rotary order, which turns neighbours (0, 1), (2, 3) ... of a head; they are
put back into the order that turns halves (0, D/2), (1, D/2 + 1) ...
"""

from __future__ import annotations

import math
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvlab.cache import cache_dir, sha256, staged
from kvlab.errors import UsageError
from kvlab.model.gguf_header import Header, read_header
from kvlab.model.shape import Shape, about
from kvlab.model.weights import Weights, fuse, load_fused, parts, save_safetensors

if TYPE_CHECKING:
    from kvlab.model.tokenizer import Tokenizer

FORMAT = 1  # of converted weights: raise it when what fuse() makes of a file changes
# Numbers and bytes in a block of the most usual tensor types. gguf knows all, but takes longer to import than a file's
# head to read: F32, F16, Q4_0, Q4_1, Q8_0, Q4_K, Q5_K, Q6_K, BF16.
BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 8: (32, 34), 12: (256, 144), 13: (256, 176), 14: (256, 210),
    30: (1, 2),
}  # fmt: skip
NAMES = {
    "embed": "token_embd", "norm": "output_norm", "head": "output",
    "attention_norm": "attn_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v", "out": "attn_output",
    "mlp_norm": "ffn_norm", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
}  # fmt: skip


class GgufFile:
    """A source of weights. UsageError on opening: missing, truncated, damaged, or not a Llama."""

    dtypes = ("float32", "bfloat16")

    def __init__(self, path: Path, name: str, checksum: str | None = None) -> None:
        """`checksum`: sha256 that the file must have."""
        self.path, self.name, self.checksum = path, name, checksum
        self._found: Future[str] | None = None  # the checksum that it has
        self.header: Header = read_header(path)
        with about(path):
            self.shape = _shape(self.header)
            self._check_tensors()

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The file's own; None without one. UsageError: damaged, or of another kind than SmolLM's."""
        from kvlab.model.tokenizer import from_gguf

        return from_gguf(self.path, self.header.metadata)

    def begin(self) -> None:
        """The checksum, in a thread."""
        thread = ThreadPoolExecutor(1, "kvlab-checksum")
        self._found = thread.submit(sha256, self.path)
        thread.shutdown(wait=False)

    def weights(self, dtype: str) -> Weights:
        """Memory-mapped from the cache of converted weights, which is filled at the first call.

        UsageError: the file has another checksum than it must have, or the cache cannot be written.
        """
        found = self._found.result() if self._found else sha256(self.path)
        if self.checksum not in (None, found):
            raise UsageError(f"{self.path}: damaged (sha256 {found}, expected {self.checksum})")
        path = cache_dir() / "converted" / f"{found[:32]}-{dtype}-{FORMAT}.safetensors"
        if path.exists():
            with suppress(UsageError):  # damaged: converted anew
                return load_fused(self.shape, path)
        with staged(path) as unfinished:
            save_safetensors(fuse(self.shape, self._part, dtype), unfinished)
        return load_fused(self.shape, path)

    def _check_tensors(self) -> None:
        """Every tensor the model needs is there, with its size, inside the file; and no other."""
        if self.shape.layers > len(self.header.tensors):
            raise UsageError(f"damaged, {self.shape.layers} layers in {len(self.header.tensors)} tensors")
        expected = {_stored_name(part): size for part, size in parts(self.shape).items()}
        for name, size in expected.items():
            if name not in self.header.tensors:
                raise UsageError(f"damaged, tensor {name} is missing")
            if self.header.tensors[name].size != size:
                found = self.header.tensors[name].size
                raise UsageError(f"damaged, tensor {name} is {found}, expected {size}")
        for name in self.header.tensors.keys() - expected.keys():
            raise UsageError(f"tensor {name} has no place in a Llama without biases and experts")
        self._check_ends()

    def _check_ends(self) -> None:
        length = self.path.stat().st_size
        for name, info in self.header.tensors.items():
            end = info.start + math.prod(_stored_size(info.size, info.type))
            if end > length:
                raise UsageError(f"truncated, tensor {name} ends at byte {end:,} of {length:,}")

    def _part(self, part: str) -> Any:
        import torch

        info = self.header.tensors[_stored_name(part)]
        raw = np.memmap(self.path, np.uint8, "r", info.start, _stored_size(info.size, info.type))
        with about(self.path):
            values = _dequantise(raw, info.type).reshape(info.size)
        if part.endswith((".q", ".k")):
            values = halves(values, self.shape.head_dim)
        return torch.from_numpy(values)


def halves(values: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
    """Rows of every head from ggml's rotary order (neighbours) into ours (halves)."""
    paired = values.reshape(-1, head_dim // 2, 2, values.shape[-1])
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(values.shape)


def _stored_name(part: str) -> str:
    layer, _, kind = part.removeprefix("layers.").rpartition(".")
    return f"blk.{layer}.{NAMES[kind]}.weight" if layer else f"{NAMES[kind]}.weight"


def _stored_size(size: tuple[int, ...], kind: int) -> tuple[int, ...]:
    """The shape of the tensor's bytes: a row of numbers becomes a row of whole quantised blocks."""
    numbers, block_bytes = BLOCKS.get(kind) or _rare_block(kind)
    if size[-1] % numbers:
        raise UsageError(f"damaged, a row of {size[-1]} numbers in blocks of {numbers}")
    return (*size[:-1], size[-1] // numbers * block_bytes)


def _rare_block(kind: int) -> tuple[int, int]:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    if kind not in set(GGMLQuantizationType):
        raise UsageError(f"damaged, unknown tensor type {kind}")
    return GGML_QUANT_SIZES[GGMLQuantizationType(kind)]


def _dequantise(raw: NDArray[np.uint8], kind: int) -> NDArray[np.float32]:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    try:
        return np.array(dequantize(raw, GGMLQuantizationType(kind)), np.float32)
    except NotImplementedError as error:
        name = GGMLQuantizationType(kind).name
        raise UsageError(f"tensors of type {name} cannot be dequantised") from error


def _shape(header: Header) -> Shape:
    metadata, tensors = header
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise UsageError(f"architecture {architecture!r}; allowed is 'llama'")
    if "rope_freqs.weight" in tensors or metadata.get("llama.rope.scaling.type", "none") != "none":
        raise UsageError("rotary scaling is read from checkpoint directories only, not from GGUF files")

    if window := metadata.get("llama.attention.sliding_window"):
        raise UsageError(f"llama.attention.sliding_window={window}; allowed is 0: every layer here reads all tokens")

    def number(key: str, default: float | None = None) -> Any:
        value = metadata.get(f"llama.{key}", default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"llama.{key}={value}; allowed is a number")
        return value

    hidden, q_heads = number("embedding_length"), number("attention.head_count")
    head_dim = number("attention.key_length", hidden // q_heads if q_heads else 0)
    for key in ("attention.value_length", "rope.dimension_count"):
        if number(key, head_dim) != head_dim:
            raise UsageError(f"llama.{key}={number(key)}; allowed is the head size, {head_dim}")
    embedding = tensors.get("token_embd.weight")
    return Shape(
        layers=number("block_count"),
        q_heads=q_heads,
        kv_heads=number("attention.head_count_kv", q_heads),
        head_dim=head_dim,
        hidden=hidden,
        ffn=number("feed_forward_length"),
        vocab=embedding.size[0] if embedding and embedding.size else 0,
        rope_theta=number("rope.freq_base", 10000.0),
        rms_eps=number("attention.layer_norm_rms_epsilon"),
        tied="output.weight" not in tensors,
        max_position=number("context_length"),
    )
