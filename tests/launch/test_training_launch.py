"""Every framework is told exactly what was estimated: random splits, rendered and read back."""

import importlib.util
import json
import math
import random
import re
from functools import cache
from itertools import product

import pytest
import yaml

from recipe_core.base.errors import NoAnswer
from recipe_core.engines.training_programs import training_engine, usual_hyperparameters
from recipe_core.estimates.training.stages import stage_layer_counts
from recipe_core.launch.start import launch_reasons, training_launch
from recipe_core.launch.training.sources import sample_chats, sample_preferences, story_corpus
from recipe_core.plans.plans import plan_splits, search_plan
from recipe_core.plans.problem import resolve_problem
from recipe_core.plans.splits import row_estimates, row_reasons
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.schema import PlanRequest
from tests.fixtures.paths import DATA
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import holds, over, table
from tests.fixtures.sizes import examples
from tests.fixtures.training import LLAMA_8B, RUN, TRAINERS, trainers_launch, training_values

QWEN_MOE = "Qwen/Qwen3-30B-A3B"
MIXTRAL = "mistralai/Mixtral-8x7B-v0.1"
OPTIONS = DATA / "torchtitan-0.3.0-options.txt"
WANTED = examples(500, least=50)
TRIED = examples(1500, least=150)
"""Rows of a table that are tried: many cannot be launched."""
REPLICAS = ("deepspeed", "accelerate")
"""Frameworks that are launched with replicas only: they have few layouts on each cluster."""


def request(engine, model=LLAMA_8B, nodes=2, hardware=None, batch=128):
    """The search for a framework's splits."""
    values = training_values(None, nodes, model, hardware, **(RUN | {"global_batch": batch}))
    return PlanRequest.parse(values | {"options": {"engines": [engine]}})


def split(engine, **parts):
    """A stated split of 16 devices, all of them replicas unless ``parts`` say otherwise."""
    plain = {"engine": engine, "tp": 1, "pp": 1, "dp": 16, "zero_stage": 0, "micro_batch": 1}
    return plain | parts


SIZES = ((2, 8), (1, 8), (4, 4), (3, 8), (1, 4), (1, 2), (5, 8), (7, 8), (8, 8))


def tables(engine, chance):
    """Clusters of two sizes; of many sizes for frameworks that divide replicas only and have few
    splits on each.
    """
    if engine in REPLICAS:
        every = list(product(SIZES, (96, 128, 192, 256, 640, 1120)))
        for (nodes, per_node), batch in chance.sample(every, examples(len(every), least=6)):
            asked = request(engine, LLAMA_8B, nodes, {"per_node": per_node}, batch)
            cut = {} if engine == "accelerate" else {"cp": 1}
            yield search_plan(resolve_problem(asked), CandidateRequest(tp=1, pp=1, ep=1, **cut))
        return
    other = {"torchtitan": [QWEN_MOE], "megatron": [MIXTRAL]}.get(engine, [])
    for model, nodes in product([LLAMA_8B, *other], (2, 1)):
        yield search_plan(resolve_problem(request(engine, model, nodes)))


@cache
def rendered(engine):
    """Splits picked at random among those that can be started: candidate, table, row, launch."""
    chance, out = random.Random(engine), []
    for found in tables(engine, chance):
        rows = chance.sample(range(len(found)), min(len(found), TRIED))
        fine = [row for row in rows if not launch_reasons(*row_estimates(found, row))][
            : WANTED // 2
        ]
        out += [
            (found.candidate(row), found, row, training_launch(*row_estimates(found, row)))
            for row in fine
        ]
    return chance.sample(out, min(len(out), WANTED + 50))


def flags(words):
    """``--name value`` and ``--name`` of a command's end."""
    out = {}
    for word, following in zip(words, (*words[1:], "--"), strict=True):
        if word.startswith("--"):
            is_flag = following.startswith(("--", "activation-"))
            out[word[2:]] = True if is_flag else following
    return out


