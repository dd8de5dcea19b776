"""Every framework is told exactly what was estimated: random splits, rendered and read back."""

from __future__ import annotations

import importlib.util
import json
import math
import random
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from recipe_core.base.errors import InputError, NoAnswer
from recipe_core.engines.training_programs import training_engine, usual
from recipe_core.launch.process import Launch
from recipe_core.launch.training.corpus import chats, corpus, preferences
from recipe_core.launch.training.start import launch_reasons, training_launch
from recipe_core.physics.training.stages import stage_layers
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan, plan_candidate
from recipe_core.search.problem import resolve
from recipe_core.search.training_plan import TrainingPlan
from tests.fixtures.paths import DATA
from tests.fixtures.sizes import examples

LLAMA, QWEN_MOE = "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B"
MIXTRAL = "mistralai/Mixtral-8x7B-v0.1"
ENGINES = ("torch", "torchtitan", "deepspeed", "accelerate", "megatron")
OPTIONS = DATA / "torchtitan-0.3.0-options.txt"
WANTED = examples(500, least=50)
TRIED = examples(1500, least=150)
"""Rows of a table that are tried: many cannot be launched."""
REPLICAS = ("deepspeed", "accelerate")
"""Frameworks that are launched with replicas only: they have few splits on each cluster."""


def request(
    engine: str,
    model: str = LLAMA,
    nodes: int = 2,
    device: str = "h100-sxm",
    per_node: int = 8,
    candidate: Any = None,
    **work: Any,
) -> PlanRequest:
    workload = {"kind": "training", "sequence_length": 4096, "global_batch": 128, "tokens": 1e9}
    hardware = {"device": device, "per_node": per_node, "nodes": nodes}
    parts = {"candidate": candidate} if candidate else {"options": {"engines": [engine]}}
    values = {"model": model, "hardware": hardware, "workload": workload | work}
    return PlanRequest.parse(values | parts)


def split(engine: str, **parts: Any) -> dict[str, Any]:
    """A stated split of 16 devices, all of them replicas unless ``parts`` say otherwise."""
    plain = {"engine": engine, "tp": 1, "pp": 1, "dp": 16, "zero_stage": 0, "micro_batch": 1}
    return plain | parts


@cache
def table(engine: str, model: str, nodes: int, per_node: int, batch: int) -> TrainingPlan:
    replicas = CandidateRequest(tp=1, pp=1, cp=1, ep=1) if engine in REPLICAS else None
    asked = request(engine, model, nodes, per_node=per_node, global_batch=batch)
    return TrainingPlan.search(resolve(asked), replicas)


MANY_SIZES = ((2, 8), (1, 8), (4, 4), (3, 8), (1, 4), (1, 2), (5, 8), (7, 8), (8, 8))


def tables(engine: str, chance: random.Random) -> list[TrainingPlan]:
    """Clusters of two sizes; of many sizes for frameworks that divide replicas only and have few
    splits on each.
    """
    models = {"torchtitan": (LLAMA, QWEN_MOE), "megatron": (LLAMA, MIXTRAL)}.get(engine, (LLAMA,))
    if engine not in REPLICAS:
        return [table(engine, model, nodes, 8, 128) for model in models for nodes in (2, 1)]
    every = [(*size, batch) for size in MANY_SIZES for batch in (96, 128, 192, 256, 640, 1120)]
    picked = chance.sample(every, min(len(every), examples(len(every), least=6)))
    return [table(engine, LLAMA, *asked) for asked in picked]


