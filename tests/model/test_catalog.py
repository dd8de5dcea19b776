"""The catalog as data: enough models, sources everywhere, names that lead to one model each."""

from __future__ import annotations

from collections import Counter

import pytest

from recipe_core.base.errors import ModelError
from recipe_core.model.catalog import FOLDER, catalog_entry, catalog_ids, catalog_model, load_model
from tests.fixtures.paths import DATA

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
    "llama-65b",
    "TinyLlama-1.1B",
    "Yi-34B",
    "SOLAR-10.7B",
    "Qwen1.5-72B",
    "Qwen2-57B-A14B",
    "Qwen2.5-VL-72B",
    "Qwen3-VL-235B",
    "Qwen3-Omni-30B",
    "Qwen3.5-9B",
    "deepseek-llm-67b",
    "deepseek-moe-16b",
    "Mistral-Large-3",
    "Mistral-Small-4",
    "Mistral-Medium-3.5",
    "Ministral-3-8B",
    "Devstral-2-123B",
    "Pixtral-Large",
    "Codestral-22B",
    "GLM-4.5V",
    "opt-66b",
    "bloom",
    "gpt2-xl",
    "gpt-neox-20b",
    "mpt-30b",
    "dbrx-instruct",
    "starcoder2-15b",
    "internlm3-8b",
    "Baichuan2-13B",
    "grok-1",
    "grok-2",
    "AI21-Jamba-Large",
    "Nemotron-4-340B",
    "NVIDIA-Nemotron-Nano-12B-v2",
    "snowflake-arctic",
    "Hunyuan-A13B",
    "Hy3",
    "Ling-1T",
    "dots.llm1",
    "Solar-Open-100B",
    "K-EXAONE-236B",
    "Trinity-Large",
    "Olmo-3-32B",
    "Apertus-70B",
    "granite-4.1-30b",
    "aya-expanse-32b",
    "InternVL3-78B",
    "Kimi-VL",
    "Kimi-K3",
]


def test_the_catalog_is_broad():
    ids = " ".join(catalog_ids())
    assert len(catalog_ids()) >= 450
    assert sum(catalog_entry(name).same_as is None for name in catalog_ids()) >= 300
    assert [name for name in FAMILIES if name not in ids] == []


@pytest.mark.parametrize("name", catalog_ids())
def test_an_entry_says_where_everything_is_from(name):
    entry = catalog_entry(name)
    assert entry.id == name
    assert {"config", entry.published.source} <= set(entry.sources)
    assert all(str(source.url).startswith("https://") for source in entry.sources.values())
    assert (
        not entry.published.includes or entry.published.counted > 0.8 * entry.published.parameters
    )
    if entry.same_as:
        assert catalog_entry(entry.same_as).same_as is None


def test_no_name_means_two_models():
    names = Counter(
        name.casefold()
        for entry in map(catalog_entry, catalog_ids())
        for name in (entry.id, *entry.aliases)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_every_alias_is_a_name():
    aliases = {
        alias: entry for entry in map(catalog_entry, catalog_ids()) for alias in entry.aliases
    }
    assert len(aliases) >= 350
    assert all(catalog_entry(alias) == entry for alias, entry in aliases.items())
    assert catalog_model("gpt2").parameters == catalog_model("openai-community/gpt2").parameters


def test_files_stay_small():
    assert [path.name for path in FOLDER.glob("*.yaml") if path.stat().st_size > 8_000] == []


def test_variants_differ_from_their_base_only_in_how_they_are_stored():
    for name in catalog_ids():
        base = catalog_entry(name).same_as
        if base:
            model, other = catalog_model(name), catalog_model(base)
            assert model.language_parameters == other.language_parameters


def test_the_models_of_the_published_recipes_are_known():
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
