"""What is planned can be built: by default, and otherwise the plan says why not."""

import random
from itertools import product

import numpy as np

from recipe_core.base.errors import NoAnswer
from recipe_core.base.labels import change_label
from recipe_core.engines.frameworks import training_data
from recipe_core.engines.spec import engine, engine_names
from recipe_core.engines.training_programs import facts
from recipe_core.hardware.cluster import device
from recipe_core.hardware.request import HardwareRequest
from recipe_core.launch.training.start import launch_reasons
from recipe_core.recipe.decision import decide, decide_split
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT
from recipe_core.request.presets import preset_changes, preset_file
from recipe_core.search.changes import fixes
from recipe_core.search.plans import plan
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.sizes import examples

LLAMA_8B = "meta-llama/Llama-3.1-8B"
SMALL, LARGE, MIXTRAL = "Qwen/Qwen3-0.6B", "Qwen/Qwen3-32B", "mistralai/Mixtral-8x7B-v0.1"
SERVED = (f"{LLAMA_8B}-Instruct", LARGE, "openai/gpt-oss-120b", "Qwen/Qwen3-30B-A3B")
TRAINED = (LLAMA_8B, LARGE, MIXTRAL, SMALL, "deepseek-ai/DeepSeek-V3")
DEVICES = ("h100-sxm", "mi300x", "a100-sxm-80gb", "l40s")


def training(model, device, preset, **fields):
    """A preset's run; ``candidate__engine`` is ``candidate.engine``."""
    asked = {"model": model, "hardware.device": device, "workload.kind": "training"}
    request = change(DEFAULT, asked)
    request = change(request, preset_changes(request, preset))
    return change(request, {name.replace("__", "."): value for name, value in fields.items()})


def builds_or_says_why(request):
    """The best split starts; without one every row says why, and a note where nothing starts."""
    splits = plan(request)
    best = splits.best
    if best is None:
        assert splits.reasons(splits.nearest_row())
    elif splits.launch_note is None:
        assert decide_split(best).started().processes
    else:
        assert "bundle" in splits.launch_note
        refused = refusal(decide_split(best).started, kind=NoAnswer)
        assert "candidate." not in f"{refused.message} {refused.hint}"


def sampled(kind, walks, full, least):
    return random.Random(kind).sample(walks, min(len(walks), examples(full, least)))


def test_every_default_builds_or_says_why():
    walks = [
        (model, where, preset, name)
        for model in SERVED
        for where in DEVICES
        for name in (None, *engine_names())
        if name is None or device(where).runtime in engine(name).runtimes
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
    splits = plan(training(model, "h200-sxm", preset, **fields))
    assert {block.setting.engine for block in splits.blocks} == {framework}


def test_a_framework_that_cannot_launch_the_method_is_refused_with_a_cure():
    refused = plan(training(LLAMA_8B, "a100-sxm-80gb", "lora", candidate__engine="torchtitan"))
    assert refused.best is None
    tools = "Plain torch (torchrun), TRL, LLaMA-Factory, Axolotl or Unsloth"
    sentence = f"torchtitan cannot launch LoRA: use {tools}"
    assert set(map(tuple, refused.every_sentence())) == {(sentence,)}
    cure = refused.changes()[0]
    assert dict(cure.fields) == {"candidate.engine": "torch"}
    assert change_label(cure.fields) == "Train with torch"
    cured = plan(change(refused.request, cure.fields))
    assert decide_split(cured.best).started().processes
    assert len(refused) < len(cured)  # degrees that no launch has are listed once


def test_several_frameworks_and_clusters_are_judged_each_by_what_is_launched():
    splits = plan(training(LLAMA_8B, "h100-sxm", "lora", options__engines=("torchtitan", "torch")))
    engines = np.array([splits.setting(row).engine for row in range(len(splits))])
    assert set(engines[splits.order]) == {"torch"}
    assert splits.rules()["framework"][engines == "torchtitan"].all()
    asked = training(LLAMA_8B, "h100-sxm", "pretrain", candidate__precision="fp8")
    beside = HardwareRequest(device="gaudi3", per_node=8)
    note = plan(change(asked, {"options.hardware": (beside,)})).launch_note or ""
    assert note.startswith("No framework launches")
    assert "on Gaudi 3" in note
    assert "figures there are estimates" in note
    assert plan(asked).launch_note is None


def test_refused_rows_are_those_that_cannot_be_launched_and_the_best_one_is_built():
    """The plan's rules and the launch's reasons are of one mind."""
    chance = random.Random(7)
    for name in training_data().frameworks:
        splits = plan(training(SMALL, "h100-sxm", "pretrain", candidate__engine=name))
        refused = [code for code in splits.rules() if code.startswith(("launch", "framework"))]
        rules = np.any([splits.rules()[code] for code in refused], axis=0)
        for row in chance.sample(range(len(splits)), min(len(splits), examples(120, least=30))):
            if splits.codes(row) <= {*refused, "memory"}:
                assert bool(launch_reasons(*splits.detail(row))) == rules[row]
    assert set(facts().preferred) == set(facts().engines) == set(training_data().frameworks)
    for preset in ("pretrain", "finetune", "lora", "qlora"):
        asked = training(SMALL, "mi300x", preset)
        assert decide(asked).candidate == plan(asked).best.candidate


def test_what_no_framework_launches_is_said_and_offload_offered_where_one_has_it():
    splits = plan(training(LLAMA_8B, "h100-sxm", "lora", workload__optimizer="muon"))
    assert splits.best is not None
    note = "No framework launches Muon: figures are estimates, without a bundle."
    answer = splits.to_json(1)
    assert splits.launch_note == answer["launch_note"] == note
    assert answer["candidates"][0]["bundle"] is False
    step = plan(training(LLAMA_8B, "h100-sxm", "pretrain", workload__tokens=None))
    assert "token budget" in (step.launch_note or "")
    bundled = plan(training(SMALL, "h100-sxm", "lora")).to_json(1)
    assert (bundled["launch_note"], bundled["candidates"][0]["bundle"]) == (None, True)
    splits = plan(training("meta-llama/Llama-3.1-70B", "l40s", "lora", hardware__per_node=2))
    assert splits.best is None
    offered = [*splits.changes(), *fixes(splits, splits.nearest_row())]
    assert not any("candidate.offload" in remedy.fields for remedy in offered)  # with adapters
    for remedy in splits.changes():
        assert plan(change(splits.request, remedy.fields)).launch_note is None
    splits = plan(training(MIXTRAL, "h100-sxm", "pretrain"))
    assert splits.best is None
    offered = [remedy.fields for remedy in splits.changes() if "candidate.offload" in remedy.fields]
    assert offered[0]["candidate.engine"] == "deepspeed"
