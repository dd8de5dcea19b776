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
        served = short_name(deployment.setting.model.name)
        asked = replace(
            deployment,
            engine_options=options,
            environment=draw.choice(VARIABLES),
            served_name=served,
        )
        try:
            started = launch(asked)
        except NoAnswer:
            continue
        engines = (
            1 if asked.candidate.ep > 1 else len({process.group for process in started.processes})
        )
        if asked.candidate.prefill is None and asked.candidate.replicas == 1 and engines == 1:
            yield asked, started


def words_of(deployment, process):
    """The words of the first server as somebody types them."""
    typed = {
        "${model}": deployment.setting.model.name,
        "${host}": "127.0.0.1",
        "${port}": "8000",
        "${head}": "10.0.0.1",
    }
    words = list(process.argv)
    for name, value in (typed | {"${node0}": "10.0.0.1"}).items():
        words = [word.replace(name, value) for word in words]
    return words[words.index("--") + 1 :] if "--" in words else words


def as_text(deployment, process):
    return shlex.join(
        [
            "env",
            *(f"{name}={value}" for name, value in process.env.items()),
            *words_of(deployment, process),
        ]
    )


def as_published(deployment, process):
    """Public recipe JSON: words, variables, an image, hardware."""
    cluster = deployment.setting.cluster
    rendered = {
        "argv": words_of(deployment, process),
        "env": process.env,
        "docker_image": "example/engine:v1",
        "node_count": cluster.nodes,
    }
    return read_published({"recommended_command": rendered | {"hardware": cluster.device.name}})


def as_container(deployment, process):
    """A docker run whose image starts the engine by itself."""
    words, (engine, image, skip) = (
        words_of(deployment, process),
        IMAGES[deployment.candidate.engine],
    )
    env = [word for name, value in process.env.items() for word in ("--env", f"{name}={value}")]
    return shlex.join(
        [
            "docker",
            "run",
            "--gpus",
            "all",
            "--ipc=host",
            *env,
            image,
            *(words[skip:] if engine else words),
        ]
    )


IMAGES = {
    "vllm": (True, "vllm/vllm-openai:v0.32.0", 2),
    "sglang": (False, "lmsysorg/sglang:v0.5.23", 0),
}


def processes(started):
    """Everything about processes that is the same on every machine."""
    return [(p.argv, p.env, p.port_offset, p.devices, p.node, p.role) for p in started.processes]


@pytest.mark.parametrize("form", [as_text, as_published, as_container])
@pytest.mark.parametrize("name", PASSED)
def test_what_is_started_converts_to_what_is_started(name, form):
    seen = Counter()
    for deployment, started in drawn(name):
        cluster, first = deployment.setting.cluster, started.processes[0]
        ground = Ground.of(
            hardware=f"{cluster.device.name}:{cluster.per_node}",
            nodes=cluster.nodes,
            acceptance=ACCEPTANCE,
        )
        try:
            found = convert(form(deployment, first), ground)
        except NoAnswer:  # drawn without a look at memory
            seen["too large"] += 1
            continue
        again = relaunch(found.recipe)
        assert processes(again) == processes(started)
        assert {k: v for k, v in again.options.items() if k not in WAYS} == {
            k: v for k, v in started.options.items() if k not in WAYS
        }
        assert found.recipe.max_context == deployment.max_context
        assert found.lost == ()
        draft = deployment.candidate.speculative
        seen.update(
            draft=draft is not None,
            spread=started.nodes > 1,
            options=bool(found.carried),
            converted=True,
        )
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
        cluster = deployment.setting.cluster
        ground = Ground.of(
            hardware=f"{cluster.device.name}:{cluster.per_node}",
            nodes=cluster.nodes,
            acceptance=ACCEPTANCE,
        )
        try:
            found = convert(read_published(document), ground)
        except NoAnswer:
            continue
        assert [p.argv for p in relaunch(found.recipe).processes] == [
            p.argv for p in started.processes
        ]
        assert found.lost == ()
        seen.update(converted=True, draft=deployment.candidate.speculative is not None)
    assert seen["converted"] > 8
    assert seen["draft"]
