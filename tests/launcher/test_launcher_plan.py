"""What a launcher reads of a bundle: words of processes, addresses, targets and limits."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from recipe_core.bundle.write import write_bundle
from recipe_core.launcher import keeping, observe, supervisor
from recipe_core.launcher.fields import Fields
from recipe_core.launcher.plan import load_plan, unknown_nodes
from recipe_core.launcher.steps import read_steps
from recipe_core.launcher.supervision import OPTIONS, USUAL, option_of, read_supervision
from recipe_core.recipe import make_recipe
from tests.conftest import make_request
from tests.fixtures.rows import over


def test_placeholders(bundle):
    def change(data):
        argv = ["x", "${host}:${port}", "${other}", "${root}/engine.yaml"]
        data["processes"][0].update(argv=argv, port_offset=3)
        data["api"]["body"] = {"a": ["${model}", 1]}

    bundle.edit(change)
    plan = load_plan(bundle.root, model="owner/name", host="0.0.0.0", port=9000)
    assert plan.processes[0].argv == ("x", "0.0.0.0:9003", "${other}", f"{bundle.root}/engine.yaml")
    assert plan.api.body == {"a": ["owner/name", 1]}
    assert plan.address(9003) == "http://127.0.0.1:9003"
    assert keeping.metrics_port(plan) == 10_000
    assert keeping.metrics_port(load_plan(bundle.root, port=65000)) == 64000


def test_devices_of_several_servers(bundle, monkeypatch):
    def change(data):
        (process,) = data["processes"]
        pairs = {f"server-{n}": {"port_offset": n, "devices": [2 * n, 2 * n + 1]} for n in (0, 1)}
        data["processes"] = [{**process, "name": name, **pair} for name, pair in pairs.items()]
        data["needs"] |= {"runtime": "cuda", "count": 2}

    bundle.edit(change)
    plan = load_plan(bundle.root)
    for visible, shown in ((None, ["0,1", "2,3"]), ("4,5,6,7", ["4,5", "6,7"])):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        environments = [supervisor.process_environment(plan, p, "m") for p in plan.processes]
        assert [found["CUDA_VISIBLE_DEVICES"] for found in environments] == shown


def test_users_ask_the_router_and_not_the_pools_behind_it(bundle):
    def pools(data):
        (first,) = data["processes"]
        roles = {"prefill": 1, "decode": 2, "router": 0}
        data["processes"] = [
            first | {"name": role, "role": role, "port_offset": offset}
            for role, offset in roles.items()
        ]

    bundle.edit(pools)
    plan = load_plan(bundle.root)
    assert [process.name for process in plan.answering] == ["prefill", "decode", "router"]
    assert [process.name for process in plan.entrances] == ["router"]


@pytest.mark.parametrize("nodes", [1, 2])
def test_pools_find_each_other_once_every_address_is_known(tmp_path, nodes):
    split = {"tp": 2 * nodes, "pp": 1, "dp": 1, "replicas": 2}
    candidate = split | {"engine": "vllm", "prefill": {"tp": 2 * nodes, "replicas": 2}}
    request = make_request("Qwen/Qwen3-32B", "h100-sxm", 8, nodes, candidate=candidate)
    bundle = write_bundle(make_recipe(request), tmp_path / "bundle")
    if nodes == 1:
        plan = load_plan(bundle, port=9000)
        wanted = [f"http://127.0.0.1:{9001 + n}" for n in range(4)]
        assert [word for word in plan.processes[0].argv if word.startswith("http")] == wanted
    else:
        assert unknown_nodes(load_plan(bundle, node=0, head="10.0.0.1")) == [1]
        plan = load_plan(bundle, node=0, head="10.0.0.1,10.0.0.2")
        assert any(word.startswith("http://10.0.0.2:") for word in plan.processes[0].argv)
    assert unknown_nodes(plan) == []


@over(
    "workload most load",
    [
        ({}, 0.004, 3),
        ({"mode": "static", "concurrency": None, "batch": 8}, 0.004, 8),
        ({"mode": "offline", "concurrency": None}, 0.004, None),
        # Which load is more than planned is not known.
        ({"mode": "open", "concurrency": None, "request_rate": 5.0}, None, None),
    ],
)
def test_the_target_is_the_recipes(bundle, workload, most, load):
    usual = {"mode": "closed", "concurrency": 3, "batch": None, "request_rate": None}
    bundle.edit(lambda data: data["workload"].update(usual | workload))
    path = bundle.root / "expected.json"
    expected = observe.target(load_plan(bundle.root), path)
    assert (expected.tpot_most_s, expected.load_most) == (most, load)
    assert (expected.tpot_s, expected.first_token_s) == (0.002, 0.01)
    if "request_rate" in workload:  # an open load is that of the slowest expected requests
        data = json.loads(path.read_text())
        data["bands"]["request_latency_s"] = [1.0, 2.0]
        path.write_text(json.dumps(data))
        assert observe.target(load_plan(bundle.root), path).load_most == 10
        path.write_text("[")  # a damaged estimate expects nothing
        assert observe.target(load_plan(bundle.root), path).tpot_most_s is None


def test_limits_are_the_bundles_own_or_the_usual_and_options_of_up(bundle, capsys):
    assert read_supervision(Fields({}, "launch.json")) == USUAL
    stated = Fields({"supervision": {"hang_s": 7, "crash_budget": 0}}, "launch.json")
    assert read_supervision(stated) == replace(USUAL, hang_s=7.0, crash_budget=0)
    assert USUAL.with_options({"hang_s": None, "poll_s": 2.0}) == replace(USUAL, poll_s=2.0)
    with pytest.raises(SystemExit):
        bundle.run("up", "--help")
    text = capsys.readouterr().out
    for name in OPTIONS:
        assert f"{option_of(name)} " in text
        assert f"(usually {getattr(USUAL, name):g})" in " ".join(text.split())
    assert " keep " not in text


def test_a_row_cut_short_is_left_out(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss,mfu\n1,5.0,\n2,4.0\n3,nan,0.5\n")
    rows = [(step.number, step.get("loss"), step.get("mfu")) for step in read_steps(path)]
    assert rows == [(1, 5.0, None), (3, None, 0.5)]
