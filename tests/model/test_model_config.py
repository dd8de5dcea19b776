"""What the reader makes of single fields: hybrids, shared caches, context, malformed files."""

from __future__ import annotations

import math
import re

import pytest

from recipe_core.base.errors import ModelError
from recipe_core.model.catalog import catalog_model
from recipe_core.model.config.read import read_config
from recipe_core.model.spec import (
    DenseMlp,
    LatentAttention,
    LinearAttention,
    MoeMlp,
)
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table


@over("name, layer, half, kind, fields", table("model_config", "layers"))
def test_layers_are_read_from_their_fields(name, layer, half, kind, fields):
    found = getattr(catalog_model(name).layers[layer], half)
    assert type(found).__name__ == kind
    assert {field: getattr(found, field) for field in fields} == fields


def test_nemotron_layers_are_one_half_each():
    model = catalog_model("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16")
    assert all((layer.attention is None) != (layer.mlp is None) for layer in model.layers)
    assert model.draft_layers == 1
    assert any("multi-token" in note for note in model.notes)
    # searched architectures differ by layer
    model = catalog_model("nvidia/Llama-3_3-Nemotron-Super-49B-v1")
    assert sum(layer.attention is None for layer in model.layers) == 31
    dense = [layer.mlp for layer in model.layers if isinstance(layer.mlp, DenseMlp)]
    assert len({mlp.intermediate for mlp in dense}) > 3
    # a stated dtype of the state counts for its recurrent part only
    mixers = [layer.attention for layer in catalog_model("Qwen/Qwen3.5-397B-A17B").layers]
    state = next(mixer for mixer in mixers if isinstance(mixer, LinearAttention))
    mean = state.state_bytes_per_value
    total_bytes = 2 * state.conv_state_values + 4 * state.recurrent_state_values
    assert mean == pytest.approx(total_bytes / state.state_values)
    assert 3.9 < mean < 4


def test_layers_that_share_a_cache_keep_none(tiny_config):
    model = read_config({**tiny_config, "num_kv_shared_layers": 2}, "x")
    caches = [layer.attention.kv_values_per_head for layer in model.layers if layer.attention]
    assert caches == [64, 64, 0, 0]
    plain = read_config(tiny_config, "x")
    assert plain.parameters - model.parameters == 2 * 256 * 4 * 64
    # embeddings for each layer are parameters
    more = {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 512}
    extra = read_config({**tiny_config, **more}, "x").parameters - plain.parameters
    assert extra == 512 * 4 * 16 + 256 * 4 * 16 + 4 * 2 * 256 * 16


