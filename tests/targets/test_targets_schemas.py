"""Targets by the readers of what they write: schemas of clusters, strictly, and the tools' own."""

import gzip
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from recipe_core.sizing.size import settle_hardware
from recipe_core.targets import target_files
from tests.conftest import request_values
from tests.fixtures.cluster_schemas import assert_valid, custom, key_of, manifests, validate
from tests.fixtures.paths import DATA
from tests.fixtures.recipes import bundle_for_request
from tests.fixtures.rows import over
from tests.fixtures.targets import (
    CONTEXTS,
    EXAMPLES,
    context,
    document,
    documents,
    mappings,
    needs,
    pools,
    replicas,
    spread,
    with_parameters,
    write_bundle,
)

# What only a fleet's files have.
FLEETS = {key for key in custom() if key[0].startswith(("kueue.", "gateway."))}


@pytest.mark.parametrize("name", CONTEXTS)
def test_objects_are_valid(name):
    assert_valid(CONTEXTS[name])


def test_every_custom_schema_is_used_and_refuses_unknown_fields():
    used = {key_of(d): d for value in CONTEXTS.values() for d in manifests(value).values()}
    for key, validator in custom().items():
        if key in FLEETS:  # objects of a fleet: tests/fleets/test_exports.py
            continue
        assert not validator.is_valid(used[key] | {"spec": used[key]["spec"] | {"unknown": 1}})
    # Volcano's Job has no schema here; the pod inside it is an ordinary one
    (task,) = document(EXAMPLES["training-two-nodes"], "volcano/job.yaml")["spec"]["tasks"]
    pod = {"kind": "Pod", "metadata": {"name": "x"}, "spec": task["template"]["spec"]}
    validate({"apiVersion": "v1"} | pod)


@over("name", ["nvidia-one-node", "amd-one-node", "pools", "cpu"])
def test_compose_files_are_valid(name):
    schema = json.loads(gzip.decompress((DATA / "compose" / "compose-spec.json.gz").read_bytes()))
    # newer than the schema
    schema["properties"]["name"] = {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]*$"}
    schema["$schema"] = "http://json-schema.org/draft-07/schema#"
    jsonschema.Draft7Validator(schema).validate(document(CONTEXTS[name], "compose.yaml"))


