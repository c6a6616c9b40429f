"""From configuration to model: names, paths and dtypes; planning without weights and without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import kvlab.conf
from kvlab.errors import UsageError
from kvlab.model.load import load, shape_of
from kvlab.model.shape import Shape


def test_the_shipped_configurations_are_complete(tiny_config: dict[str, Any]) -> None:
    folder = Path(kvlab.conf.__path__[0]) / "model"
    assert yaml.safe_load((folder / "tiny.yaml").read_text()) == tiny_config
    assert yaml.safe_load((folder / "smollm2.yaml").read_text()) == {"name": "smollm2", "path": None}


def test_bytes_of_a_token(smollm2: Path) -> None:
    shape = shape_of({"name": "smollm2", "path": None})
    assert (shape.layers, shape.q_heads, shape.kv_heads, shape.head_dim, shape.max_position) == (30, 9, 3, 64, 8192)
    assert [shape.token_bytes(dtype) for dtype in ("float32", "bfloat16", "float64")] == [46080, 23040, 92160]
    with pytest.raises(UsageError, match="dtype=int8: allowed here is float32, bfloat16, float64"):
        shape.token_bytes("int8")


def test_shapes_need_no_torch(tiny_config: dict[str, Any], smollm2: Path) -> None:
    code = (
        "import sys; from kvlab.model.load import shape_of;"
        f"shape_of({tiny_config!r}); shape_of({{'name': 'smollm2', 'path': None}});"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"name": "gpt5"}, "model=gpt5: allowed is smollm2, tiny"),
        ({"path": "/nowhere/at/all"}, "model.path=/nowhere/at/all: no such file or directory; allowed is"),
        ({"path": __file__}, "neither a directory nor a .gguf file; allowed is"),
        ({"layers": 0}, "layers=0: allowed is a whole number, 1 or more"),
        ({"layers": "two"}, "layers=two: allowed is a whole number"),
        ({"kv_heads": 3}, "q_heads=4: allowed is a multiple of kv_heads=3"),
        ({"head_dim": 15}, "head_dim=15: allowed is an even number"),
        ({"rope_theta": "x"}, "rope_theta=x: allowed is a number above 0"),
        ({"seed": -1}, "seed=-1: allowed is a whole number, 0 or more"),
        ({"vocab": None}, "missing vocab"),
    ],
)
def test_wrong_configurations(tiny_config: dict[str, Any], change: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(tiny_config | change, "float32")
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_dtypes(tiny_config: dict[str, Any], smollm2: Path) -> None:
    with pytest.raises(UsageError, match="dtype=float16: allowed here is float32, bfloat16, float64"):
        load(tiny_config, "float16")
    with pytest.raises(UsageError, match="dtype=float64: allowed here is float32, bfloat16$"):
        load({"name": "smollm2", "path": None}, "float64")


def test_a_model_that_is_not_there_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UsageError, match="`kvlab fetch model` downloads it"):
        shape_of({"name": "smollm2", "path": None})


def test_a_damaged_model_is_not_used(smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One flipped bit in a weight: only the checksum sees it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    data = bytearray(smollm2.read_bytes())
    data[-1] ^= 1
    copy = tmp_path / "kvlab" / "smollm2" / smollm2.name
    copy.parent.mkdir(parents=True)
    copy.write_bytes(data)
    with pytest.raises(UsageError, match="damaged .sha256"):
        load({"name": "smollm2", "path": None}, "float32")


def test_shape_is_hashable_and_frozen(tiny_config: dict[str, Any]) -> None:
    shape = shape_of(tiny_config)
    assert isinstance(shape, Shape)
    assert len({shape, shape_of(tiny_config)}) == 1
