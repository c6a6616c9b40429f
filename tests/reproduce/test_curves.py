"""Curves of latency by rate: published ones as data, where they cross, and the files that show both."""

from __future__ import annotations

import argparse
import csv
import json

import pytest

from kvlab.harness import reproduce as verb
from kvlab.harness import reproduce_curves
from kvlab.reproduce import curves
from kvlab.reproduce.curves import Curves, Panel, Point
from kvlab.reproduce.frame import HERE, Lab, Paper

PRINTED = json.loads((HERE / "published/sosp23_curves.json").read_text())


def points(*pairs: tuple[float, float]) -> list[Point]:
    return [Point(rate, latency, latency, latency) for rate, latency in pairs]


def test_a_curve_crosses_between_its_points_in_logs():
    assert curves.sustained(points((1, 0.1), (2, 0.25), (4, 1.0), (8, 2.0))) == pytest.approx(2 * 2**0.5)
    assert curves.sustained(points((1, 0.1), (3, 0.5), (4, 1.0))) == pytest.approx(3)
    with pytest.raises(ValueError, match=r"never crosses 0\.5"):
        curves.sustained(points((1, 0.1), (2, 0.2)))


def test_every_panel_has_published_curves_that_rise_and_cross():
    assert set(PRINTED) == set(curves.NAMES)
    for panel in PRINTED.values():
        for published in panel["curves"].values():
            found = points(*published)
            assert sorted(found) == found
            assert curves.sustained(found) > 0


RATIOS = {
    "fig12a": ("fig12", "ShareGPT: over {}"),
    "fig12d": ("fig12", "Alpaca: over {}"),
    "fig14a": ("fig14", "parallel 2: over {}"),
    "fig14b": ("fig14", "parallel 4: over {}"),
    "fig14c": ("fig14", "parallel 6: over {}"),
    "fig16a": ("fig16", "1-shot: over {}"),
    "fig16b": ("fig16", "5-shot: over {}"),
    "fig17": ("fig17", "chat: over {}"),
}


@pytest.mark.parametrize("panel", RATIOS)
def test_published_ratios_are_those_of_the_published_curves(panel):
    """The ratios that tables compare interpolate evenly, curves in logs: they agree but for that."""
    figure, cell = RATIOS[panel]
    published = {one.name: one.published for one in Paper.load("sosp23").cells(figure)}
    rate = {system: curves.sustained(points(*curve)) for system, curve in PRINTED[panel]["curves"].items()}
    for system in rate.keys() - {"vLLM"}:
        assert rate["vLLM"] / rate[system] == pytest.approx(published[cell.format(system)], rel=0.07)


def test_points_are_medians_at_shares_of_what_the_first_seed_sustains(monkeypatch):
    asked = []

    def latency(lab, overrides, rate, trace_s):
        asked.append((overrides, rate))
        return 0.5 * rate / 10 + int(overrides[0]) / 100

    monkeypatch.setattr(curves.rates, "sustained", lambda lab, overrides, trace_s: 10.0)
    monkeypatch.setattr(curves.rates, "latency", latency)
    panel = Panel(lambda system, seed: [str(seed)], 1.0)
    found = curves._curve(Lab(lambda overrides: {}, (0, 2, 1)), panel, "vLLM")
    assert [point.rate for point in found] == [10 * share for share in curves.SHARES]
    assert [p.latency - p.low for p in found] == pytest.approx([0.01] * len(found))
    assert [p.high - p.latency for p in found] == pytest.approx([0.01] * len(found))
    assert len(asked) == 3 * len(curves.SHARES)


@pytest.mark.parametrize("knee", [2.0, 10.0, 70.0])
def test_a_curve_is_followed_until_it_crosses(monkeypatch, knee):
    """A panel ended after minutes because the median of three seeds crossed beyond what the first one sustains."""
    monkeypatch.setattr(curves.rates, "sustained", lambda lab, overrides, trace_s: 10.0)
    monkeypatch.setattr(curves.rates, "latency", lambda lab, overrides, rate, trace_s: 0.5 * (rate / knee) ** 3)
    found = curves._curve(Lab(lambda overrides: {}, (0,)), Panel(lambda system, seed: [], 1.0), "vLLM")
    assert curves.sustained(found) == pytest.approx(knee)
    assert [point.rate for point in found] == sorted(point.rate for point in found)


def test_files_have_every_point_and_the_rates_that_are_sustained(tmp_path, monkeypatch, capsys):
    shown = Curves(
        "fig12a", "a title", {"vLLM": points((1, 0.1), (2, 1.0))}, {"vLLM": points((4, 0.05), (16, 5.0))}, 40.0
    )
    monkeypatch.setattr(curves, "measure", lambda lab, name: shown)
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    assert verb.run(parser.parse_args(["curves", "--only", "fig12a", "--out", str(tmp_path / "c.md")])) == 0
    rows = list(csv.DictReader((tmp_path / "c.csv").read_text().splitlines()))
    assert [(row["whose"], row["rate_per_s"]) for row in rows] == [
        ("published", "1"), ("published", "2"), ("ours", "4"), ("ours", "16"),
    ]  # fmt: skip
    text = (tmp_path / "c.md").read_text()
    assert "![Latency by rate](c.png)" in text
    assert "| fig12a | vLLM   |                8.00 |      1.62 |" in text
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    assert reproduce_curves.records([shown])[3]["latency_s_per_token"] == 5.0
    capsys.readouterr()
