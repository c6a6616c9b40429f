"""docs/faults.md names tests that exist, and they name the faults that it lists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (ROOT / "docs/faults.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith(("| where |", "| corner |"))
]
SHORT = {"scheduling": "tests/engine/test_public_faults_scheduling.py"}


@cache
def docstrings(path: str) -> dict[str, str]:
    """Every test of a file, and what it says of itself."""
    tree = ast.parse((ROOT / path).read_text())
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    return {node.name: ast.get_docstring(node) or "" for node in found}


def named(cell: str) -> list[tuple[str, str]]:
    """(file, test) of each test that a cell names."""
    pairs = re.findall(r"`([\w/.]+)::(\w+)`", cell)
    return [
        (SHORT.get(file, file if "/" in file else f"tests/strategies/test_public_faults_{file}.py"), test)
        for file, test in pairs
    ]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_row_names_tests_that_name_it_or_says_why_there_is_none(row):
    where, here = row[0], row[-1]
    tests = named(here)
    missing = [f"{file}::{test}" for file, test in tests if test not in docstrings(file)]
    assert not missing
    if not tests:
        assert re.search("later|question|no bookkeeping|tests/", here), "neither a test nor a reason"
    elif len(row) == 3:
        said = " ".join(docstrings(file)[test] for file, test in tests)
        assert [number for number in re.findall(r"#\d+", where) if number not in re.findall(r"#\d+", said)] == []


def test_every_test_here_is_in_the_list():
    listed = {test for row in ROWS for test in named(row[-1])}
    files = [*ROOT.glob("tests/strategies/test_public_faults_*.py"), ROOT / SHORT["scheduling"]]
    ours = {(str(file.relative_to(ROOT)), test) for file in files for test in docstrings(str(file.relative_to(ROOT)))}
    assert {(file, test) for file, test in ours - listed if "_listed" not in file} == set()