def even(layers, pp):
    """Layers of each stage where a framework deals them out alike."""
    return [layers // pp + (stage < layers % pp) for stage in range(pp)]


def layout(said):
    """Layers per stage of Megatron's layout, which has one embedding first and one loss last."""
    assert (said[0], said[-1], said.count("E"), said.count("L")) == ("E", "L", 1, 1)
    stages = said[1:-1].split("|")
    assert all(re.fullmatch(r"(t\*\d+)?", stage) for stage in stages)
    return [int(stage[2:] or 0) for stage in stages]


def batch(found, row):
    e, i = row_estimates(found, row)
    names = ("sequence_length", "global_batch", "micro_batches")
    sizes = {name: int(getattr(e.cases, name)[i]) for name in names} | {"steps": e.run.steps[i]}
    return sizes | {"stage_layers": list(stage_layer_counts(e.setting, e.cases.take([i]))[0][0])}


ALONE = {"tp": 1, "pp": 1, "cp": 1, "ep": 1}
RUN_SIZES = ("micro_batch", "sequence_length", "global_batch", "steps")
KEYS = {*ALONE, *RUN_SIZES, "dp", "recompute", "precision"}
"""What every framework is told."""


def numbers(engine, flags):
    """Numbers of the flags that a framework has for them."""
    names = table("training_launch", "names")[engine].items()
    return {field: int(flags[name]) for field, name in names}


def read_torch(launch):
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


def titan_chunks(par, layers):
    """Chunks of a stage: as many as torchtitan makes of their size, or of the schedule."""
    if size := par.get("pipeline-parallel-layers-per-stage"):
        return math.ceil(layers / int(size)) // int(par["pipeline-parallel-degree"])
    return 2 if par["pipeline-parallel-schedule"] == "Interleaved1F1B" else 1


def read_torchtitan(launch):
    words = launch.processes[0].argv
    f = flags(words)
    read = numbers("torchtitan", f)
    par = {name.removeprefix("parallelism."): f[name] for name in f}
    pp, cp = read["pp"], read["cp"]
    shard, replicate = (int(par[f"data-parallel-{n}-degree"]) for n in ("shard", "replicate"))
    layers = {"8B": 32, "30B-A3B": 48}[launch.options["flavor"]]
    local = int(f["training.local-batch-size"])
    micro = int(par.get("pipeline-parallel-microbatch-size", local))
    # the head's unit stays, where that can be said
    reshards = par["fsdp-reshard-after-forward"] == ("always" if pp > 1 else "default")
    zero_stage = 3 if reshards else 2
    # as its fitted figures are
    assert (f["compile.enable"], f["compile.components"]) == (True, "model,loss")
    return read | {
        "virtual_stages": titan_chunks(par, layers) if pp > 1 else 1,
        "stage_layers": even(layers, pp),
        "dp": replicate * shard,
        "shard": shard * cp if shard > 1 else None,
        "zero_stage": zero_stage if shard * cp > 1 else None,
        "micro_batch": micro,
        "micro_batches": read["global_batch"] // (replicate * shard * micro),
        "recompute": words[-1].removeprefix("activation-checkpoint:"),
        "precision": {"bfloat16": "bf16"}[f["training.mixed-precision-param"]],
    }


def read_deepspeed(launch):
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


def read_accelerate(launch):
    config, s = yaml.safe_load(launch.files["accelerate.yaml"]), read_torch(launch)
    names = (*RUN_SIZES, "recompute", "gradient_sync")
    out = ALONE | {name: s[name] for name in names}
    out |= {"dp": config["num_processes"], "precision": config["mixed_precision"]}
    if config["distributed_type"] != "FSDP":
        return out | {"zero_stage": 0}
    fsdp, parallel = config["fsdp_config"], config["parallelism_config"]
    assert fsdp["fsdp_activation_checkpointing"] == (out["recompute"] == "full")
    cp = parallel["parallelism_config_cp_size"]
    shard = cp * parallel["parallelism_config_dp_shard_size"]
    assert shard * parallel["parallelism_config_dp_replicate_size"] == config["num_processes"]
    out |= {"cp": cp, "dp": config["num_processes"] // cp, "shard": shard}
    return out | {"zero_stage": 3 if fsdp["fsdp_reshard_after_forward"] else 2}


def megatron_stages(f, pp):
    """Layers per stage: as listed, or even, with both ends counted as layers where it says so."""
    if (listed := "pipeline-model-parallel-layout") in f:
        return layout(f[listed])
    ends = [name for name in f if name.startswith("account-for-")]
    stages = even(int(f["num-layers"]) + len(ends), pp)
    return [n - (len(ends) == 2 and stage in (0, pp - 1)) for stage, n in enumerate(stages)]


def read_megatron(launch):
    words = launch.processes[0].argv
    f, where = flags(words), flags(words[: words.index("-m")])
    read = numbers("megatron", f)
    tp, pp, cp = (read[name] for name in ("tp", "pp", "cp"))
    dp = int(where["nnodes"]) * int(where["nproc-per-node"]) // (tp * pp * cp)
    sharding = {"optim_grads": 2, "optim_grads_params": 3}
    zero = (
        sharding[f["data-parallel-sharding-strategy"]]
        if "use-megatron-fsdp" in f
        else int("use-distributed-optimizer" in f)
    )
    sixteen_bits = "bf16" if f.get("bf16") else "fp16"
    return read | {
        "dp": dp,
        "ep": int(f.get("expert-model-parallel-size", 1)),
        "virtual_stages": int(f.get("num-virtual-stages-per-pipeline-rank", 1)),
        "stage_layers": megatron_stages(f, pp),
        "zero_stage": zero,
        "shard": dp * cp // int(f.get("num-distributed-optimizer-instances", 1)) if zero else None,
        "micro_batches": read["global_batch"] // (dp * read["micro_batch"]),
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


@pytest.mark.parametrize("engine", TRAINERS)
def test_what_is_rendered_reads_back_as_estimated_on_every_device(engine):
    found = rendered(engine)
    assert len(found) >= WANTED
    for candidate, of, row, launch in found:
        estimated = {"gradient_sync": "micro-batch", **candidate, **batch(of, row)}
        estimated |= {"optimizer": "adamw"}
        read = {name: value for name, value in READERS[engine](launch).items() if value is not None}
        assert read == {name: estimated[name] for name in read}, launch.processes[0].argv
        assert read.keys() >= KEYS
        devices = math.prod(candidate[name] for name in ("tp", "pp", "cp", "dp"))
        assert [process.node for process in launch.processes] == list(range(launch.nodes))
        assert sum(len(process.devices) for process in launch.processes) == devices
        for process in launch.processes:
            assert (process.role, "${head}" in "".join(process.argv)) == ("trainer", True)
        assert launch.kind == "training"


def test_torchtitan_knows_every_option_that_is_used():
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
def test_deepspeed_accepts_what_is_rendered(monkeypatch):
    from deepspeed.launcher.runner import parse_args
    from deepspeed.runtime.config import DeepSpeedConfig

    monkeypatch.setattr("deepspeed.runtime.config.dist.get_rank", lambda: 0)
    for candidate, _, _, launch in rendered("deepspeed")[:200]:
        dp = candidate["dp"]
        monkeypatch.setattr("deepspeed.runtime.config.dist.get_world_size", lambda dp=dp: dp)
        words = parse_args([w.replace("${port}", "29500") for w in launch.processes[0].argv[1:]])
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
def test_accelerate_loads_what_is_rendered(tmp_path):
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    for candidate, _, _, launch in rendered("accelerate")[:200]:
        path = tmp_path / "accelerate.yaml"
        path.write_text(launch.files["accelerate.yaml"])
        found = load_config_from_file(str(path))
        assert found.num_processes == candidate["dp"] * candidate["cp"]
        assert found.num_machines == launch.nodes
        words = "\n".join(launch.processes[-1].argv[2:])
        words = words.replace("${port}", "29500").replace("${head}", "node-0")
        parsed = launch_command_parser().parse_args(words.split("\n"))
        assert (parsed.machine_rank, parsed.main_process_ip) == (launch.nodes - 1, "node-0")
        known = {action.dest for action in launch_command_parser()._actions}
        assert {*found.fsdp_config, *found.parallelism_config} <= known


def test_primus_gets_megatrons_names_in_a_file():
    found = plan_splits(request("megatron", MIXTRAL, hardware={"device": "mi300x"}))
    row = next(row for row in found.order if not launch_reasons(*row_estimates(found, row)))
    launch, candidate = training_launch(*row_estimates(found, row)), found.candidate(row)
    overrides = yaml.safe_load(launch.files["primus.yaml"])["modules"]["pre_trainer"]["overrides"]
    assert overrides["tensor_model_parallel_size"] == candidate["tp"]
    assert overrides["expert_model_parallel_size"] == candidate["ep"]
    assert launch.processes[1].env["NODE_RANK"] == "1"
    assert launch.processes[0].argv[0] == "primus-cli"


def test_a_run_that_can_go_on_with_fewer_nodes_is_started_elastic():
    plain = split("torch", dp=32, zero_stage=3, recompute="full")
    stated = [(96, 1), (96, 2), (96, None), (32, 1)]
    nodes = [
        flags(trainers_launch(plain, 4, global_batch=size, min_nodes=least).processes[3].argv)
        for size, least in stated
    ]
    # 24, 16 and 8 replicas divide a batch of 96; of what is not asked for nothing is done
    assert [words["nnodes"] for words in nodes] == ["1:4", "2:4", "4", "4"]
    assert [words.get("node-rank") for words in nodes] == [None, None, "3", "3"]


@over("engine, parts, work, field, said", table("training_launch", "refused"))
def test_what_a_framework_cannot_be_told_is_an_answer(engine, parts, work, field, said):
    error = refusal(trainers_launch, split(engine, **parts), kind=NoAnswer, **work)
    assert (error.field, said in error.message) == (field, True)
    assert error.hint


@over("engine, places", table("training_launch", "hosted"))
def test_parameters_on_the_host_are_told(engine, places):
    method = "pretrain" if engine == "torchtitan" else "finetune"
    stated = split(engine, offload="parameters", zero_stage=3)
    launch = trainers_launch(stated, method=method)
    if engine == "torchtitan":
        assert flags(launch.processes[0].argv)["training.enable-cpu-offload"]
        return
    (file,) = places
    assert holds(yaml.safe_load(launch.files[file]), places[file])


@pytest.mark.parametrize("engine", TRAINERS)
def test_every_option_is_told_or_refused_by_its_name(engine):
    for name, value, carried in table("training_launch", "options"):
        sharded = engine == "megatron" and name != "gradient_sync"
        candidate = split(engine, zero_stage=1 if sharded else 2, **{name: value})
        candidate |= {"recompute": "full"} if name == "recompute_layers" else {}
        if engine in carried:
            assert READERS[engine](trainers_launch(candidate))[name] == value
            continue
        error = refusal(trainers_launch, candidate, kind=NoAnswer)
        assert error.field == f"candidate.{name}"


def test_models_without_a_torchtitan_configuration_are_refused():
    found = plan_splits(request("torchtitan", MIXTRAL))
    assert not len(found.order)
    for row in range(0, len(found), 7):
        assert MIXTRAL in launch_reasons(*row_estimates(found, row))[0]
        (reason,) = row_reasons(found, row)
        assert MIXTRAL in reason
        assert "Accelerate, DeepSpeed or Megatron Core" in reason


def test_the_learning_rate_falls_with_size_and_has_a_floor():
    rates = [
        usual_hyperparameters(size, 1000, "pretrain").learning_rate
        for size in (10**6, 10**8, 10**9, 10**12)
    ]
    assert rates == sorted(rates, reverse=True)
    assert rates[1] == pytest.approx(0.003239 - 0.0001395 * 18.4207, rel=0.01)
    assert rates[-1] == 1.5e-4
    assert usual_hyperparameters(10**9, 1000, "finetune").learning_rate == pytest.approx(
        rates[2] / 10, rel=0.01
    )
    assert usual_hyperparameters(10**9, 1000, "qlora").learning_rate == rates[2]
    assert usual_hyperparameters(10**9, 1000, "dpo").learning_rate == 1e-6
    error = refusal(training_engine, "torchtitn")
    assert "'torchtitn'" in error.message
    assert error.hint == "Did you mean 'torchtitan' or 'torch'?"


def test_the_text_is_the_same_every_time_and_small():
    assert story_corpus() is story_corpus()
    assert 200_000 < len(story_corpus()) < 400_000
    assert story_corpus().isascii()
    assert sample_chats() is sample_chats()
    assert sample_preferences() is sample_preferences()


def loading(engine, **stated):
    """A launch of three workers that each prefetch four batches."""
    return trainers_launch({"engine": engine}, loading={"workers": 3, "prefetch": 4} | stated)


def test_every_framework_is_told_what_is_estimated_of_data_loading():
    for engine, prefetch in product(("torch", "accelerate", "deepspeed"), (0, 4)):
        settings = json.loads(loading(engine, prefetch=prefetch).files["train.json"])
        assert settings["loading"] == {"workers": 3, "prefetch": prefetch}
    # Megatron gets workers and builders
    words = flags(loading("megatron").processes[0].argv)
    assert (words["num-workers"], words["num-dataset-builder-threads"]) == ("3", "3")
    assert flags(loading("megatron", prefetch=0).processes[0].argv)["num-workers"] == "0"
    # torchtitan gets one process that prefetches
    words = flags(loading("torchtitan").processes[0].argv)
    assert words["dataloader.num-workers"] == "1"
    assert words["dataloader.prefetch-factor"] == "4"
    assert {"dataloader.pin-memory", "dataloader.persistent-workers"} <= set(words)
    off = flags(loading("torchtitan", prefetch=0).processes[0].argv)
    assert not [name for name in off if "num-workers" in name or "prefetch" in name]


@pytest.mark.nightly
def test_transformers_gets_processes_and_what_each_makes_ahead():
    pytest.importorskip("torch", reason="NOT TESTED: transformers' trainer, torch is missing")
    pytest.importorskip("transformers", reason="NOT TESTED: transformers is missing")
    from recipe_core.payload.trainer.hf import loader_arguments
    from recipe_core.payload.trainer.settings import Loading

    for workers, prefetch, processes, each in ((3, 4, 3, 2), (2, 2, 2, 1), (2, 0, 0, None)):
        arguments = loader_arguments(Loading(workers, prefetch))
        assert arguments["dataloader_num_workers"] == processes
        assert arguments["dataloader_prefetch_factor"] == each
        assert arguments["dataloader_persistent_workers"] is (processes > 0)
