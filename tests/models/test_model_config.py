"""What the reader makes of configs: layers, shared caches, context, encoders, malformed files."""

import json
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from recipe_core.base.errors import ModelError
from recipe_core.commands.arguments import Arguments
from recipe_core.commands.context import CommandContext
from recipe_core.commands.judge import judge_command
from recipe_core.commands.option_meanings import Meant
from recipe_core.models import spec
from recipe_core.models.catalog import catalog_entry, catalog_model, load_model_spec
from recipe_core.models.config.read import read_model_config
from recipe_core.models.spec import CompressedAttention, DenseMlp, MoeMlp
from recipe_core.recipe.decision import decide
from recipe_core.request.describe import workload_name
from recipe_core.request.edit import change
from tests.conftest import make_request
from tests.fixtures import catalogues
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table


@over("name, half, kind, of, places", table("model_config", "patterns"))
def test_layers_of_a_model_differ(name, half, kind, of, places):
    """Where, of the first layers or all, a half is of a kind; or attention sees everything."""
    halves = [getattr(layer, half) for layer in catalog_model(name).layers[:of]]
    kinds = [type(part).__name__ for part in halves]
    if kind == "full":
        kinds = ["window" if part.window else "full" for part in halves]
    assert [place for place, found in enumerate(kinds) if found == kind] == places


def test_a_compressed_past_is_read_from_layer_types_too():
    named = catalog_entry("deepseek-ai/DeepSeek-V4-Flash").config
    sparse, heavy = "compressed_sparse_attention", "heavily_compressed_attention"
    words = {0: "sliding_attention", 4: sparse, 128: heavy}
    left_out = ("compress_ratios", "qk_rope_head_dim", "num_hash_layers")
    config = {key: value for key, value in named.items() if key not in left_out} | {
        "layer_types": [words[ratio] for ratio in named["compress_ratios"][:43]],
        "mlp_layer_types": ["hash_moe"] * 3 + ["moe"] * 40,
    }
    assert (
        read_model_config(config, "x").layers
        == catalog_model("deepseek-ai/DeepSeek-V4-Flash").layers
    )
    config["compress_rates"] = {sparse: 8, heavy: 64}
    assert {layer.attention.ratio for layer in read_model_config(config, "x").layers} == {0, 8, 64}
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
    model = load_model_spec(str(tmp_path))
    assert isinstance(model.layers[0].attention, spec.GroupedAttention)
    layer = 256 * 256 * 2 + 2 * 256 * 128 + 3 * 256 * 512 + 512
    assert model.parameters == 2 * 1024 * 256 + 4 * layer + 256
    refused = refusal(load_model_spec, str(tmp_path), folders=False, kind=ModelError)
    assert "path" in str(refused)  # servers can refuse them
    # multimodal models are read from their text part
    both = read_model_config(
        {"text_config": tiny_config, "vision_config": {"hidden_size": 64}}, "vl"
    )
    assert (both.hidden, "vision" in both.notes[0]) == (256, True)
    # and a missing tie is said aloud
    untied = {
        k: v for k, v in tiny_config.items() if k not in ("tie_word_embeddings", "model_type")
    }
    assert any("tie_word_embeddings" in note for note in read_model_config(untied, "x").notes)


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
    state = next(mixer for mixer in mixers if isinstance(mixer, spec.LinearAttention))
    mean = state.state_bytes_per_value
    total_bytes = 2 * state.conv_state_values + 4 * state.recurrent_state_values
    assert mean == pytest.approx(total_bytes / state.state_values)
    assert 3.9 < mean < 4


def test_layers_that_share_a_cache_keep_none(tiny_config):
    model = read_model_config({**tiny_config, "num_kv_shared_layers": 2}, "x")
    caches = [layer.attention.kv_values_per_head for layer in model.layers if layer.attention]
    assert caches == [64, 64, 0, 0]
    plain = read_model_config(tiny_config, "x")
    assert plain.parameters - model.parameters == 2 * 256 * 4 * 64
    # embeddings for each layer are parameters
    more = {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 512}
    extra = read_model_config({**tiny_config, **more}, "x").parameters - plain.parameters
    assert extra == 512 * 4 * 16 + 256 * 4 * 16 + 4 * 2 * 256 * 16


