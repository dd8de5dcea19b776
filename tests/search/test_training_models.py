"""Which models torchtitan ships and what is rendered for them, and words of models for Megatron-LM.

A model that neither has or is told in full is refused by name.
"""

import ast
import math
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from recipe_core.engines.megatron import MEGATRON, MegatronModels, megatron_models
from recipe_core.engines.training_programs import facts, training_engine
from recipe_core.launch.training.start import launch_reasons, training_launch
from recipe_core.model.catalog import catalog_ids, catalog_model, in_catalog, load_model
from recipe_core.model.constants import constants
from recipe_core.request.schema import PlanRequest
from recipe_core.search.megatron_model import layer_pattern, megatron_model
from recipe_core.search.plans import plan, plan_candidate
from recipe_core.search.titan_models import (
    reads_checkpoint,
    shipped_configuration,
    titan_facts,
    unlike_shipped,
)
from tests.fixtures.rows import over, table

PLAIN = {"engine": "torchtitan", "tp": 1, "pp": 1, "zero_stage": 3, "micro_batch": 1}
LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"
V3 = "deepseek-ai/DeepSeek-V3"


def request(model, device, nodes, **parts):
    workload = {"sequence_length": 4096, "global_batch": 16 * nodes, "tokens": 1e11}
    asked = {
        "model": model,
        "hardware": {"device": device, "per_node": 8, "nodes": nodes},
        "workload": {"kind": "training"} | workload | parts.pop("workload", {}),
    }
    return PlanRequest.parse(asked | parts)


def detail(model, split, device="h100-sxm", **workload):
    """A split of a run as launches are made of."""
    asked = request(model, device, 128, candidate=PLAIN | split, workload=workload)
    splits, row = plan_candidate(asked)
    return splits.detail(row)


def test_a_model_that_is_equal_is_found_and_another_refused_by_what_differs():
    titles = table("training_models", "shipped")
    found = {name: shipped_configuration(catalog_model(name)) for name in titles}
    assert {name: shipped and shipped.title for name, shipped in found.items()} == titles
    # of the release that is launched
    assert titan_facts().version == training_engine("torchtitan").version
    for name, difference in table("training_models", "unlike").items():
        assert shipped_configuration(catalog_model(name)) is None, name
        assert difference in unlike_shipped(catalog_model(name))
    # A flavour's own name says how many parameters: what is compared leaves nothing of size out.
    sizes = {}
    for model in map(catalog_model, catalog_ids()):
        if (shipped := shipped_configuration(model)) is not None:
            sizes.setdefault(shipped.title, set()).add(model.language_parameters)
    assert len(sizes) > 20
    assert {title for title, counts in sizes.items() if len(counts) > 1} == set()


@over("model reads", table("training_models", "read").items())
def test_a_stored_format_is_read_or_refused(model, reads):
    assert reads_checkpoint(catalog_model(model)) is reads
    split = detail(model, {"recompute": "full"}, method="finetune")
    assert ("which is stored in" in " ".join(launch_reasons(*split))) is not reads
    if reads and catalog_model(model).quantization:
        words = training_launch(*split).processes[0].argv
        assert "--checkpoint.initial-load-in-hf-quantized" in words


LARGE = [
    (model, *place)
    for place in (("b200-sxm", 128), ("h100-sxm", 256))
    for model in (V3, "openai/gpt-oss-120b")
]


@over("model device nodes", LARGE, share=4)
def test_large_models_with_experts_have_a_bundle(model, device, nodes):
    splits = plan(request(model, device, nodes))
    assert splits.best.candidate["engine"] == "torchtitan"
    assert len(training_launch(*splits.detail(splits.best_row)).processes) == nodes


