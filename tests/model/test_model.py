import json

import pytest

from recipe_core.base.errors import ModelError
from recipe_core.model.catalog import catalog_entry, catalog_ids, catalog_model, load_model
from recipe_core.model.config.read import read_config
from recipe_core.model.spec import CompressedAttention, GroupedAttention, MoeMlp
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table


@over("name", catalog_ids())
def test_parameters_are_the_published_ones(name):
    published, model = catalog_entry(name).published, catalog_model(name)
    everything = published.of == "all"
    counted = model.parameters if everything else model.language_parameters
    assert counted == pytest.approx(published.counted, rel=0.005)
    assert sum(model.parameters_by_part.values()) == model.parameters


@over(
    "name, active",
    [
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 12.9e9),
        ("deepseek-ai/DeepSeek-V3", 37e9),
        ("Qwen/Qwen3-235B-A22B", 22e9),
        ("deepseek-ai/DeepSeek-V4-Pro", 49e9),
    ],
)
def test_active_parameters_are_near_what_the_cards_say(name, active):
    assert catalog_model(name).active_parameters == pytest.approx(active, rel=0.02)


def test_names_are_found_whatever_their_case_and_by_alias():
    wanted = """Llama-3.1-8B Llama-3.1-70B Llama-3.3-70B Qwen2.5-7B Qwen3-0.6B Qwen3-8B Qwen3-32B
    Qwen3-30B-A3B Qwen3-235B-A22B Mixtral-8x7B DeepSeek-V3 DeepSeek-R1 gpt-oss-20b gpt-oss-120b
    gemma-2-9b"""
    ids = " ".join(catalog_ids())
    assert all(name in ids for name in wanted.split())
    assert load_model("QWEN/qwen3-8b").name == "Qwen/Qwen3-8B"
    # what is served is what was asked for
    assert load_model("meta-llama/meta-llama-3.1-8b").name == "meta-llama/Meta-Llama-3.1-8B"
    base, chat = ("meta-llama/Meta-Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct")
    assert load_model(base).digest == load_model(chat).digest
    error = refusal(load_model, "qwen/qwen3-23b", kind=ModelError)
    assert "Qwen3-32B" in str(error)


def test_layers_of_a_model_differ():
    layers = catalog_model("deepseek-ai/DeepSeek-V3").layers
    dense = [not isinstance(layer.mlp, MoeMlp) for layer in layers[:5]]
    assert dense == [True, True, True, False, False]
    # gpt-oss alternates windows and quantises only experts
    model = catalog_model("openai/gpt-oss-20b")
    assert [layer.attention.window for layer in model.layers[:4]] == [128, None, 128, None]
    assert model.quantization.roles == {"experts"}
    # Gemma 3 sees everything in every sixth layer
    windows = [layer.attention.window for layer in catalog_model("google/gemma-3-1b-it").layers]
    assert [i for i, window in enumerate(windows) if window is None] == [5, 11, 17, 23]


@over(
    "name, ratios",
    [
        ("deepseek-ai/DeepSeek-V4-Flash", {0: 2, 4: 21, 128: 20}),
        ("deepseek-ai/DeepSeek-V4-Pro", {4: 30, 128: 31}),
    ],
)
def test_a_compressed_past_is_read_layer_by_layer(name, ratios):
    model = catalog_model(name)
    attentions = [layer.attention for layer in model.layers]
    assert all(isinstance(attention, CompressedAttention) for attention in attentions)
    assert {ratio: sum(a.ratio == ratio for a in attentions) for ratio in ratios} == ratios
    kinds = {(a.ratio == 4, a.attends is not None, a.index_heads) for a in attentions}
    assert kinds == {(True, True, 64), (False, False, 0)}
    assert {layer.streams for layer in model.layers} == {4}
    # the first three choose experts by a hash of the token
    assert all(isinstance(layer.mlp, MoeMlp) for layer in model.layers)


def test_a_compressed_past_is_read_from_layer_types_too():
    named = catalog_entry("deepseek-ai/DeepSeek-V4-Flash").config
    sparse, heavy = "compressed_sparse_attention", "heavily_compressed_attention"
    words = {0: "sliding_attention", 4: sparse, 128: heavy}
    left_out = ("compress_ratios", "qk_rope_head_dim", "num_hash_layers")
    config = {key: value for key, value in named.items() if key not in left_out} | {
        "layer_types": [words[ratio] for ratio in named["compress_ratios"][:43]],
        "mlp_layer_types": ["hash_moe"] * 3 + ["moe"] * 40,
    }
    assert read_config(config, "x").layers == catalog_model("deepseek-ai/DeepSeek-V4-Flash").layers
    config["compress_rates"] = {sparse: 8, heavy: 64}
    assert {layer.attention.ratio for layer in read_config(config, "x").layers} == {0, 8, 64}
    # vLLM 0.32.0, models/deepseek_v4: 584 bytes an entry in fp8, 132 an index key, fp32 states
    layers = catalog_model("deepseek-ai/DeepSeek-V4-Flash").layers
    sparse, heavy = layers[2].attention, layers[3].attention
    assert (sparse.entry_bytes(1.0), sparse.entry_bytes(2.0)) == (584, 1024)
    assert sparse.index_entry_bytes == 132
    assert (sparse.token_bytes(1.0), heavy.token_bytes(1.0)) == ((584 + 132) / 4, 584 / 128)
    assert heavy.sequence_bytes(1.0) == 128 * 584 + 128 * 2 * 512 * 4
    assert sparse.sequence_bytes(1.0) == 128 * 584 + 8 * 2 * 2 * (512 + 128) * 4


def test_a_folder_is_read(tmp_path, tiny_config):
    (tmp_path / "config.json").write_text(json.dumps(tiny_config))
    model = load_model(str(tmp_path))
    assert isinstance(model.layers[0].attention, GroupedAttention)
    layer = 256 * 256 * 2 + 2 * 256 * 128 + 3 * 256 * 512 + 512
    assert model.parameters == 2 * 1024 * 256 + 4 * layer + 256
    refused = refusal(load_model, str(tmp_path), folders=False, kind=ModelError)
    assert "path" in str(refused)  # servers can refuse them
    # multimodal models are read from their text part
    both = read_config({"text_config": tiny_config, "vision_config": {"hidden_size": 64}}, "vl")
    assert (both.hidden, "vision" in both.notes[0]) == (256, True)
    # and a missing tie is said aloud
    untied = {
        k: v for k, v in tiny_config.items() if k not in ("tie_word_embeddings", "model_type")
    }
    assert any("tie_word_embeddings" in note for note in read_config(untied, "x").notes)


@over("change, says", table("model", "what_cannot_be_modelled_is_an_error"))
def test_what_cannot_be_modelled_is_an_error_that_names_the_field(tiny_config, change, says):
    config = {key: value for key, value in (tiny_config | change).items() if value is not None}
    error = refusal(read_config, config, "broken", kind=ModelError)
    assert says in str(error)
    assert error.field.startswith("model")
