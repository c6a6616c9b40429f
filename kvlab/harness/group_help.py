"""What each group of the configuration decides, and what may be chosen of it; for --help: nothing heavy is imported."""

from __future__ import annotations

import textwrap
from pathlib import Path

CONF = Path(__file__).parents[1] / "conf"
GROUPS = {  # in the order of a run's configuration
    "strategy": "which slots each sequence owns: what is compared",
    "model": "whose sizes, and for a real run whose weights; or model.path=DIR",
    "workload": "the requests: lengths, arrivals, what they share; or workload.path=FILE",
    "admission": "when a waiting request may start, and how much room stays free for those that run",
    "forecast": "how long a request is expected to grow",
    "victim": "who gives way when the memory runs out",
    "preemption": "what becomes of the victim's tokens",
    "eviction": "who leaves a cache first; used by strategies that keep one",
    "attention": "what reads the tables: a view and a kernel",
    "layout": "how the heads of a slot lie in memory; the same slots and tokens with every strategy",
    "preset": "a real system: its strategy, axes and settings",
    "gpu": "with executor=simulated: whose figures",
    "vmm": "with executor=simulated: seconds that a driver takes to map",
    "cost": "with executor=simulated: how close to its peaks a server comes",
    "experiment": "a named set of overrides, and of values for kvlab sweep",
    "tracking": "where results are logged to",
}


def options(group: str) -> list[str]:
    """Those that come with kvlab; plugins and a folder kvlab-conf bring more."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def groups_text() -> str:
    """A line on each group, and its options below."""
    lines = ["Groups, and what may be chosen of each (plugins bring more; a wrong name lists all):"]
    for group, words in GROUPS.items():
        lines.append(f"  {group}: {words}")
        chosen = ", ".join(options(group))
        lines += textwrap.wrap(chosen, 112, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(lines)
