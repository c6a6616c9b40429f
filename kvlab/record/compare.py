"""Whether two runs generated the same tokens, close choices aside: what `outputs.jsonl` of each says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple


class Agreement(NamedTuple):
    """Sequences of two runs, compared."""

    same: int  # token for token
    ties: int  # they part at a token where the first run's two best logits were closer than the tie gap
    wrong: int  # they part elsewhere, or one run lacks the sequence

    @property
    def holds(self) -> bool:
        return self.wrong == 0


def compare(reference: Path, other: Path) -> Agreement:
    """Compare the outputs of two run directories, sequence by sequence; only the first difference of each counts.

    What follows a difference is another text, so later tokens say nothing.
    """
    a, b = _outputs(reference), _outputs(other)
    kinds = [_kind(a.get(key), b.get(key)) for key in sorted(a.keys() | b.keys())]
    return Agreement(kinds.count("same"), kinds.count("tie"), kinds.count("wrong"))


def _outputs(directory: Path) -> dict[tuple[int, int], dict[str, Any]]:
    with (directory / "outputs.jsonl").open() as file:
        return {(entry["id"], entry.get("branch", 0)): entry for entry in map(json.loads, file)}


def _kind(a: dict[str, Any] | None, b: dict[str, Any] | None) -> str:
    if a is None or b is None:
        return "wrong"
    if a["tokens"] == b["tokens"]:
        return "same"
    pairs = enumerate(zip(a["tokens"], b["tokens"], strict=False))
    first = next((index for index, (x, y) in pairs if x != y), None)
    return "tie" if first is not None and first in a["ties"] else "wrong"
