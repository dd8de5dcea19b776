"""What any bundle of a random request promises: times, prices, memory and places hold together.

A request is drawn, planned and built; then its rendered files are read, not the code that wrote
them. `test_time_limits` lives the same rules in a real Slurm.
"""

import json
import math
import random
import re

import pytest
import yaml

from recipe_core.base.errors import InputError, NoAnswer
from recipe_core.bundle.write import bundle_files
from recipe_core.recipe import make_recipe
from recipe_core.recipe.build import Additions
from recipe_core.recipe.place import read_parameters
from recipe_core.request.schema import PlanRequest
from tests.fixtures.sizes import examples

GIB = 1 << 30
COUNT = examples(300, least=24)
"""Requests that are drawn."""
MODELS = (
    "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/Llama-3.1-70B-Instruct",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-32B",
    "Qwen/Qwen3-30B-A3B",
    "mistralai/Mistral-7B-v0.1",
)
DEVICES = ("h100-sxm", "h200-sxm", "a100-sxm-80gb", "mi300x", "b200-sxm", "rtx-4090")
METHODS = {
    "torchtitan": ("pretrain", "finetune"),
    "torch": ("pretrain", "finetune", "lora", "qlora", "dpo"),
    "accelerate": ("pretrain", "finetune"),
    "deepspeed": ("pretrain", "finetune"),
    "megatron": ("pretrain",),
    "trl": ("finetune", "lora", "qlora", "dpo"),
    "axolotl": ("finetune", "lora", "qlora", "dpo"),
    "llama-factory": ("finetune", "lora", "qlora", "dpo"),
    "unsloth": ("lora", "qlora"),
    None: ("pretrain", "finetune", "lora", "qlora", "dpo"),
}
LIMITS = (None, None, 1800, 7200, 14_400, 86_400, 172_800)
INTERVALS = {  # where each framework is told how often to save, in steps
    "torchtitan": r'"checkpoint\.interval": (\d+)',
    "save_steps": r"\bsave_steps\W+(\d+)",
    "save_interval": r"\bsave_interval\W+(\d+)",
    "every_steps": r'"every_steps": (\d+)',
}


def drawn(chance):
    """A request of training and the deployment settings of its place."""
    engine = chance.choice(list(METHODS))
    workload = {
        "kind": "training",
        "method": chance.choice(METHODS[engine]),
        "sequence_length": chance.choice((2048, 4096, 8192)),
        "global_batch": chance.choice((16, 64, 128, 256)),
        "tokens": chance.choice((1e8, 1e9, 2e10)),
    }
    if limit := chance.choice(LIMITS):
        workload["time_limit_s"] = limit
    if chance.random() < 0.3:
        workload["storage_bytes_per_s"] = chance.choice((2e8, 2e9, 2e10))
    if chance.random() < 0.2:
        workload["checkpoint_interval_s"] = chance.choice((600, 20_000))
    hardware = {
        "device": chance.choice(DEVICES),
        "per_node": 8,
        "nodes": chance.choice((1, 1, 2, 4)),
    }
    if chance.random() < 0.3:
        hardware["commitment"] = "spot"
    if hardware["device"] in ("h100-sxm", "h200-sxm", "b200-sxm") and chance.random() < 0.4:
        hardware["network"] = "efa-400"
    request = {"model": chance.choice(MODELS), "hardware": hardware, "workload": workload}
    if engine:
        request["options"] = {"engines": [engine]}
    place = {"image": "registry.example/trainer:1.0"}
    if limit is None and chance.random() < 0.3:
        place["time_limit_minutes"] = chance.choice((60, 240, 1440))
    if chance.random() < 0.3:
        place["bucket"] = "s3://runs/one"
    return request, place


def built(number):
    """Files and recipe of a drawn request; why not, where there is none."""
    request, place = drawn(random.Random(number))
    try:
        asked = PlanRequest.parse(request)
        recipe = make_recipe(asked, Additions(parameters=read_parameters(place)))
        files = {path: data.decode() for path, data in bundle_files(recipe).items()}
    except (NoAnswer, InputError) as error:
        return None, str(error)
    return files, recipe


@pytest.fixture(scope="module")
def bundles():
    every = {number: built(number) for number in range(COUNT)}
    whole = {number: pair for number, pair in every.items() if pair[0] is not None}
    assert len(whole) >= COUNT / 4, [reason for files, reason in every.values() if files is None]
    return whole


