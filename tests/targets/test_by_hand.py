"""What is typed on each node is what the launcher starts, and what starts a split is what its
bundle starts; the place is a form and a recipe for another place the same recipe.
"""

import re
import shlex
from dataclasses import replace

import pytest

from recipe_core.base.errors import InputError, NoAnswer
from recipe_core.bundle.replace import replace_folder
from recipe_core.payload.launcher.plan import load_plan
from recipe_core.plans.plans import plan_splits
from recipe_core.plans.rank import refused_rows
from recipe_core.plans.splits import broken_rules, row_key, row_reasons
from recipe_core.recipe import Additions, make_recipe, with_parameters
from recipe_core.request.edit import change, select_split
from recipe_core.request.link import from_query
from recipe_core.targets import OF_POLICIES, SERVING, TRAINING, Parameters, form
from recipe_core.targets.by_hand import (
    TITLES,
    node_commands,
    read_addresses,
    start_command,
    target_uses,
)
from tests.conftest import make_request
from tests.fixtures.recipes import bundle_for_request, recipe_of
from tests.fixtures.rows import over, table

QUERIES = table("report", "queries")
ADDRESSES = {1: ("127.0.0.1",), 2: ("10.0.0.1", "10.0.0.2")}


def words_of(command):
    return [word for word in shlex.split(command) if word != "\n"]


def bundle(name):
    return bundle_for_request(from_query(QUERIES[name])[0])


@over("name", QUERIES)
def test_commands_are_those_that_the_launcher_runs(name, tmp_path):
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
            typed = words_of(command)
            run, root = str(plan.run), str(plan.root)
            argv = [word.replace(run, "$PWD/run").replace(root, "$PWD") for word in process.argv]
            assert typed[-len(argv) :] == argv
            settings = dict(word.split("=", 1) for word in typed[: -len(argv)])
            visible = settings.pop("CUDA_VISIBLE_DEVICES", None)
            assert settings == {k: value.replace(root, "$PWD") for k, value in process.env.items()}
            several = len(plan.processes) > 1 and process.devices
            assert visible == (",".join(map(str, process.devices)) if several else None)


def test_no_line_of_a_command_parts_a_flag_from_its_value():
    (_, command), *_ = node_commands(bundle("serving").context, ADDRESSES[2])[0].processes
    lines = command.split(" \\\n")
    assert len(lines) > 2
    assert max(map(len, lines)) <= 100
    assert not [line for line in lines[:-1] if re.search(r" --[\w-]+$", line)]


def test_addresses_are_read_or_refused():
    assert read_addresses(" a.example , 10.0.0.2,", 2) == ("a.example", "10.0.0.2")
    assert read_addresses("", 1) == ("127.0.0.1",)
    assert read_addresses("", 2) == ("node0", "node1")
    with pytest.raises(InputError, match="has 1 addresses; the recipe runs on 2"):
        read_addresses("a", 2)
    with pytest.raises(InputError, match="not an address"):
        read_addresses("a,b; rm -rf /", 2)


def test_the_form_asks_for_every_parameter_that_is_read():
    asked = [each.name for each in form.every_field()]
    assert sorted(asked) == sorted(Parameters.model_fields)
    context = bundle("serving").context
    names = {each.name for asked in form.form_groups(context, SERVING).values() for each in asked}
    assert set(Parameters.model_fields) - names == {"device_groups", "target"}
    everywhere = form.form_groups(replace(context, vendor="amd"), SERVING)["Everywhere"]
    assert "device_groups" in {each.name for each in everywhere}
    assert list(form.form_groups(context, ["docker"])) == ["Everywhere"]
    assert form.parameter_default("port", context) == "8000"
    assert form.parameter_default("image", context).startswith("vllm/vllm-openai:v")
    assert form.parameter_default("partition", context) == ""


def test_a_recipe_for_another_place_is_the_recipe_made_there():
    recipe, image = recipe_of(), {"image": "registry.example/vllm:1.2"}
    for place in ({"namespace": "llm", "port": 9000}, image, {}):
        parameters = Parameters.model_validate(place)
        made = make_recipe(make_request(), Additions(parameters=parameters))
        assert with_parameters(recipe, parameters) == made
    moving = Parameters.model_construct(**(Parameters().model_dump() | {"image": "vllm"}))
    with pytest.raises(InputError, match=r"parameters\.image"):
        with_parameters(recipe, moving)


def test_main_files_have_commands_and_every_target_has_a_name():
    of_policies = {name for targets in OF_POLICIES.values() for name in targets}
    assert set(TITLES) == set(SERVING) | set(TRAINING) | of_policies
    found = {use.title: use for use in target_uses(bundle("training").files, "name", "training")}
    assert found["Slurm"].start == "sbatch targets/slurm/job.sbatch"
    assert found["SkyPilot"].start == "sky jobs launch targets/skypilot/task.yaml"


@over("name", QUERIES)
def test_the_command_is_the_first_that_the_bundle_types(name):
    request = from_query(QUERIES[name])[0]
    board = plan_splits(request)
    row = int(board.order[min(1, len(board.order) - 1)])
    made = bundle_for_request(change(request, select_split(request, row_key(board, row))))
    addresses = read_addresses("", made.context.nodes)
    (_, typed), *_ = node_commands(made.context, addresses)[0].processes
    visible = re.compile(r"(CUDA|HIP)_VISIBLE_DEVICES=")
    words = [word for word in words_of(typed) if not visible.match(word)]
    assert words_of(start_command(board, row)) == words


def test_a_percentile_is_not_simulated_for_a_command(monkeypatch):
    board = plan_splits(make_request(objective={"limits": {"ttft_ms": 8000, "percentile": 95}}))
    simulate = "recipe_core.estimates.serving.estimates.simulate_serving"
    monkeypatch.setattr(simulate, lambda *_, **__: pytest.fail("simulated"))
    assert "vllm serve" in start_command(board, int(board.order[0]))


def test_a_split_that_its_framework_cannot_be_told_says_why():
    training = {"workload.kind": "training", "workload.tokens": "1e10"}
    board = plan_splits(from_query({"model": "Qwen/Qwen3-1.7B", **training})[0])
    stages = board.columns["zero_stage"]
    rows = [int(row) for row in refused_rows(board) if stages[row] == 1]
    refused = next(row for row in rows if broken_rules(board, row) == {"launch-sharding"})
    assert any("ZeRO-2 or 3" in reason for reason in row_reasons(board, refused))
    with pytest.raises(NoAnswer, match="ZeRO-2 or 3"):
        start_command(board, refused)
