"""The search of models: what people type, what a row says, and the facts that it is made of."""

import csv
import time

import pytest

from recipe_core.base.documents import read_document
from recipe_core.base.errors import ModelError
from recipe_core.doors import catalog
from recipe_core.models.catalog import catalog_entry, catalog_ids, load_model_spec
from recipe_core.models.search import FACTS, POPULAR, SHOWN, model_facts, search_models
from scripts.model_facts import table_text
from tests.fixtures.command_line import recipe
from tests.fixtures.rows import over, table


def ids(text, limit=SHOWN):
    return [model.id for model in search_models(text, limit)]


@over("typed, meant", table("model_search", "what_is_typed_finds_the_model_first"))
def test_what_is_typed_finds_the_model_first(typed, meant):
    assert ids(typed)[0] == meant
    assert len(ids(typed)) <= SHOWN


def test_nothing_typed_gives_twelve_and_nonsense_gives_none():
    popular = read_document(POPULAR)
    assert ids("") == ids("  ") == popular[:SHOWN]
    assert len(set(popular)) == len(popular)
    assert [name for name in popular if model_facts()[name].original] == []
    for typed in ("asdfghjkl", "?!", "/", "x" * 5000, "123456", "llama 700b", "-" * 300):
        assert ids(typed) == [], typed


def test_sizes_are_right_or_wrong_and_the_newest_of_a_size_come_before_the_old():
    found = ids("70b", 100)
    assert all(any(part in ("70b", "70") for part in model_facts()[name].parts) for name in found)
    assert found.index("meta-llama/Llama-3.1-70B-Instruct") < found.index(
        "meta-llama/Llama-2-70b-hf"
    )
    assert not {name for name in ids("7b", 200) if "70b" in name.casefold()}


def test_every_id_and_alias_finds_itself_and_copies_stand_with_their_original():
    for name in list(model_facts())[::40]:
        assert ids(name)[0] == name
    assert [name for name in ids("llama 3.3 70b instruct", 50) if "FP8" in name] == []
    rows = model_facts()
    originals = {row.original for row in rows.values() if row.original}
    assert len(originals) >= 80
    assert [name for name in originals if rows[name].original] == []
    # a copy in another number is none: GLM-5.1 is not GLM-5
    assert rows["nvidia/GLM-5.1-NVFP4"].original == "zai-org/GLM-5.1"


@over("name, said", table("model_search", "descriptions"))
def test_a_row_says_size_context_and_formats(name, said):
    assert search_models(name, 1)[0].description == said


def seconds_of(function, *arguments):
    """Processor time of a call, the least of three: other programs share the caches."""
    times = []
    for _ in range(3):
        began = time.process_time()
        function(*arguments)
        times.append(time.process_time() - began)
    return min(times)


def test_a_search_takes_no_time_a_reader_sees():
    assert len(search_models("", 2000)) > 500  # and all is read from here on
    typed = [row[0] for row in table("model_search", "what_is_typed_finds_the_model_first")]
    search = search_models.__globals__["_matches"].__wrapped__  # without what it remembers
    for text in [*typed, "asdfghjkl qwertz", "x" * 100]:
        assert seconds_of(search, text.casefold()) < 0.02, text
    assert seconds_of(lambda: [model.label for model in search_models("", 2000)]) < 0.05


def test_the_facts_are_those_of_the_catalog():
    """Renew them with ``python scripts/model_facts.py``."""
    use = {
        row.id.casefold(): {"downloads": row.downloads, "released": row.released}
        for row in model_facts().values()
    }
    with FACTS.open(encoding="utf-8", newline="") as file:
        stored = list(csv.DictReader(file))
    assert {row["id"] for row in stored} >= set(catalog_ids())
    assert table_text(use) == stored


def test_an_unknown_name_is_answered_with_those_it_may_mean():
    with pytest.raises(ModelError) as caught:
        load_model_spec("llama 3.3 70b", folders=False)
    assert "'meta-llama/Llama-3.3-70B-Instruct'" in caught.value.hint
    with pytest.raises(ModelError, match="unknown model") as caught:
        catalog_entry("asdfghjkl")
    assert caught.value.hint.startswith("Available: meta-llama/Llama-3.3-70B-Instruct, ")


def test_the_command_and_the_api_search_alike():
    lines = recipe("models", "--search", "gpt oss").stdout.splitlines()
    answer = catalog.models(search="gpt oss")
    assert [line.split()[0] for line in lines] == answer["models"]
    assert answer["models"][0] == "openai/gpt-oss-120b"
    assert answer["found"][0]["description"] in lines[0]
    assert "No model" in recipe("models", "--search", "asdfghjkl").stdout
