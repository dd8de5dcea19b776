"""What is typed on each node is what the launcher starts; the place is a form and a recipe for
another place the same recipe.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from recipe_core.base.errors import InputError
from recipe_core.bundle.replace import replace_folder
from recipe_core.bundle.write import Bundle
from recipe_core.launcher.plan import load_plan
from recipe_core.recipe import Additions, make_recipe, with_parameters
from recipe_core.request.link import from_query
from recipe_core.targets import OF_POLICIES, SERVING, TRAINING, Parameters, form
from recipe_core.targets.by_hand import node_commands, read_addresses
from recipe_core.targets.use import TITLES, uses
from tests.conftest import make_request
from tests.fixtures.recipes import bundle_for_request, recipe_of
from tests.present.test_report import QUERIES

ADDRESSES = {1: ("127.0.0.1",), 2: ("10.0.0.1", "10.0.0.2")}


def bundle(name: str) -> Bundle:
    return bundle_for_request(from_query(QUERIES[name])[0])


@pytest.mark.parametrize("name", QUERIES)
def test_commands_are_those_that_the_launcher_runs(name: str, tmp_path: Path) -> None:
    made = bundle(name)
    replace_folder(tmp_path / "bundle", dict(made.files))
    nodes = made.context.nodes
    for found in node_commands(made.context, ADDRESSES[nodes]):
        words = shlex.split(found.launcher)
        assert words[:3] == ["python", "launch.py", "up"]
        node, head = found.node if nodes > 1 else None, ",".join(ADDRESSES[nodes])
        plan = load_plan(tmp_path / "bundle", node=node, head=head)
        assert [name for name, _ in found.processes] == [process.name for process in plan.processes]
        for (_, command), process in zip(found.processes, plan.processes, strict=True):
            typed = [word for word in shlex.split(command) if word != "\n"]
            run, root = str(plan.run), str(plan.root)
            argv = [word.replace(run, "run").replace(root, ".") for word in process.argv]
            assert typed[-len(argv) :] == argv
            settings = dict(word.split("=", 1) for word in typed[: -len(argv)])
            visible = settings.pop("CUDA_VISIBLE_DEVICES", None)
            assert settings == {k: value.replace(root, ".") for k, value in process.env.items()}
            several = len(plan.processes) > 1 and process.devices
            assert visible == (",".join(map(str, process.devices)) if several else None)


def test_no_line_of_a_command_parts_a_flag_from_its_value() -> None:
    (_, command), *_ = node_commands(bundle("serving").context, ADDRESSES[2])[0].processes
    lines = command.split(" \\\n")
    assert len(lines) > 2
    assert max(map(len, lines)) <= 100
    assert not [line for line in lines[:-1] if re.search(r" --[\w-]+$", line)]


def test_addresses_are_read_or_refused() -> None:
    assert read_addresses(" a.example , 10.0.0.2,", 2) == ("a.example", "10.0.0.2")
    assert read_addresses("", 1) == ("127.0.0.1",)
    assert read_addresses("", 2) == ("node0", "node1")
    with pytest.raises(InputError, match="has 1 addresses; the recipe runs on 2"):
        read_addresses("a", 2)
    with pytest.raises(InputError, match="not an address"):
        read_addresses("a,b; rm -rf /", 2)


def test_the_form_asks_for_every_parameter_and_every_target_has_a_name() -> None:
    asked = [each.name for each in (*form.EVERYWHERE, *form.KUBERNETES, *form.CLUSTERS)]
    assert sorted(asked) == sorted(Parameters.model_fields)
    of_policies = {name for targets in OF_POLICIES.values() for name in targets}
    assert set(TITLES) == set(SERVING) | set(TRAINING) | of_policies


def test_the_form_asks_only_for_what_is_read() -> None:
    context = bundle("serving").context
    names = {each.name for asked in form.groups(context, SERVING).values() for each in asked}
    assert set(Parameters.model_fields) - names == {"device_groups"}
    everywhere = form.groups(replace(context, vendor="amd"), SERVING)["Everywhere"]
    assert "device_groups" in {each.name for each in everywhere}
    assert list(form.groups(context, ["docker"])) == ["Everywhere"]
    assert form.default("port", context) == "8000"
    assert form.default("image", context).startswith("vllm/vllm-openai:v")
    assert form.default("partition", context) == ""


def test_a_recipe_for_another_place_is_the_recipe_made_there() -> None:
    recipe, image = recipe_of(), {"image": "registry.example/vllm:1.2"}
    for place in ({"namespace": "llm", "port": 9000}, image, {}):
        parameters = Parameters.model_validate(place)
        made = make_recipe(make_request(), Additions(parameters=parameters))
        assert with_parameters(recipe, parameters) == made
    moving = Parameters.model_construct(**(Parameters().model_dump() | {"image": "vllm"}))
    with pytest.raises(InputError, match=r"parameters\.image"):
        with_parameters(recipe, moving)


def test_main_files_have_commands() -> None:
    found = {use.title: use for use in uses(bundle("training").files, "name", "training")}
    assert found["Slurm"].start == "sbatch targets/slurm/job.sbatch"
    assert found["SkyPilot"].start == "sky jobs launch targets/skypilot/task.yaml"
