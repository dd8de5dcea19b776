"""Names of models that people mistype."""

from recipe_core.model.catalog import catalog_ids
from recipe_core.model.nearest import NAMES, nearest_models
from tests.fixtures.rows import over, table


@over("typed, meant", table("nearest", "parts_of_a_name_find_it"))
def test_parts_of_a_name_find_it(typed, meant):
    names = nearest_models(typed)
    assert meant in names
    assert len(names) <= NAMES
    assert set(names) <= set(catalog_ids())


def test_nothing_is_like_nonsense_a_size_is_right_or_wrong_and_every_id_finds_itself():
    for typed in ("asdfghjkl", "", "?!", "x" * 5000, "123456"):
        assert nearest_models(typed) == []
    known = ["a/Model-7B", "a/Model-70B", "a/Model-80B"]
    assert nearest_models("model 70b", known) == ["a/Model-70B"]
    for name in catalog_ids()[::75]:
        assert name in nearest_models(name)
