"""Every refusal has a reason and a remedy; bad input is one line and exit code 2."""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import replace
from typing import Any

import pytest

from recipe_core.launcher import engine, preflight, supervisor
from recipe_core.launcher.machine import Device, Machine
from recipe_core.launcher.plan import load_plan
from tests.fixtures.bundles import Bundle

Capture = pytest.CaptureFixture[str]
CPU = Machine("cpu", (), "EPYC", 2, 8 << 30, 4 << 30)
H100 = replace(
    CPU,
    runtime="cuda",
    devices=tuple(Device(index, "NVIDIA H100 80GB HBM3", 81559 << 20) for index in range(2)),
)
NEEDS = {
    "runtime": "cuda",
    "device": "h100-sxm",
    "title": "NVIDIA H100 SXM5 80 GB",
    "names": ["NVIDIA H100 80GB HBM3"],
    "count": 2,
    "memory_bytes": 81559 << 20,
    "used_bytes": 70 << 30,
}


def checks(bundle: Bundle, capsys: Capture, *words: str) -> tuple[int, dict[str, dict[str, str]]]:
    capsys.readouterr()
    code = bundle.run("--json", "preflight", *words)
    return code, {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}


def on(machine: Machine, monkeypatch: pytest.MonkeyPatch, bundle: Bundle, **change: Any) -> None:
    monkeypatch.setattr(preflight, "detect", lambda: machine)
    bundle.edit(lambda data: data.update(needs={**NEEDS, **change}))


def test_whole_tampered_missing_and_added(bundle, capsys):
    code, found = checks(bundle, capsys)
    assert code == 0
    assert {check["status"] for check in found.values()} == {"ok"}
    assert bundle.run("preflight") == 0
    assert capsys.readouterr().out.startswith("check")
    (bundle.root / "notes.txt").write_text("mine")
    code, found = checks(bundle, capsys)
    assert (code, found["bundle"]["detail"]) == (1, "added: notes.txt")
    assert "belong in run/" in found["bundle"]["hint"]
    (bundle.root / "notes.txt").unlink()
    (bundle.root / "json.py").write_text("print('hello')")
    (bundle.root / "expected.json").write_text("{}")
    code, found = checks(bundle, capsys)
    assert code == 1
    assert found["bundle"]["detail"] == "changed: expected.json; added: json.py"
    (bundle.root / "expected.json").unlink()
    assert "missing: expected.json" in checks(bundle, capsys)[1]["bundle"]["detail"]
    for name in ("../outside", "/etc/passwd", "a/../../b"):
        listed = {"schema_version": 1, "files": {name: "0" * 64}}
        (bundle.root / "MANIFEST.json").write_text(json.dumps(listed))
        assert "outside the bundle" in checks(bundle, capsys)[1]["bundle"]["detail"]


INSTINCT = {"profile": "mi300x", "runtime": "rocm", "names": ["AMD Instinct MI300X"]}
HOPPER = {"profile": "h100-sxm", "runtime": "cuda", "names": ["NVIDIA H100 80GB HBM3"]}
VARIANTS = [
    {"name": "instinct", "kinds": [INSTINCT], "at_least": 2, "at_most": 8},
    {"name": "single", "kinds": [HOPPER], "at_most": 1},
]
MI300X = replace(
    CPU,
    runtime="rocm",
    devices=tuple(Device(index, "AMD Instinct MI300X", 206141652992) for index in range(8)),
)


def test_another_machine_is_told_which_variant_is_for_it(bundle, capsys, monkeypatch):
    on(MI300X, monkeypatch, bundle)
    assert "variant" not in checks(bundle, capsys)[1]  # the bundle has none
    bundle.edit(lambda data: data.update(variants=VARIANTS))
    one_h100, one_mi300x = (replace(m, devices=m.devices[:1]) for m in (H100, MI300X))
    for machine, detail, hint in (
        (MI300X, "for mi300x:8 the recipe has the variant instinct", "mi300x:8 -o OTHER.zip"),
        (one_mi300x, "none of the recipe's variants (instinct, single)", "recipe plan"),
        (one_h100, "for h100-sxm:1 the recipe has the variant single", "--hardware h100-sxm:1"),
        (CPU, "none of the recipe's variants", "recipe plan"),
    ):
        on(machine, monkeypatch, bundle)
        check = checks(bundle, capsys)[1]["variant"]
        assert check["status"] == "warn"
        assert detail in check["detail"]
        assert hint in check["hint"]
    on(H100, monkeypatch, bundle)  # the recipe's own
    assert "variant" not in checks(bundle, capsys)[1]


