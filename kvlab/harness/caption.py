"""A table's caption: what its runs have in common, on what they ran, and the command that makes them again."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

from kvlab.engine.capacity import size_text
from kvlab.harness.manifest import MANIFEST
from kvlab.harness.results import Run
from kvlab.harness.rundir import read_json


def caption(runs: list[Run]) -> str:
    """`name value; ...` for each thing that is known; where runs differ, all their values."""
    facts = {
        "model": _seen(run.config.get("model") for run in runs),
        "dtype": _seen(run.config.get("dtype") for run in runs),
        "workload": _seen(_workloads(runs)),
        "pool": _seen(_pool(run) for run in runs),
        "page group": _seen(_page_group(run) for run in runs),
        "kernel": _seen(run.values.get("kernel") for run in runs),
        "executor": _seen(_executor(run) for run in runs),
        "machine": _seen(_machine(run) for run in runs if not run.values.get("simulated")),
        "commit": _seen(_commit(run) for run in runs),
        "seeds": _seen(run.seed for run in runs),
        "command": _command(runs),
    }
    return "; ".join(f"{name} {value}" for name, value in facts.items() if value) + "."


def _seen(values: Iterable[Any]) -> str:
    """The different values in order of appearance."""
    return ", ".join(dict.fromkeys(str(value) for value in values if value not in (None, "")))


def _pool(run: Run) -> str:
    size, tokens = run.values.get("capacity.pool_bytes"), run.values.get("capacity.pool_tokens")
    if size is None:
        return ""
    return f"{size_text(size)} ({size:,} bytes" + (f", {tokens:,} tokens)" if tokens else ")")


def _page_group(run: Run) -> str:
    tokens, size = run.values.get("capacity.page_group_tokens"), run.config.get("page_group_bytes")
    if not tokens:
        return ""
    return (
        (f"{size_text(size)} in one tensor = " if size else "") + f"{tokens:,.2f}".rstrip("0").rstrip(".") + " tokens"
    )


def _workloads(runs: list[Run]) -> list[str]:
    """A failed run says nothing of its workload but the name, which others may have said with more."""
    described = {run.config.get("workload") for run in runs if run.values.get("workload.source")}
    told = [run for run in runs if run.values.get("workload.source") or run.config.get("workload") not in described]
    return [_workload(run) for run in told]


def _workload(run: Run) -> str:
    """Its name, what stands behind it in this run, and whether that was made up."""
    name, source = str(run.config.get("workload") or ""), str(run.values.get("workload.source") or "")
    if not source:
        return name
    text = source if source.startswith(name) else f"{name} ({source})"
    made_up = run.values.get("workload.synthetic") and "synthetic" not in text
    return text + (", synthetic" if made_up else "")


def _executor(run: Run) -> str:
    """A simulated figure is always called so, with whose figures it was made from."""
    if not run.values.get("simulated"):
        return str(run.values.get("executor") or "")
    parts = [run.values.get("gpu"), run.config.get("vmm"), run.config.get("cost")]
    return f"SIMULATED ({', '.join(str(part) for part in parts if part)})"


def _machine(run: Run) -> str:
    cpu, cores, memory = (run.values.get(f"machine.{name}") for name in ("cpu", "cores", "memory_bytes"))
    known = [cpu, cores and f"{cores} cores", memory and size_text(memory)]
    return ", ".join(str(fact) for fact in known if fact)


def _commit(run: Run) -> str:
    commit = str(run.values.get("versions.commit") or "")
    return commit[:10] + (" with changes" if commit and run.values.get("versions.dirty") else "")


def _command(runs: list[Run]) -> str:
    """That of the only run, or those of the sweeps; none where it would not make all these runs again."""
    if len(runs) == 1:
        overrides = runs[0].values.get("overrides")
        return f"`{shlex.join(['kvlab', 'run', *overrides])}`" if isinstance(overrides, list) else ""
    manifests = {place: read_json(place / MANIFEST) or {} for place in {run.path.parent: None for run in runs}}
    listed = {place / item["directory"] for place, made in manifests.items() for item in made.get("runs", [])}
    if not {run.path for run in runs} <= listed:
        return ""
    return _seen(f"`{shlex.join(['kvlab', 'sweep', *made['overrides']])}`" for made in manifests.values())
