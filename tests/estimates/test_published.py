"""Estimates against published figures and each other, refusals, and memory traps."""

from itertools import zip_longest

import pytest

from recipe_core.base.errors import RecipeError
from recipe_core.base.units import GIB
from recipe_core.plans.splits import row_reasons
from tests.fixtures.catalogues import Catalogue
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over

PUBLISHED, TRAINED, RELATIONS, REFUSED = map(
    Catalogue, ("published.yaml", "published_training.yaml", "relations.yaml", "refused.yaml")
)
ROWS = [(book, row) for book in (PUBLISHED, TRAINED) for row in book.rows["figures"]]
ROWS += [(RELATIONS, row) for row in RELATIONS.rows["relations"]]


def figure(answer, path):
    """A figure by its path, where a number is a place in a list."""
    for name in path.split("."):
        answer = answer[int(name) if name.isdigit() else name]
    return answer


@over("catalogue row", ROWS, share=3)
def test_estimates_are_near_what_was_published_and_stand_to_others_as_they_must(catalogue, row):
    base, changes = row["request"]
    answer = catalogue.answer(base, changes)
    before = catalogue.answer(base, row["beside"]) if "beside" in row else None
    assert answer["feasible"] is ("refused" not in row)
    assert row.get("refused", "") in "; ".join(answer.get("reasons", []))
    notes = "; ".join(answer["notes"])
    assert all(words in notes for words in row.get("notes", []))
    assert "silent" not in row or row["silent"] not in notes
    for path in row.get("same", []):
        assert figure(answer, path) == figure(before, path), path
    for path in (name for name in row if "." in name):
        published = row[path]
        unit = {"GiB": GIB}.get(published.get("unit"), published.get("unit", 1))
        found, other = figure(answer, path), figure(before, path) if before else unit
        found = found - other if "minus" in published else found / other
        if "measured" in published:
            tolerance = {name: published[name] for name in ("rel", "abs") if name in published}
            assert found == pytest.approx(published["measured"], **tolerance), path
        else:
            assert published["low"] < found < published["high"], path
        if "band" in published:
            low, high = answer["bands"][path.rpartition(".")[2]]
            assert low < published["measured"] < high
    if "kv_tiers" in row:
        for expected, tier in zip_longest(row["kv_tiers"], answer["kv_tiers"]):
            assert expected.items() <= tier.items()


@over("base changes field says", REFUSED.rows["errors"])
def test_errors_name_their_field(base, changes, field, says):
    error = refusal(REFUSED.planned, base, changes, kind=RecipeError)
    assert error.field == field
    assert says in str(error)


@over("base changes says", REFUSED.rows["reasons"])
def test_splits_that_cannot_run_say_why(base, changes, says):
    table, row = REFUSED.planned(base, changes)
    assert not table.feasible[row]
    assert says in "; ".join(row_reasons(table, row))


def test_the_fullest_stage_counts_and_the_longest_context_is_where_one_more_fails():
    memory = RELATIONS.answer("llama-70b", {"candidate": {"tp": 2, "pp": 4}})["memory"]
    stages = memory["stages"]
    assert len(stages) == 4
    assert max(stage["total_bytes"] for stage in stages) == memory["total_bytes"]
    assert stages[0]["weights_bytes"] > stages[1]["weights_bytes"]  # the embedding
    # the longest context at a load is where one more token does not fit
    load = {"concurrency": 32, "input_tokens": 1000, "output_tokens": 24}
    memory = RELATIONS.answer("llama-8b", {"workload": load})["memory"]
    longest = memory["max_context_at_load"]
    assert longest * 32 * 131_072 <= memory["kv_cache_bytes"] < (longest + 16) * 32 * 131_072
    assert memory["max_context"] > longest
    assert memory["largest_part"] == "weights"
