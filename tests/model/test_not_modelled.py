"""The table of what is not modelled is that of the data, and answers have its words."""

import json

import pytest

from recipe_core.base.errors import ModelError
from recipe_core.model.catalog import catalog_ids, load_model
from recipe_core.model.other_kinds import other_kind, other_kinds
from scripts.not_modelled import PAGE, page
from tests.fixtures.command_line import recipe


def test_the_page_is_that_of_the_data():
    assert PAGE.read_text(encoding="utf-8") == page()
    # nothing in the table is modelled
    names = [name for kind in other_kinds().values() for name in kind.models]
    assert len(names) == len({name.casefold() for name in names})
    assert not {name.casefold() for name in names} & {name.casefold() for name in catalog_ids()}
    assert other_kind("Qwen/Qwen3-8B") is None


def test_a_model_that_makes_no_text_says_what_it_makes():
    with pytest.raises(ModelError, match="makes images") as caught:
        load_model("qwen/QWEN-image", folders=False)
    assert "denoising" in str(caught.value)
    # a check has the words of the table
    words = ("--command", "vllm serve fishaudio/s2-pro", "--hardware", "h100-sxm:1", "--json")
    done = recipe("check", *words)
    assert "makes speech" in done.stdout + done.stderr
    if done.stdout.strip():
        assert json.loads(done.stdout)["verdict"] == "unknown"
