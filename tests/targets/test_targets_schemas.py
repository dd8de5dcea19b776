"""Manifests against the schemas of clusters, strictly: an unknown field is an error."""

from __future__ import annotations

import gzip
import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from recipe_core.targets import target_files
from tests.fixtures.paths import DATA
from tests.fixtures.targets import (
    EXAMPLES,
    context,
    documents,
    needs,
    pools,
    spread,
    with_parameters,
    write_bundle,
)

CPU = {
    "device": "cpu",
    "vendor": "cpu",
    "runtime": "cpu",
    "architecture": "x86_64",
    "device_memory_bytes": 64 << 30,
}
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
OTHERS = (
    "kustomize.config.k8s.io/v1beta1",
    "batch.volcano.sh/v1alpha1",
)  # the first is held against kustomize itself


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
        found[f"{crd['group']}/{crd['version']}", crd["kind"]] = jsonschema.Draft202012Validator(
            schema
        )
    return found


def manifests(value) -> dict[str, Any]:
    """Every Kubernetes object of a context, by path."""
    found = documents(value)
    return {
        path: document
        for path, document in found.items()
        if isinstance(document, dict) and "apiVersion" in document
    }


@pytest.mark.parametrize("name", VALUES)
def test_built_in_kinds_are_valid(name):
    kubernetes_validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed"
    )
    own = {
        p: d
        for p, d in manifests(VALUES[name]).items()
        if (d["apiVersion"], d["kind"]) not in custom() and d["apiVersion"] not in OTHERS
    }
    assert own
    for document in own.values():
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("name", VALUES)
def test_custom_resources_are_valid(name):
    found = {
        p: d for p, d in manifests(VALUES[name]).items() if (d["apiVersion"], d["kind"]) in custom()
    }
    assert found or name.startswith("pools")  # which are plain Kubernetes
    for path, document in found.items():
        errors = [
            error.message
            for error in custom()[document["apiVersion"], document["kind"]].iter_errors(document)
        ]
        assert errors == [], path


def test_every_custom_schema_is_used_and_refuses_unknown_fields():
    used = {
        (d["apiVersion"], d["kind"]): d
        for value in VALUES.values()
        for d in manifests(value).values()
    }
    assert set(custom()) <= set(used)
    for key, validator in custom().items():
        assert not validator.is_valid(used[key] | {"spec": used[key]["spec"] | {"unknown": 1}})


def test_pods_in_schemas_that_are_not_shipped_are_valid():
    """Volcano's Job has no schema here; the pod inside it is an ordinary one."""
    kubernetes_validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed"
    )
    (job,) = documents(EXAMPLES["training-two-nodes"], "volcano/job.yaml").values()
    (task,) = job["spec"]["tasks"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "x"},
        "spec": task["template"]["spec"],
    }
    kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("name", ["nvidia-one-node", "amd-one-node", "pools", "cpu"])
def test_compose_files_are_valid(name):
    schema = json.loads(gzip.decompress((DATA / "compose" / "compose-spec.json.gz").read_bytes()))
    schema["properties"]["name"] = {
        "type": "string",
        "pattern": "^[a-z0-9][a-z0-9_-]*$",
    }  # newer than the schema
    (document,) = documents(VALUES[name], "compose.yaml").values()
    jsonschema.Draft7Validator(
        schema | {"$schema": "http://json-schema.org/draft-07/schema#"}
    ).validate(document)


@needs("docker-compose")
@pytest.mark.parametrize("name", ["nvidia-one-node", "pools"])
def test_docker_compose_takes_the_file(name, tmp_path):
    (document,) = documents(VALUES[name], "compose.yaml").values()
    document.pop("name")  # version 1 does not know it
    (tmp_path / "compose.yaml").write_text(json.dumps(document))
    done = subprocess.run(
        ["docker-compose", "-f", "compose.yaml", "config", "-q"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
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
    scripts = {
        path: text
        for path, text in target_files(VALUES[name]).items()
        if path.endswith((".sh", ".sbatch"))
    }
    assert scripts
    for text in scripts.values():
        done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def stub(folder: Path, name: str) -> Path:
    """A program that writes its words, one a line, and the devices it sees."""
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        '#!/bin/bash\nprintf "%s\\n" "$@" '
        '"devices=${CUDA_VISIBLE_DEVICES:-${HIP_VISIBLE_DEVICES:-}}" > "out-$RANDOM$RANDOM"\n'
    )
    path.chmod(0o755)
    return path.parent


@pytest.mark.parametrize(
    ("engine", "devices"),
    [("docker", ["--gpus", '"device=0,1,2,3"']), ("podman", ["--device", "nvidia.com/gpu=0"])],
)
def test_the_docker_script_hands_words_over_as_they_are(engine, devices, tmp_path):
    write_bundle(context(pools()), tmp_path)
    path = stub(tmp_path, engine)
    subprocess.run(
        ["bash", "targets/docker/run.sh", engine],
        cwd=tmp_path,
        env={"PATH": f"{path}:/usr/bin:/bin"},
        check=True,
    )
    said = [file.read_text().splitlines() for file in tmp_path.glob("out-*")]
    prefill = next(words for words in said if devices[1] in words)
    assert prefill[prefill.index(devices[0]) : prefill.index(devices[0]) + 2] == devices
    assert prefill[prefill.index("--tensor-parallel-size") + 1] == "4"
    assert sum("--publish" in words for words in said) == 1
