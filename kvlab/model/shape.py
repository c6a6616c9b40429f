"""The sizes of a Llama model: all that capacity planning needs. No torch, no weights."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvlab.errors import UsageError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float64": 8}
LARGEST = {"layers": 4096}  # beyond any model; other sizes 2**24


def check_dtype(dtype: str, allowed: Collection[str] = tuple(DTYPE_BYTES)) -> None:
    """Raises UsageError unless `dtype` is one of the allowed names."""
    if dtype not in allowed:
        raise UsageError(f"dtype={dtype}: allowed here is {', '.join(allowed)}")


@contextmanager
def about(path: Path) -> Iterator[None]:
    """Puts the file in question in front of a UsageError."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3.1's stretching of the slow rotary frequencies."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int  # tokens


@dataclass(frozen=True)
class Shape:
    """The sizes of one model. Raises UsageError when they do not fit together."""

    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    ffn: int
    vocab: int
    rope_theta: float
    rms_eps: float
    tied: bool  # the head's weights are the embedding's
    max_position: int  # tokens that a sequence may have
    rope_scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        for name in ("layers", "q_heads", "kv_heads", "head_dim", "hidden", "ffn", "vocab", "max_position"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UsageError(f"model {name}={value}: allowed is a whole number, 1 or more")
            if value > LARGEST.get(name, 2**24):
                raise UsageError(f"model {name}={value}: allowed is at most {LARGEST.get(name, 2**24)}")
        for name in ("rope_theta", "rms_eps"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e30:
                raise UsageError(f"model {name}={value}: allowed is a number above 0")
        if not isinstance(self.tied, bool):
            raise UsageError(f"model tied={self.tied}: allowed is true or false")
        if self.q_heads % self.kv_heads:
            raise UsageError(f"model q_heads={self.q_heads}: allowed is a multiple of kv_heads={self.kv_heads}")
        if self.head_dim % 2:
            raise UsageError(f"model head_dim={self.head_dim}: allowed is an even number")

    def check_max_len(self, max_len: int) -> None:
        """UsageError: sequences of `max_len` tokens would have positions that the model does not know."""
        if max_len > self.max_position:
            raise UsageError(f"max_len={max_len}: allowed with this model is at most {self.max_position} tokens")

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of all weights. UsageError for an unknown dtype."""
        check_dtype(dtype)
        heads = 2 * self.q_heads + 2 * self.kv_heads
        layer = self.hidden * (heads * self.head_dim + 3 * self.ffn + 2)
        return DTYPE_BYTES[dtype] * (self.layers * layer + self.hidden * (self.vocab * (1 if self.tied else 2) + 1))

    def token_bytes(self, dtype: str) -> int:
        """Bytes of one token's keys and values in every layer. UsageError for an unknown dtype."""
        check_dtype(dtype)
        return 2 * self.layers * self.kv_heads * self.head_dim * DTYPE_BYTES[dtype]
