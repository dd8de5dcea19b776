"""The cases of the gallery: each is planned, holds its load, and can be built."""

from __future__ import annotations

import pytest

from recipe_core.base.data_files import DataFile
from recipe_core.base.errors import InputError
from recipe_core.bundle.write import bundle_of
from recipe_core.recipe import make_recipe
from recipe_core.request.examples import FILE, ExampleFile, examples
from recipe_core.request.link import from_query, link_query
from recipe_core.search.plans import plan


def test_there_are_ten_and_they_differ() -> None:
    cases = examples().values()
    assert len(cases) >= 10
    assert len({case.title for case in cases}) == len(cases)
    kinds = {case.asked.workload.kind for case in cases}
    assert kinds == {"serving", "training"}
    vendors = {case.asked.hardware.device_name[:2] for case in cases}
    assert len(vendors) >= 3


@pytest.mark.parametrize("name", examples())
def test_a_case_is_a_link(name: str) -> None:
    request = examples()[name].asked
    reread, ignored = from_query(link_query(request))
    assert reread == request
    assert ignored == []


@pytest.mark.parametrize("name", examples())
def test_the_best_split_of_a_case_holds_its_load_and_can_be_built(name: str) -> None:
    request = examples()[name].asked
    board = plan(request)
    best = board.best_row
    assert best is not None
    assert board.feasible[best]
    assert board.holds[best]
    bundle = bundle_of(make_recipe(request))
    assert "recipe.yaml" in bundle.files
    assert "launch.json" in bundle.files


def test_a_case_with_a_wrong_field_names_it() -> None:
    document = DataFile(FILE, "example").read()
    document["examples"]["chat-70b"]["titel"] = "Chat"
    with pytest.raises(InputError, match=r"examples\.yaml: examples\.chat-70b\.titel"):
        DataFile(FILE, "example").validated(document, ExampleFile)
