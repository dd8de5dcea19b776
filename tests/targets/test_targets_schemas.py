"""Manifests against the schemas of clusters, strictly: an unknown field is an error."""

from __future__ import annotations

import gzip
import json
import subprocess
from functools import cache
from typing import Any

import jsonschema
import pytest

from recipe_core.targets import target_files
from tests.fixtures.paths import DATA
from tests.fixtures.targets import (
    EXAMPLES,
    context,
    document,
    documents,
    needs,
    pools,
    spread,
    with_parameters,
    write_bundle,
)

CPU = dict.fromkeys(("device", "vendor", "runtime"), "cpu")
CPU |= {"architecture": "x86_64", "device_memory_bytes": 64 << 30}
VALUES = EXAMPLES | {
    "cpu": context(hardware=CPU),
    "queue": with_parameters(
        context(spread(4)),
        queue="research",
        node_selector={"pool": "gpu"},
        model="/data/llama",
        max_replicas=2,
    ),
    "training-queue": with_parameters(
        EXAMPLES["training-two-nodes"],
        queue="research",
        model_cache="weights",
        storage_class="fast",
    ),
}
# of which no schema is shipped; the first is held against kustomize itself
OTHERS = ("kustomize.config.k8s.io/v1beta1", "batch.volcano.sh/v1alpha1")


def strict(schema: Any) -> Any:
    """A structural schema as the API server takes it with strict field validation."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    if found.get("x-kubernetes-int-or-string") is True:
        found = {"type": ["integer", "string"]}
    if "properties" in found and not found.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    if found.get("nullable") is True:
        found["type"] = [found["type"], "null"]
    return found


@cache
def custom() -> dict[tuple[str, str], jsonschema.Draft202012Validator]:
    found = {}
    for path in (DATA / "crds").glob("*.json.gz"):
        crd = json.loads(gzip.decompress(path.read_bytes()))
        schema = strict(crd["schema"])
        schema["properties"]["metadata"] = {"type": "object"}
        key = f"{crd['group']}/{crd['version']}", crd["kind"]
        found[key] = jsonschema.Draft202012Validator(schema)
    return found


def manifests(value) -> dict[str, Any]:
    """Every Kubernetes object of a context, by path."""
    return {
        path: found
        for path, found in documents(value).items()
        if isinstance(found, dict) and "apiVersion" in found
    }


def key_of(found: dict[str, Any]) -> tuple[str, str]:
    return found["apiVersion"], found["kind"]


def errors(found: dict[str, Any]) -> list[str]:
    """What is wrong with an object by its schema; nothing where none is known here."""
    validator = custom().get(key_of(found))
    return [error.message for error in validator.iter_errors(found)] if validator else []


def validate(found: dict[str, Any]) -> None:
    """Hold an object of a built-in kind against the newest version of Kubernetes, strictly."""
    kubernetes_validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed"
    )
    kubernetes_validate.validate(found, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("name", VALUES)
def test_objects_are_valid(name):
    every = manifests(VALUES[name])
    of_resources = [path for path, found in every.items() if key_of(found) in custom()]
    assert of_resources or name.startswith("pools")  # which are plain Kubernetes
    assert {path: errors(found) for path, found in every.items() if errors(found)} == {}
    built_in = [
        found
        for path, found in every.items()
        if path not in of_resources and found["apiVersion"] not in OTHERS
    ]
    assert built_in
    for found in built_in:
        validate(found)


def test_every_custom_schema_is_used_and_refuses_unknown_fields():
    used = {key_of(d): d for value in VALUES.values() for d in manifests(value).values()}
    assert set(custom()) <= set(used)
    for key, validator in custom().items():
        assert not validator.is_valid(used[key] | {"spec": used[key]["spec"] | {"unknown": 1}})


def test_pods_in_schemas_that_are_not_shipped_are_valid():
    """Volcano's Job has no schema here; the pod inside it is an ordinary one."""
    (task,) = document(EXAMPLES["training-two-nodes"], "volcano/job.yaml")["spec"]["tasks"]
    pod = {"kind": "Pod", "metadata": {"name": "x"}, "spec": task["template"]["spec"]}
    validate({"apiVersion": "v1"} | pod)


@pytest.mark.parametrize("name", ["nvidia-one-node", "amd-one-node", "pools", "cpu"])
def test_compose_files_are_valid(name):
    schema = json.loads(gzip.decompress((DATA / "compose" / "compose-spec.json.gz").read_bytes()))
    # newer than the schema
    schema["properties"]["name"] = {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]*$"}
    schema["$schema"] = "http://json-schema.org/draft-07/schema#"
    jsonschema.Draft7Validator(schema).validate(document(VALUES[name], "compose.yaml"))


@needs("docker-compose")
@pytest.mark.parametrize("name", ["nvidia-one-node", "pools"])
def test_docker_compose_takes_the_file(name, tmp_path):
    found = document(VALUES[name], "compose.yaml")
    found.pop("name")  # version 1 does not know it
    (tmp_path / "compose.yaml").write_text(json.dumps(found))
    words = ["docker-compose", "-f", "compose.yaml", "config", "-q"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@needs("kubectl")
@pytest.mark.parametrize("name", ["nvidia-one-node", "queue", "training-two-nodes"])
def test_kustomize_builds_every_folder(name, tmp_path):
    value = VALUES[name]
    write_bundle(value, tmp_path)
    folders = sorted(path.parent for path in tmp_path.rglob("kustomization.yaml"))
    assert folders
    for folder in folders:
        done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "kind:" in done.stdout


@pytest.mark.parametrize("name", VALUES)
def test_scripts_are_bash(name, tmp_path):
    scripts = [
        text
        for path, text in target_files(VALUES[name]).items()
        if path.endswith((".sh", ".sbatch"))
    ]
    assert scripts
    for text in scripts:
        done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("engine", "devices"),
    [("docker", ["--gpus", '"device=0,1,2,3"']), ("podman", ["--device", "nvidia.com/gpu=0"])],
)
def test_the_docker_script_hands_words_over_as_they_are(engine, devices, tmp_path):
    write_bundle(context(pools()), tmp_path)
    stub = tmp_path / "bin" / engine
    stub.parent.mkdir()
    stub.write_text('#!/bin/bash\nprintf "%s\\n" "$@" > "out-$RANDOM$RANDOM"\n')
    stub.chmod(0o755)
    words, env = ["bash", "targets/docker/run.sh", engine], {"PATH": f"{stub.parent}:/usr/bin:/bin"}
    subprocess.run(words, cwd=tmp_path, env=env, check=True)
    said = [file.read_text().splitlines() for file in tmp_path.glob("out-*")]
    prefill = next(words for words in said if devices[1] in words)
    assert prefill[prefill.index(devices[0]) : prefill.index(devices[0]) + 2] == devices
    assert prefill[prefill.index("--tensor-parallel-size") + 1] == "4"
    assert sum("--publish" in words for words in said) == 1
