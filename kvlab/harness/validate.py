"""Every value of a composed configuration, looked at once: types, ranges, names, and what goes together.

Hydra knows which names exist; this file knows what they may hold. Groups that plugins extend (workload,
model) check their own parameters where they are built.
"""

from __future__ import annotations

import math
import mmap
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from kvlab.build import tile
from kvlab.errors import UsageError

Check = Callable[[str, Any], Any]
SIMULATED = ("gpu", "vmm", "cost")  # groups that a real run has no use for; kvlab.cost checks their values
GROUPS = (
    "strategy", "model", "workload", "admission", "victim", "preemption", "forecast", "eviction", "attention", "layout",
)  # fmt: skip
UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def validate(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with its values in their plain form (sizes in bytes). Raises UsageError."""
    _names(config)
    checked = {name: CHECKS[name](name, value) for name, value in config.items() if name in CHECKS}
    parts = {
        part: {name: checks[name](f"{part}.{name}", value) for name, value in config[part].items()}
        for part, checks in PARTS.items()
    }
    files = {group: _absolute(group, config[group]) for group in ("model", "workload")}
    checked = {**config, **checked, **files, **parts}
    _one_pool(checked)
    _one_executor(checked)
    _together(checked)
    tile(checked)
    return checked


def _one_pool(checked: Mapping[str, Any]) -> None:
    pools = [name for name in ("pool_bytes", "pool_blocks", "pool_fraction") if checked[name] is not None]
    if len(pools) > 1:
        raise UsageError(f"{' and '.join(pools)}: both are given; they name the same memory, give one")
    if checked["device"] == "cpu" and checked["pool_fraction"] is not None:
        raise UsageError(f"pool_fraction={checked['pool_fraction']}: allowed with device=cuda only; give pool_bytes")


def _one_executor(checked: Mapping[str, Any]) -> None:
    """What the other one alone can do."""
    if checked["executor"] == "simulated" and checked["device"] != "cpu":
        raise UsageError(f"device={checked['device']}: allowed with executor=simulated is cpu, which does the counting")
    if checked["executor"] == "simulated" and checked["engine"]["clock"] != "wall":
        raise UsageError("engine.clock=steps: allowed with executor=real only; simulated time is the cost model's")
    if checked["executor"] == "real":
        for name, value in (("kv_dtype", None), ("tensor_parallel", 1)):
            if checked[name] != value:
                raise UsageError(f"{name}={checked[name]}: allowed with executor=simulated only")


def _together(checked: Mapping[str, Any]) -> None:
    """Choices that need another one."""
    if checked["admission"].get("name") == "oracle" and checked["forecast"].get("name") != "oracle":
        raise UsageError(f"admission=oracle: needs forecast=oracle, here {checked['forecast'].get('name')}")
    if checked["dtype"] == "float64" and checked["model"].get("name") != "tiny":
        raise UsageError("dtype=float64: allowed with model=tiny only; here float32 or bfloat16")


def rehearse(configs: Iterable[Mapping[str, Any]]) -> None:
    """Raise UsageError for what only the engine knows to be wrong (a file, a pool), before anything runs."""
    for config in configs:
        plan = import_module("kvlab.simulate" if config["executor"] == "simulated" else "kvlab.run").plan
        try:
            plan(dict(config))
        except UsageError:
            raise
        except Exception:  # a defect, in a strategy perhaps: its own run will fail and say where
            continue
        _finite("", config)


def whole(low: int, high: int | None = 10**9) -> Check:
    """A whole number from `low` to `high`; None: however large."""

    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise UsageError(f"{name}={value}: allowed is a whole number, {low} or more")
        if high is not None and value > high:
            raise UsageError(f"{name}={value}: allowed is at most {high}")
        return value

    return check


def number(low: float) -> Check:
    """A number, `low` or more."""

    def check(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < float("inf"):
            raise UsageError(f"{name}={value}: allowed is a number, {low} or more")
        return float(value)

    return check


def one_of(*names: str) -> Check:
    def check(name: str, value: Any) -> str:
        if value not in names:
            raise UsageError(f"{name}={value}: allowed is {', '.join(names)}")
        return str(value)

    return check


def optional(inner: Check) -> Check:
    return lambda name, value: None if value is None else inner(name, value)


def size(name: str, value: Any) -> int:
    """Bytes: a whole number, or one with a unit."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*(B|KiB|MiB|GiB)?", str(value))
    amount = float(match[1]) * UNITS[match[2] or ""] if match and not isinstance(value, bool) else 0.0
    if amount < 1 or amount != int(amount):
        raise UsageError(f"{name}={value}: allowed is bytes, or a size such as 720MiB (KiB, MiB, GiB)")
    return int(amount)


