"""Estimates against figures that were published (tests/data/published.yaml)."""

from functools import reduce
from itertools import zip_longest

import pytest

from recipe_core.base.units import GIB
from tests.fixtures.catalogues import Catalogue
from tests.fixtures.rows import over

CATALOGUE = Catalogue("published.yaml")


def figure(answer, path):
    return reduce(lambda part, name: part[name], path.split("."), answer)


@over("row", CATALOGUE.rows["figures"])
def test_estimates_are_near_what_was_published(row):
    base, changes = row["request"]
    answer = CATALOGUE.answer(base, changes)
    before = CATALOGUE.answer(base, row["beside"]) if "beside" in row else None
    assert answer["feasible"] is ("refused" not in row)
    assert row.get("refused", "") in "; ".join(answer.get("reasons", []))
    for path, published in row.items():
        if "." not in path:
            continue
        unit = {"GiB": GIB}.get(published.get("unit"), published.get("unit", 1))
        found = figure(answer, path) / (figure(before, path) if before else unit)
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