def rendered(model, device="h100-sxm", **split):
    """A launch, and what its script hands to ``model_registry``."""
    launch = training_launch(*detail(model, split, device))
    nodes = ast.walk(ast.parse(launch.files["train.py"]))
    calls = (node for node in nodes if isinstance(node, ast.Call))
    call = next(node for node in calls if getattr(node.func, "id", "") == "model_registry")
    named = {word.arg: ast.unparse(word.value) for word in call.keywords}
    return launch, {"model": ast.unparse(call.args[0])} | named


@pytest.mark.parametrize(
    ("device", "kind"), [("h100-sxm", "Float8"), ("mi325x", "Float8"), ("b200-sxm", "MXFP8")]
)
def test_products_in_eight_bits_have_the_devices_converters(device, kind):
    launch, said = rendered(V3, device, precision="fp8", ep=8, recompute="full")
    assert f"{kind}LinearConverter" in said["converters"]
    assert f"{kind}GroupedExpertsConverter" in said["converters"]
    assert "torchao" in launch.requires
    _, dense = rendered(LLAMA_8B, device, precision="fp8")
    assert "Experts" not in dense["converters"]
    _, plain = rendered(LLAMA_8B, device)
    assert "converters" not in plain


def test_ranks_of_a_sequence_share_blocks_and_layers_are_dealt_out_over_stages():
    for cp, kernel in ((1, "'varlen'"), (2, "'flex'")):
        _, said = rendered("openai/gpt-oss-20b", cp=cp, recompute="full")
        assert (said["model"], said["attn_backend"]) == ("'20b'", kernel)
    # 61 layers over 16: five more than four of a stage, which torchtitan does by itself.
    for pp, chunks, schedule in ((16, 1, "1f1b"), (8, 2, "interleaved")):
        split = {"pp": pp, "ep": 32, "virtual_stages": chunks, "recompute": "full"}
        launch, _ = rendered(V3, **split, schedule=schedule)
        assert launch.options.get("parallelism.pipeline-parallel-layers-per-stage") is None


@over("model split length said", table("training_models", "split"))
def test_what_it_cannot_be_told_of_a_split_is_said(model, split, length, said):
    parts = detail(model, split, global_batch=8192, sequence_length=length)
    assert said in " ".join(launch_reasons(*parts))


BASES = table("training_models", "bases")
NAMES = sorted({*catalog_ids(), *constants()})


def words_of(base, fields):
    """What Megatron-LM is told of a small model with these fields; a list is a base, changed."""
    fields = {
        name: BASES[value[0]] | value[1] if isinstance(value, list) and "rope" in name else value
        for name, value in fields.items()
    }
    config = BASES["llama"] | BASES[base] | fields
    return megatron_model(load_model({name: v for name, v in config.items() if v is not None}))


def attention(said):
    hidden, heads = said["hidden_size"], said["num_attention_heads"]
    if not said.get("multi_latent_attention"):
        grouped = (heads + 2 * said["num_query_groups"]) * said["kv_channels"]
        bias = grouped if said.get("add_qkv_bias") else 0
        return int(hidden * (grouped + heads * said["kv_channels"]) + bias)
    names = ("qk_pos_emb_head_dim", "kv_lora_rank", "qk_head_dim")
    rotary, latent, plain = (said[name] for name in names)
    queries = heads * (plain + rotary)
    low = said.get("q_lora_rank")
    first = low * (hidden + queries) if low else hidden * queries
    up = latent * heads * (plain + said["v_head_dim"])
    return int(first + hidden * (latent + rotary) + up + heads * said["v_head_dim"] * hidden)


def counted(said):
    """Parameters of the model that Megatron-LM builds from words, without norms of heads."""
    hidden, layers = said["hidden_size"], said["num_layers"]
    per_block = (3 if said.get("swiglu") else 2) * hidden
    routed, marks = 0, [int("num_experts" in said)] * layers
    if pattern := said.get("moe_layer_freq"):
        runs = [run.split("*") for run in pattern.split("+")]
        marks = [int(mark[1]) for mark, count in runs for _ in range(int(count))]
    if "num_experts" in said:
        shared = said.get("moe_shared_expert_intermediate_size", 0)
        width = said["num_experts"] * said["moe_ffn_hidden_size"] + shared
        routed = per_block * width + hidden * said["num_experts"]
    blocks = sum(routed if mark else per_block * said["ffn_hidden_size"] for mark in marks)
    tables = 1 + said["untie_embeddings_and_output_weights"]
    whole = blocks + layers * (attention(said) + 2 * hidden) + hidden
    return int(whole + tables * said["vocab_size"] * hidden)