def checkpoint_steps(files):
    """Steps between checkpoints, as the framework is told."""
    texts = "\n".join((files["launch.json"], files["recipe.yaml"], files.get("train.json", "")))
    spaced = texts.replace("--checkpoint.interval", '"checkpoint.interval":').replace('",', '" ')
    words = json.loads(files["launch.json"])["processes"][0]["argv"]
    for flag in ("--checkpoint.interval", "--save-interval"):
        if flag in words:
            return int(words[words.index(flag) + 1])
    found = [int(n) for rule in INTERVALS.values() for n in re.findall(rule, spaced)]
    assert found
    return max(found)


def minutes(files):
    """The time limit that the Slurm job asks for."""
    given = re.search(r"^#SBATCH --time=(\d+)$", files["targets/slurm/job.sbatch"], re.M)
    return int(given[1]) if given else None


def test_a_checkpoint_is_written_within_every_limit_of_time(bundles):
    limited = 0
    for number, (files, recipe) in bundles.items():
        run, step_s = recipe.estimate["run"], recipe.estimate["training"]["step_s"]
        stated_s = recipe.request["workload"].get("time_limit_s")
        asked = minutes(files) if "targets/slurm/job.sbatch" in files else None
        limits = [value for value in (stated_s, asked and asked * 60) if value]
        interval_s = max(checkpoint_steps(files), 1) * step_s
        first_s = run["restart_s"] + interval_s + run["checkpoint_s"]
        for limit_s in limits:
            assert first_s < limit_s, (number, first_s, limit_s)
            limited += 1
        assert interval_s <= max(43_200, step_s, run["checkpoint_s"]) * 1.001, number
        if limits and run["wall_s"] > min(limits):
            assert run["time_shares"]["time_limits"] > 0, number
        assert math.isclose(sum(run["time_shares"].values()), 1.0, rel_tol=1e-6), number
    assert limited


def test_the_price_that_is_quoted_is_of_the_machines_that_are_started(bundles):
    spot = tasks = 0
    for number, (files, recipe) in bundles.items():
        text = files.get("targets/skypilot/task.yaml")
        is_spot = recipe.request["hardware"].get("commitment") == "spot"
        if text is None:
            continue
        tasks += 1
        task = yaml.safe_load(text)
        resources = task["resources"]
        assert resources.get("use_spot", False) is is_spot, number
        (count,) = resources["accelerators"].values()
        assert task["num_nodes"] * count == recipe.device.count, number
        several = task["num_nodes"] > 1
        assert resources.get("network_tier") == ("best" if several else None), number
        kept = recipe.estimate["run"]["checkpoint_bytes"] * 3
        assert resources["disk_size"] * GIB > kept, number
        assert ("file_mounts" in task) == bool(recipe.parameters.bucket), number
        spot += is_spot
        if is_spot:
            assert "spot" in files["README.md"], number
    assert tasks
    assert spot


def pods(files):
    for path, text in files.items():
        if not path.startswith("targets/") or not path.endswith(".yaml") or "skypilot" in path:
            continue
        for document in yaml.safe_load_all(text):
            yield from ((path, node) for node in walk(document))


def walk(node):
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from walk(value)
    elif isinstance(node, list):
        for value in node:
            yield from walk(value)


def test_pods_ask_for_the_host_memory_that_was_estimated(bundles):
    seen = 0
    for number, (files, recipe) in bundles.items():
        kept = recipe.estimate["memory"].get("host_bytes") or 0.0
        nodes = recipe.request["hardware"]["nodes"]
        per_pod = recipe.device.count / max(1, min(nodes, math.ceil(recipe.device.count / 8)))
        for path, node in pods(files):
            asked = node.get("requests") if isinstance(node, dict) else None
            if isinstance(asked, dict) and any("/gpu" in name for name in asked):
                memory = int(asked["memory"].removesuffix("Gi"))
                assert memory * GIB >= kept * per_pod, (number, path)
                assert int(node["limits"]["memory"].removesuffix("Gi")) >= memory, (number, path)
                seen += 1
    assert seen


def test_processes_read_the_bundle_and_write_to_their_run_alone(bundles):
    """Every word below the bundle's folder is one of its files; none is a place to write to."""
    for number, (files, _) in bundles.items():
        launch = json.loads(files["launch.json"])
        for process in launch["processes"]:
            words = [*process["argv"], *process["env"].values()]
            for word in words:
                for place in re.findall(r"\$\{root\}/([\w./-]+)", word):
                    inside = place in files or any(path.startswith(f"{place}/") for path in files)
                    assert inside, (number, place)
        configs = [path for path in files if re.fullmatch(r"[\w.]+\.(yaml|json)", path)]
        for path in set(configs) - {"recipe.yaml", "launch.json", "expected.json", "MANIFEST.json"}:
            assert not re.search(r"[\"' ]run/", files[path]), (number, path)