def test_fields_may_stand_in_an_object_for_each_half_of_a_layer(tiny_config):
    mpt = {"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 1, "vocab_size": 8}
    told = ({"alibi": True}, {"attn_type": "multiquery_attention"})
    alone, shared = (read_model_config(mpt | {"attn_config": each}, "x").layers[0] for each in told)
    assert (alone.attention.kv_heads, shared.attention.kv_heads) == (4, 1)
    assert alone.mlp == DenseMlp(256, gated=False)
    above = read_model_config({**tiny_config, "attn_config": {"num_key_value_heads": 1}}, "x")
    assert above.layers == read_model_config(tiny_config, "x").layers
    # a dense block may run beside the experts
    arctic = catalog_model("Snowflake/snowflake-arctic-instruct")
    mixed = [mlp for mlp, _ in arctic.mlps if isinstance(mlp, MoeMlp)]
    assert {(mlp.experts, mlp.shared_intermediate) for mlp in mixed} == {(128, 7168)}
    every_second = read_model_config(dict(arctic.config) | {"moe_layer_frequency": 2}, "x")
    kinds = [isinstance(layer.mlp, MoeMlp) for layer in every_second.layers[:4]]
    assert kinds == [False, True, False, True]


def test_what_is_left_out_is_said_aloud(tiny_config):
    more = {"attn_res_block_size": 12, "mla_use_output_gate": True}
    said, plain = (read_model_config(tiny_config | each, "x").notes for each in (more, {}))
    assert [note.split()[0] for note in said if note not in plain] == ["Output", "Residuals"]
    assert set(said) & set(catalog_model("moonshotai/Kimi-K3").notes)
    # so is block diffusion
    model = catalog_model("google/diffusiongemma-26B-A4B-it")
    assert any("denoising" in note for note in model.notes)
    assert not any("denoising" in n for n in catalog_model("google/gemma-4-26B-A4B-it").notes)


@over("stated, scaling, context", table("model_config", "stretched"))
def test_rope_scaling_stretches_the_context_only_once(tiny_config, stated, scaling, context):
    fields = {"max_position_embeddings": stated, "rope_scaling": scaling}
    model = read_model_config({**tiny_config, **fields}, "x")
    assert model.max_context == context
    assert any("extends the context" in note for note in model.notes) == (context != stated)


def test_lists_fit_the_layers_and_may_go_on_to_the_draft_layers(tiny_config):
    listed = {**tiny_config, "layer_types": ["full_attention"] * 5}
    assert len(read_model_config({**listed, "num_nextn_predict_layers": 1}, "x").layers) == 4
    assert "lists 5 layers" in str(refusal(read_model_config, listed, "x", kind=ModelError))
    for heads in ([4] * 3, [4, 4, 4, "four"], [4, 4, 4, 3], [4, 4, 4, 0]):
        config = {**tiny_config, "num_attention_heads_per_layer": heads}
        said = str(refusal(read_model_config, config, "tiny", kind=ModelError))
        assert re.search(r"layers|whole number|not divisible|not between", said)
    # depth does not matter, and a vision-only model is refused
    deep: dict[str, object] = {}
    for _ in range(500):
        deep = {"text_config": deep}
    assert "missing" in str(refusal(read_model_config, deep, "deep", kind=ModelError))
    vision = table("model_config", "vision")
    assert "vocab_size" in str(refusal(read_model_config, vision, "vit", kind=ModelError))


def test_heads_windows_and_latents_may_be_listed():
    # heads may be listed by layer, and a window have a latent of its own
    assert len(catalog_model("poolside/Laguna-S-2.1").mixers) == 2
    layers = catalog_model("dots-studio/dots3-note-prev").layers
    assert sum(layer.attention == layers[1].attention for layer in layers) == 13
    # windows may be listed by their layers
    model = catalog_model("thinkingmachines/Inkling")
    assert model.max_context == 1 << 20
    assert any("Short convolutions" in note for note in model.notes)
    layers = catalog_model("pfnet/plamo-2-1b").layers
    assert all(isinstance(layer.mlp, DenseMlp) for layer in layers)


NOT_NUMBERS = catalogues.table("small_models.yaml", "not_numbers")


@over("change, says", [*table("model_config", "malformed"), *NOT_NUMBERS])
def test_what_cannot_be_modelled_is_an_error_that_names_the_field(tiny_config, change, says):
    config = {key: value for key, value in (tiny_config | change).items() if value is not None}
    error = refusal(read_model_config, config, "broken", kind=ModelError)
    assert says in str(error)
    assert error.field.startswith("model")


@over("name, active", table("model_config", "active"))
def test_active_parameters_are_near_what_the_cards_say(name, active):
    assert catalog_model(name).active_parameters == pytest.approx(active, rel=0.02)


@over("name, ratios", table("model_config", "ratios"))
def test_a_compressed_past_is_read_layer_by_layer(name, ratios):
    layers = catalog_model(name).layers
    attentions = [layer.attention for layer in layers]
    assert all(isinstance(attention, CompressedAttention) for attention in attentions)
    assert Counter(attention.ratio for attention in attentions) == ratios
    kinds = {(a.ratio == 4, a.attends is not None, a.index_heads) for a in attentions}
    assert kinds == {(True, True, 64), (False, False, 0)}
    assert {layer.streams for layer in layers} == {4}
    # the first three choose experts by a hash of the token
    assert all(isinstance(layer.mlp, MoeMlp) for layer in layers)


def test_names_are_found_whatever_their_case_and_by_alias():
    assert load_model_spec("QWEN/qwen3-8b").name == "Qwen/Qwen3-8B"
    # what is served is what was asked for
    base, chat = "meta-llama/Meta-Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct"
    assert load_model_spec(base.lower()).name == base
    assert load_model_spec(base).digest == load_model_spec(chat).digest
    assert "Qwen3-32B" in str(refusal(load_model_spec, "qwen/qwen3-23b", kind=ModelError))


QWEN, GEMMA = "Qwen/Qwen3-VL-8B-Instruct", "google/gemma-4-E4B-it"
VISION = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "patch_size": 16}


