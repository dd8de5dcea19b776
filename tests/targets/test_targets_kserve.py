"""LLMInferenceService: what KServe counts by, and the words it hands to the engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recipe_core.base.documents import parse_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.commands.arguments import read_arguments
from recipe_core.commands.meaning import meaning_of
from recipe_core.launch.process import Process
from recipe_core.launch.serving.start import launch
from recipe_core.targets import refusals
from recipe_core.targets.kserve_llm import files
from tests.fixtures.deployments import deployments
from tests.fixtures.targets import (
    AMD,
    EXAMPLES,
    argv,
    context,
    degrees,
    launched,
    options,
    ranks,
    replicas,
    with_parameters,
)
from tests.targets.test_targets_engines import of
from tests.targets.test_targets_schemas import errors, key_of

KEY = ("serving.kserve.io/v1alpha2", "LLMInferenceService")


def made(value):
    return parse_yaml(files(value)["targets/kserve-llm/llminferenceservice.yaml"], "it")


def words(pod):
    (container,) = pod["containers"]
    return [*container["command"], *container["args"]]


def over_nodes(nodes, tp=1, pp=1, dp=1, **more):
    values = degrees(tp, pp, dp) | more
    return context(launched(ranks(nodes, values, tuple(range(8))), values))


@pytest.mark.parametrize("count", [120, pytest.param(300, marks=pytest.mark.nightly)])
def test_what_is_started_is_what_the_recipe_starts(count):
    """Every pod of many launches has the launch's words, in an object that the API accepts."""
    seen = {"worker": 0, "prefill": 0, "refused": 0}
    for deployment in deployments("vllm", count, seed=11):
        try:
            value = of(deployment)
            document = made(value)
        except NoAnswer:
            seen["refused"] += 1
            continue
        assert (key_of(document), errors(document)) == (KEY, [])
        spec = document["spec"]
        roles = {"server": spec, "decode": spec, "prefill": spec.get("prefill")}
        for process in launch(deployment).processes:
            if process.role not in roles:
                continue
            part, candidate = roles[process.role], deployment.candidate
            own = [word for word in words(part["template"]) if not word.startswith("--ssl-")]
            assert own[:2] == ["vllm", "serve"]
            told, meant = (
                meaning_of(read_arguments("vllm", list(w[2:]))) for w in (own, process.argv)
            )
            assert (told.candidate, told.max_context) == (meant.candidate, meant.max_context)
            split = candidate.prefill if process.role == "prefill" else candidate.split
            of_role = [p for p in value.launch.processes if p.role == process.role]
            ranks = meant.candidate["dp"] * len(of_role)
            assert (part["replicas"], ranks) == (len(of_role), split.dp * split.replicas)
            seen["worker"] += "worker" in part
        seen["prefill"] += "prefill" in spec
    assert min(seen.values()) > 3


NODES = [
    (2, {"tp": 8, "pp": 2}, {"tensor": 8, "pipeline": 2}),
    (2, {"tp": 2, "dp": 8}, {"tensor": 2, "data": 8, "dataLocal": 4}),
    (
        4,
        {"dp": 32, "enable_expert_parallel": True},
        {"tensor": 1, "data": 32, "dataLocal": 8, "expert": True},
    ),
]


@pytest.mark.parametrize(("nodes", "split", "parallelism"), NODES)
def test_kserve_counts_the_nodes_of_the_recipe(nodes, split, parallelism):
    spec = made(over_nodes(nodes, **split))["spec"]
    assert spec["parallelism"] == parallelism
    size = parallelism.get("pipeline") or parallelism["data"] // parallelism["dataLocal"]
    assert size == nodes
    told = words(spec["worker"])
    rank = "1" if nodes == 2 else "$(LWS_WORKER_INDEX)"  # the only worker is the first
    assert told[told.index("--node-rank") + 1] == rank
    assert told[told.index("--master-addr") + 1] == "$(LWS_LEADER_ADDRESS)"
    assert not any(word.startswith("--ssl-") for word in told)  # it answers nobody


def test_what_kserve_would_count_otherwise_is_refused():
    for split, says in (
        ({"tp": 16}, "tp 16 × pp 1 × dp 1 runs on 2 nodes"),
        ({"tp": 4, "pp": 4}, "pp 4 × dp 1 runs on 2 nodes"),
        ({"tp": 4, "pp": 2, "dp": 2}, "one pipeline stage per node"),
    ):
        assert says in refusals(over_nodes(2, **split))["kserve-llm"]
    assert "not sglang" in refusals(replace(context(), engine="sglang"))["kserve-llm"]


def test_a_decode_pod_answers_through_the_sidecar():
    spec = made(EXAMPLES["pools-two-nodes"])["spec"]
    decode, prefill = spec["template"], spec["prefill"]["template"]
    assert words(decode)[words(decode).index("--port") + 1] == "8001"
    assert words(prefill)[words(prefill).index("--port") + 1] == "8000"
    assert "automountServiceAccountToken" not in decode  # the sidecar asks which pods there are
    assert prefill["automountServiceAccountToken"] is False
    assert spec["router"] == {"route": {}, "gateway": {}, "scheduler": {}}


def test_copies_are_scheduled_and_one_server_needs_no_scheduler():
    copies = made(context(replicas(4), AMD))["spec"]
    assert (copies["replicas"], "scheduler" in copies["router"]) == (4, True)
    assert "scheduler" not in made(context())["spec"]["router"]


def test_templates_of_kserve_leave_the_words_alone():
    values = options(tensor_parallel_size=8, chat_template="{{ messages }}")
    server = Process("server-0", argv(values), {"A": "{{"}, 0, tuple(range(8)))
    (container,) = made(context(launched((server,), values)))["spec"]["template"]["containers"]
    assert "{{`{{`}} messages }}" in container["args"]
    assert {"name": "A", "value": "{{`{{`}}"} in container["env"]


def test_a_folder_on_the_nodes_is_mounted():
    spec = made(with_parameters(context(), model="/data/llama"))["spec"]
    assert spec["model"]["uri"] == "file:///data/llama"
    place = {"path": "/data/llama", "type": "Directory"}
    assert {"name": "model", "hostPath": place} in spec["template"]["volumes"]
