"""Launches as the engines make them, on one node and several, through every target; and what
KServe's LLMInferenceService counts by and hands to the engine.
"""

from contextlib import suppress

import pytest

from recipe_core.base.documents import parse_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.commands.arguments import Arguments
from recipe_core.commands.option_meanings import Meant
from recipe_core.engines.spec import engine, engine_names
from recipe_core.launch.process import Process
from recipe_core.launch.start import launch_deployment, training_launch
from recipe_core.plans.splits import row_estimates, row_reasons
from recipe_core.targets import Image, target_files, target_refusals
from recipe_core.targets.kserve_llm import kserve_llm_files
from tests.fixtures.cluster_schemas import assert_valid, errors, key_of
from tests.fixtures.deployments import ASKED, deployments, drawn
from tests.fixtures.rows import over
from tests.fixtures.sizes import examples
from tests.fixtures.targets import (
    UNFILLED,
    argv,
    context,
    launched,
    options,
)
from tests.fixtures.training import TRAINERS, training_table


def of(deployment):
    """The context of a random deployment; raises NoAnswer if its engine cannot start this way."""
    started, device = launch_deployment(deployment), deployment.setting.cluster.device
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


def assert_whole(value, templates=True):
    """Slurm's files are there, nothing is unfilled but templates, every object is valid."""
    files = target_files(value)
    assert {"targets/slurm/job.sbatch", "targets/slurm/node.sh"} <= set(files)
    if templates:  # a ConfigMap of files as they are, which takes long to parse
        files = {path: text for path, text in files.items() if not path.endswith("/files.yaml")}
    assert [path for path, text in files.items() if UNFILLED.search(text)] == []
    parsed = {path: parse_yaml(text) for path, text in files.items() if path.endswith(".yaml")}
    wrong = {path: errors(found) for path, found in parsed.items() if "kind" in found}
    assert not any(wrong.values()), wrong


@over("name", engine_names(), share=2)
def test_launches_of_engines_fit_their_targets(name):
    values = []
    for deployment in deployments(name, 6):
        with suppress(NoAnswer):  # groups that do not pack into nodes
            values.append(of(deployment))
    assert len(values) >= 3
    for value in values:
        assert_whole(value, templates=False)
        if name in ("vllm", "sglang", "tgi"):
            assert_valid(value)


@over("way", ASKED)
def test_launches_with_other_balancers_and_ray_fit_their_targets(way):
    for deployment, _ in drawn(way, examples(40, least=6)):
        assert_whole(of(deployment))


@over("name", TRAINERS, share=2)
def test_launches_of_trainers_fit_their_targets(name):
    """Two nodes: every pod runs the same command, told apart by its number alone."""
    split = dict.fromkeys(("tp", "pp", "cp", "ep"), 1) | {"engine": name, "recompute": "full"}
    split["zero_stage"] = 1 if name == "megatron" else 3
    found, row = training_table(split)
    assert row_reasons(found, row) == []
    image = Image(reference="example/trainer:1")
    value = context(
        training_launch(*row_estimates(found, row)), name="llama-3-1-8b-training", image=image
    )
    assert target_refusals(value) == {}
    assert_whole(value)


KEY = ("serving.kserve.io/v1alpha2", "LLMInferenceService")


def made(value):
    return parse_yaml(kserve_llm_files(value)["targets/kserve-llm/llminferenceservice.yaml"])


def words(pod):
    (container,) = pod["containers"]
    return [*container["command"], *container["args"]]


@pytest.mark.parametrize("count", [120, pytest.param(300, marks=pytest.mark.nightly)])
def test_what_is_started_is_what_the_recipe_starts(count):
    """Every pod of many launches has the launch's words, in an object that the API accepts."""
    seen = {"worker": 0, "prefill": 0, "refused": 0}
    for deployment in deployments("vllm", count, seed=11):
        try:
            value, candidate = of(deployment), deployment.candidate
            document = made(value)
        except NoAnswer:
            seen["refused"] += 1
            continue
        assert (key_of(document), errors(document)) == (KEY, [])
        spec = document["spec"]
        roles = {"server": spec, "decode": spec, "prefill": spec.get("prefill")}
        for process in value.launch.processes:
            if process.role not in roles:
                continue
            part = roles[process.role]
            own = [word for word in words(part["template"]) if not word.startswith("--ssl-")]
            assert own[:2] == ["vllm", "serve"]
            stated, meant = (Meant(Arguments("vllm", list(w[2:]))) for w in (own, process.argv))
            assert (stated.candidate, stated.max_context) == (meant.candidate, meant.max_context)
            split = candidate.prefill if process.role == "prefill" else candidate.split
            of_role = [p for p in value.launch.processes if p.role == process.role]
            ranks = meant.candidate["dp"] * len(of_role)
            assert (part["replicas"], ranks) == (len(of_role), split.dp * split.replicas)
            seen["worker"] += "worker" in part
        seen["prefill"] += "prefill" in spec
    assert min(seen.values()) > 3


def test_templates_of_kserve_leave_the_words_alone():
    values = options(tensor_parallel_size=8, chat_template="{{ messages }}")
    server = Process("server-0", argv(values), {"A": "{{"}, 0, tuple(range(8)))
    (container,) = made(context(launched((server,), values)))["spec"]["template"]["containers"]
    assert "{{`{{`}} messages }}" in container["args"]
    assert {"name": "A", "value": "{{`{{`}}"} in container["env"]
