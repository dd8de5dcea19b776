"""Every refusal has a reason and a remedy; bad input is one line and exit code 2."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recipe_core.launcher import engine, preflight, supervisor
from recipe_core.launcher.machine import Device, Machine
from recipe_core.launcher.plan import load_plan
from tests.fixtures.bundles import Bundle

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


def checks(
    bundle: Bundle, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, dict[str, dict[str, str]]]:
    capsys.readouterr()
    code = bundle.run("--json", "preflight", *words)
    return code, {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}


def on(machine: Machine, monkeypatch: pytest.MonkeyPatch, bundle: Bundle, **change: Any) -> None:
    monkeypatch.setattr(preflight, "detect", lambda: machine)
    bundle.edit(lambda data: data.update(needs={**NEEDS, **change}))


def test_all_ok(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = checks(bundle, capsys)
    assert code == 0
    assert {check["status"] for check in found.values()} == {"ok"}
    assert bundle.run("preflight") == 0
    assert capsys.readouterr().out.startswith("check")


def test_tampered_missing_and_added(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.parametrize(
    ("machine", "detail", "hint"),
    [
        (H100, None, None),  # the recipe's own
        (
            MI300X,
            "for mi300x:8 the recipe has the variant instinct",
            "--hardware mi300x:8 -o OTHER.zip",
        ),
        (
            replace(MI300X, devices=MI300X.devices[:1]),
            "none of the recipe's variants (instinct, single)",
            "recipe plan",
        ),
        (
            replace(H100, devices=H100.devices[:1]),
            "for h100-sxm:1 the recipe has the variant single",
            "--hardware h100-sxm:1",
        ),
        (CPU, "none of the recipe's variants", "recipe plan"),
    ],
)
def test_another_machine_is_told_which_variant_is_for_it(
    bundle: Bundle,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    machine: Machine,
    detail: Any,
    hint: Any,
) -> None:
    on(machine, monkeypatch, bundle)
    bundle.edit(lambda data: data.update(variants=VARIANTS))
    check = checks(bundle, capsys)[1].get("variant")
    assert (check is None) == (detail is None)
    if check:
        assert check["status"] == "warn"
        assert detail in check["detail"]
        assert hint in check["hint"]


def test_a_bundle_without_variants_says_nothing_of_them(
    bundle: Bundle, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on(MI300X, monkeypatch, bundle)
    assert "variant" not in checks(bundle, capsys)[1]


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b"])
def test_manifest_with_paths_outside(
    bundle: Bundle, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (bundle.root / "MANIFEST.json").write_text(
        json.dumps({"schema_version": 1, "files": {name: "0" * 64}})
    )
    assert "outside the bundle" in checks(bundle, capsys)[1]["bundle"]["detail"]


def test_wrong_runtime(
    bundle: Bundle, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on(replace(CPU, notes=("nvidia-smi: driver not loaded",)), monkeypatch, bundle)
    code, found = checks(bundle, capsys)
    assert code == 1
    assert "needs 2 x NVIDIA H100 SXM5 80 GB" in found["device"]["detail"]
    assert "this machine has no GPU (nvidia-smi: driver not loaded)" in found["device"]["detail"]
    assert bundle.run("up") == 1
    assert "preflight: device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "name", "status", "text"),
    [
        ({}, "device", "ok", "2 x NVIDIA H100 80GB HBM3"),
        ({}, "memory", "ok", "79.65 GiB per device"),
        ({"count": 4}, "device", "FAIL", "the recipe needs 4 x"),
        ({"names": ["NVIDIA H200"]}, "device", "warn", "the recipe is for"),
        ({"used_bytes": 90 << 30}, "memory", "FAIL", "10.35 GiB more"),
        ({"memory_bytes": 96 << 30}, "memory", "warn", "the recipe is for 96.00 GiB"),
    ],
)
def test_devices(
    bundle: Bundle,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    name: str,
    status: str,
    text: str,
) -> None:
    on(H100, monkeypatch, bundle, **change)
    check = checks(bundle, capsys)[1][name]
    assert check["status"] == status
    assert text in check["detail"]


def test_too_little_ram(
    bundle: Bundle, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on(CPU, monkeypatch, bundle, runtime="cpu", count=1, used_bytes=6 << 30)
    check = checks(bundle, capsys)[1]["memory"]
    assert check["status"] == "FAIL"
    assert check["detail"].startswith("4.00 GiB available, 6.00 GiB planned")
    assert "Free 2.00 GiB" in check["hint"]


def test_missing_engine_names_the_command(
    bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle.edit(
        lambda data: data["engine"].update(
            program="no-such-engine", install="pip install no-such-engine==1"
        )
    )
    code, found = checks(bundle, capsys)
    assert code == 1
    assert found["engine"]["hint"] == "Install it: pip install no-such-engine==1"
    assert bundle.run("up") == 1
    assert "pip install no-such-engine==1" in capsys.readouterr().err


def test_engine_versions_and_missing_modules(
    bundle: Bundle, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
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


def test_interpreter_of_scripts(tmp_path: Path) -> None:
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


def test_models(
    bundle: Bundle,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert (
        "--model" in checks(bundle, capsys, "--model", str(tmp_path / "none"))[1]["model"]["hint"]
    )
    assert (
        "no config.json" in checks(bundle, capsys, "--model", str(tmp_path))[1]["model"]["detail"]
    )
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert (
        "will download it" in checks(bundle, capsys, "--model", "owner/name")[1]["model"]["detail"]
    )
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert checks(bundle, capsys, "--model", "owner/name")[1]["model"]["status"] == "warn"
    (tmp_path / "models--owner--name").mkdir()
    assert checks(bundle, capsys, "--model", "owner/name")[1]["model"]["status"] == "ok"


def test_foreign_host(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        "not an address of this machine"
        in checks(bundle, capsys, "--host", "192.0.2.1")[1]["port"]["detail"]
    )


def test_devices_of_several_servers(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle.edit(lambda data: data.update(needs=NEEDS, processes=_two(data["processes"][0])))
    plan = load_plan(bundle.root)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    visible = [
        supervisor.process_environment(plan, process, "m")["CUDA_VISIBLE_DEVICES"]
        for process in plan.processes
    ]
    assert visible == ["0,1", "2,3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert (
        supervisor.process_environment(plan, plan.processes[1], "m")["CUDA_VISIBLE_DEVICES"]
        == "6,7"
    )


def _two(process: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            **process,
            "name": f"server-{index}",
            "port_offset": index,
            "devices": [2 * index, 2 * index + 1],
        }
        for index in range(2)
    ]


def test_placeholders(bundle: Bundle, tmp_path: Path) -> None:
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


def _set(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        *folders, last = path.split(".")
        for folder in folders:
            data = data[int(folder)] if isinstance(data, list) else data[folder]
        data[last] = value

    return change


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
def test_bad_launch_json(
    bundle: Bundle, capsys: pytest.CaptureFixture[str], path: str, value: object, text: str
) -> None:
    bundle.edit(_set(path, value))
    assert bundle.run("preflight") == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "COMMAND"),
        (["explode"], "explode"),
        (["up", "--port", "0"], "--port: port 0"),
        (["up", "--port", "70000"], "65535"),
        (["up", "--port", "x"], "--port"),
        (["bench", "--requests", "0"], "above 0"),
        (["bench", "--duration-limit", "nan"], "above 0"),
        (["up", "--timeout", "soon"], "not a number"),
    ],
)
def test_bad_command_lines(
    bundle: Bundle, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    assert bundle.run(*words) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1


def test_no_bundle_and_not_json(
    bundle: Bundle, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert bundle.run("--json", "status", "--port", "1") in (0, 1)
    capsys.readouterr()
    (bundle.root / "launch.json").write_text("{")
    assert bundle.run("--json", "up") == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "input"
    (bundle.root / "launch.json").unlink()
    assert bundle.run("up") == 2
    assert "launch.json does not exist" in capsys.readouterr().err
