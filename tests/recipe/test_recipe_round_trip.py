"""A recipe's commands, converted back: same candidate, same processes, nothing lost."""

from __future__ import annotations

import random
import shlex
from collections import Counter
from dataclasses import replace

import pytest
import yaml

from recipe_core.base.errors import NoAnswer
from recipe_core.commands.ground import Ground
from recipe_core.launch.serving.start import launch
from recipe_core.launch.serving.vllm_ranks import WAYS
from recipe_core.recipe import relaunch
from recipe_core.recipe.convert import convert
from recipe_core.recipe.published import read_published
from recipe_core.request.describe import short_name
from tests.engines.test_engines_ranks import ASKED
from tests.fixtures.deployments import deployments

COUNT = 80
ACCEPTANCE = 0.7  # of the drafts that are drawn; a command does not say it
PASSED = {
    "vllm": [
        {},
        {"tool_call_parser": "hermes", "enable_auto_tool_choice": True},
        {"seed": 7, "reasoning_parser": "qwen3"},
        *ASKED.values(),
    ],
    "sglang": [
        {},
        {"tool_call_parser": "qwen25", "reasoning_parser": "qwen3"},
        {"random_seed": 7, "schedule_policy": "fcfs"},
    ],
}
VARIABLES = [{}, {"NCCL_DEBUG": "WARN"}, {"NCCL_SOCKET_IFNAME": "ens3", "NCCL_IB_HCA": "mlx5_0"}]


def drawn(name):
    """Random deployments of one engine, with user options and variables, and their launches."""
    draw = random.Random(9)
    for deployment in deployments(name, COUNT, seed=21):
        options = draw.choice(PASSED[name])
        own = {"engine_options": options, "environment": draw.choice(VARIABLES)}
        served = short_name(deployment.setting.model.name)
        asked = replace(deployment, served_name=served, **own)
        try:
            started = launch(asked)
        except NoAnswer:
            continue
        groups = {process.group for process in started.processes}
        engines = 1 if asked.candidate.ep > 1 else len(groups)
        if asked.candidate.prefill is None and asked.candidate.replicas == 1 and engines == 1:
            yield asked, started


def words_of(deployment, process):
    """The words of the first server as somebody types them."""
    typed = {"${model}": deployment.setting.model.name, "${host}": "127.0.0.1", "${port}": "8000"}
    words = list(process.argv)
    for name, value in (typed | dict.fromkeys(("${head}", "${node0}"), "10.0.0.1")).items():
        words = [word.replace(name, value) for word in words]
    return words[words.index("--") + 1 :] if "--" in words else words


def ground_of(deployment):
    cluster = deployment.setting.cluster
    hardware = f"{cluster.device.name}:{cluster.per_node}"
    return Ground.of(hardware=hardware, nodes=cluster.nodes, acceptance=ACCEPTANCE)


def as_text(deployment, process):
    variables = [f"{name}={value}" for name, value in process.env.items()]
    return shlex.join(["env", *variables, *words_of(deployment, process)])


def as_published(deployment, process):
    """Public recipe JSON: words, variables, an image, hardware."""
    cluster = deployment.setting.cluster
    rendered = {"argv": words_of(deployment, process), "env": process.env}
    rendered |= {"hardware": cluster.device.name, "node_count": cluster.nodes}
    return read_published({"recommended_command": rendered | {"docker_image": "example/engine:v1"}})


def as_container(deployment, process):
    """A docker run whose image starts the engine by itself."""
    image, skip = IMAGES[deployment.candidate.engine]
    env = [word for name, value in process.env.items() for word in ("--env", f"{name}={value}")]
    docker = ["docker", "run", "--gpus", "all", "--ipc=host", *env, image]
    return shlex.join([*docker, *words_of(deployment, process)[skip:]])


IMAGES = {"vllm": ("vllm/vllm-openai:v0.32.0", 2), "sglang": ("lmsysorg/sglang:v0.5.23", 0)}


def processes(started):
    """Everything about processes that is the same on every machine."""
    return [(p.argv, p.env, p.port_offset, p.devices, p.node, p.role) for p in started.processes]


AT_NIGHT = [pytest.param(form, marks=pytest.mark.nightly) for form in (as_published, as_container)]


@pytest.mark.parametrize("form", [as_text, *AT_NIGHT])
@pytest.mark.parametrize("name", PASSED)
def test_what_is_started_converts_to_what_is_started(name, form):
    seen = Counter()
    for deployment, started in drawn(name):
        try:
            found = convert(form(deployment, started.processes[0]), ground_of(deployment))
        except NoAnswer:  # drawn without a look at memory
            seen["too large"] += 1
            continue
        again = relaunch(found.recipe)
        assert processes(again) == processes(started)
        own, options = (
            {name: value for name, value in each.options.items() if name not in WAYS}
            for each in (again, started)
        )
        assert own == options
        assert found.recipe.max_context == deployment.max_context
        assert found.lost == ()
        seen.update(converted=True, draft=deployment.candidate.speculative is not None)
        seen.update(spread=started.nodes > 1, options=bool(found.carried))
    assert seen["converted"] > 8
    assert min(seen["draft"], seen["spread"], seen["options"]) > 1


@pytest.mark.parametrize("name", PASSED)
def test_a_file_of_options_converts_to_what_is_started(name):
    """vLLM's ``--config`` file and SGLang's: options by name, as a recipe records them."""
    seen = Counter()
    for deployment, started in drawn(name):
        if started.nodes > 1 or len(started.processes) > 1:
            continue  # such a file is one process's
        typed = {"${model}": deployment.setting.model.name, "${host}": "127.0.0.1", "${port}": 8000}
        options = {
            option: typed.get(value, value) if isinstance(value, str) else value
            for option, value in started.options.items()
        }
        options |= {"model": deployment.setting.model.name} if name == "vllm" else {}
        document = yaml.safe_load(yaml.safe_dump(options, sort_keys=False))
        try:
            found = convert(read_published(document), ground_of(deployment))
        except NoAnswer:
            continue
        own, words = (
            [p.argv for p in each.processes] for each in (relaunch(found.recipe), started)
        )
        assert own == words
        assert found.lost == ()
        seen.update(converted=True, draft=deployment.candidate.speculative is not None)
    assert seen["converted"] > 8
    assert seen["draft"]
