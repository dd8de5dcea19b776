"""What is planned can be built, or the plan says why not: what trainers ship or are told."""

import ast
import math
import random
from dataclasses import replace
from itertools import product
from pathlib import Path
from string import Formatter

import numpy as np
import pytest
import yaml

from recipe_core.base.errors import NoAnswer
from recipe_core.engines.frameworks import training_data
from recipe_core.engines.spec import engine, engine_names
from recipe_core.engines.training_programs import (
    SplitRule,
    launch_rules,
    program_facts,
    training_engine,
)
from recipe_core.hardware.cluster import device_profile
from recipe_core.hardware.request import HardwareRequest
from recipe_core.launch.start import launch_reasons, training_launch
from recipe_core.models.catalog import catalog_ids, catalog_model, in_catalog, load_model_spec
from recipe_core.models.supplements import model_constants
from recipe_core.plans import titan_models as titan
from recipe_core.plans.launch_facts import LaunchFacts
from recipe_core.plans.megatron_model import (
    MEGATRON,
    MegatronModels,
    layer_pattern,
    megatron_model,
    megatron_models,
)
from recipe_core.plans.plan_json import plan_launch_note
from recipe_core.plans.plans import plan_candidate, plan_splits
from recipe_core.plans.rank import nearest_row
from recipe_core.plans.remedies import change_label, fixes
from recipe_core.plans.splits import broken_rules, refusal_reasons, row_estimates, row_reasons
from recipe_core.recipe.decision import decide, decide_split
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT
from recipe_core.request.presets import preset_changes, preset_file
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.sizes import examples
from tests.fixtures.training import training_columns, training_request, training_setting

LLAMA_8B, V3 = "meta-llama/Llama-3.1-8B", "deepseek-ai/DeepSeek-V3"
SMALL, LARGE, MIXTRAL = "Qwen/Qwen3-0.6B", "Qwen/Qwen3-32B", "mistralai/Mixtral-8x7B-v0.1"
SERVED = (f"{LLAMA_8B}-Instruct", LARGE, "openai/gpt-oss-120b", "Qwen/Qwen3-30B-A3B")
TRAINED = (LLAMA_8B, LARGE, MIXTRAL, SMALL, V3)
DEVICES = ("h100-sxm", "mi300x", "a100-sxm-80gb", "l40s")


def training(model, device, preset, **fields):
    """A preset's run; ``candidate__engine`` is ``candidate.engine``."""
    asked = {"model": model, "hardware.device": device, "workload.kind": "training"}
    request = change(DEFAULT, asked)
    request = change(request, preset_changes(request, preset))
    return change(request, {name.replace("__", "."): value for name, value in fields.items()})


def builds_or_says_why(request):
    """The best split starts; without one every row says why, and a note where nothing starts."""
    splits = plan_splits(request)
    best = splits.best
    if best is None:
        assert row_reasons(splits, nearest_row(splits))
    elif plan_launch_note(splits) is None:
        assert decide_split(best).started().processes
    else:
        assert "bundle" in plan_launch_note(splits)
        refused = refusal(decide_split(best).started, kind=NoAnswer)
        assert "candidate." not in f"{refused.message} {refused.hint}"


def fields_of(*texts):
    parts = (part for text in texts for part in Formatter().parse(text or ""))
    return {field.removesuffix(".0") for _, field, _, _ in parts if field}


def facts_of(rule):
    """Facts that a launch rule names, in its tests and in its texts."""
    for tests in (*rule.when, *rule.unless):
        for name, condition in tests.items():
            yield name
            bounds = (condition.above, condition.below, condition.uneven)
            lists = (condition.equals, condition.inside, condition.outside)
            yield from (bound for bound in (*bounds, *lists) if isinstance(bound, str))
    texts = (rule.says,) if isinstance(rule, SplitRule) else (rule.lack, rule.value)
    yield from fields_of(rule.use, *texts)


