"""--out: a path where nothing can be written is found before anything is measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlab.errors import UsageError
from kvlab.harness import bench, output
from kvlab.harness.cli import main

VERBS = (*(["bench", name] for name in bench.NAMES), ["reproduce", "article"])


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_nothing_is_measured_for_a_file_that_cannot_be_written(verb, tmp_path, capsys):
    """Minutes were measured and then lost, the table unprinted."""
    (tmp_path / "file").touch()
    assert main([*verb, "--out", str(tmp_path / "file" / "out.md")]) == 2
    out, err = capsys.readouterr()
    assert "cannot write there: Not a directory" in err
    assert err.count("\n") == 1
    assert not out


def test_looking_leaves_everything_as_it_is(tmp_path):
    (tmp_path / "old.md").write_text("old")
    output.check(tmp_path / "old.md")
    output.check(tmp_path / "new.md")
    output.check_folder(tmp_path / "a" / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["old.md"]
    assert (tmp_path / "old.md").read_text() == "old"


def test_a_directory_is_no_file(tmp_path):
    with pytest.raises(UsageError, match="cannot write there: Is a directory"):
        output.check(tmp_path)


def test_who_is_stopped_while_writing_leaves_what_was_there(tmp_path, monkeypatch):
    """A script that keeps its runs as they come lost all of them to a signal that came while it wrote the next."""
    path = tmp_path / "runs.jsonl"
    output.write(path, "one\n")
    (tmp_path / "link").symlink_to(path)
    output.write(tmp_path / "link", "two\n")
    write_text = Path.write_text

    def stopped(self, text):
        write_text(self, text[:2])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", stopped)
    with pytest.raises(KeyboardInterrupt):
        output.write(path, "three\n")
    assert path.read_text() == "two\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "runs.jsonl"]


def test_what_is_no_file_is_written_to(tmp_path):
    output.check(Path("/dev/null"))
    output.write(Path("/dev/null"), "text")
    assert Path("/dev/null").is_char_device()
