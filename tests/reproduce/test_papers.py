"""The papers' figures: data files that fit each other, verdicts, and arithmetic that our own code does."""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

import pytest

from kvlab.errors import UsageError
from kvlab.harness import reproduce as verb
from kvlab.reproduce import papers, vattention
from kvlab.reproduce.frame import Cell, Found, Lab, Line, Outcome, Paper, scoreboard
from kvlab.reproduce.vattention_runs import offline_lengths, online_lengths

ROOT = Path(__file__).parents[2]


def call(*words: str) -> int:
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    return verb.run(parser.parse_args(words))


def line(published=10.0, measured=10.0, allowed=1.0, **said) -> Line:
    return Line(Cell("f", "c", published, allowed, "", "", **said), Found([measured], ""), "arithmetic")


def outcome(*lines: Line, kind="arithmetic") -> Outcome:
    return Outcome("f", "", kind, list(lines), "", "")


def test_a_figure_is_reproduced_when_every_cell_that_counts_is():
    near, far = line(), line(measured=11.1)
    slip, shown = line(measured=20.0, contradicted="there"), line(measured=20.0, shown="why")
    assert outcome(near, slip, shown).verdict == "reproduced"
    assert outcome(near, far).verdict == "missed"
    assert outcome(slip, shown).verdict == "not counted"
    assert [one.verdict for one in (near, far, slip, shown)] == [
        "within", "missed", "the paper contradicts itself", "shown",
    ]  # fmt: skip


def test_the_scoreboard_counts_figures_by_kind_and_leaves_out_those_that_do_not_count():
    outcomes = [outcome(line()), outcome(line(measured=12.0)), outcome(line(), kind="bookkeeping")]
    outcomes.append(outcome(line(shown="why"), kind="cost model"))
    assert scoreboard(outcomes) == {"arithmetic": (1, 2), "bookkeeping": (1, 1)}


def test_ours_is_the_median_of_the_seeds():
    found = Line(line().cell, Found([9.0, 12.0, 10.5], ""), "bookkeeping")
    assert (found.measured, found.deviation, found.within) == (10.5, 0.5, True)


def test_a_cell_that_is_not_published_and_one_that_was_not_measured_are_found_out():
    paper = Paper.load("vattention")
    found = {cell.name: Found([0.0], "") for cell in paper.cells("growth")}
    with pytest.raises(ValueError, match="not published: more"):
        paper.outcome("growth", "arithmetic", {**found, "more": Found([0.0], "")}, 0.0)
    del found["time"]
    with pytest.raises(KeyError, match="time"):
        paper.outcome("growth", "arithmetic", found, 0.0)


@pytest.mark.parametrize("name", papers.FIGURES)
def test_every_figure_is_published_and_has_a_tolerance_with_its_reason(name):
    paper = Paper.load(name)
    assert set(papers.FIGURES[name]) == set(paper.figures)
    cells = [cell for figure in paper.figures for cell in paper.cells(figure)]
    assert all(cell.why_allowed and cell.allowed >= 0 for cell in cells)
    assert not paper.not_attempted.keys() & paper.figures.keys()


def test_tables_8_and_10_are_exact_but_for_the_papers_slip(capsys):
    assert call("vattention", "--only", "table8,table10", "--json") == 0
    records = json.loads(capsys.readouterr().out)
    assert {"figure", "cell", "published", "measured", "deviation", "tolerance", "within", "how"} <= records[0].keys()
    off = {(record["figure"], record["cell"]): record for record in records if record["deviation"]}
    assert off.keys() == {("table10", "Yi-34B, TP-1: with"), ("table10", "Yi-34B, TP-2: with")}
    assert {record["verdict"] for record in off.values()} == {"the paper contradicts itself"}
    assert {record["tolerance"] for record in records} == {0}
    assert len(records) == 24 + 12


def test_a_token_of_another_size_is_found_out(monkeypatch, capsys):
    """Were the tables copied, it would change nothing."""
    monkeypatch.setattr(vattention, "token_bytes", lambda *given: 999_424)
    assert call("vattention", "--only", "table8") == 1
    assert "not known why: table8" in capsys.readouterr().err


def test_all_is_the_scoreboard_of_every_paper_that_has_the_figures(capsys):
    assert call("all", "--only", "table1,table9") == 0
    printed = capsys.readouterr().out
    assert "| sosp23     |     1 of 1 |" in printed
    assert "- vattention: reproduced: table9" in printed
    assert call("all", "--only", "table9") == 0
    assert "sosp23" not in capsys.readouterr().out


def test_what_cannot_be_asked_for_is_refused():
    with pytest.raises(UsageError, match="allowed is article, sosp23, sglang, vattention, all"):
        call("orca")
    with pytest.raises(UsageError, match="no such figure; allowed is table8"):
        call("vattention", "--only", "fig99")
    with pytest.raises(UsageError, match="different whole numbers"):
        call("vattention", "--seeds", "1,1")


def test_files_for_others_say_the_same(tmp_path, capsys):
    assert call("vattention", "--only", "table9", "--out", str(tmp_path / "t.md")) == 0
    rows = list(csv.DictReader((tmp_path / "t.csv").read_text().splitlines()))
    assert [row["verdict"] for row in rows].count("within") == 6
    latex = (tmp_path / "t.tex").read_text()
    assert latex.count(r"\\") == len(rows) + 1
    assert (tmp_path / "t.md").read_text().count("| TP-") == len(rows)
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")


def test_lengths_are_what_the_paper_says_of_its_traces():
    offline, online = offline_lengths(0, 4000), online_lengths(0, 4000)
    ratio = sum(prompt / output for prompt, output in offline) / len(offline)
    assert ratio == pytest.approx(356, rel=0.1)
    assert all(64 * 1024 <= prompt + output <= 192 * 1024 + 5153 and 17 <= output <= 5153 for prompt, output in offline)
    prompts, outputs = zip(*online, strict=True)
    assert sum(prompts) / len(prompts) == pytest.approx(29_000, rel=0.02)
    assert sum(outputs) / len(outputs) == pytest.approx(348, rel=0.1)
    assert sum(prompt / output for prompt, output in online) / len(online) == pytest.approx(129, rel=0.1)


def test_whatever_is_missed_in_the_committed_tables_has_a_paragraph():
    text = (ROOT / "docs/reproduction.md").read_text()
    pages = sorted((ROOT / "experiments/reproduce").glob("*.json"))
    assert pages
    for path in (page.with_suffix(".csv") for page in pages):
        missed = {
            (row["paper"], row["figure"])
            for row in csv.DictReader(path.read_text().splitlines())
            if row["verdict"] == "missed"
        }
        for paper, figure in missed:
            assert f"**{paper} {figure}**" in text, f"{path.name}: {paper} {figure} is missed, and nothing says why"
            assert figure in Paper.load(paper).misses


def test_nothing_is_measured_twice_for_figures_that_read_the_same_run():
    lab = Lab(lambda overrides: pytest.fail("composed again"), (0,), {("a", "300"): "kept"})
    from kvlab.reproduce import serving

    assert serving.saturated(lab, ["a"]) == "kept"
