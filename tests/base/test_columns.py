"""Tables as text against the library that folds them."""

from __future__ import annotations

import pytest

from recipe_core.base.columns import _folded, aligned

NAMES = ("rank", "split", "tok/s")
ROWS = [["1", "tp 8 × pp 1", "3,733"], ["12", "tp 1", ""]]


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], []])
def test_a_table_that_fits_is_as_the_library_draws_it(rows: list[list[str]]) -> None:
    assert aligned(NAMES, rows, left=("split",), width=100) == _folded(NAMES, rows, ("split",), 100)


def test_a_table_that_does_not_fit_is_folded() -> None:
    lines = aligned(NAMES, ROWS, left=("split",), width=20).splitlines()
    assert max(map(len, lines)) <= 20
    assert len(lines) > len(ROWS) + 4
