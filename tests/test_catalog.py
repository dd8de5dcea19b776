"""The catalog as data: enough models, sources everywhere, names that lead to one model each."""

from __future__ import annotations

from collections import Counter

import pytest

from recipe_core.model.catalog import FOLDER, catalog_entry, catalog_ids, catalog_model

FAMILIES = [
    "Llama-2-70b",
    "Meta-Llama-3-8B",
    "Llama-3.1-405B",
    "Llama-3.2-3B",
    "Llama-3.3-70B",
    "Llama-4-Scout",
    "Llama-4-Maverick",
    "Qwen2.5-72B",
    "Qwen3-235B",
    "Qwen3-Next",
    "Qwen3-Coder-480B",
    "Qwen3.5-397B",
    "Mistral-7B",
    "Mixtral-8x22B",
    "Ministral-3-14B",
    "Mistral-Small-3.2",
    "Mistral-Nemo",
    "DeepSeek-V2-Lite",
    "DeepSeek-V3.2",
    "DeepSeek-V4-Flash",
    "DeepSeek-V4-Pro",
    "DeepSeek-R1",
    "R1-Distill-Llama-70B",
    "gpt-oss-120b",
    "gemma-2-27b",
    "gemma-3-27b",
    "gemma-4-31B",
    "Phi-3.5-mini",
    "phi-4",
    "GLM-4.5",
    "GLM-4.6",
    "GLM-5",
    "Kimi-K2-Thinking",
    "Kimi-K2.5",
    "MiniMax-M2",
    "Nemotron-Super-49B",
    "Nemotron-Nano-9B",
    "Nemotron-3-Nano",
    "command-r",
    "falcon-180B",
    "OLMo-2",
    "ERNIE-4.5-300B",
    "granite-3.1-8b",
    "granite-4.0-h",
    "SmolLM3",
    "gpt-j-6b",
    "CodeLlama-34b",
]


def test_the_catalog_is_broad():
    ids = " ".join(catalog_ids())
    assert len(catalog_ids()) >= 60
    assert sum(catalog_entry(name).same_as is None for name in catalog_ids()) >= 60
    assert [name for name in FAMILIES if name not in ids] == []


@pytest.mark.parametrize("name", catalog_ids())
def test_an_entry_says_where_everything_is_from(name):
    entry = catalog_entry(name)
    assert entry.id == name
    assert {"config", entry.published.source} <= set(entry.sources)
    assert all(str(source.url).startswith("https://") for source in entry.sources.values())
    assert not entry.published.includes or entry.published.language_model > 0.9 * entry.published.parameters
    if entry.same_as:
        assert catalog_entry(entry.same_as).same_as is None


def test_no_name_means_two_models():
    names = Counter(name.casefold() for entry in map(catalog_entry, catalog_ids()) for name in (entry.id, *entry.aliases))
    assert [name for name, count in names.items() if count > 1] == []


def test_files_stay_small():
    assert [path.name for path in FOLDER.glob("*.yaml") if path.stat().st_size > 8_000] == []


def test_variants_differ_from_their_base_only_in_how_they_are_stored():
    for name in catalog_ids():
        base = catalog_entry(name).same_as
        if base:
            assert catalog_model(name).parameters == catalog_model(base).parameters
