"""The article's claims: what is reproduced is, what is not says why, and the strategies are really asked."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import pytest

from kvlab.errors import UsageError
from kvlab.harness import reproduce as verb
from kvlab.reproduce import article
from kvlab.reproduce.claims import Claim, Line, Measured, compare
from kvlab.strategies.paged import Paged

CONTRADICTED = {"35 tokens: tokens in the listing", "requests at once, reserve-max", "requests at once, blocks of 16"}


@pytest.fixture(scope="module")
def lines() -> dict[str, Line]:
    return {f"{line.claim.figure}: {line.claim.cell}": line for line in article.reproduce().lines}


def call(*words: str) -> int:
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    return verb.run(parser.parse_args(words))


def test_every_claim_is_measured_and_reproduced_but_for_three_that_say_why(lines):
    assert all(line.measured for line in lines.values())
    assert {line.claim.cell for line in lines.values() if not line.within} == CONTRADICTED
    assert not any(line.surprising for line in lines.values())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("workload: tokens stored", 730_840),
        ("utilization: reserve-max, slots", 8_192_000),
        ("utilization: blocks of 16, slots", 745_632),
        ("memory: requests at once, reserve-max", 246),
        ("memory: requests at once, blocks of 16", 2_708),
    ],
)
def test_counts(lines, name, value):
    assert lines[name].measured.value == value


def test_every_measured_cell_belongs_to_a_claim(lines):
    measured = {f"{figure}: {cell}" for figure, make in article.FIGURES.items() for cell in make()}
    assert measured == set(lines)


def test_a_strategy_that_wastes_is_found_out(monkeypatch, capsys):
    """Were the values formulas, a worse strategy would change nothing."""

    class Wasteful(Paged):
        def usage(self):
            usage = super().usage()
            return usage._replace(held=usage.held + self.block_size * article.TOKEN_BYTES)

    monkeypatch.setattr(article, "Paged", Wasteful)
    assert call("article", "--only", "lengths") == 1
    printed = capsys.readouterr()
    assert "3 contradicted" in printed.out
    assert "not known why: wasted at 100 tokens" in printed.err


def test_verdicts():
    claim = Claim("f", "c", 8.9, "%", 0.05)
    verdicts = [Line(claim, Measured(value, "")).verdict for value in (8.95, 8.85, 8.96)]
    assert verdicts == ["reproduced", "reproduced", "contradicted"]
    (line,) = compare([claim], {})
    assert (line.verdict, line.within, line.deviation) == ("waits for a later part", None, None)
    assert not line.surprising


def test_json_has_the_keys_that_scripts_rely_on(capsys):
    assert call("article", "--only", "workload,lengths", "--json") == 0
    records = json.loads(capsys.readouterr().out)
    assert [record["figure"] for record in records] == ["workload", *["lengths"] * 3]
    keys = {"figure", "cell", "published", "measured", "deviation", "tolerance", "within", "how"}
    assert all(keys <= record.keys() for record in records)


def test_out_writes_what_is_printed(tmp_path, capsys):
    assert call("article", "--out", str(tmp_path / "article.md")) == 0
    text = (tmp_path / "article.md").read_text()
    assert text in capsys.readouterr().out
    assert "20.4 %" in text
    assert "23 reproduced; 3 contradicted." in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["artcle"], "allowed is article"),
        (["article", "--only", "lengths,fig2"], "fig2: .*allowed is workload, "),
        (["article", "--only", ""], "allowed is workload, "),
        (["article", "--only", "workload", "--out", "/nowhere/at/all.md"], "cannot write there"),
    ],
)
def test_wrong_words_are_one_line(words, message):
    with pytest.raises(UsageError, match=message):
        call(*words)


def test_the_verb_loads_nothing_heavy_until_it_runs():
    code = "import sys, kvlab.harness.reproduce; print({'numpy', 'torch', 'hydra'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
