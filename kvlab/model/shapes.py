"""Models of which only the sizes are known, in shapes.csv: enough for a cost model, without weights to compute with."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from kvlab.errors import UsageError
from kvlab.model.shape import Shape

if TYPE_CHECKING:
    from kvlab.model.weights import Weights

TABLE = Path(__file__).with_name("shapes.csv")
SIZES = ("layers", "q_heads", "kv_heads", "head_dim", "hidden", "ffn", "mlp_matrices", "vocab", "tied", "max_position")


@dataclass(frozen=True)
class Sizes(Shape):
    """A shape that may also be one whose feed-forward part has no gate."""

    mlp_matrices: int = 3  # gate, up and down; or up and down

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mlp_matrices not in (2, 3):
            raise UsageError(f"model mlp_matrices={self.mlp_matrices}: allowed is 2 or 3")


class Published:
    """A source of sizes without weights."""

    dtypes: tuple[str, ...] = ()
    tokenizer = None

    def __init__(self, config: Mapping[str, Any]) -> None:
        """The table's sizes of config["name"], or what the configuration says instead. UsageError: a wrong one."""
        self.name, sizes = find(str(config.get("name")))
        unknown = [key for key in config if key not in (*SIZES, "name", "path")]
        if unknown:
            raise UsageError(f"model.{unknown[0]}: {self.name} has no such size; it has {', '.join(SIZES)}")
        given = {key: config[key] for key in SIZES if config.get(key) is not None}
        # What rotates and what norms divide by costs the same whatever it is.
        self.shape = Sizes(**{**sizes, **given}, rope_theta=10000.0, rms_eps=1e-5)

    def begin(self) -> None:
        """There is nothing to do before `weights`."""

    def weights(self, dtype: str) -> Weights:
        self.refuse()

    def refuse(self) -> NoReturn:
        raise UsageError(f"model={self.name} has no weights, only sizes: executor=simulated only")


def find(name: str) -> tuple[str, dict[str, Any]]:
    """The model's own name, and its sizes. UsageError: not in the table."""
    table = sizes_by_name()
    for known, sizes in table.items():
        if choice(known) == choice(name):
            return known, sizes
    raise UsageError(f"model={name}: allowed is smollm2, tiny, model.path=DIR, or of {', '.join(table)}")


def choice(name: str) -> str:
    """The name by which a configuration chooses a model: llama_3_8b."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower())


@cache
def sizes_by_name() -> dict[str, dict[str, Any]]:
    """The table, in its order."""
    with TABLE.open(newline="") as file:
        return {row["model"]: _sizes(row) for row in csv.DictReader(line for line in file if not line.startswith("#"))}


def _sizes(row: Mapping[str, str]) -> dict[str, Any]:
    return {key: bool(int(row[key])) if key == "tied" else int(row[key]) for key in SIZES}
