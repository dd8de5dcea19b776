"""Names of models that people mistype."""

from __future__ import annotations

import pytest

from recipe_core.model.catalog import catalog_ids
from recipe_core.model.nearest import NAMES, nearest_models


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("llama70b", "meta-llama/Llama-3.1-70B-Instruct"),
        ("lama 3.1 8b", "meta-llama/Llama-3.1-8B-Instruct"),
        ("gpt oss 120", "openai/gpt-oss-120b"),
        ("qwen32", "Qwen/Qwen3-32B"),
        ("deepsek r1", "deepseek-ai/DeepSeek-R1"),
        ("someone/Llama-3.3-70B", "meta-llama/Llama-3.3-70B-Instruct"),
    ],
)
def test_parts_of_a_name_find_it(typed: str, meant: str) -> None:
    names = nearest_models(typed)
    assert meant in names
    assert len(names) <= NAMES
    assert set(names) <= set(catalog_ids())


@pytest.mark.parametrize("typed", ["asdfghjkl", "", "?!", "x" * 5000, "123456"])
def test_nothing_is_like_nonsense(typed: str) -> None:
    assert nearest_models(typed) == []


def test_a_size_is_right_or_wrong() -> None:
    known = ["a/Model-7B", "a/Model-70B", "a/Model-80B"]
    assert nearest_models("model 70b", known) == ["a/Model-70B"]


def test_every_id_finds_itself_first_among_its_equals() -> None:
    for name in catalog_ids()[::25]:
        assert name in nearest_models(name)