def test_launch_rules_name_facts_that_there_are():
    setting = training_setting("megatron", SMALL, 1, tokens=1e9)
    splits = LaunchFacts(setting, training_columns(1))
    asked = LaunchFacts(setting, offload="none", offload_title="", in_pieces=False)
    rules = launch_rules()
    for rule in rules.requests:
        assert all(asked[name] is not NotImplemented for name in facts_of(rule))
    shared = [rules.expand((name,)) for name in rules.shared]
    framework = [
        rules.expand((*engine.launches.degree_rules, *engine.launches.rules))
        for engine in program_facts().engines.values()
    ]
    listed = (rules.degrees, rules.nodes, rules.splits, *shared, *framework)
    for rule in (rule for group in listed for rule in group):
        assert all(splits[name] is not NotImplemented for name in facts_of(rule))
    assert "'colour' is no fact of a launch" in refusal(lambda: splits["colour"]).message
    assert "unknown shared launch rule 'tidy'" in refusal(lambda: rules.expand(("tidy",))).message


def sampled(kind, walks, full, least):
    return random.Random(kind).sample(walks, min(len(walks), examples(full, least)))


def test_every_default_builds_or_says_why():
    walks = [
        (model, where, preset, name)
        for model in SERVED
        for where in DEVICES
        for name in (None, *engine_names())
        if name is None or device_profile(where).runtime in engine(name).runtimes
        for preset in preset_file().serving
    ]
    for model, where, preset, name in sampled("serving", walks, 80, least=16):
        engines = {"options.engines": (name,)} if name else {}
        request = change(DEFAULT, {"model": model, "hardware.device": where} | engines)
        builds_or_says_why(change(request, preset_changes(request, preset)))
    engines = (None, *training_data().frameworks)
    walks = list(product(TRAINED, DEVICES, preset_file().training, engines))
    for *walk, name in sampled("training", walks, 60, least=12):
        builds_or_says_why(training(*walk, candidate__engine=name))


@over("model preset fields framework", table("launchable", "frameworks"))
def test_the_default_framework_follows_what_is_asked(model, preset, fields, framework):
    splits = plan_splits(training(model, "h200-sxm", preset, **fields))
    assert {block.setting.engine for block in splits.blocks} == {framework}


def test_a_framework_that_cannot_launch_the_method_is_refused_with_a_cure():
    refused = plan_splits(
        training(LLAMA_8B, "a100-sxm-80gb", "lora", candidate__engine="torchtitan")
    )
    assert refused.best is None
    tools = "Plain torch (torchrun), TRL, LLaMA-Factory, Axolotl or Unsloth"
    sentence = f"torchtitan cannot launch LoRA: use {tools}"
    assert set(map(tuple, refusal_reasons(refused, range(len(refused))))) == {(sentence,)}
    cure = refused.changes()[0]
    assert dict(cure.fields) == {"candidate.engine": "torch"}
    assert change_label(cure.fields) == "Train with torch"
    cured = plan_splits(change(refused.request, cure.fields))
    assert decide_split(cured.best).started().processes
    assert len(refused) < len(cured)  # degrees that no launch has are listed once


def test_several_frameworks_and_clusters_are_judged_each_by_what_is_launched():
    splits = plan_splits(
        training(LLAMA_8B, "h100-sxm", "lora", options__engines=("torchtitan", "torch"))
    )
    engines = np.array([splits.setting(row).engine for row in range(len(splits))])
    assert set(engines[splits.order]) == {"torch"}
    assert splits.rules["framework"][engines == "torchtitan"].all()
    asked = training(LLAMA_8B, "h100-sxm", "pretrain", candidate__precision="fp8")
    beside = HardwareRequest(device="gaudi3", per_node=8)
    note = plan_launch_note(plan_splits(change(asked, {"options.hardware": (beside,)}))) or ""
    assert note.startswith("No framework launches")
    assert "on Gaudi 3" in note
    assert "figures there are estimates" in note
    assert plan_launch_note(plan_splits(asked)) is None


