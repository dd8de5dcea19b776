"""Refused requests, with the field of the error or the reason (tests/data/refused.yaml)."""

from recipe_core.base.errors import RecipeError
from tests.fixtures.catalogues import Catalogue
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over

CATALOGUE = Catalogue("refused.yaml")


@over("base changes field says", CATALOGUE.rows["errors"])
def test_errors_name_their_field(base, changes, field, says) -> None:
    error = refusal(CATALOGUE.planned, base, changes, kind=RecipeError)
    assert error.field == field
    assert says in str(error)


@over("base changes says", CATALOGUE.rows["reasons"])
def test_splits_that_cannot_run_say_why(base, changes, says) -> None:
    table, row = CATALOGUE.planned(base, changes)
    assert not table.feasible[row]
    assert says in "; ".join(table.reasons(row))
