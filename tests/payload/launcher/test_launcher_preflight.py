"""What is read of a bundle, and checked before it starts: every refusal has a remedy."""

import json
import os
import re
import socket
import sys
from dataclasses import replace
from functools import partial

import pytest

from recipe_core.bundle.write import write_bundle
from recipe_core.payload.launcher import (
    checks as judging,
)
from recipe_core.payload.launcher import (
    engine,
    health,
    keeper_process,
    preflight,
    supervisor,
)
from recipe_core.payload.launcher.devices import Device, Holder
from recipe_core.payload.launcher.limits import OPTIONS, USUAL, Supervision, option_of
from recipe_core.payload.launcher.machine import Machine, Memory
from recipe_core.payload.launcher.needs import Claim, as_if_stopped, refuse_claim
from recipe_core.payload.launcher.plan import load_plan, unknown_nodes
from recipe_core.payload.launcher.run_record import read_steps
from recipe_core.payload.launcher.typed_json import Fields, read_typed
from recipe_core.recipe import make_recipe
from tests.conftest import make_request
from tests.fixtures.fake_world import GIB
from tests.fixtures.recipes import bundle_for_request
from tests.fixtures.rows import over, table

CPU = Machine("cpu", (), "EPYC", 2, 8 * GIB, 4 * GIB)
H100 = replace(
    CPU,
    runtime="cuda",
    devices=tuple(Device(index, "NVIDIA H100 80GB HBM3", 81559 << 20) for index in range(2)),
)
MI300X = replace(
    CPU,
    runtime="rocm",
    devices=tuple(Device(index, "AMD Instinct MI300X", 206141652992) for index in range(8)),
)
WITHOUT_DRIVER = replace(CPU, notes=("nvidia-smi: driver not loaded",))
MACHINES = {"cpu": CPU, "h100": H100, "without driver": WITHOUT_DRIVER}
ROWS = partial(table, "launcher_preflight")
NEEDS = ROWS("needs")


def checks(bundle, *words):
    found = bundle.answers("preflight", "--json", *words, code=None)["checks"]
    return {check["name"]: check for check in found}


def told(check):
    return f"{check['status']}: {check['detail']} {check['hint']}"


@pytest.fixture
def on(bundle, monkeypatch):
    """Puts the bundle on a machine whose memory others hold."""

    def put(machine, held=(), **needs):
        monkeypatch.setattr(judging, "list_holders", lambda _: list(held))
        monkeypatch.setattr(preflight, "detect_machine", lambda: machine)
        bundle.edit(lambda data: data.update(needs={**NEEDS, **needs}))

    return put


def test_whole_tampered_missing_and_added(bundle):
    assert {check["status"] for check in checks(bundle).values()} == {"ok"}
    assert bundle.says(0, "preflight").startswith("check")

    def refuses(detail):
        assert bundle.run("preflight", "--json") == 1
        assert detail in checks(bundle)["bundle"]["detail"]

    (bundle.root / "notes.txt").write_text("mine")
    refuses("added: notes.txt")
    assert "belong in run/" in checks(bundle)["bundle"]["hint"]
    (bundle.root / "notes.txt").unlink()
    (bundle.root / "json.py").write_text("print('hello')")
    (bundle.root / "expected.json").write_text("{}")
    refuses("changed: expected.json; added: json.py")
    (bundle.root / "expected.json").unlink()
    refuses("missing: expected.json")
    for name in ("../outside", "/etc/passwd", "a/../../b"):
        listed = {"schema_version": 1, "files": {name: "0" * 64}}
        (bundle.root / "MANIFEST.json").write_text(json.dumps(listed))
        refuses("outside the bundle")


def test_another_machine_is_told_which_variant_is_for_it(bundle, on):
    on(MI300X)
    assert "variant" not in checks(bundle)  # the bundle has none
    bundle.edit(lambda data: data.update(variants=ROWS("variants")))
    one_h100, one_mi300x = (replace(m, devices=m.devices[:1]) for m in (H100, MI300X))
    for machine, detail, hint in (
        (MI300X, "for mi300x:8 the recipe has the variant instinct", "mi300x:8 -o OTHER.zip"),
        (one_mi300x, "none of the recipe's variants (instinct, single)", "recipe plan"),
        (one_h100, "for h100-sxm:1 the recipe has the variant single", "--hardware h100-sxm:1"),
        (CPU, "none of the recipe's variants", "recipe plan"),
    ):
        on(machine)
        check = checks(bundle)["variant"]
        assert check["status"] == "warn"
        assert detail in check["detail"]
        assert hint in check["hint"]
    on(H100)  # the recipe's own
    assert "variant" not in checks(bundle)