def test_refused_rows_are_those_that_cannot_be_launched_and_the_best_one_is_built():
    """The plan's rules and the launch's reasons are of one mind."""
    chance = random.Random(7)
    for name in training_data().frameworks:
        splits = plan_splits(training(SMALL, "h100-sxm", "pretrain", candidate__engine=name))
        refused = [code for code in splits.rules if code.startswith(("launch", "framework"))]
        rules = np.any([splits.rules[code] for code in refused], axis=0)
        for row in chance.sample(range(len(splits)), min(len(splits), examples(120, least=30))):
            if broken_rules(splits, row) <= {*refused, "memory"}:
                assert bool(launch_reasons(*row_estimates(splits, row))) == rules[row]
    assert (
        set(program_facts().preferred)
        == set(program_facts().engines)
        == set(training_data().frameworks)
    )
    for preset in ("pretrain", "finetune", "lora", "qlora"):
        asked = training(SMALL, "mi300x", preset)
        assert decide(asked).candidate == plan_splits(asked).best.candidate


def test_what_no_framework_launches_is_said_and_offload_offered_where_one_has_it():
    splits = plan_splits(training(LLAMA_8B, "h100-sxm", "lora", workload__optimizer="muon"))
    assert splits.best is not None
    note = "No framework launches Muon: figures are estimates, without a bundle."
    answer = splits.to_json(1)
    assert plan_launch_note(splits) == answer["launch_note"] == note
    assert answer["candidates"][0]["bundle"] is False
    step = plan_splits(training(LLAMA_8B, "h100-sxm", "pretrain", workload__tokens=None))
    assert "token budget" in (plan_launch_note(step) or "")
    bundled = plan_splits(training(SMALL, "h100-sxm", "lora")).to_json(1)
    assert (bundled["launch_note"], bundled["candidates"][0]["bundle"]) == (None, True)
    stated = {"hardware__per_node": 2, "candidate__offload": "none"}
    splits = plan_splits(training("meta-llama/Llama-3.1-70B", "l40s", "lora", **stated))
    assert splits.best is None
    offered = [*splits.changes(), *fixes(splits, nearest_row(splits))]
    for remedy in offered:
        cured = plan_splits(change(splits.request, remedy.fields))
        assert plan_launch_note(cured) is None
        assert cured.best is not None
    splits = plan_splits(training(MIXTRAL, "h100-sxm", "pretrain"))
    assert splits.best is None
    offered = [remedy.fields for remedy in splits.changes() if "candidate.offload" in remedy.fields]
    assert offered[0]["candidate.engine"] == "deepspeed"


def detail(model, split, device="h100-sxm", **workload):
    """A split of a run as launches are made of."""
    plain = {"engine": "torchtitan", "tp": 1, "pp": 1, "zero_stage": 3, "micro_batch": 1}
    work = {"sequence_length": 4096, "global_batch": 2048, "tokens": 1e11} | workload
    splits, row = plan_candidate(
        training_request(plain | split, 128, model, {"device": device}, **work)
    )
    return row_estimates(splits, row)


def test_a_model_that_is_equal_is_found_and_another_refused_by_what_differs():
    titles = table("launchable", "shipped")
    found = {name: titan.shipped_configuration(catalog_model(name)) for name in titles}
    assert {name: shipped and shipped.title for name, shipped in found.items()} == titles
    # of the release that is launched
    assert titan.titan_facts().version == training_engine("torchtitan").version
    for name, difference in table("launchable", "unlike").items():
        assert titan.shipped_configuration(catalog_model(name)) is None, name
        assert difference in titan.unlike_shipped(catalog_model(name))
    # A flavour's own name says how many parameters: what is compared leaves nothing of size out.
    sizes = {}
    for model in map(catalog_model, catalog_ids()):
        if (shipped := titan.shipped_configuration(model)) is not None:
            sizes.setdefault(shipped.title, set()).add(model.language_parameters)
    assert len(sizes) > 20
    assert {title for title, counts in sizes.items() if len(counts) > 1} == set()