def none_or(inner: Check) -> Check:
    """0, or what `inner` takes."""
    return lambda name, value: 0 if value == 0 and not isinstance(value, bool) else inner(name, value)


def page_group(name: str, value: Any) -> int:
    amount = size(name, value)
    if amount % mmap.PAGESIZE:
        raise UsageError(f"{name}={value}: allowed is a multiple of {mmap.PAGESIZE} bytes")
    return amount


def flag(name: str, value: Any) -> bool:
    words = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
    if str(value).lower() not in words:
        raise UsageError(f"{name}={value}: allowed is true or false")
    return words[str(value).lower()]


def share(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise UsageError(f"{name}={value}: allowed is a number above 0, at most 1")
    return float(value)


def folder(name: str, value: Any) -> str:
    """Absolute: it names the same one from wherever the run is started or taken up again."""
    if value == "" or not isinstance(value, str | int | float):
        raise UsageError(f"{name}={value}: allowed is a directory, or null")
    return str(Path(str(value)).expanduser().absolute())


def device(name: str, value: Any) -> str:
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", str(value)):
        raise UsageError(f"{name}={value}: allowed is cpu, cuda or cuda:N")
    return str(value)


CHECKS: dict[str, Check] = {
    "seed": whole(0, None),
    "max_len": whole(2),
    "block_size": whole(1),
    "page_group_bytes": page_group,
    "pool_bytes": optional(size),
    "pool_blocks": optional(whole(1)),
    "host_bytes": none_or(size),
    "dtype": one_of("float32", "bfloat16", "float64"),
    "pool_fraction": optional(share),
    "device": device,
    "kv_dtype": optional(one_of("float32", "bfloat16", "float16", "float8", "int8")),
    "tensor_parallel": whole(1, 1024),
    "executor": one_of("real", "simulated"),
    "timing": flag,
}
ENGINE: dict[str, Check] = {
    "max_seqs": whole(1, 65536),
    "chunk": optional(whole(1)),
    "token_budget": optional(whole(1)),
    "max_preemptions": whole(0),
    "wait_for_prefix": flag,
    "queue": one_of("arrival", "longest_prefix"),
    "fork": flag,
    "length_penalty": number(0),
    "draft_tokens": whole(0, 64),
    "draft_accept": none_or(share),
    "draft_tape": optional(folder),
    "clock": one_of("wall", "steps"),
    "temperature": number(0),
    "threads": optional(whole(1, 1024)),
    "cuda_graphs": flag,
    "memory_map": none_or(whole(16, 4096)),
}
SLO: dict[str, Check] = {"ttft_s": optional(number(0)), "tpot_s": optional(number(0))}
PARTS = {"engine": ENGINE, "slo": SLO}


def _absolute(group: str, node: Mapping[str, Any]) -> dict[str, Any]:
    """Paths that name the same files from wherever the run is started or taken up again."""
    if isinstance(node.get("tokenizer"), str) and node["tokenizer"] != "smollm2":
        node = {**node, "tokenizer": str(Path(node["tokenizer"]).expanduser().absolute())}
    path = node.get("path")
    if path is None:
        return dict(node)
    if path == "" or not isinstance(path, str | int | float):
        raise UsageError(f"{group}.path={path}: allowed is a path, or null")
    return {**node, "path": str(Path(str(path)).expanduser().absolute())}


def _finite(name: str, value: Any) -> None:
    """A file of JSON has no other numbers: they would be read back as if nothing had been given."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            _finite(f"{name}.{key}" if name else str(key), item)
    elif isinstance(value, list | tuple):
        for item in value:
            _finite(name, item)
    elif isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{name}={value}: allowed is a finite number")


def _names(config: Mapping[str, Any]) -> None:
    """Everything that is needed is there, and nothing else."""
    needed = {**dict.fromkeys(GROUPS, dict), **dict.fromkeys(CHECKS), **dict.fromkeys(PARTS, dict)}
    for name, kind in needed.items():
        if name not in config or (kind and not isinstance(config[name], kind)):
            raise UsageError(f"{name}={config.get(name)}: it is needed and cannot be left out")
    unknown = [name for name in config if name not in needed and name not in SIMULATED]
    inside = {part: [f"{part}.{name}" for name in checks] for part, checks in PARTS.items()}
    unknown += [f"{part}.{name}" for part in PARTS for name in config[part] if f"{part}.{name}" not in inside[part]]
    if unknown:
        allowed = [*needed, *(name for names in inside.values() for name in names)]
        raise UsageError(f"{unknown[0]}: no such name; allowed is {', '.join(allowed)}")