def test_wrong_runtime(bundle, capsys, monkeypatch):
    on(replace(CPU, notes=("nvidia-smi: driver not loaded",)), monkeypatch, bundle)
    code, found = checks(bundle, capsys)
    assert code == 1
    assert "needs 2 x NVIDIA H100 SXM5 80 GB" in found["device"]["detail"]
    assert "this machine has no GPU (nvidia-smi: driver not loaded)" in found["device"]["detail"]
    assert bundle.run("up") == 1
    assert "preflight: device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("machine", "change", "name", "status", "text"),
    [
        (H100, {}, "device", "ok", "2 x NVIDIA H100 80GB HBM3"),
        (H100, {}, "memory", "ok", "79.65 GiB per device"),
        (H100, {"count": 4}, "device", "FAIL", "the recipe needs 4 x"),
        (H100, {"names": ["NVIDIA H200"]}, "device", "warn", "the recipe is for"),
        (H100, {"used_bytes": 90 << 30}, "memory", "FAIL", "10.35 GiB more"),
        (H100, {"memory_bytes": 96 << 30}, "memory", "warn", "the recipe is for 96.00 GiB"),
        (
            CPU,
            {"runtime": "cpu", "count": 1, "used_bytes": 6 << 30},
            "memory",
            "FAIL",
            "4.00 GiB available, 6.00 GiB planned Free 2.00 GiB",
        ),
    ],
)
def test_devices_and_memory(bundle, capsys, monkeypatch, machine, change, name, status, text):
    monkeypatch.setattr(preflight, "holders", lambda _: [])
    on(machine, monkeypatch, bundle, **change)
    check = checks(bundle, capsys)[1][name]
    assert check["status"] == status
    assert text in f"{check['detail']} {check['hint']}"


def test_missing_engine_names_the_command(bundle, capsys):
    missing = {"program": "no-such-engine", "install": "pip install no-such-engine==1"}
    bundle.edit(lambda data: data["engine"].update(missing))
    code, found = checks(bundle, capsys)
    assert code == 1
    assert found["engine"]["hint"] == "Install it: pip install no-such-engine==1"
    assert bundle.run("up") == 1
    assert "pip install no-such-engine==1" in capsys.readouterr().err


def test_engine_versions_and_missing_modules(bundle, capsys, tmp_path):
    script = tmp_path / "bin" / "pytest-like"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\n")
    script.chmod(0o755)
    bundle.edit(
        lambda data: data["engine"].update(program=str(script), module="pytest", version="0.1")
    )
    check = checks(bundle, capsys)[1]["engine"]
    assert check["status"] == "warn"
    assert "the recipe is for 0.1" in check["detail"]
    assert pytest.__version__ in check["detail"]
    bundle.edit(lambda data: data["engine"].update(requires=["json", "no_such_module"]))
    assert "it needs no_such_module" in checks(bundle, capsys)[1]["engine"]["detail"]


def test_interpreter_of_scripts(tmp_path):
    script = tmp_path / "tool"
    for text, expected in [
        ("#!/opt/venv/bin/python3\n", "/opt/venv/bin/python3"),
        ("#!/bin/sh\n'''exec' \"/a path/bin/python\" \"$0\" \"$@\"\n' '''\n", "/a path/bin/python"),
        ("#!/bin/sh\n'''exec' /long/bin/python3.11 \"$0\" \"$@\"\n", "/long/bin/python3.11"),
        ("#!/bin/bash\necho\n", None),
        ("\x7fELF", None),
    ]:
        script.write_text(text)
        assert engine.interpreter_of(script) == expected
    assert engine.same_version("0.32.0+cpu", "0.32.0")
    assert not engine.same_version("0.33.0", "0.32.0")