@cache
def rendered(engine: str) -> list[tuple[dict[str, Any], TrainingPlan, int, Launch]]:
    """Splits picked at random among those that can be started."""
    chance = random.Random(engine)
    out: list[tuple[dict[str, Any], TrainingPlan, int, Launch]] = []
    for found in tables(engine, chance):
        rows = chance.sample(range(len(found)), min(len(found), TRIED))
        fine = [row for row in rows if not launch_reasons(*found.detail(row))][: WANTED // 2]
        started = ((row, training_launch(*found.detail(row))) for row in fine)
        out += [(found.candidate(row), found, row, launch) for row, launch in started]
    return chance.sample(out, min(len(out), WANTED + 50))


def launched(engine: str, candidate: dict[str, Any], **more: Any) -> Launch:
    """What a stated split is started with."""
    table, row = plan_candidate(request(engine, candidate=candidate, **more))
    return training_launch(*table.detail(row))


def flags(words: tuple[str, ...]) -> dict[str, Any]:
    """``--name value`` and ``--name`` of a command's end."""
    out: dict[str, Any] = {}
    for word, following in zip(words, (*words[1:], "--"), strict=True):
        if word.startswith("--"):
            is_flag = following.startswith(("--", "activation-"))
            out[word[2:]] = True if is_flag else following
    return out


def even(layers: int, pp: int) -> list[int]:
    """Layers of each stage where a framework deals them out alike."""
    return [layers // pp + (stage < layers % pp) for stage in range(pp)]


def layout(said: str) -> list[int]:
    """Layers per stage of Megatron's layout, which has one embedding first and one loss last."""
    assert (said[0], said[-1], said.count("E"), said.count("L")) == ("E", "L", 1, 1)
    stages = said[1:-1].split("|")
    assert all(re.fullmatch(r"(t\*\d+)?", stage) for stage in stages)
    return [int(stage[2:] or 0) for stage in stages]


def batch(found: TrainingPlan, row: int) -> dict[str, Any]:
    e, i = found.detail(row)
    return {
        "sequence_length": int(e.cases.sequence_length[i]),
        "global_batch": int(e.cases.global_batch[i]),
        "micro_batches": int(e.cases.micro_batches[i]),
        "steps": int(e.run.steps[i]),
        "stage_layers": [int(count) for count in stage_layers(e.setting, e.cases.take([i]))[0][0]],
    }


ALONE = {"tp": 1, "pp": 1, "cp": 1, "ep": 1}
SIZES = ("micro_batch", "sequence_length", "global_batch", "steps")
KEYS = {*ALONE, *SIZES, "dp", "recompute", "precision"}
"""What every framework is told."""


def read_torch(launch: Launch) -> dict[str, Any]:
    s = json.loads(launch.files["train.json"])
    parts, batch = s["split"], s["batch"]
    names = ("tp", "pp", "virtual_stages", "dp", "shard", "zero_stage", "schedule")
    late = parts["gradient_sync"] == "step" and parts["zero_stage"]
    return {
        **{name: parts[name] for name in names},
        **{name: batch[name] for name in ("micro_batch", "sequence_length", "global_batch")},
        **{name: s[name] for name in ("recompute", "precision", "steps")},
        "gradient_sync": "step" if late else "micro-batch",
        "cp": 1,
        "ep": 1,
        "optimizer": s["optimizer"]["name"],
        "stage_layers": even(32, parts["pp"]),
    }


def titan_chunks(par: dict[str, Any], layers: int) -> int:
    """Chunks of a stage: as many as torchtitan makes of their size, or of the schedule."""
    if size := par.get("pipeline-parallel-layers-per-stage"):
        return math.ceil(layers / int(size)) // int(par["pipeline-parallel-degree"])
    return 2 if par["pipeline-parallel-schedule"] == "Interleaved1F1B" else 1


def read_torchtitan(launch: Launch) -> dict[str, Any]:
    words = launch.processes[0].argv
    f = flags(words)
    prefix = "parallelism."
    par = {name.removeprefix(prefix): f[name] for name in f if name.startswith(prefix)}
    pp, shard, cp = (
        int(par[f"{name}-degree"])
        for name in ("pipeline-parallel", "data-parallel-shard", "context-parallel")
    )
    replicate = int(par["data-parallel-replicate-degree"])
    layers = {"8B": 32, "30B-A3B": 48}[launch.options["flavor"]]
    local = int(f["training.local-batch-size"])
    micro = int(par.get("pipeline-parallel-microbatch-size", local))
    # the head's unit stays, where that can be said
    reshards = par["fsdp-reshard-after-forward"] == ("always" if pp > 1 else "default")
    # as its fitted figures are
    assert (f["compile.enable"], f["compile.components"]) == (True, "model,loss")
    return {
        "tp": int(par["tensor-parallel-degree"]),
        "pp": pp,
        "virtual_stages": titan_chunks(par, layers) if pp > 1 else 1,
        "stage_layers": even(layers, pp),
        "cp": cp,
        "ep": int(par["expert-parallel-degree"]),
        "dp": replicate * shard,
        "shard": shard * cp if shard > 1 else None,
        "zero_stage": (3 if reshards else 2) if shard * cp > 1 else None,
        "micro_batch": micro,
        "micro_batches": int(f["training.global-batch-size"]) // (replicate * shard * micro),
        "recompute": words[-1].removeprefix("activation-checkpoint:"),
        "precision": {"bfloat16": "bf16"}[f["training.mixed-precision-param"]],
        "sequence_length": int(f["training.seq-len"]),
        "global_batch": int(f["training.global-batch-size"]),
        "steps": int(f["training.steps"]),
    }


def read_deepspeed(launch: Launch) -> dict[str, Any]:
    config, words = json.loads(launch.files["ds_config.json"]), flags(launch.processes[0].argv)
    s = read_torch(launch)
    dp = int(words["num_nodes"]) * int(words["num_gpus"])
    micro = config["train_micro_batch_size_per_gpu"]
    accumulated, zero = config["gradient_accumulation_steps"], config["zero_optimization"]
    assert config["train_batch_size"] == dp * micro * accumulated
    device = zero.get("offload_optimizer", {}).get("device")
    return {
        **ALONE,
        "dp": dp,
        "zero_stage": zero["stage"],
        "micro_batch": micro,
        "micro_batches": accumulated,
        "global_batch": config["train_batch_size"],
        "precision": next(name for name in ("bf16", "fp16") if config[name]["enabled"]),
        "optimizer": config["optimizer"]["type"].lower(),
        "steps": config["scheduler"]["params"]["total_num_steps"],
        "offload": {"cpu": "optimizer"}.get(device),
        "recompute": s["recompute"],
        "sequence_length": s["sequence_length"],
    }


def read_accelerate(launch: Launch) -> dict[str, Any]:
    config, s = yaml.safe_load(launch.files["accelerate.yaml"]), read_torch(launch)
    names = (*SIZES, "recompute", "gradient_sync")
    out = ALONE | {name: s[name] for name in names}
    out |= {"dp": config["num_processes"], "precision": config["mixed_precision"]}
    if config["distributed_type"] != "FSDP":
        return out | {"zero_stage": 0}
    fsdp, parallel = config["fsdp_config"], config["parallelism_config"]
    assert fsdp["fsdp_activation_checkpointing"] == (out["recompute"] == "full")
    shard = parallel["parallelism_config_dp_shard_size"]
    assert shard * parallel["parallelism_config_dp_replicate_size"] == config["num_processes"]
    return out | {"shard": shard, "zero_stage": 3 if fsdp["fsdp_reshard_after_forward"] else 2}


def megatron_stages(f: dict[str, Any], pp: int) -> list[int]:
    """Layers per stage: as listed, or even, with both ends counted as layers where it says so."""
    if (told := "pipeline-model-parallel-layout") in f:
        return layout(f[told])
    ends = [name for name in f if name.startswith("account-for-")]
    stages = even(int(f["num-layers"]) + len(ends), pp)
    return [n - (len(ends) == 2 and stage in (0, pp - 1)) for stage, n in enumerate(stages)]


def read_megatron(launch: Launch) -> dict[str, Any]:
    words = launch.processes[0].argv
    f, where = flags(words), flags(words[: words.index("-m")])
    tp, pp, cp = (
        int(f[f"{name}-parallel-size"]) for name in ("tensor-model", "pipeline-model", "context")
    )
    dp = int(where["nnodes"]) * int(where["nproc-per-node"]) // (tp * pp * cp)
    sharding = {"optim_grads": 2, "optim_grads_params": 3}
    zero = (
        sharding[f["data-parallel-sharding-strategy"]]
        if "use-megatron-fsdp" in f
        else int("use-distributed-optimizer" in f)
    )
    micro, whole = int(f["micro-batch-size"]), int(f["global-batch-size"])
    sixteen_bits = "bf16" if f.get("bf16") else "fp16"
    return {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "dp": dp,
        "ep": int(f.get("expert-model-parallel-size", 1)),
        "virtual_stages": int(f.get("num-virtual-stages-per-pipeline-rank", 1)),
        "stage_layers": megatron_stages(f, pp),
        "zero_stage": zero,
        "shard": dp * cp // int(f.get("num-distributed-optimizer-instances", 1)) if zero else None,
        "micro_batch": micro,
        "micro_batches": whole // (dp * micro),
        "global_batch": whole,
        "sequence_length": int(f["seq-length"]),
        "steps": int(f["train-iters"]),
        "recompute": f.get("recompute-granularity", "none"),
        "precision": "fp8" if "fp8-format" in f else sixteen_bits,
        "optimizer": {"adam": "adamw", "sgd": "sgd"}[f["optimizer"]],
        "offload": "optimizer" if "optimizer-cpu-offload" in f else None,
    }


READERS = {
    "torch": read_torch,
    "torchtitan": read_torchtitan,
    "deepspeed": read_deepspeed,
    "accelerate": read_accelerate,
    "megatron": read_megatron,
}


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_rendered_reads_back_as_estimated_on_every_device(engine: str) -> None:
    found = rendered(engine)
    assert len(found) >= WANTED
    for candidate, of, row, launch in found:
        estimated = {"gradient_sync": "micro-batch", **candidate, **batch(of, row)}
        estimated |= {"optimizer": "adamw"}
        read = {name: value for name, value in READERS[engine](launch).items() if value is not None}
        assert read == {name: estimated[name] for name in read}, launch.processes[0].argv
        assert read.keys() >= KEYS
        devices = candidate["tp"] * candidate["pp"] * candidate["cp"] * candidate["dp"]
        assert [process.node for process in launch.processes] == list(range(launch.nodes))
        assert sum(len(process.devices) for process in launch.processes) == devices
        assert all(
            process.role == "trainer" and "${head}" in "".join(process.argv)
            for process in launch.processes
        )
        assert launch.kind == "training"


def test_torchtitan_knows_every_option_that_is_used() -> None:
    known = set(OPTIONS.read_text().split())
    for _, _, _, launch in rendered("torchtitan"):
        words = launch.processes[0].argv
        used = {word for word in words[words.index("${root}/train.py") :] if word[:2] == "--"}
        used -= {"--module", "--config"}
        assert used <= known


@pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None,
    reason="NOT TESTED: DeepSpeed's own checks; pip install deepspeed==0.19.8",
)
def test_deepspeed_accepts_what_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    from deepspeed.launcher.runner import parse_args
    from deepspeed.runtime.config import DeepSpeedConfig

    monkeypatch.setattr("deepspeed.runtime.config.dist.get_rank", lambda: 0)
    for candidate, _, _, launch in rendered("deepspeed")[:200]:
        dp = candidate["dp"]
        monkeypatch.setattr("deepspeed.runtime.config.dist.get_world_size", lambda dp=dp: dp)
        argv = [word.replace("${port}", "29500") for word in launch.processes[0].argv[1:]]
        words = parse_args(argv)
        nodes = launch.nodes
        assert (words.num_nodes, words.num_gpus, words.node_rank) == (nodes, dp // nodes, 0)
        found = DeepSpeedConfig(json.loads(launch.files["ds_config.json"]))
        assert found.zero_optimization_stage == candidate["zero_stage"]
        replicas = candidate["micro_batch"] * dp
        assert found.gradient_accumulation_steps * replicas == found.train_batch_size


@pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None,
    reason="NOT TESTED: Accelerate's own loader; pip install '.[torch]'",
)
def test_accelerate_loads_what_is_rendered(tmp_path: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    for candidate, _, _, launch in rendered("accelerate")[:200]:
        path = tmp_path / "accelerate.yaml"
        path.write_text(launch.files["accelerate.yaml"])
        found = load_config_from_file(str(path))
        assert (found.num_processes, found.num_machines) == (candidate["dp"], launch.nodes)
        words = "\n".join(launch.processes[-1].argv[2:])
        words = words.replace("${port}", "29500").replace("${head}", "node-0")
        parsed = launch_command_parser().parse_args(words.split("\n"))
        assert (parsed.machine_rank, parsed.main_process_ip) == (launch.nodes - 1, "node-0")
        known = {action.dest for action in launch_command_parser()._actions}
        assert {*found.fsdp_config, *found.parallelism_config} <= known


def test_primus_gets_megatrons_names_in_a_file() -> None:
    found = plan(request("megatron", MIXTRAL, device="mi300x"))
    row = next(row for row in found.order if not launch_reasons(*found.detail(row)))
    launch, candidate = training_launch(*found.detail(row)), found.candidate(row)
    overrides = yaml.safe_load(launch.files["primus.yaml"])["modules"]["pre_trainer"]["overrides"]
    assert overrides["tensor_model_parallel_size"] == candidate["tp"]
    assert overrides["expert_model_parallel_size"] == candidate["ep"]
    assert launch.processes[1].env["NODE_RANK"] == "1"
    assert launch.processes[0].argv[0] == "primus-cli"


def test_a_run_that_can_go_on_with_fewer_nodes_is_started_elastic() -> None:
    plain = split("torch", dp=32, zero_stage=3, recompute="full")
    elastic, fixed = (launched("torch", plain, nodes=4, global_batch=size) for size in (96, 32))
    # 24, 16 and 8 replicas divide a batch of 96
    assert flags(elastic.processes[0].argv)["nnodes"] == "1:4"
    assert flags(fixed.processes[3].argv)["node-rank"] == "3"


WORK = ("document_tokens", "gradient_dtype", "optimizer", "tokens", "method", "data_format")
REFUSED = """
torch cp=2 dp=8: candidate.cp: cp 1 only, not 2
torch precision=fp8: candidate.precision: fp8
torch zero_stage=1: candidate.zero_stage: ZeRO-2 or 3, not 1
torch offload=optimizer: candidate.offload: optimizer states
torch recompute=full recompute_layers=4: candidate.recompute_layers: all layers or none
torch document_tokens=512: workload.document_tokens: documents
torch gradient_dtype=bf16: workload.gradient_dtype: bf16
torchtitan zero_stage=3 gradient_sync=step: candidate.gradient_sync: every micro-batch
torch optimizer=muon: workload.optimizer: Muon
torch tokens=null: workload.tokens: token budget
torch tp=2 dp=8 method=qlora: candidate.tp: tp 2
torch pp=2 dp=8 micro_batch=2 method=dpo: candidate.pp: pp 2
torch method=dpo: candidate.micro_batch: micro-batch of 1
torch method=lora data_format=preference: workload.data_format: LoRA on preferences
torchtitan zero_stage=3 method=finetune data_format=chat: workload.data_format: chats
torchtitan zero_stage=3 method=lora: candidate.engine: LoRA
torchtitan: candidate.zero_stage: every micro-batch
torchtitan pp=2 dp=8 virtual_stages=2 schedule=zb-v: candidate.schedule: zb-v
torchtitan precision=fp16: candidate.precision: fp16
torch zero_stage=2 micro_batch=3: workload.global_batch: micro_batch 3 = 48; nearest: 96 or 144
torchtitan zero_stage=1: candidate.zero_stage: ZeRO-2 or 3, not 1
deepspeed tp=2 dp=8: candidate.tp: tp 1 only, not 2
accelerate recompute=selective: candidate.recompute: whole layers or none
megatron pp=2 dp=8 schedule=gpipe: candidate.schedule: gpipe
"""
"""Framework and what differs from its plain split or workload: refused field: said of it."""


def test_what_a_framework_cannot_be_told_is_an_answer() -> None:
    for line in REFUSED.strip().splitlines():
        asked, field, said = line.split(": ", 2)
        engine, *words = asked.split()
        parts = {name: yaml.safe_load(value) for name, value in (word.split("=") for word in words)}
        work = {name: parts.pop(name) for name in WORK if name in parts}
        with pytest.raises(NoAnswer) as error:
            launched(engine, split(engine, **parts), **work)
        assert (error.value.field, said in error.value.message) == (field, True), line
        assert error.value.hint


@pytest.mark.parametrize("engine", ENGINES)
def test_every_option_is_told_or_refused_by_its_name(engine: str) -> None:
    options: tuple[tuple[str, str | int, tuple[str, ...]], ...] = (
        ("recompute_layers", 4, ()),
        ("offload", "optimizer", ("deepspeed", "megatron")),
        ("offload", "optimizer-nvme", ()),
        ("gradient_sync", "step", ("torch", "accelerate")),
        ("shard", 8, ("torch", "torchtitan", "accelerate", "megatron")),
    )
    for name, value, carried in options:
        sharded = engine == "megatron" and name != "gradient_sync"
        candidate = split(engine, zero_stage=1 if sharded else 2, **{name: value})
        candidate |= {"recompute": "full"} if name == "recompute_layers" else {}
        if engine in carried:
            assert READERS[engine](launched(engine, candidate))[name] == value
            continue
        with pytest.raises(NoAnswer) as error:
            launched(engine, candidate)
        assert error.value.field == f"candidate.{name}"


def test_models_without_a_torchtitan_configuration_are_refused() -> None:
    found = plan(request("torchtitan", MIXTRAL))
    assert not len(found.order)
    for row in range(0, len(found), 7):
        assert MIXTRAL in launch_reasons(*found.detail(row))[0]
        (reason,) = found.reasons(row)
        assert MIXTRAL in reason
        assert "Accelerate, DeepSpeed or Megatron Core" in reason


def test_the_learning_rate_falls_with_size_and_has_a_floor() -> None:
    rates = [usual(size, 1000, "pretrain").learning_rate for size in (10**6, 10**8, 10**9, 10**12)]
    assert rates == sorted(rates, reverse=True)
    assert rates[1] == pytest.approx(0.003239 - 0.0001395 * 18.4207, rel=0.01)
    assert rates[-1] == 1.5e-4
    assert usual(10**9, 1000, "finetune").learning_rate == pytest.approx(rates[2] / 10, rel=0.01)
    assert usual(10**9, 1000, "qlora").learning_rate == rates[2]
    assert usual(10**9, 1000, "dpo").learning_rate == 1e-6
    with pytest.raises(InputError, match="'torchtitn'") as error:
        training_engine("torchtitn")
    assert error.value.hint == "Did you mean 'torchtitan' or 'torch'?"


def test_the_text_is_the_same_every_time_and_small() -> None:
    assert corpus() is corpus()
    assert 200_000 < len(corpus()) < 400_000
    assert corpus().isascii()
    assert chats() is chats()
    assert preferences() is preferences()
    assert all(pair["chosen"] != pair["rejected"] for pair in preferences())


def test_megatron_keeps_gradients_as_they_were_estimated() -> None:
    """16 bits beside 8-bit products, as in NVIDIA's recipes, unless the request says otherwise."""
    narrow, wide = "--grad-reduce-in-bf16", "--accumulate-allreduce-grads-in-fp32"
    for precision, dtype, said, share in (
        ("bf16", None, set(), 2),
        ("bf16", "bf16", {narrow}, 1),
        ("fp8", None, {narrow}, 1),
        ("fp8", "fp32", set(), 2),
        ("fp16", None, set(), 1),
        ("fp16", "fp32", {wide}, 2),
    ):
        candidate = split("megatron", tp=2, dp=8, zero_stage=1, precision=precision)
        work = {"gradient_dtype": dtype} if dtype else {}
        table, row = plan_candidate(request("megatron", candidate=candidate, **work))
        words = set(training_launch(*table.detail(row)).processes[0].argv)
        assert words & {narrow, wide} == said
        estimates, i = table.detail(row)
        held, every = (estimates.memory.parts[name][i, 0] for name in ("gradients", "parameters"))
        assert held == share * every, (precision, dtype)
