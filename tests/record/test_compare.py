"""Two runs' outputs, close choices aside."""

from __future__ import annotations

import json

import pytest

from kvlab.record.compare import Agreement, compare


@pytest.fixture
def outputs(tmp_path):
    def write(name, *entries):
        (tmp_path / name).mkdir()
        lines = [json.dumps({"id": i, "tokens": tokens, "ties": ties}) for i, tokens, ties in entries]
        (tmp_path / name / "outputs.jsonl").write_text("\n".join(lines) + "\n")
        return tmp_path / name

    return write


def test_only_the_first_difference_counts_and_only_a_tie_excuses_it(outputs):
    a = outputs("a", (0, [1, 2, 3], []), (1, [1, 2, 3, 4], [1]), (2, [5, 6, 7], [2]), (3, [1], []), (4, [1, 2], [1]))
    b = outputs("b", (0, [1, 2, 3], []), (1, [1, 9, 9, 9], []), (2, [5, 9, 7], [1]), (4, [1], []))
    assert compare(a, b) == Agreement(same=1, ties=1, wrong=3)
    assert not compare(a, b).holds
    assert compare(a, a) == Agreement(5, 0, 0)