def test_models_and_hosts(bundle, capsys, tmp_path, monkeypatch):
    def check(name: str, *words: str) -> str:
        found = checks(bundle, capsys, *words)[1][name]
        return f"{found['status']}: {found['detail']} {found['hint']}"

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
        assert check("port").startswith(f"FAIL: port {bundle.port} on 127.0.0.1 is in use")


def test_devices_of_several_servers(bundle, monkeypatch):
    def change(data: dict[str, Any]) -> None:
        (process,) = data["processes"]
        pairs = {f"server-{n}": {"port_offset": n, "devices": [2 * n, 2 * n + 1]} for n in (0, 1)}
        servers = [{**process, "name": name, **pair} for name, pair in pairs.items()]
        data.update(needs=NEEDS, processes=servers)

    bundle.edit(change)
    plan = load_plan(bundle.root)
    for visible, shown in ((None, ["0,1", "2,3"]), ("4,5,6,7", ["4,5", "6,7"])):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        environments = [supervisor.process_environment(plan, p, "m") for p in plan.processes]
        assert [found["CUDA_VISIBLE_DEVICES"] for found in environments] == shown


def test_placeholders(bundle, tmp_path):
    def change(data: dict[str, Any]) -> None:
        data["processes"][0].update(
            argv=["x", "${host}:${port}", "${other}", "${root}/engine.yaml"], port_offset=3
        )
        data["api"]["body"] = {"a": ["${model}", 1]}

    bundle.edit(change)
    plan = load_plan(bundle.root, model="owner/name", host="0.0.0.0", port=9000)
    assert plan.processes[0].argv == ("x", "0.0.0.0:9003", "${other}", f"{bundle.root}/engine.yaml")
    assert plan.api.body == {"a": ["owner/name", 1]}
    assert plan.address(9003) == "http://127.0.0.1:9003"


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("schema_version", 2, "launch.json.schema_version: expected 1"),
        ("needs.runtime", "tpu", "expected one of cuda, rocm, xpu, metal, cpu, got 'tpu'"),
        ("needs.count", 0, "at least 1, got 0"),
        ("processes", [], "launch.json.processes"),
        ("processes.0.argv", "serve", "processes[0].argv: expected a list of text"),
        ("processes.0.argv", [], "processes[0].argv"),
        ("processes.0.name", "../up", "processes[0].name"),
        ("processes.0.port_offset", 70000, "not between 1 and 65535"),
        ("parameters.port", "8000", "launch.json.parameters.port"),
        ("api.path", "v1", "starts with /"),
        ("workload.mode", "burst", "closed, open, static, offline"),
        ("workload.input_tokens", True, "got True"),
        ("engine", None, "launch.json.engine: expected an object"),
    ],
)
def test_bad_launch_json(bundle, capsys, path, value, text):
    def change(data: Any) -> None:
        *folders, last = path.split(".")
        for folder in folders:
            data = data[int(folder)] if isinstance(data, list) else data[folder]
        data[last] = value

    bundle.edit(change)
    assert bundle.run("preflight") == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1


def test_bad_command_lines(bundle, capsys):
    for line, text in (
        ("", "COMMAND"),
        ("explode", "explode"),
        ("up --port 0", "--port: port 0"),
        ("up --port 70000", "65535"),
        ("up --port x", "--port"),
        ("bench --requests 0", "above 0"),
        ("bench --duration-limit nan", "above 0"),
        ("up --timeout soon", "not a number"),
    ):
        assert bundle.run(*line.split()) == 2
        error = capsys.readouterr().err
        assert text in error
        assert error.count("\n") == 1


def test_no_bundle_and_not_json(bundle, capsys):
    assert bundle.run("--json", "status", "--port", "1") in (0, 1)
    capsys.readouterr()
    (bundle.root / "launch.json").write_text("{")
    assert bundle.run("--json", "up") == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "input"
    (bundle.root / "launch.json").unlink()
    assert bundle.run("up") == 2
    assert "launch.json does not exist" in capsys.readouterr().err
    os.mkfifo(bundle.root / "launch.json")
    assert bundle.run("up") == 2
    assert "launch.json cannot be read as JSON: it is not a plain file" in capsys.readouterr().err
