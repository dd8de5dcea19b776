"""verl and OpenRLHF are told exactly what was estimated, by the packages' own parsers."""

import json
import subprocess
import sys
from functools import cache

import pytest
import yaml

from recipe_core.base.errors import NoAnswer
from recipe_core.bundle.write import bundle_of
from recipe_core.launch.start import launch_reasons, training_launch
from recipe_core.launch.training.sources import sample_tasks
from recipe_core.payload.trainer import ray_node, reward
from recipe_core.plans.plans import plan_candidate
from recipe_core.recipe import make_recipe
from recipe_core.recipe.build import Additions
from recipe_core.recipe.place import Parameters
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT
from tests.fixtures.packages import package_folder
from tests.fixtures.paths import FIXTURES
from tests.fixtures.recipes import bundle_for_request
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.training import training_request

VERL = ("verl==0.9.1", "hydra-core==1.3.2", "omegaconf==2.3.0", "antlr4-python3-runtime==4.9.3")
OPENRLHF = ("openrlhf==0.11.2",)
MODEL = "Qwen/Qwen2.5-7B-Instruct"
COMPOSE = """
import json, sys
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
folder, shipped, *words = sys.argv[1:]
words = [word for word in words if not word.startswith("hydra.")]
with initialize_config_dir(folder, version_base=None):
    config = compose("verl", overrides=[f"hydra.searchpath=[file://{shipped}]", *words])
print(json.dumps(OmegaConf.to_container(config, resolve=True)))
"""
CASES = table("training_launch", "reinforcement")
ADAPTERS = table("training_launch", "adapters")


def request(
    engine, nodes=1, method="grpo", rollout=None, candidate=None, global_batch=256, **adapters
):
    work = {"prompts": 128, "samples": 8, "prompt_tokens": 200, "response_tokens": 800}
    work |= rollout or {}
    split = {"engine": engine, "zero_stage": 3, "micro_batch": 2, "recompute": "full"}
    split |= {"tp": 1, "pp": 1, "dp": 8 * nodes - work.get("devices", 0)} | (candidate or {})
    if engine == "openrlhf":  # it divides states over all replicas
        split.pop("shard", None)
    run = {"sequence_length": None, "global_batch": global_batch, "tokens": 2e8} | adapters
    return training_request(split, nodes, MODEL, method=method, rollout=work, **run)


def detail(asked):
    found, row = plan_candidate(asked)
    problem, place = found.at(row)
    return problem.detail(place)


@cache
def started(engine, case, adapters=False):
    asked = (ADAPTERS if case in ADAPTERS and adapters else CASES)[case]
    estimates, place = detail(request(engine, **asked))
    return estimates, place, training_launch(estimates, place)


def program(launch):
    """The words of the trainer, without those that join nodes, paths filled in."""
    words = "\0".join(launch.processes[0].argv).rpartition("\0--\0")[2]
    places = {"${root}": "/bundle", "${run}": "/bundle/run", "${model}": "/models/a model"}
    for name, place in places.items():
        words = words.replace(name, place)
    return words.split("\0")