def test_fields_may_stand_in_an_object_for_each_half_of_a_layer(tiny_config):
    mpt = {"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 1, "vocab_size": 8}
    told = ({"alibi": True}, {"attn_type": "multiquery_attention"})
    alone, shared = (read_config(mpt | {"attn_config": each}, "x").layers[0] for each in told)
    assert (alone.attention.kv_heads, shared.attention.kv_heads) == (4, 1)
    assert alone.mlp == DenseMlp(256, gated=False)
    above = read_config({**tiny_config, "attn_config": {"num_key_value_heads": 1}}, "x")
    assert above.layers == read_config(tiny_config, "x").layers
    # a dense block may run beside the experts
    arctic = catalog_model("Snowflake/snowflake-arctic-instruct")
    mixed = [mlp for mlp, _ in arctic.mlps if isinstance(mlp, MoeMlp)]
    assert {(mlp.experts, mlp.shared_intermediate) for mlp in mixed} == {(128, 7168)}
    every_second = read_config(dict(arctic.config) | {"moe_layer_frequency": 2}, "x")
    kinds = [isinstance(layer.mlp, MoeMlp) for layer in every_second.layers[:4]]
    assert kinds == [False, True, False, True]


def test_what_is_left_out_is_said_aloud(tiny_config):
    more = {"attn_res_block_size": 12, "mla_use_output_gate": True}
    said, plain = (read_config(tiny_config | each, "x").notes for each in (more, {}))
    assert [note.split()[0] for note in said if note not in plain] == ["Output", "Residuals"]
    assert set(said) & set(catalog_model("moonshotai/Kimi-K3").notes)
    # so is block diffusion
    model = catalog_model("google/diffusiongemma-26B-A4B-it")
    assert any("denoising" in note for note in model.notes)
    assert not any("denoising" in n for n in catalog_model("google/gemma-4-26B-A4B-it").notes)


def scaled(word, kind, factor, original):
    return {word: kind, "factor": factor, "original_max_position_embeddings": original}


def test_rope_scaling_stretches_the_context_only_where_it_is_not_stated_stretched(tiny_config):
    for stated, scaling, context in (
        (32_768, scaled("rope_type", "yarn", 4.0, 32_768), 131_072),
        (131_072, scaled("type", "yarn", 32.0, 4_096), 131_072),
        (131_072, scaled("rope_type", "llama3", 8.0, 8_192), 131_072),
        (4_096, {"type": "linear", "factor": 4.0}, 16_384),
        (4_096, None, 4_096),
    ):
        fields = {"max_position_embeddings": stated, "rope_scaling": scaling}
        model = read_config({**tiny_config, **fields}, "x")
        assert model.max_context == context
        assert any("extends the context" in note for note in model.notes) == (context != stated)


GROUPS = {
    "quant_method": "compressed-tensors",
    "config_groups": {"a": {"weights": {"num_bits": math.nan}}},
}
NAN = [
    ({"hidden_size": math.nan}, "not a whole number"),
    ({"hidden_size": math.inf}, "not a whole number"),
    ({"rope_scaling": {"type": "yarn", "factor": math.nan}}, "not a number"),
    ({"quantization_config": GROUPS}, "whole"),
]


@over("change, says", [*table("model_config", "malformed"), *NAN])
def test_malformed_and_foreign_configs_are_one_error_each(tiny_config, change, says):
    error = refusal(read_config, {**tiny_config, **change}, "broken", kind=ModelError)
    assert says in str(error)
    assert error.field.startswith("model")


VIT = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 16,
}


def test_lists_fit_the_layers_and_may_go_on_to_the_draft_layers(tiny_config):
    listed = {**tiny_config, "layer_types": ["full_attention"] * 5}
    assert len(read_config({**listed, "num_nextn_predict_layers": 1}, "x").layers) == 4
    assert "lists 5 layers" in str(refusal(read_config, listed, "x", kind=ModelError))
    for heads in ([4] * 3, [4, 4, 4, "four"], [4, 4, 4, 3], [4, 4, 4, 0]):
        config = {**tiny_config, "num_attention_heads_per_layer": heads}
        said = str(refusal(read_config, config, "tiny", kind=ModelError))
        assert re.search(r"layers|whole number|not divisible|not between", said)
    # depth does not matter, and a vision-only model is refused
    deep: dict[str, object] = {}
    for _ in range(500):
        deep = {"text_config": deep}
    assert "missing" in str(refusal(read_config, deep, "deep", kind=ModelError))
    assert "vocab_size" in str(refusal(read_config, VIT, "vit", kind=ModelError))


def test_groups_of_layers_end_in_full_attention():
    """Ling 2.6 has lightning attention between latent layers, Ling 3 delta attention."""
    lightning = catalog_model("inclusionAI/Ling-2.6-flash").layers
    delta = catalog_model("inclusionAI/Ling-3.0-flash").layers
    for layers, group in ((lightning, 8), (delta, 6)):
        latent = [isinstance(layer.attention, LatentAttention) for layer in layers]
        assert latent == [(i + 1) % group == 0 for i in range(len(layers))]
    # heads may be listed by layer, and a window have a latent of its own
    assert len(catalog_model("poolside/Laguna-S-2.1").mixers) == 2
    layers = catalog_model("dots-studio/dots3-note-prev").layers
    assert sum(layer.attention == layers[1].attention for layer in layers) == 13
    # windows may be listed by their layers
    model = catalog_model("thinkingmachines/Inkling")
    assert [isinstance(layer.mlp, MoeMlp) for layer in model.layers[:3]] == [False, False, True]
    assert model.max_context == 1 << 20
    assert any("Short convolutions" in note for note in model.notes)
    # Mamba may alternate with attention
    layers = catalog_model("pfnet/plamo-2-1b").layers
    assert [isinstance(layer.attention, LinearAttention) for layer in layers] == [True, False] * 8
    assert all(isinstance(layer.mlp, DenseMlp) for layer in layers)
