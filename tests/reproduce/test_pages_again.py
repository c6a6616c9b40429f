"""Pages written again from what their commands found: the same bytes, but for what the data files say since."""

from __future__ import annotations

import argparse
import json
import shutil

import pytest

from kvlab.errors import UsageError
from kvlab.harness import reproduce as verb
from kvlab.reproduce.frame import Paper

CELL = next(cell.name for cell in Paper.load("vattention").cells("table9") if cell.counts)


def call(*words: str) -> int:
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    return verb.run(parser.parse_args(words))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Two pages of two papers."""
    folder = tmp_path_factory.mktemp("written")
    assert call("vattention", "--only", "table9,table10", "--out", str(folder / "tables.md")) == 0
    assert call("sosp23", "--only", "table1", "--out", str(folder / "memory.md")) == 0
    return folder


@pytest.fixture
def folder(written, tmp_path):
    return shutil.copytree(written, tmp_path / "pages")


def change(folder, cell: str, values: list[float]) -> None:
    """What was found of a cell of table9."""
    found = json.loads((folder / "tables.json").read_text())
    (table9,) = (figure for figure in found["figures"] if figure["figure"] == "table9")
    table9["found"][cell] = {"values": values, "how": ""}
    (folder / "tables.json").write_text(json.dumps(found))


def test_pages_are_the_same_bytes_again(folder, capsys):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(before) == {
        f"{name}.{end}" for name in ("tables", "memory") for end in ("md", "csv", "tex", "json", "png")
    }
    for name in before:
        if not name.endswith(".json"):
            (folder / name).unlink()
    assert call("pages", "--out", str(folder / "README.md")) == 0
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert (folder / "README.md").read_text() in capsys.readouterr().out
    del after["README.md"]
    assert after == before


def test_the_scoreboard_counts_figures_and_cells(folder):
    call("pages", "--out", str(folder / "README.md"))
    text = (folder / "README.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    assert ["sosp23 table1", "arithmetic", "7 of 7", "reproduced", "[memory](memory.md)"] in rows
    assert ["vattention table9", "arithmetic", "6 of 6", "reproduced", "[tables](tables.md)"] in rows
    assert ["sosp23", "1 of 1", "-", "-", "-"] in rows
    assert ["vattention", "2 of 2", "-", "-", "-"] in rows


def test_the_scoreboard_names_pages_of_curves(folder):
    call("pages", "--out", str(folder / "README.md"))
    assert "both curves" not in (folder / "README.md").read_text()
    (folder / "some_curves.md").write_text("")
    call("pages", "--out", str(folder / "README.md"))
    assert "both curves: [some_curves](some_curves.md)." in (folder / "README.md").read_text()


def test_an_explanation_written_later_is_on_the_page_without_another_run(folder, monkeypatch):
    change(folder, CELL, [99.0])
    load = Paper.load

    def explained(name: str) -> Paper:
        paper = load(name)
        paper.misses["table9"] = "somebody changed a number"
        return paper

    monkeypatch.setattr(Paper, "load", staticmethod(explained))
    call("pages", "--out", str(folder / "README.md"))
    assert "Missed: somebody changed a number" in (folder / "tables.md").read_text()
    assert "| vattention table9 " in (folder / "README.md").read_text()
    assert "5 of 6" in (folder / "README.md").read_text()


def test_a_page_of_cells_that_are_no_longer_published_is_refused(folder):
    change(folder, "TP-9: 64 KB", [1.0])
    with pytest.raises(UsageError, match="tables.json: vattention table9: .*TP-9: 64 KB; run it again"):
        call("pages", "--out", str(folder / "README.md"))


def test_pages_without_anything_found_are_refused(tmp_path):
    with pytest.raises(UsageError, match="needs --out FILE"):
        call("pages")
    with pytest.raises(UsageError, match="no .json"):
        call("pages", "--out", str(tmp_path / "README.md"))