def read(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@cache
def by_verl(case, folder, adapters=False):
    """What verl's own configuration becomes with a case's file and words."""
    launch = started("verl", case, adapters)[2]
    words = program(launch)
    (folder / "verl.yaml").write_text(launch.files["verl.yaml"])
    packages = package_folder(*VERL)
    shipped = packages / "verl" / "trainer" / "config"
    overrides = words[words.index("--config-name") + 2 :]
    command = [sys.executable, "-c", COMPOSE, str(folder), str(shipped), *overrides]
    env = {"PYTHONPATH": str(packages), "PATH": ""}
    return read(command, env=env)


@cache
def by_openrlhf(case):
    """What OpenRLHF's own parser makes of a case's words, its checks passed."""
    words = program(started("openrlhf", case)[2])
    script, folder = FIXTURES / "openrlhf_words.py", package_folder(*OPENRLHF)
    command = [sys.executable, str(script), str(folder), *words[3:]]
    return read(command)


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES)
def test_verl_reads_what_was_estimated(case, tmp_path_factory):
    estimates, place, _ = started("verl", case)
    loop, cases = estimates.reinforcement, estimates.cases.take([place])
    assert loop is not None
    config = by_verl(case, tmp_path_factory.mktemp("verl"))
    work, rollouts = loop.sampling.work, loop.rollouts
    roll, actor = config["actor_rollout_ref"]["rollout"], config["actor_rollout_ref"]["actor"]
    trainer, data = config["trainer"], config["data"]
    assert trainer["nnodes"] * trainer["n_gpus_per_node"] == cases.devices[0]
    assert (data["train_batch_size"], roll["n"]) == (work.prompts, work.samples)
    assert actor["ppo_mini_batch_size"] * roll["n"] == cases.global_batch[0]
    assert actor["ppo_epochs"] == work.epochs
    assert actor["ppo_max_token_len_per_gpu"] >= data["max_prompt_length"] + work.longest_response
    assert roll["tensor_model_parallel_size"] == rollouts.tp[place]
    assert roll["gpu_memory_utilization"] == pytest.approx(rollouts.share[place])
    assert actor["fsdp_config"]["optimizer_offload"] is bool(rollouts.offload[place])
    assert actor["fsdp_config"]["reshard_after_forward"] is bool(cases.zero_stage[0] == 3)
    shard = actor["fsdp_config"]["fsdp_size"]
    assert (cases.dp[0] if shard == -1 else shard) == cases.shard[0]
    assert trainer["total_training_steps"] == estimates.run.steps[place]
    checkpointing = config["actor_rollout_ref"]["model"]["enable_gradient_checkpointing"]
    assert checkpointing is bool(cases.recompute[0] == 2)
    assert config["critic"]["enable"] is loop.sampling.critic
    assert config["algorithm"]["adv_estimator"] == ("gae" if loop.sampling.critic else "grpo")
    scored = actor["use_kl_loss"] or config["algorithm"]["use_kl_in_reward"]
    assert scored is work.reference
    models = (config["actor_rollout_ref"]["model"], config["critic"]["model"])
    assert {each["path"] for each in models} == {"/models/a model"}
    assert data["train_files"] == "/bundle/data/tasks.jsonl"


@pytest.mark.nightly
@pytest.mark.parametrize("case", ADAPTERS)
def test_verl_trains_adapters_on_a_base_in_16_bits(case, tmp_path):
    estimates, _, _ = started("verl", case, adapters=True)
    setting, config = estimates.setting, by_verl(case, tmp_path, adapters=True)
    whole = config["actor_rollout_ref"]
    apart, model, critic = case == "apart", whole["model"], config["critic"]["model"]
    sizes = {"lora_rank": setting.lora_rank, "lora_alpha": setting.lora_alpha}
    assert {name: model[name] for name in sizes} == sizes
    assert {name: critic[name] for name in sizes} == sizes
    named = model["target_modules"]
    assert named == "all-linear" or {"q_proj", "o_proj"} < {*named}
    assert whole["actor"]["fsdp_config"]["model_dtype"] == "bfloat16"
    assert model["lora"]["merge"] is apart
    assert (whole["rollout"]["load_format"] == "safetensors") is not apart
    assert whole["rollout"]["layered_summon"] is not apart
    assert whole["actor"]["optim"]["lr"] == 3e-6


def test_adapters_for_other_engines_and_trainers_are_refused_by_name():
    for engine, work, field in (
        ("openrlhf", {}, "candidate.engine"),
        ("verl", {"rollout": {"engine": "sglang"}}, "workload.rollout.engine"),
        ("verl", {"lora_rank": 1024}, "workload.lora_rank"),
        ("verl", {"lora_alpha": 8.5}, "workload.lora_alpha"),
    ):
        asked = request(engine, adapters="lora", **work)
        error = refusal(lambda asked=asked: training_launch(*detail(asked)), kind=NoAnswer)
        assert error.field == field, error.message