@over("machine change name text", ROWS("devices"))
def test_devices_and_memory(bundle, on, machine, change, name, text):
    on(MACHINES[machine], **change)
    check = checks(bundle)[name]
    assert re.match(text, told(check))
    if check["status"] == "FAIL":
        assert f"preflight: {name}" in bundle.says(1, "up")


NODE = Memory("memory node 0", round(21.84 * GIB), round(17.64 * GIB))
SMALL_CPU = Machine("cpu", (), "EPYC", 2, 24 * GIB, 18 * GIB, memories=(NODE,))
ON_CPU = {"runtime": "cpu", "names": [], "count": 1, "used_bytes": GIB // 7}


def test_a_share_of_the_cpu_that_is_not_free_fails_in_words(bundle, on):
    """0.92 of 21.84 GiB were claimed while 17.64 were free: the engine refused after minutes."""
    holder = Holder(812, "python3 train.py", 4 * GIB)
    on(SMALL_CPU, [holder], **ON_CPU, claim={"share": 0.92})
    memory = checks(bundle)["memory"]
    assert memory["status"] == "FAIL"
    assert "17.64 GiB of 21.84 GiB are free on memory node 0" in memory["detail"]
    assert "the engine claims 20.09 GiB" in memory["detail"]
    assert "pid 812 (python3 train.py) holds 4.00 GiB" in memory["detail"]
    assert "memory_fraction of the candidate to 0.79 " in memory["hint"]
    assert "memory_fraction" in bundle.says(1, "up")


@over("claim environment status", ROWS("claims"))
def test_a_lower_share_or_a_stated_size_passes(bundle, on, monkeypatch, claim, environment, status):
    monkeypatch.setenv("SPACE_GIB", environment)
    on(SMALL_CPU, **ON_CPU, claim=claim)
    assert checks(bundle)["memory"]["status"] == status


def with_free(*free_bytes):
    """The two H100 with so much free memory."""
    devices = zip(H100.devices, free_bytes, strict=True)
    return replace(H100, devices=tuple(replace(each, free_bytes=free) for each, free in devices))


def test_a_device_that_another_process_fills(bundle, on):
    held, small = [Holder(99, "python3", 8 * GIB)], {"used_bytes": 20 * GIB}
    busy = with_free(*((81559 - used) << 20 for used in (600, 9000)))
    on(busy, held, **small, claim={"share": 0.92})
    memory = checks(bundle)["memory"]
    assert memory["status"] == "FAIL"
    assert "on device 1" in memory["detail"]
    assert "pid 99" in memory["detail"]
    assert "to 0.87 " in memory["hint"]
    for machine, needs in (
        (busy, small | {"claim": {"share": 0.92}, "count": 1}),
        (busy, small),  # an engine that takes what it uses
        # What an idle device's driver keeps does not count against a share.
        (with_free(80951 << 20, 80951 << 20), {"claim": {"share": 0.99}}),
    ):
        on(machine, held, **needs)
        assert checks(bundle)["memory"]["status"] == "ok"
    on(busy, claim={"share": 1.2})
    assert "needs.claim.share" in bundle.says(2, "preflight")


def test_what_runs_does_not_count_against_itself(bundle, on):
    """A keeper that looks at its own machine sees the share that its engine holds as free."""
    full = with_free(5 * GIB, 5 * GIB)
    on(full, used_bytes=GIB, claim={"share": 0.92})
    plan = load_plan(bundle.root)
    assert judging.find_unmet(plan.needs, full)
    assert judging.find_unmet(plan.needs, as_if_stopped(full, plan.needs)) is None


def test_the_share_in_the_fix_passes():
    claim = Claim(0.92, programs_bytes=GIB)
    detail, hint = refuse_claim(claim, NODE, GIB, exact=True)
    assert "beside 1.00 GiB of its own processes" in detail
    share = float(hint.split(" to ")[1].split()[0])
    assert refuse_claim(replace(claim, share=share), NODE, GIB, exact=True) is None
    _, hint = refuse_claim(replace(claim, size_bytes=20 * GIB), NODE, GIB, exact=True)
    assert "to 16 GiB" in hint
    assert refuse_claim(replace(claim, size_bytes=16 * GIB), NODE, GIB, exact=True) is None
    _, hint = refuse_claim(Claim(0.9), Memory("device 0", 80 * GIB, 10 * GIB), 20 * GIB, exact=True)
    assert hint.startswith("Free 62.00 GiB")  # no share would help


def test_a_bundle_of_vllm_states_its_claim():
    launch = json.loads(bundle_for_request(make_request()).files["launch.json"])
    words = launch["processes"][0]["argv"]
    share = float(words[words.index("--gpu-memory-utilization") + 1])
    assert launch["needs"]["claim"] == {"share": share}


def test_missing_engines_other_versions_and_missing_modules(bundle, tmp_path):
    missing = {"program": "no-such-engine", "install": "pip install no-such-engine==1"}
    bundle.edit(lambda data: data["engine"].update(missing))
    assert checks(bundle)["engine"]["hint"] == "Install it: pip install no-such-engine==1"
    assert "pip install no-such-engine==1" in bundle.says(1, "up")
    script = tmp_path / "pytest-like"
    script.write_text(f"#!{sys.executable}\n")
    script.chmod(0o755)
    found = {"program": str(script), "module": "pytest", "version": "0.1"}
    bundle.edit(lambda data: data["engine"].update(found))
    check = checks(bundle)["engine"]
    assert check["status"] == "warn"
    assert "the recipe is for 0.1" in check["detail"]
    assert pytest.__version__ in check["detail"]
    bundle.edit(lambda data: data["engine"].update(requires=["json", "no_such_module"]))
    assert "it needs no_such_module" in checks(bundle)["engine"]["detail"]
    for text, expected in ROWS("scripts"):
        script.write_text(text)
        assert engine.read_script_interpreter(script) == expected
    assert engine.same_version("0.32.0+cpu", "0.32.0")
    assert not engine.same_version("0.33.0", "0.32.0")


def test_models_and_hosts(bundle, tmp_path, monkeypatch):
    def check(name, *words):
        return told(checks(bundle, *words)[name])

    assert "--model" in check("model", "--model", str(tmp_path / "none"))
    assert "no config.json" in check("model", "--model", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert "will download it" in check("model", "--model", "owner/name")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert check("model", "--model", "owner/name").startswith("warn: ")
    (tmp_path / "models--owner--name").mkdir()
    assert check("model", "--model", "owner/name").startswith("ok: ")
    assert "not an address of this machine" in check("port", "--host", "192.0.2.1")
    with socket.create_server(("127.0.0.1", bundle.port)):
        taken = f"port {bundle.port} on 127.0.0.1 is in use"
        assert check("port").startswith(f"FAIL: {taken}")
        refusal = bundle.says(1, "up")
    assert taken in refusal
    assert "--port" in refusal
    assert not bundle.up


@pytest.mark.parametrize(("path", "value", "text"), ROWS("launch"))
def test_bad_launch_json(bundle, path, value, text):
    def change(data):
        *folders, last = path.split(".")
        for folder in folders:
            data = data[int(folder)] if isinstance(data, list) else data[folder]
        data[last] = value

    bundle.edit(change)
    refusal = bundle.says(2, "preflight")
    assert text in refusal
    assert refusal.count("\n") == 1
    if path == "supervision":
        assert repr(*value.values()) in refusal


@over("line text", ROWS("commands"))
def test_bad_command_lines(bundle, line, text):
    refusal = bundle.says(2, *line.split())
    assert text in refusal
    assert refusal.count("\n") == 1


def test_no_bundle_and_not_json(bundle):
    assert bundle.run("--json", "status", "--port", "1") in (0, 1)
    path = bundle.root / "launch.json"
    path.write_text("{")
    assert bundle.answers("--json", "up", code=2)["error"]["code"] == "input"
    path.unlink()
    assert "launch.json does not exist" in bundle.says(2, "up")
    os.mkfifo(path)
    plain = "launch.json cannot be read as JSON: it is not a plain file"
    assert plain in bundle.says(2, "up")


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
    assert keeper_process.metrics_port(plan) == 10_000
    assert keeper_process.metrics_port(load_plan(bundle.root, port=65000)) == 64000


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


@over("workload most load", ROWS("targets"))
def test_the_target_is_the_recipes(bundle, workload, most, load):
    usual = {"mode": "closed", "concurrency": 3, "batch": None, "request_rate": None}
    bundle.edit(lambda data: data["workload"].update(usual | workload))
    path = bundle.root / "expected.json"
    expected = health.read_target(load_plan(bundle.root), path)
    assert (expected.tpot_most_s, expected.load_most) == (most, load)
    assert (expected.tpot_s, expected.first_token_s) == (0.002, 0.01)
    if "request_rate" in workload:  # an open load is that of the slowest expected requests
        data = json.loads(path.read_text())
        data["bands"]["request_latency_s"] = [1.0, 2.0]
        path.write_text(json.dumps(data))
        assert health.read_target(load_plan(bundle.root), path).load_most == 10
        path.write_text("[")  # a damaged estimate expects nothing
        assert health.read_target(load_plan(bundle.root), path).tpot_most_s is None


def test_limits_are_the_bundles_own_or_the_usual_and_options_of_up(bundle, capsys):
    assert read_typed(Supervision, Fields({}, "launch.json")) == USUAL
    stated = Fields({"hang_s": 7, "crash_budget": 0}, "launch.json")
    assert read_typed(Supervision, stated) == replace(USUAL, hang_s=7.0, crash_budget=0)
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
