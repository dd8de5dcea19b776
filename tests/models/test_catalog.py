"""The catalog as data: sources, published parameters, names that lead to one model each."""

from collections import Counter

import pytest

from recipe_core.base.errors import ModelError
from recipe_core.models.catalog import (
    FOLDER,
    catalog_entry,
    catalog_ids,
    catalog_model,
    load_model_spec,
)
from recipe_core.models.supplements import other_kind, other_kinds
from tests.fixtures.paths import DATA
from tests.fixtures.rows import over, table


def test_the_catalog_is_broad_and_its_files_small():
    ids = " ".join(catalog_ids())
    assert len(catalog_ids()) >= 450
    assert sum(catalog_entry(name).same_as is None for name in catalog_ids()) >= 300
    assert [name for name in table("catalog", "families") if name not in ids] == []
    assert [path.name for path in FOLDER.glob("*.yaml") if path.stat().st_size > 8_000] == []
    # it has the models of published recipes
    lines = (DATA / "collection-models.txt").read_text(encoding="utf-8").splitlines()
    names = [line for line in lines if not line.startswith("#")]
    unknown = []
    for name in names:
        try:
            load_model_spec(name, folders=False)
        except ModelError:
            unknown.append(name)
    assert len(names) == 305
    assert len(unknown) <= 0.03 * len(names), unknown


def test_every_alias_is_a_name_and_no_name_means_two_models():
    entries = [catalog_entry(name) for name in catalog_ids()]
    aliases = [(alias, entry) for entry in entries for alias in entry.aliases]
    names = Counter(name.casefold() for name in (*catalog_ids(), *(name for name, _ in aliases)))
    assert [name for name, count in names.items() if count > 1] == []
    assert len(aliases) >= 350
    assert all(catalog_entry(alias) == entry for alias, entry in aliases)
    assert catalog_model("gpt2").parameters == catalog_model("openai-community/gpt2").parameters


def test_models_of_other_kinds_say_what_they_make():
    # nothing in the table is modelled
    names = [name for kind in other_kinds().values() for name in kind.models]
    assert len(names) == len({name.casefold() for name in names})
    assert not {name.casefold() for name in names} & {name.casefold() for name in catalog_ids()}
    assert other_kind("Qwen/Qwen3-8B") is None
    with pytest.raises(ModelError, match="makes images") as caught:
        load_model_spec("qwen/QWEN-image", folders=False)
    assert "denoising" in str(caught.value)


@over("name", catalog_ids())
def test_an_entry_has_sources_and_the_published_parameters(name):
    entry, model = catalog_entry(name), catalog_model(name)
    published = entry.published
    assert entry.id == name
    assert {"config", published.source} <= set(entry.sources)
    assert all(str(source.url).startswith("https://") for source in entry.sources.values())
    assert not published.includes or published.counted > 0.8 * published.parameters
    counted = model.parameters if published.of == "all" else model.language_parameters
    assert counted == pytest.approx(published.counted, rel=0.005)
    assert sum(model.parameters_by_part.values()) == model.parameters
    if entry.same_as:  # variants differ from their base in how they are stored, and in padding
        assert catalog_entry(entry.same_as).same_as is None
        base = catalog_model(entry.same_as)
        padded = "padding" in entry.sources
        assert (model.language_parameters > base.language_parameters) is padded
        assert padded or model.language_parameters == base.language_parameters
