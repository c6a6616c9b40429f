"""Which shape a kernel's programs have: measured on this GPU if somebody tuned, else committed, never searched for.

The committed table (defaults.json) is reasoned from bytes in flight and checked to fit: registers without spills and
shared memory, on every architecture that is compiled for. Nothing in it was timed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from math import log2
from pathlib import Path
from typing import Any, NamedTuple

import torch
from triton.runtime.errors import OutOfResources

from kvlab.cache import cache_dir, staged
from kvlab.errors import UsageError
from kvlab.kernels.gpu.config import Config

KINDS = ("decode", "prefill")
DEFAULTS = Path(__file__).with_name("defaults.json")
ROW = 512  # a row is read like a block that is larger than any


class Key(NamedTuple):
    """What a choice depends on. block_size None: rows. groups: query heads a key/value head."""

    kind: str
    dtype: torch.dtype
    head_dim: int
    block_size: int | None
    groups: int

    def record(self) -> dict[str, Any]:
        return {**self._asdict(), "dtype": str(self.dtype)[6:]}

    def __str__(self) -> str:
        place = "rows" if self.block_size is None else f"blocks of {self.block_size}"
        return f"{self.kind} {str(self.dtype)[6:]}, heads of {self.head_dim} x {self.groups}, {place}"


class Choice(NamedTuple):
    """origin: "measured", "committed", or "committed for " and the nearest key there is."""

    config: Config
    origin: str


class Tuned(NamedTuple):
    """seconds: of each candidate that ran, best first; failed: what the others broke."""

    config: Config
    seconds: dict[Config, float]
    failed: dict[Config, str]


@cache
def config_for(kind: str, dtype: torch.dtype, head_dim: int, block_size: int | None, groups: int) -> Config:
    """The shape of a program. Kept for the process, so that asking before every launch costs nothing."""
    return choose(Key(kind, dtype, head_dim, block_size, groups)).config


def choose(key: Key, measured: Path | None = None, device: str | None = None) -> Choice:
    """As config_for, and where it comes from. measured: another file than the user's. device: another GPU's name."""
    found = _measured(measured or measured_path()).get(device or _device(), {}).get(key)
    return committed(key) if found is None else Choice(found, "measured")


def committed(key: Key) -> Choice:
    """What holds where nothing was measured: the key's entry, or the nearest. UsageError: no such kernel."""
    if key.kind not in KINDS:
        raise UsageError(f"no kernel {key.kind!r} to configure; allowed is {', '.join(KINDS)}")
    table = _committed()
    nearest = min((other for other in table if other.kind == key.kind), key=lambda other: _distance(key, other))
    return Choice(table[nearest], "committed" if nearest == key else f"committed for {nearest}")


def candidates(key: Key) -> list[Config]:
    """At most eight to try: the committed one, and steps from it of which each moves other bytes at once."""
    first = committed(key).config
    wider = first._replace(warps=first.warps * 2)
    if key.kind == "prefill":
        wider = wider._replace(queries=first.queries * 2)
    steps = [
        wider,
        wider._replace(tile=first.tile * 2),
        first._replace(tile=first.tile * 2),
        first._replace(tile=first.tile // 2),
        first._replace(warps=first.warps // 2),
        first._replace(stages=first.stages + 1),
        first._replace(stages=first.stages - 1),
    ]
    return [first, *(config for config in steps if config.tile >= 16)]


def tune(
    key: Key,
    launch: Callable[[Config], object],
    seconds: Callable[[Callable[[], object]], float] | None = None,
    path: Path | None = None,
    device: str | None = None,
) -> Tuned:
    """Times the candidates for one key and notes the best for config_for, in `path` or the user's cache.

    launch: runs the kernel once with the config. seconds: of one such call; without it, CUDA events. device: the GPU
    that is noted. A candidate that wants more than the GPU has is left out; UsageError if all do.
    """
    timer, took, failed = seconds or cuda_seconds, {}, {}
    for config in candidates(key):
        try:
            took[config] = timer(lambda config=config: launch(config))  # type: ignore[misc]
        except OutOfResources as error:
            failed[config] = str(error)
    if not took:
        raise UsageError(f"{key}: no candidate fits this GPU: {'; '.join(failed.values())}")
    ranked = dict(sorted(took.items(), key=lambda item: item[1]))
    best = next(iter(ranked))
    _note(path or measured_path(), device or _device() or "unknown", key, best)
    return Tuned(best, ranked, failed)


def cuda_seconds(call: Callable[[], object], repeats: int = 20) -> float:
    """Median of one call on the current stream, after a few, of which the first compiles."""
    for _ in range(3):
        call()
    pair_N = [[torch.cuda.Event(enable_timing=True) for _ in "be"] for _ in range(repeats)]  # type: ignore[no-untyped-call]
    for begin, end in pair_N:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    took_ms = sorted(float(begin.elapsed_time(end)) for begin, end in pair_N)
    return took_ms[repeats // 2] / 1000


def measured_path() -> Path:
    """Where choices measured on this machine are kept."""
    return cache_dir() / "gpu_configs.json"


@cache
def _committed() -> dict[Key, Config]:
    return _read(json.loads(DEFAULTS.read_text()))


def _note(path: Path, device: str, key: Key, config: Config) -> None:
    tables = _measured(path)
    tables.setdefault(device, {})[key] = config
    written = {
        name: [{**known.record(), **chosen._asdict()} for known, chosen in table.items()]
        for name, table in tables.items()
    }
    with staged(path) as fresh:
        fresh.write_text(json.dumps(written, indent=1) + "\n")
    config_for.cache_clear()


def _measured(path: Path) -> dict[str | None, dict[Key, Config]]:
    """By GPU. UsageError: the file is not one of ours."""
    if not path.exists():
        return {}
    try:
        return {device: _read(entries) for device, entries in json.loads(path.read_text()).items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{path}: not a table of measured choices ({error}); delete it or tune again") from error


def _read(entries: list[dict[str, Any]]) -> dict[Key, Config]:
    return {
        Key(**{**{name: entry[name] for name in Key._fields}, "dtype": getattr(torch, entry["dtype"])}): Config(
            **{name: entry[name] for name in Config._fields}
        )
        for entry in entries
    }


def _distance(key: Key, other: Key) -> float:
    """An element's bytes weigh most, then a head's: they decide what fits. Float16 is as near to bfloat16 as can be."""
    sizes = abs(log2(key.dtype.itemsize) - log2(other.dtype.itemsize))
    heads = abs(log2(_padded(key)) - log2(_padded(other)))
    blocks = abs(log2(key.block_size or ROW) - log2(other.block_size or ROW))
    return 1000 * sizes + 100 * heads + blocks + abs(log2(key.groups) - log2(other.groups)) + (key != other) / 8


def _padded(key: Key) -> int:
    """Elements of a head as a program holds them: a power of two."""
    return 1 << (key.head_dim - 1).bit_length()


def _device() -> str | None:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None