@pytest.mark.nightly
def test_verl_samples_apart_on_a_pool_of_its_own(tmp_path):
    config = by_verl("apart", tmp_path)
    roll, trainer = config["actor_rollout_ref"]["rollout"], config["trainer"]
    assert (roll["nnodes"], roll["n_gpus_per_node"]) == (1, 8)
    assert config["actor_rollout_ref"]["hybrid_engine"] is False
    assert trainer["v1"]["trainer_mode"] == "separate_async"
    steps = trainer["v1"]["separate_async"]["parameter_sync_step"]
    mini = config["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"]
    assert steps * mini == config["data"]["train_batch_size"]  # as its trainer asserts
    assert roll["checkpoint_engine"]["backend"] != "naive"


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES)
def test_openrlhf_reads_what_was_estimated(case):
    estimates, place, _ = started("openrlhf", case)
    loop, cases = estimates.reinforcement, estimates.cases.take([place])
    assert loop is not None
    config, work, rollouts = by_openrlhf(case), loop.sampling.work, loop.rollouts
    actor, vllm, train = config["actor"], config["vllm"], config["train"]
    assert actor["num_nodes"] * actor["num_gpus_per_node"] == cases.devices[0]
    sampled = vllm["num_engines"] * vllm["tensor_parallel_size"]
    assert sampled == (cases.sampling_devices[0] or cases.devices[0])
    assert vllm["tensor_parallel_size"] == rollouts.tp[place]
    assert vllm["gpu_memory_utilization"] == pytest.approx(rollouts.share[place])
    assert vllm["enable_sleep"] is not loop.sampling.apart
    assert train["async_enable"] is loop.sampling.apart
    assert config["rollout"]["batch_size"] == work.prompts
    assert config["rollout"]["n_samples_per_prompt"] == work.samples
    assert train["batch_size"] == cases.global_batch[0]
    assert train["max_epochs"] == work.epochs
    assert config["ds"]["zero_stage"] == cases.zero_stage[0]
    assert config["ds"]["enable_sleep"] is bool(rollouts.offload[place])
    assert actor["gradient_checkpointing_enable"] is bool(cases.recompute[0] == 2)
    assert bool(config["critic"]["model_name_or_path"]) is loop.sampling.critic
    assert (config["algo"]["kl"]["init_coef"] > 0) is work.reference
    rows = config["data"]["max_samples"]
    assert rows <= len(sample_tasks(work.prompts))
    assert rows // work.prompts * train["num_episodes"] == estimates.run.steps[place]


def test_several_nodes_are_joined_before_the_program_starts():
    launch, alone = (started("verl", case)[2] for case in ("apart", "grpo"))
    first, second = (process.argv for process in launch.processes)
    assert {process.devices for process in launch.processes} == {tuple(range(8))}
    words = "python3 ${root}/ray_node.py --nodes 2 --node-rank 0 --head ${head}"
    assert " ".join(first[:8]) == words
    assert [k for k, pair in enumerate(zip(first, second, strict=True)) if len({*pair}) > 1] == [5]
    assert {"ray_node.py", "trainer/ray_node.py", "trainer/__init__.py"} <= {*launch.files}
    assert alone.processes[0].argv[:3] == ("python3", "-m", "verl.trainer.main_ppo")
    assert not [name for name in alone.files if "ray" in name or name.startswith("trainer")]


def test_the_first_node_runs_the_program_once_all_have_joined(tmp_path, monkeypatch, capsys):
    stub, seen = tmp_path / "ray", tmp_path / "address"
    stub.write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    ranks = "--nodes 2 --node-rank 0 --head 10.0.0.1 --port 6379 --gpus 8 -- sh -c"
    words = [*ranks.split(), f'echo "$RAY_ADDRESS" > {seen}; exit 7']
    monkeypatch.setattr(ray_node, "_all_join", lambda *_: False)
    assert ray_node.main(words) == 1
    assert "fewer than 2 nodes joined 10.0.0.1:6379" in capsys.readouterr().err
    assert not seen.exists()
    monkeypatch.setattr(ray_node, "_all_join", lambda nodes, _address, _head: nodes == 2)
    assert ray_node.main(words) == 7
    assert seen.read_text().strip() == "10.0.0.1:6379"