@over("model reads", table("launchable", "read").items())
def test_a_stored_format_is_read_or_refused(model, reads):
    assert titan.reads_checkpoint(catalog_model(model)) is reads
    split = detail(model, {"recompute": "full"}, method="finetune")
    assert ("which is stored in" in " ".join(launch_reasons(*split))) is not reads
    if reads and catalog_model(model).quantization:
        words = training_launch(*split).processes[0].argv
        assert "--checkpoint.initial-load-in-hf-quantized" in words


@over("model device nodes", table("launchable", "large"), share=4)
def test_large_models_with_experts_have_a_bundle(model, device, nodes):
    batch = {"sequence_length": 4096, "global_batch": 16 * nodes, "tokens": 1e11}
    splits = plan_splits(training_request(None, nodes, model, {"device": device}, **batch))
    assert splits.best.candidate["engine"] == "torchtitan"
    assert len(training_launch(*row_estimates(splits, splits.best_row)).processes) == nodes


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
    _, dense = rendered(SERVED[0], device, precision="fp8")
    assert "Experts" not in dense["converters"]
    _, plain = rendered(SERVED[0], device)
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


@over("model split length said", table("launchable", "split"))
def test_what_it_cannot_be_told_of_a_split_is_said(model, split, length, said):
    parts = detail(model, split, global_batch=8192, sequence_length=length)
    assert said in " ".join(launch_reasons(*parts))


BASES = table("launchable", "bases")
NAMES = sorted({*catalog_ids(), *model_constants()})


def words_of(base, fields):
    """What Megatron-LM is told of a small model with these fields; a list is a base, changed."""
    fields = {
        name: BASES[value[0]] | value[1] if isinstance(value, list) and "rope" in name else value
        for name, value in fields.items()
    }
    config = BASES["llama"] | BASES[base] | fields
    return megatron_model(load_model_spec({name: v for name, v in config.items() if v is not None}))


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
    assert all(in_catalog(name) for name in model_constants())
    assert all(
        {"rope_theta", "rms_norm_eps"} <= fields.keys() for fields in model_constants().values()
    )
    assert catalog_model("Qwen/Qwen2.5-7B").config["rope_theta"] == 1_000_000
    for name in NAMES:
        model = catalog_model(name)
        family = megatron_models().families.get(model.model_type)
        for what in megatron_model(model).untold:
            if family is None:
                assert what.startswith(f"model_type {model.model_type!r} (")
            elif what.startswith("no ") and " in its config" in what:
                assert model.config.get(what.split()[1]) is None
    for name, what in table("launchable", "without_words").items():
        assert what in " ".join(megatron_model(catalog_model(name)).untold), name
    assert layer_pattern([False] * 3 + [True] * 58) == "[0]*3+[1]*58"
    assert layer_pattern([True]) == "[1]*1"
    # Built by the model's own class from its config, from a shipped one, or from words.
    kinds = {name: engine.launches.models for name, engine in program_facts().engines.items()}
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


@over("name said", table("launchable", "published").items())
def test_models_are_told_as_they_were_published(name, said):
    no_dropout = {"attention_dropout": 0, "hidden_dropout": 0}
    assert_told(megatron_model(catalog_model(name)), said | no_dropout)


@over("base fields said", table("launchable", "words"))
def test_a_field_has_its_word(base, fields, said):
    assert_told(words_of(base, fields), said)


INFINITE = ("llama", {"rope_theta": math.inf}, "rope_theta inf, which is not whole")


INFINITE = ("llama", {"rope_theta": math.inf}, "rope_theta inf, which is not whole")


@over("base fields what", [*table("launchable", "untold"), INFINITE])
def test_a_value_without_a_word_is_named(base, fields, what):
    (untold,) = words_of(base, fields).untold
    assert untold.startswith(what)


INFINITE = ("llama", {"rope_theta": math.inf}, "rope_theta inf, which is not whole")
