"""The catalog as data: enough models, sources everywhere, names that lead to one model each."""

from collections import Counter

from recipe_core.base.errors import ModelError
from recipe_core.model.catalog import FOLDER, catalog_entry, catalog_ids, catalog_model, load_model
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
            load_model(name, folders=False)
        except ModelError:
            unknown.append(name)
    assert len(names) == 305
    assert len(unknown) <= 0.03 * len(names), unknown


@over("name", catalog_ids())
def test_an_entry_says_where_everything_is_from(name):
    entry = catalog_entry(name)
    published = entry.published
    assert entry.id == name
    assert {"config", published.source} <= set(entry.sources)
    assert all(str(source.url).startswith("https://") for source in entry.sources.values())
    assert not published.includes or published.counted > 0.8 * published.parameters
    if entry.same_as:  # variants differ from their base only in how they are stored
        base = catalog_model(entry.same_as)
        assert catalog_entry(entry.same_as).same_as is None
        assert catalog_model(name).language_parameters == base.language_parameters


def test_every_alias_is_a_name_and_no_name_means_two_models():
    entries = [catalog_entry(name) for name in catalog_ids()]
    aliases = [(alias, entry) for entry in entries for alias in entry.aliases]
    names = Counter(name.casefold() for name in (*catalog_ids(), *(name for name, _ in aliases)))
    assert [name for name, count in names.items() if count > 1] == []
    assert len(aliases) >= 350
    assert all(catalog_entry(alias) == entry for alias, entry in aliases)
    assert catalog_model("gpt2").parameters == catalog_model("openai-community/gpt2").parameters
