"""W&B: an offline sweep is read back from the file that `wandb sync` would send."""

from __future__ import annotations

import json
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvlab.errors import UsageError
from kvlab.harness.cli import main
from kvlab.harness.tracking import mode_of, thinned

BLOCK, HEADER = 32768, 7  # bytes of a log's block, and of a piece's header in it


def pieces(content: bytes) -> Iterator[bytes]:
    """Records of a LevelDB log behind W&B's own seven bytes: first, middle and last pieces put together."""
    assert content[:4] == b":W&B"
    position, record = 7, b""
    while position + HEADER <= len(content):
        if BLOCK - position % BLOCK < HEADER:
            position += BLOCK - position % BLOCK
            continue
        checksum, length, kind = struct.unpack_from("<IHB", content, position)
        data = content[position + HEADER : position + HEADER + length]
        assert zlib.crc32(bytes([kind]) + data) == checksum
        record += data
        position += HEADER + length
        if kind in (1, 4):  # whole, last
            yield record
            record = b""


def read_back(path: Path) -> dict[str, Any]:
    from wandb.proto.wandb_internal_pb2 import Record

    found: dict[str, Any] = {"config": {}, "history": [], "summary": {}}
    for piece in pieces(path.read_bytes()):
        record = Record()
        record.ParseFromString(piece)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
            found |= {"name": run.display_name, "group": run.run_group, "project": run.project, "tags": [*run.tags]}
            found["config"] |= {item.key: json.loads(item.value_json) for item in run.config.update}
        if kind == "history":
            items = record.history.item
            found["history"].append({item.key or item.nested_key[0]: json.loads(item.value_json) for item in items})
        if kind == "summary":
            items = record.summary.update
            found["summary"] |= {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}
        if kind == "exit":
            found["exit"] = record.exit.exit_code
    return found


def whole(path: Path) -> dict[str, Any]:
    """W&B's own process may still be writing when run.finish() has returned."""
    stop = time.monotonic() + 20
    while "exit" not in (found := read_back(path)) and time.monotonic() < stop:
        time.sleep(0.05)
    return found


@pytest.mark.usefixtures("stub")
def test_a_sweep_is_logged_offline_and_once(capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["sweep", "hydra.sweep.dir=out", "seed=91,1"]
    assert main(arguments) == 0
    assert "W&B: offline (no WANDB_API_KEY); tracking=none turns it off\n" in capfd.readouterr().err
    files = list(Path("out/wandb").glob("offline-run-*/*.wandb"))
    logged = {run["name"]: run for run in map(whole, files)}
    assert logged.keys() == {"seed=91", "seed=1"}
    assert json.loads(Path("out/sweep.json").read_text())["overrides"] == ["seed=91,1"]  # what was typed
    run = logged["seed=1"]
    assert (run["group"], run["project"], run["exit"]) == ("out", "kvlab", 0)
    assert run["tags"] == ["paged", "smollm2", "lognormal"]
    assert run["config"]["max_len"] == 4096
    assert run["config"]["strategy"]["name"] == "paged"
    assert run["summary"]["tokens_per_s"] == 123.5
    assert run["summary"]["waste.internal"] == 0.25
    assert 2 <= len(run["history"]) <= 500
    assert (run["history"][0]["held"], run["history"][-1]["held"]) == (0, 1202 * 4096)
    assert logged["seed=91"]["summary"]["status"] == "refused"
    assert main(arguments) == 0
    assert len(list(Path("out/wandb").glob("offline-run-*/*.wandb"))) == 2


@pytest.mark.usefixtures("stub")
def test_what_cannot_be_logged_is_said_and_logged_next_time(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tried: list[Path] = []

    def refuse(self: object, directory: Path) -> None:
        tried.append(directory)
        raise ConnectionError("no route")

    monkeypatch.setattr("kvlab.harness.tracking.Wandb._log", refuse)
    assert main(["sweep", "hydra.sweep.dir=out", "seed=1,2"]) == 1
    said = capfd.readouterr().err
    assert "W&B did not take 2 runs (ConnectionError: no route); their results are whole\n" in said
    assert "2 ok, 0 refused, 0 failed" in said
    assert len(tried) == 1
    monkeypatch.setattr("kvlab.harness.tracking.Wandb._log", lambda self, directory: tried.append(directory))
    assert main(["sweep", "--resume", "out"]) == 0
    assert len(tried) == 3


def test_a_knob_of_tracking_does_not_turn_it_off(capfd: pytest.CaptureFixture[str]) -> None:
    """`tracking.mode=disabled` alone was taken for a choice of tracking, which then was none."""
    assert main(["sweep", "seed=0,1", "tracking.mode=on", "hydra.sweep.dir=out"]) == 2
    assert capfd.readouterr().err.endswith("kvlab: tracking.mode=on: allowed is online, offline, dryrun, disabled\n")
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("mode", "environment", "expected"),
    [
        (None, {}, ("offline", "no WANDB_API_KEY")),
        (None, {"WANDB_API_KEY": "k"}, ("online", "WANDB_API_KEY is set")),
        (None, {"WANDB_API_KEY": "k", "WANDB_MODE": "offline"}, ("offline", "WANDB_MODE says so")),
        (None, {"WANDB_MODE": "dryrun"}, ("offline", "WANDB_MODE says so")),
        ("disabled", {"WANDB_MODE": "online"}, ("disabled", "tracking.mode says so")),
    ],
)
def test_offline_unless_told_otherwise(
    mode: str | None, environment: dict[str, str], expected: tuple[str, str]
) -> None:
    assert mode_of(mode, environment) == expected


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(UsageError, match="WANDB_MODE=on: allowed is online, offline"):
        mode_of(None, {"WANDB_MODE": "on"})


@pytest.mark.parametrize("rows", [0, 1, 2, 499, 500, 501, 1203])
def test_a_series_is_thinned_to_500_rows_with_both_ends(rows: int, tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("\n".join(["step", *map(str, range(rows))]) + "\n")
    steps = [row["step"] for row in thinned(path)]
    assert len(steps) == min(rows, 500)
    assert steps == sorted(set(steps))
    assert not rows or (steps[0], steps[-1]) == (0, rows - 1)