def test_every_field_of_every_model_has_a_word_or_refuses_its_launch():
    """The model that is launched has the parameters of the one that was asked for, one by one."""
    models = {name: catalog_model(name) for name in NAMES}
    words = {name: megatron_model(model) for name, model in models.items()}
    launched = [name for name in NAMES if not words[name].untold]
    assert len(launched) > 100
    for name in launched:
        model = models[name]
        norms = model.parameters_by_part["norm"] - (2 * len(model.layers) + 1) * model.hidden
        assert counted(words[name].words) == model.parameters - norms, name
        for field, value in (("new_gate", True), ("attention_scale", 0.5), ("mixer", [])):
            changed = replace(model, config={**model.config, field: value})
            assert megatron_model(changed).untold == (f"{field} {value!r}",)


def test_known_families_constants_patterns_and_frameworks_are_as_the_table_says():
    assert all(in_catalog(name) for name in constants())
    assert all({"rope_theta", "rms_norm_eps"} <= fields.keys() for fields in constants().values())
    assert catalog_model("Qwen/Qwen2.5-7B").config["rope_theta"] == 1_000_000
    for name in NAMES:
        model = catalog_model(name)
        family = megatron_models().families.get(model.model_type)
        for what in megatron_model(model).untold:
            if family is None:
                assert what.startswith(f"model_type {model.model_type!r} (")
            elif what.startswith("no ") and " in its config" in what:
                assert model.config.get(what.split()[1]) is None
    assert layer_pattern([False] * 3 + [True] * 58) == "[0]*3+[1]*58"
    assert layer_pattern([True]) == "[1]*1"
    # Built by the model's own class from its config, from a shipped one, or from words.
    kinds = {name: engine.launches.models for name, engine in facts().engines.items()}
    assert kinds["megatron"] == "words"
    assert {kinds[name] for name in ("torch", "deepspeed", "accelerate")} == {"any"}
    document = yaml.safe_load(Path(MEGATRON.path).read_text(encoding="utf-8"))
    twice = {"llama": {"refused": {"llama": "no reason"}}, "mlp_bias": {"sizes": ["mlp_bias"]}}
    for name, part in twice.items():  # a field is sorted once
        with pytest.raises(ValueError, match=f"'{name}' is"):
            MegatronModels.model_validate(document | part)


def assert_told(model, said):
    assert model.untold == ()
    assert {word: model.words.get(word) for word in said} == said


@over("name said", table("training_models", "published").items())
def test_models_are_told_as_they_were_published(name, said):
    no_dropout = {"attention_dropout": 0, "hidden_dropout": 0}
    assert_told(megatron_model(catalog_model(name)), said | no_dropout)


@over("base fields said", table("training_models", "words"))
def test_a_field_has_its_word(base, fields, said):
    assert_told(words_of(base, fields), said)


INFINITE = ("llama", {"rope_theta": math.inf}, "rope_theta inf, which is not whole")


@over("base fields what", [*table("training_models", "untold"), INFINITE])
def test_a_value_without_a_word_is_named(base, fields, what):
    (untold,) = words_of(base, fields).untold
    assert untold.startswith(what)


def test_what_has_no_word_is_named():
    for name, what in table("training_models", "without_words").items():
        assert what in " ".join(megatron_model(catalog_model(name)).untold), name


INFINITE = ("llama", {"rope_theta": math.inf}, "rope_theta inf, which is not whole")
