"""Where a workload's rows come from: a formula, a figure or table that stands for a trace, or a file."""

from __future__ import annotations

from pathlib import Path

from kvlab.errors import UsageError
from kvlab.workload import conversations, histograms, jsonl, lengths, quantiles, trace
from kvlab.workload.knobs import Config, shown
from kvlab.workload.rows import Drawn, Rows

COMMON = ("name", "num_requests", "path", "sample", "arrivals", "rate", "time_scale", "scale", "max_tokens",
          "shared_prefix", "system_prompt", "n", "beams", "priorities")  # fmt: skip
OWN = {
    "lognormal": ("mu", "sigma", "mean", "cap", "prompt_share"),
    "uniform": ("prompt_len", "output_len"),
    "fixed": ("prompt_len", "output_len"),
    "listed": ("lengths",),
}
FILES = {  # workloads that are a file's: what it is that they need
    "mooncake": "a trace of Mooncake's, JSON lines with hash_ids",
    "ragpulse": "RAGPulse's 0_trace.jsonl, the other five files beside it",
    "sharegpt_turns": "ShareGPT's conversations, a JSON list",
}
OF_FILES: dict[str, tuple[str, ...]] = {"sharegpt_turns": ("tokenizer", "think_s")}


def drawn_names() -> list[str]:
    """Workloads that need no file."""
    return [*OWN, *quantiles.table_names(), *histograms.names()]


def check_knobs(config: Config) -> None:
    """A name is known, or belongs to a file; and it has no knob that it would not look at."""
    name, path = config.get("name"), config.get("path")
    if name in FILES and path is None:
        raise UsageError(f"workload={name}: needs workload.path, {FILES[name]} (where to get it: docs/workloads.md)")
    if not isinstance(name, str) or (name not in drawn_names() and path is None):
        names = ", ".join([*drawn_names(), *FILES])
        raise UsageError(f"workload.name={shown(name)}: allowed are {names}; any name with workload.path")
    allowed = COMMON + OWN.get(name, ()) + OF_FILES.get(name, ())
    unknown = [knob for knob in config if knob not in allowed]
    if unknown:
        raise UsageError(f"workload.{unknown[0]}: workload {name} has no such knob; it has {', '.join(allowed)}")


def find_rows(config: Config, seed: int, max_len: int) -> Rows:
    """The rows that run, as long as they are in the source."""
    if config.get("path") is not None:
        rows = trace.choose(read(config), config, seed)
        if rows.content is not None and config.get("shared_prefix"):
            raise UsageError(f"workload.shared_prefix={config['shared_prefix']}: allowed is 0 where a file says "
                             "what prompts share; workload.system_prompt goes before them")  # fmt: skip
        return rows
    if config.get("sample") not in (None, "head"):
        raise UsageError(f"workload.sample={config['sample']}: only a file (workload.path) has rows to choose from")
    return draw(config, seed, max_len).rows(lengths.requests_to_draw(config))


def read(config: Config) -> Rows:
    """All rows of the file, by the reader that the workload's name stands for."""
    path = Path(str(config["path"])).expanduser()
    match config["name"]:
        case "mooncake":
            return jsonl.mooncake(path)
        case "ragpulse":
            return jsonl.ragpulse(path)
        case "sharegpt_turns":
            tokenizer = config.get("tokenizer")
            return conversations.read(path, None if tokenizer is None else str(tokenizer))
        case _:
            return trace.read(path)


def draw(config: Config, seed: int, max_len: int) -> Drawn:
    """Lengths without end."""
    match config["name"]:
        case "lognormal":
            return lengths.lognormal(config, seed, max_len)
        case "uniform":
            return lengths.uniform(config, seed)
        case "fixed":
            return lengths.fixed(config)
        case "listed":
            return lengths.listed(config)
        case name if name in histograms.names():
            return histograms.drawn(name, seed)
        case name:
            return quantiles.drawn(name, seed)