def test_the_rule_rewards_the_last_number_and_tasks_have_right_answers():
    assert reward.score("First 3, then 1,204.", "1204") == 1.0
    assert reward.score("1204, or rather 7", "1204") == 0.0
    assert reward.score("no number", "7") == 0.0
    assert reward.compute_score("any", "so it is -2", "-2", extra_info={}) == 1.0
    for prompts in (1, 96, 1000):
        assert len(sample_tasks(prompts)) >= 256
        assert len(sample_tasks(prompts)) % prompts == 0
    for question, answer in sample_tasks(128):
        first, boxes, more, used = (int(word) for word in question.split() if word.isdigit())
        assert first + boxes * more - used == int(answer) >= 1


def test_configuration_extends_verls_and_rows_are_read_by_both():
    launch = started("verl", "grpo")[2]
    config = yaml.safe_load(launch.files["verl.yaml"])
    assert config["defaults"] == ["ppo_trainer", "_self_"]
    assert config["hydra"]["searchpath"] == ["pkg://verl.trainer.config"]
    rows = [json.loads(line) for line in launch.files["data/tasks.jsonl"].splitlines()]
    assert len(rows) == 256
    for row in rows:
        assert row["prompt"][0]["role"] == "user"
        assert row["label"] == row["reward_model"]["ground_truth"]


def test_what_cannot_be_told_is_refused():
    for field, value in (("engine", "sglang"), ("old_log_probs", False)):
        asked = request("openrlhf", rollout={field: value})
        error = refusal(training_launch, *detail(asked), kind=NoAnswer)
        assert error.field == f"workload.rollout.{field}"
    asked = request("verl", candidate={"dp": 2, "micro_batch": 1}, global_batch=4)
    reasons = launch_reasons(*detail(asked))
    assert any("not a multiple of samples 8" in reason for reason in reasons)


def test_verl_learns_from_the_data_and_the_reward_that_are_stated_and_else_from_the_sample():
    own = {"data": "/mnt/tasks.jsonl", "rollout": {"reward_file": "/mnt/reward.py"}}
    launches = {
        name: training_launch(*detail(request("verl", **more)))
        for name, more in (("sample", {}), ("own", own))
    }
    words = {name: launch.processes[0].argv for name, launch in launches.items()}
    assert "data.train_files='${root}/data/tasks.jsonl'" in words["sample"]
    assert "reward.custom_reward_function.path='${root}/reward.py'" in words["sample"]
    assert "data.train_files='/mnt/tasks.jsonl'" in words["own"]
    assert "reward.custom_reward_function.path='/mnt/reward.py'" in words["own"]
    # a critic has a path only where there is one
    assert not [word for word in words["sample"] if word.startswith("critic.")]
    told = training_launch(*detail(request("openrlhf", rollout=own["rollout"])))
    program_words = told.processes[0].argv
    assert program_words[program_words.index("--reward.remote_url") + 1] == "/mnt/reward.py"
    refused = launch_reasons(*detail(request("openrlhf", data=own["data"])))
    assert refused == ["OpenRLHF cannot launch data of your own."]


@over(
    "path",
    [
        ("rows.jsonl",),
        ("/mnt/../etc/passwd",),
        ("/mnt/a b",),
        ("/mnt/$(id)",),
        ("/mnt/a:b",),
        ("/",),
    ],
)
def test_data_is_a_plain_absolute_path(path):
    assert refusal(request, "verl", data=path).field == "workload.data"


def test_programs_of_a_bundle_find_the_data_that_is_stated_and_pods_say_that_they_do_not_see_it():
    run = {"workload.kind": "training", "model": "Qwen/Qwen3-8B", "workload.method": "lora"}
    own = {"candidate.engine": "trl", "workload.data": "/mnt/rows.jsonl"}
    place = Additions(parameters=Parameters(image="registry.example/trl:1"))
    made = bundle_of(make_recipe(change(DEFAULT, run | own), place))
    (process,) = made.context.launch.processes
    assert process.env["RECIPE_DATA"] == "/mnt/rows.jsonl"
    assert "It trains on `/mnt/rows.jsonl`." in str(made.files["README.md"])
    assert made.targets["jobset"].startswith("/mnt/rows.jsonl is a file of a node, which pods do")
    sample = bundle_for_request(change(DEFAULT, run | {"candidate.engine": "trl"}))
    assert "RECIPE_DATA" not in sample.context.launch.processes[0].env
    assert "It trains on a small sample in `data/`" in str(sample.files["README.md"])