def run(*words, **options):
    """The output of a command that succeeds."""
    done = subprocess.run(words, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@needs("docker-compose")
@over("name", ["nvidia-one-node", "pools"])
def test_docker_compose_takes_the_file(name, tmp_path):
    found = document(CONTEXTS[name], "compose.yaml")
    found.pop("name")  # version 1 does not know it
    (tmp_path / "compose.yaml").write_text(json.dumps(found))
    run("docker-compose", "-f", "compose.yaml", "config", "-q", cwd=tmp_path)


@needs("kubectl")
@over("name", ["nvidia-one-node", "queue", "training-two-nodes"])
def test_kustomize_builds_every_folder(name, tmp_path):
    write_bundle(CONTEXTS[name], tmp_path)
    folders = sorted(path.parent for path in tmp_path.rglob("kustomization.yaml"))
    assert folders
    for folder in folders:
        assert "kind:" in run("kubectl", "kustomize", folder)


@over("name", CONTEXTS)
def test_scripts_are_bash(name):
    files = target_files(CONTEXTS[name]).items()
    scripts = [text for path, text in files if path.endswith((".sh", ".sbatch"))]
    assert scripts
    for text in scripts:
        run("bash", "-n", input=text)


@over(
    "engine, devices",
    [
        ("docker", ["--gpus", '"device=0,1,2,3"']),
        ("podman", [f"--device=nvidia.com/gpu={n}" for n in (0, 1)]),
    ],
)
def test_the_docker_script_hands_words_over_as_they_are(engine, devices, tmp_path):
    write_bundle(context(pools()), tmp_path)
    stub = tmp_path / "bin" / engine
    stub.parent.mkdir()
    stub.write_text('#!/bin/bash\nprintf "%s\\n" "$@" > "out-$RANDOM$RANDOM"\n')
    stub.chmod(0o755)
    path = {"PATH": f"{stub.parent}:/usr/bin:/bin"}
    run("bash", "targets/docker/run.sh", engine, cwd=tmp_path, env=path)
    said = [file.read_text().splitlines() for file in tmp_path.glob("out-*")]
    prefill = next(words for words in said if devices[1] in words)
    assert prefill[prefill.index(devices[0]) : prefill.index(devices[0]) + 2] == devices
    assert prefill[prefill.index("--tensor-parallel-size") + 1] == "4"
    assert sum("--publish" in words for words in said) == 1


READ_TASK = """
import glob, json, sky, yaml
(path,) = glob.glob("targets/skypilot/*.yaml")
config = yaml.safe_load(open(path))
config["secrets"] = dict.fromkeys(config.get("secrets", {}), "given")  # by --secret
task = sky.Task.from_yaml_config(config)
(resources,) = task.resources
service = task.service and task.service.to_yaml_config()
accelerators = resources.accelerators
found = {"nodes": task.num_nodes, "accelerators": accelerators, "service": service}
mounts = {place: store.source for place, store in task.storage_mounts.items()}
kept = {"spot": resources.use_spot, "tier": str(resources.network_tier), "mounts": mounts}
print(json.dumps(found | kept))
"""
READ_SERVE = """
import json, sys, yaml
from ray.serve.schema import ServeDeploySchema
found = ServeDeploySchema.model_validate(yaml.safe_load(open("targets/ray-serve/serve.yaml")))
print(json.dumps([app.args for app in found.applications]))
"""


def asked(program, code, value, folder):
    """What the interpreter that ``program`` is installed for prints as JSON of a bundle."""
    write_bundle(value, folder)
    interpreter = Path(shutil.which(program)).read_text().splitlines()[0].removeprefix("#!")
    environment = {"HOME": str(folder), "PATH": "/usr/bin:/bin"}
    environment |= {"SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    return json.loads(run(interpreter, "-c", code, cwd=folder, env=environment).splitlines()[-1])


@needs("sky")
def test_skypilot_reads_services_and_tasks(tmp_path):
    values = {
        "one": with_parameters(context(spot=""), cloud="aws", region="us-east-1"),
        "scaled": with_parameters(context(replicas(4, 2)), max_replicas=4, api_key_secret="key"),
        "two": context(spread()),
        "training": with_parameters(EXAMPLES["training-two-nodes"], bucket="s3://runs/one"),
    }
    found = {name: asked("sky", READ_TASK, values[name], tmp_path / name) for name in values}
    assert [answer["nodes"] for answer in found.values()] == [1, 1, 2, 2]
    assert [answer["accelerators"]["H100"] for answer in found.values()] == [8, 2, 8, 8]
    assert [answer["spot"] for answer in found.values()] == [True, False, False, False]
    assert found["one"]["service"] is None  # a service would answer the internet without a key
    assert found["scaled"]["service"]["replica_policy"]["max_replicas"] == 16
    assert found["training"]["service"] is None
    tiers = [answer["tier"].lower().rpartition(".")[2] for answer in found.values()]
    assert tiers == ["none", "none", "best", "best"]
    assert found["training"]["mounts"] == {"/run/recipe": "s3://runs/one"}


@needs("serve")
def test_ray_serve_reads_the_config(tmp_path):
    value = with_parameters(context(spread()), max_replicas=3)
    (app,) = asked("serve", READ_SERVE, value, tmp_path)
    arguments = app["llm_configs"][0]
    assert arguments["engine_kwargs"]["pipeline_parallel_size"] == 2
    assert arguments["deployment_config"]["autoscaling_config"]["max_replicas"] == 3


def test_skypilot_installs_with_the_command_as_it_is():
    """Several stay several, nothing is quoted as a word."""
    install = "pip install 'torch>=2.11,<2.14' --index-url https://host/rocm && pip install x==1"
    value = replace(EXAMPLES["training-two-nodes"], image=None, install=install)
    assert document(value, "task.yaml")["setup"] == f"{install}\n"


SPOT = {
    "Google Cloud": {"cloud.google.com/gke-spot": "true"},
    "Microsoft Azure": {"kubernetes.azure.com/scalesetpriority": "spot"},
    "Amazon Web Services": {"eks.amazonaws.com/capacityType": "SPOT"},
}
"""Labels of spot nodes, as the providers' own documentation has them."""


@over("provider", [*SPOT, "", None])
def test_devices_at_a_spot_price_are_asked_for_as_spot(provider):
    value = replace(EXAMPLES["nvidia-one-node"], spot=provider)
    assert_valid(value)
    pods = [spec for found in documents(value).values() for spec in pods_in(found)]
    assert pods
    label = SPOT.get(provider, {})
    for spec in pods:
        assert spec.get("nodeSelector", {}) == label
        tolerated = {each["key"] for each in spec["tolerations"]}
        assert tolerated == {"nvidia.com/gpu", *label}
    own = with_parameters(value, node_selector={"pool": "mine"})
    for spec in (spec for found in documents(own).values() for spec in pods_in(found)):
        assert spec["nodeSelector"] == {**label, "pool": "mine"}
    resources = document(replace(context(), spot=provider), "task.yaml")["resources"]
    assert resources.get("use_spot") == (None if provider is None else True)


def pods_in(value):
    """What says on which nodes pods with devices run, in a document."""
    return [found for found in mappings(value) if "tolerations" in found]


def test_a_spot_offer_that_a_sizing_chose_reaches_the_targets():
    market = {"devices": ["h100-sxm"], "commitments": ["spot"], "providers": ["Google"]}
    asked_for = request_values("meta-llama/Llama-3.1-8B-Instruct") | {"hardware": {"any": market}}
    chosen = settle_hardware(asked_for | {"options": {"engines": ["vllm"]}})
    files = bundle_for_request(chosen).files
    tasks = [text for path, text in files.items() if "targets/skypilot/" in path]
    assert any("use_spot: true" in str(text) for text in tasks)
    assert any("gke-spot" in str(text) for path, text in files.items() if "kubernetes" in path)
