"""Every cell of the matrix has one state, and the tests that hold it exist."""

from __future__ import annotations

import ast
from functools import cache

import pytest

from recipe_core.engines.training_programs import training_engine
from tests.fixtures.paths import ROOT
from tests.fixtures.rows import table
from tests.life import matrix

LEAST_STARTED = 12


@cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def exists(test: str) -> bool:
    path, _, name = test.partition("::")
    return (ROOT / path).is_file() and name in names_in(path)


def test_what_holds_cells_exists() -> None:
    """Every test by its name; a framework that launches something, and each target, has one."""
    named = [each["test"] for each in matrix.HELD["frameworks"].values()]
    named += [*matrix.HELD["targets"].values(), *(row[-1] for row in matrix.HELD["started"])]
    assert [test for test in (*named, matrix.LIFE) if not exists(test)] == []
    assert not exists("tests/life/test_matrix.py::test_that_is_not_there")
    launched = {name for name in matrix.frameworks() if training_engine(name).launches.methods}
    assert launched == matrix.HELD["frameworks"].keys()
    assert set(matrix.TARGETS) == matrix.HELD["targets"].keys()
    assert {by["by"] for by in matrix.HELD["frameworks"].values()} <= set(matrix.STATES)


def test_what_is_started_is_what_a_framework_launches() -> None:
    rows = [tuple(row[1:4]) for row in table("life", "started")]
    assert len(rows) == len(set(rows))
    for engine, method, target in rows:
        assert method in training_engine(engine).launches.methods
        assert target in matrix.TARGETS


@pytest.mark.nightly
def test_every_cell_has_one_state() -> None:
    """As the builder answers now: a method that a framework launches is refused by no target."""
    cells = matrix.cells()
    shape = len(matrix.frameworks()), len(matrix.METHODS), len(matrix.TARGETS)
    assert len({(c.framework, c.method, c.target) for c in cells}) == len(cells)
    assert len(cells) == shape[0] * shape[1] * shape[2]
    for cell in cells:
        launches = cell.method in training_engine(cell.framework).launches.methods
        assert (cell.state != "refused") == launches, cell
        assert bool(cell.reason) == (cell.state == "refused")
        assert bool(cell.by) == launches
    assert sum(cell.state == "started" for cell in cells) >= LEAST_STARTED
