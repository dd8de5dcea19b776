"""The formula against the real transformers classes, built on torch's meta device."""

import warnings
from copy import deepcopy

import pytest

from recipe_core.models.catalog import catalog_entry, catalog_model
from tests.fixtures.rows import over, table


def built(config, kind, auto):
    """What transformers builds from a config, on torch's meta device."""
    reason = "NOT CHECKED against transformers: install the torch extra"
    transformers = pytest.importorskip("transformers", reason=reason)
    torch = pytest.importorskip("torch", reason=reason)
    fields = deepcopy(config)  # a copy: transformers completes nested fields in place
    for name in ("model_type", "quantization_config"):
        fields.pop(name, None)
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        known = transformers.AutoConfig.for_model(kind, **fields)
        return getattr(transformers, auto).from_config(known)


def oracle(config):
    """Parameters of the language model that transformers builds from a config."""
    text = config.get("text_config", config)
    model = built(text, text["model_type"], "AutoModelForCausalLM")
    return sum(p.numel() for p in model.parameters())


def towers_oracle(config, wrapper, vision):
    """Parameters beside the language model in what transformers builds from a whole config."""
    whole = config | {"vision_config": config["vision_config"] | vision}
    named = built(whole, wrapper, "AutoModelForImageTextToText").named_parameters()
    beside = [(path, p) for path, p in named if "language_model." not in path]
    return sum(p.numel() for path, p in beside if not path.startswith("lm_head."))


@pytest.mark.engine
@over("name", table("model_oracle", "models"), share=16)
def test_parameters_are_those_of_the_built_model(name):
    entry = catalog_entry(name)
    assert not entry.same_as
    assert catalog_model(name).language_parameters == pytest.approx(oracle(entry.config), rel=0.005)


@pytest.mark.engine
@pytest.mark.nightly
def test_every_tensor_of_a_compressed_model_is_counted():
    for name in ("deepseek-ai/DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Pro"):
        assert catalog_model(name).parameters == oracle(catalog_entry(name).config)


@pytest.mark.engine
@over("name, wrapper, vision", table("model_oracle", "multimodal"), share=7)
def test_towers_are_those_of_the_built_model(name, wrapper, vision):
    model = catalog_model(name)
    assert model.towers
    beside = towers_oracle(catalog_entry(name).config, wrapper, vision)
    assert model.parameters - model.language_parameters == pytest.approx(beside, rel=0.005)
