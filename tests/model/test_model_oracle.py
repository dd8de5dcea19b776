"""The formula against the real transformers classes, built on torch's meta device."""

from __future__ import annotations

import warnings
from copy import deepcopy
from typing import Any

import pytest

from recipe_core.model.catalog import catalog_entry, catalog_model

MODELS = [
    "meta-llama/Llama-3.1-8B-Instruct",
    "Qwen/Qwen2.5-7B-Instruct",
    "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "Qwen/Qwen3.5-35B-A3B",
    "google/gemma-2-9b-it",
    "google/gemma-3-1b-it",
    "google/gemma-4-26B-A4B-it",
    "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-V3.2",
    "deepseek-ai/DeepSeek-V4-Flash",
    "deepseek-ai/DeepSeek-V4-Pro",
    "openai/gpt-oss-20b",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16",
    "ibm-granite/granite-4.0-h-small",
    "MiniMaxAI/MiniMax-M2.5",
    "XiaomiMiMo/MiMo-V2-Flash",
    "zai-org/GLM-4.5-Air",
    "tiiuae/falcon-7b",
    "state-spaces/mamba-2.8b-hf",
    "LiquidAI/LFM2-1.2B",
    "ai21labs/AI21-Jamba-Mini-1.6",
    "EleutherAI/gpt-j-6b",
    "microsoft/Phi-3.5-MoE-instruct",
    "CohereLabs/c4ai-command-r7b-12-2024",
    "openai-community/gpt2",
    "facebook/opt-6.7b",
    "bigscience/bloom-7b1",
    "mosaicml/mpt-7b",
    "bigcode/starcoder",
    "bigcode/starcoder2-15b",
    "EleutherAI/gpt-neox-20b",
    "stabilityai/stablelm-2-12b",
    "nvidia/Minitron-8B-Base",
    "nvidia/NVIDIA-Nemotron-Nano-12B-v2",
    "ai21labs/AI21-Jamba-Reasoning-3B",
    "arcee-ai/AFM-4.5B",
    "arcee-ai/Trinity-Large-Preview",
    "tencent/Hunyuan-A13B-Instruct",
    "tencent/Hy3",
    "rednote-hilab/dots.llm1.inst",
    "upstage/Solar-Open-100B",
    "swiss-ai/Apertus-8B-Instruct-2509",
    "mistralai/Mamba-Codestral-7B-v0.1",
    "mistralai/Mistral-Medium-3.5-128B",
    "mistralai/Mistral-Large-3-675B-Instruct-2512",
    "openbmb/MiniCPM3-4B",
    "internlm/internlm3-8b-instruct",
    "LiquidAI/LFM2-8B-A1B",
    "allenai/Olmo-3-32B-Think",
    "Qwen/Qwen2-57B-A14B-Instruct",
    "Qwen/Qwen3.5-9B",
    "ibm-granite/granite-4.1-30b",
    "poolside/Laguna-XS.2",
    "poolside/Laguna-M.1",
    "JetBrains/Mellum2-12B-A2.5B-Instruct",
    "inclusionAI/Ling-3.0-flash",
    "thinkingmachines/Inkling-Small",
    "dots-studio/dots3-note-prev",
    "LiquidAI/LFM2.5-230M",
    "nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16",
    "XiaomiMiMo/MiMo-V2.5-Pro",
]


MULTIMODAL = [  # catalogue entries name no wrapper and leave out what is the language model's width
    ("Qwen/Qwen3.5-35B-A3B", "qwen3_5_moe", {"out_hidden_size": 2048}),
    ("Qwen/Qwen3.5-9B", "qwen3_5", {"out_hidden_size": 4096}),
    ("Qwen/Qwen3-VL-8B-Instruct", "qwen3_vl", {"out_hidden_size": 4096}),
    ("google/gemma-4-26B-A4B-it", "gemma4", {}),
    ("google/gemma-4-E4B-it", "gemma4", {}),
    ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama4", {}),
    ("mistralai/Mistral-Medium-3.5-128B", "mistral3", {}),
]


def oracle(config: dict[str, Any]) -> int:
    """Parameters of the language model that transformers builds from a config."""
    transformers = pytest.importorskip(
        "transformers", reason="NOT CHECKED against transformers: install the torch extra"
    )
    torch = pytest.importorskip(
        "torch", reason="NOT CHECKED against transformers: install the torch extra"
    )
    text = config.get("text_config", config)
    fields = {
        key: value  # a copy: transformers completes nested fields in place
        for key, value in deepcopy(text).items()
        if key not in ("model_type", "quantization_config")
    }
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        built = transformers.AutoConfig.for_model(text["model_type"], **fields)
        return sum(
            p.numel() for p in transformers.AutoModelForCausalLM.from_config(built).parameters()
        )


def towers_oracle(config: dict[str, Any], wrapper: str, vision: dict[str, Any]) -> int:
    """Parameters beside the language model in what transformers builds from a whole config."""
    transformers = pytest.importorskip(
        "transformers", reason="NOT CHECKED against transformers: install the torch extra"
    )
    torch = pytest.importorskip(
        "torch", reason="NOT CHECKED against transformers: install the torch extra"
    )
    fields = deepcopy(config)
    fields.pop("quantization_config", None)
    fields["vision_config"] |= vision
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        built = transformers.AutoConfig.for_model(wrapper, **fields)
        whole = transformers.AutoModelForImageTextToText.from_config(built)
    return sum(
        p.numel()
        for path, p in whole.named_parameters()
        if "language_model." not in path and not path.startswith("lm_head.")
    )


@pytest.mark.engine
@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_those_of_the_built_model(name):
    entry = catalog_entry(name)
    assert not entry.same_as
    assert catalog_model(name).language_parameters == pytest.approx(oracle(entry.config), rel=0.005)


@pytest.mark.engine
@pytest.mark.parametrize("name", ["deepseek-ai/DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Pro"])
def test_every_tensor_of_a_compressed_model_is_counted(name):
    assert catalog_model(name).parameters == oracle(catalog_entry(name).config)


@pytest.mark.engine
@pytest.mark.parametrize(("name", "wrapper", "vision"), MULTIMODAL)
def test_towers_are_those_of_the_built_model(name, wrapper, vision):
    model = catalog_model(name)
    assert model.towers
    beside = towers_oracle(catalog_entry(name).config, wrapper, vision)
    assert model.parameters - model.language_parameters == pytest.approx(beside, rel=0.005)
