"""SkyPilot's and Ray's own readers of what they are given."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from recipe_core.targets import refusals
from tests.fixtures.targets import (
    EXAMPLES,
    both_nodes_answer,
    context,
    document,
    needs,
    replicas,
    single,
    spread,
    with_parameters,
    write_bundle,
)

READ_TASK = """
import json, sky
task = sky.Task.from_yaml("targets/skypilot/task.yaml")
(resources,) = task.resources
service = task.service and task.service.to_yaml_config()
accelerators = resources.accelerators
print(json.dumps({"nodes": task.num_nodes, "accelerators": accelerators, "service": service}))
"""
READ_SERVE = """
import json, sys, yaml
from ray.serve.schema import ServeDeploySchema
found = ServeDeploySchema.model_validate(yaml.safe_load(open("targets/ray-serve/serve.yaml")))
print(json.dumps([app.args for app in found.applications]))
"""


def asked(program: str, code: str, folder: Path) -> object:
    """What the interpreter that ``program`` is installed for prints as JSON."""
    script = Path(str(shutil.which(program)))
    interpreter = script.read_text().splitlines()[0].removeprefix("#!")
    environment = {"HOME": str(folder), "PATH": "/usr/bin:/bin"}
    environment |= {"SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    words = [interpreter, "-c", code]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@needs("sky")
def test_skypilot_reads_services_and_tasks(tmp_path):
    values = {
        "one": with_parameters(context(), cloud="aws", region="us-east-1"),
        "scaled": with_parameters(context(replicas(4, 2)), max_replicas=4),
        "two": context(spread()),
        "training": EXAMPLES["training-two-nodes"],
    }
    found = {}
    for name, value in values.items():
        write_bundle(value, tmp_path / name)
        found[name] = asked("sky", READ_TASK, tmp_path / name)
    assert [answer["nodes"] for answer in found.values()] == [1, 1, 2, 2]
    assert [answer["accelerators"]["H100"] for answer in found.values()] == [8, 2, 8, 8]
    assert found["one"]["service"]["replica_policy"]["min_replicas"] == 1
    assert found["scaled"]["service"]["replica_policy"]["max_replicas"] == 16
    assert found["training"]["service"] is None


@needs("serve")
def test_ray_serve_reads_the_config(tmp_path):
    write_bundle(with_parameters(context(spread()), max_replicas=3), tmp_path)
    ((arguments,),) = [[app["llm_configs"][0]] for app in asked("serve", READ_SERVE, tmp_path)]
    assert arguments["engine_kwargs"]["pipeline_parallel_size"] == 2
    assert arguments["deployment_config"]["autoscaling_config"]["max_replicas"] == 3


def test_skypilot_balances_among_copies_and_asks_each_for_its_share_of_requests():
    task, whole = (
        document(with_parameters(context(launch), max_replicas=3), "task.yaml")
        for launch in (replicas(4, 2), single())
    )
    assert task["resources"]["accelerators"] == {"H100": 2}
    policy = task["service"]["replica_policy"]
    assert (policy["min_replicas"], policy["max_replicas"]) == (4, 12)
    # 80 % of the estimated requests
    rate = whole["service"]["replica_policy"]["target_qps_per_replica"]
    assert rate == pytest.approx(0.8 * 2573 / 256, abs=0.01)
    assert policy["target_qps_per_replica"] == pytest.approx(rate / 4, abs=0.01)
    assert "2 addresses" in refusals(context(both_nodes_answer()))["skypilot"]


def test_skypilot_installs_with_the_command_as_it_is():
    """Several commands stay several: nothing of them is quoted as a word."""
    install = "pip install 'torch>=2.11,<2.14' --index-url https://host/rocm && pip install x==1"
    value = replace(EXAMPLES["training-two-nodes"], image=None, install=install)
    assert document(value, "task.yaml")["setup"] == f"{install}\n"