def _request(model=QWEN, workload=None, **candidate):
    load = {"concurrency": 4, "input_tokens": 512, "output_tokens": 64, **(workload or {})}
    split = {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1, **candidate}
    return make_request(model, workload=load, candidate=split)


@over("name, parameters", table("towers", "a_tower_has_the_parameters_of_its"))
def test_a_tower_has_the_parameters_of_its_modules(name, parameters):
    (tower,) = catalog_model(name).towers
    assert tower.parameters == pytest.approx(parameters, rel=0.006)
    assert sum(item.numel for item in tower.tensors) == tower.parameters


def test_a_model_counts_its_towers_beside_the_language_model():
    model = catalog_model(GEMMA)
    assert [tower.modality for tower in model.towers] == ["image", "audio"]
    towers = sum(tower.parameters for tower in model.towers)
    assert model.parameters == model.language_parameters + towers
    assert model.parameters_by_part["vision encoder"] == model.towers[0].parameters
    assert model.active_parameters < model.language_parameters
    # experts of image tokens are weights
    extras = {item.name: item for item in load_model_spec("baidu/ERNIE-4.5-VL-28B-A3B-PT").extras}
    assert extras["image_experts"].numel == 27 * 64 * 3 * 2560 * 512
    # a text-only model is another architecture
    assert model.serving(None) is model
    assert model.serving(("image", "audio")) is model
    heard = model.serving(("audio",))
    assert [tower.modality for tower in heard.towers] == ["audio"]
    assert heard.left_out == ("image",)
    assert len({model.digest, heard.digest, model.serving(()).digest}) == 3
    # the time of an encoder grows with its depth
    (tower,) = catalog_model(QWEN).towers
    deeper = replace(tower, layers=2 * tower.layers)
    assert deeper.token_flops > 1.8 * tower.token_flops
    assert deeper.score_flops(1024) == 2 * tower.score_flops(1024)
    assert np.isclose(tower.score_flops(2048), 4 * tower.score_flops(1024))


def test_a_tower_that_is_not_known_is_counted_by_its_sizes_or_not_at_all():
    def read(**vision):
        return read_model_config(
            {"text_config": table("towers", "text"), "vision_config": vision}, "x"
        )

    model = read(**VISION, model_type="new")
    assert model.towers[0].layers == 3
    assert any("counted by its sizes" in note for note in model.notes)
    without = read(model_type="new")
    assert without.towers == ()
    assert any("vision encoder is not counted" in note for note in without.notes)
    error = refusal(read, **(VISION | {"num_hidden_layers": "many"}), kind=ModelError)
    assert error.field == "model.vision_config.num_hidden_layers"


@over("words, without", table("towers", "commands_that_leave_towers_out"))
def test_commands_that_leave_towers_out(words, without):
    arguments = Arguments("vllm", [QWEN, *words])
    assert list(Meant(arguments).without) == without


def test_another_model_takes_images_out_that_it_does_not_read():
    request = _request(workload={"images": {}, "modalities": ["image"]})
    kept, text = (
        change(request, {"model": name}).workload
        for name in ("google/gemma-3-27b-it", "Qwen/Qwen3-8B")
    )
    assert kept.images is not None
    assert (text.images, text.modalities) == (None, None)
    # images beyond the longest request leave it open
    request = _request(workload={"max_context": 2048})
    seen = change(request, {"workload.images": {"per_request": 2, "tokens": 1024}}).workload
    assert seen.max_context is None
    assert seen.longest_tokens == 512 + 64 + 2048
    assert "2 images of 1,024 tokens" in workload_name(seen)


def test_a_launch_leaves_out_what_the_estimate_leaves_out():
    for model, modalities, word in table("towers", "launches_that_leave_towers_out"):
        launch = decide(_request(model, {"modalities": modalities})).started()
        assert word in launch.processes[0].argv

    # data-parallel encoders are whole on every rank
    def weights(*words):
        command = ["vllm", "serve", QWEN, "-tp", "4", "--max-model-len", "8192", *words]
        return judge_command(command, CommandContext.of(hardware="h100-sxm:4"))["start_bytes"]

    (tower,) = catalog_model(QWEN).towers
    more = weights("--mm-encoder-tp-mode", "data") - weights()
    assert more > 0.75 * 2 * tower.layers * tower.layer_weights * 0.99
    assert weights("--mm-encoder-tp-mode", "weights") == weights()
    assert weights("--language-model-only") < weights()
