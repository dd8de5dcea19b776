"""Launches as the engines make them, on one node and several, through every target."""

from __future__ import annotations

import re

import pytest

from recipe_core.base.documents import parse_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.engines.spec import engine, engine_names
from recipe_core.launch.process import Deployment
from recipe_core.launch.serving.start import launch
from recipe_core.launch.training.start import training_launch
from recipe_core.search.plans import plan_candidate
from recipe_core.targets import Context, Image, refusals, target_files
from tests.engines.test_engines_ranks import ASKED, drawn
from tests.fixtures.deployments import deployments
from tests.fixtures.sizes import examples
from tests.fixtures.targets import context
from tests.launch.test_training_launch import ENGINES as TRAINERS
from tests.launch.test_training_launch import request as training_request
from tests.targets.test_targets_schemas import OTHERS, custom, errors, manifests, validate

COUNT = 6
UNFILLED = re.compile(r"\$\{(model|host|port\d*|head|root|run|index|self|node\d+|at\d+)\}")


def of(deployment: Deployment) -> Context:
    """The context of a random deployment; raises NoAnswer if its engine cannot start this way."""
    started, device = launch(deployment), deployment.setting.cluster.device
    spec = engine(deployment.candidate.engine)
    image = spec.image(device.runtime, device.architecture)
    used = max(
        sum(len(p.devices) for p in started.processes if p.node == node)
        for node in range(started.nodes)
    )
    return context(
        started,
        engine=spec.name,
        engine_version=spec.version,
        device=device.name,
        vendor=device.vendor,
        runtime=device.runtime,
        architecture=device.architecture,
        devices_per_node=max(used, 1),
        image=Image(reference=image.reference, digest=image.digest) if image else None,
    )


def contexts(name: str) -> list[Context]:
    found = []
    for deployment in deployments(name, COUNT):
        try:
            found.append(of(deployment))
        except NoAnswer:  # groups that do not pack into nodes
            continue
    return found


def assert_whole(value: Context, templates: bool = True) -> None:
    """Slurm's files are there, nothing is unfilled but templates, every object is valid."""
    files = target_files(value)
    assert {"targets/slurm/job.sbatch", "targets/slurm/node.sh"} <= set(files)
    if templates:  # a ConfigMap of files as they are, which takes long to parse
        files = {path: text for path, text in files.items() if not path.endswith("/files.yaml")}
    assert [path for path, text in files.items() if UNFILLED.search(text)] == []
    parsed = {path: parse_yaml(text) for path, text in files.items() if path.endswith(".yaml")}
    found = {path: each for path, each in parsed.items() if "kind" in each}
    assert {path: errors(each) for path, each in found.items() if errors(each)} == {}


@pytest.mark.parametrize("name", engine_names())
def test_launches_of_engines_fit_their_targets(name):
    found = contexts(name)
    assert len(found) >= COUNT // 2
    for value in found:
        assert_whole(value, templates=False)


@pytest.mark.parametrize("way", ASKED)
def test_launches_with_other_balancers_and_ray_fit_their_targets(way):
    for deployment, _ in drawn(way, examples(40, least=6)):
        assert_whole(of(deployment))


@pytest.mark.parametrize("name", ["vllm", "sglang", "tgi"])
def test_objects_of_real_launches_are_valid(name):
    known = {api for api, _ in custom()} | set(OTHERS)
    for value in contexts(name):
        for found in manifests(value).values():
            if found["apiVersion"] not in known:
                validate(found)


@pytest.mark.parametrize("name", TRAINERS)
def test_launches_of_trainers_fit_their_targets(name):
    """Two nodes: every pod runs the same command, told apart by its number alone."""
    split = dict.fromkeys(("tp", "pp", "cp", "ep"), 1) | {"engine": name, "recompute": "full"}
    split["zero_stage"] = 1 if name == "megatron" else 3
    found, row = plan_candidate(training_request(name, candidate=split))
    assert found.reasons(row) == []
    image = Image(reference="example/trainer:1")
    value = context(training_launch(*found.detail(row)), name="llama-3-1-8b-training", image=image)
    assert refusals(value) == {}
    assert_whole(value)
