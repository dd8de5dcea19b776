"""Bundles to break: a server with ranks, replicas behind a router, devices with a fallback."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fixtures.bundles import Bundle, launch_json

ENGINE = Path(__file__).with_name("engine.py")
LIMITS = {
    "crash_budget": 4,
    "window_s": 30,
    "backoff_s": 0.1,
    "backoff_most_s": 1,
    "stable_s": 3,
    "hang_s": 4,
    "slow_s": 3,
    "drain_s": 2,
    "poll_s": 0.2,
}
"""Short, so that hundreds of faults take minutes; a busy machine still answers within them."""
STARTUP_S = 30
DEVICE = "FAKE H100 80GB"
_WEIGHTS = b"\x02\0\0\0\0\0\0\0{}"

# What vendors' tools print of as many devices as the file lists.
_NVIDIA = """#!/bin/sh
[ -s {devices} ] || {{ echo 'NVIDIA-SMI has failed' >&2; exit 9; }}
while read -r name; do echo "$name, 81559"; done < {devices}
"""
_AMD = """#!{python}
import json, sys
names = open({devices!r}).read().split()
if not names: sys.exit("no AMD GPU")
print(json.dumps([{{"gpu": n, "asic": {{"market_name": {title!r}}},
    "vram": {{"size": {{"value": 196592, "unit": "MB"}}}}}} for n, _ in enumerate(names)]))
"""


@dataclass
class Deployment:
    """A bundle and the files by which its engine and its machine are told to fail."""

    kind: str
    bundle: Bundle
    conditions: Path
    environment: dict[str, str] = field(default_factory=dict)
    features: frozenset[str] = frozenset()

    @property
    def model(self) -> Path:
        """The folder of the weights."""
        return Path(
            json.loads((self.bundle.root / "launch.json").read_text())["parameters"]["model"]
        )


def make(kind: str, folder: Path, port: int) -> Deployment:
    """A bundle of a kind, with a launcher of its own, and the folder of its conditions."""
    conditions, tools = folder / "conditions", folder / "bin"
    for path in (conditions, tools, folder / "model", folder / "bundle"):
        path.mkdir(parents=True)
    (conditions / "version").write_text("engine 1.0\n")
    (conditions / "devices").write_text("GPU\nGPU\n")
    (folder / "model" / "config.json").write_text("{}")
    (folder / "model" / "model.safetensors").write_bytes(_WEIGHTS)
    _program(tools / "chaos-engine", f"#!/bin/sh\ncat {conditions}/version\n")
    bundle = Bundle(folder / "bundle", port)
    features = KINDS[kind](bundle, folder)
    bundle.stand_alone()
    path = f"{tools}:/usr/local/bin:/usr/bin:/bin"
    return Deployment(kind, bundle, conditions, {"PATH": path}, frozenset(features))


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _one(bundle: Bundle, folder: Path) -> set[str]:
    _write(bundle.root, _launch(bundle, folder, _server(folder, 0, 0)))
    return {"fake", "ranks"}


def _routed(bundle: Bundle, folder: Path) -> set[str]:
    argv = [*_argv(folder, "route"), "--to", "${port1},${port2}"]
    router = {"name": "router", "role": "router", "argv": argv, "port_offset": 0, "devices": []}
    servers = [_server(folder, number, number + 1) for number in (1, 2)]
    _write(bundle.root, _launch(bundle, folder, router | {"env": {}, "group": 0}, *servers))
    return {"fake", "ranks", "router"}


def _devices(runtime: str) -> Callable[[Bundle, Path], set[str]]:
    def write(bundle: Bundle, folder: Path) -> set[str]:
        tools, devices = folder / "bin", str(folder / "conditions" / "devices")
        if runtime == "cuda":
            # Each line is a name of two words: the list's own words are kept as they are.
            text = _NVIDIA.replace('"$name,', f'"{DEVICE},')
            _program(tools / "nvidia-smi", text.format(devices=devices))
        else:
            text = _AMD.format(python=sys.executable, devices=devices, title=DEVICE)
            _program(tools / "amd-smi", text)
        needs = {"runtime": runtime, "device": "h100", "title": DEVICE, "names": [DEVICE]}
        fallback = {"name": "1-fewer-gpus", "kind": "fewer-gpus", "title": "one device"}
        for count, root in ((2, bundle.root), (1, bundle.root / "fallbacks" / fallback["name"])):
            root.mkdir(parents=True, exist_ok=True)
            data = _launch(bundle, folder, _server(folder, 0, 0, devices=count))
            data["needs"] = {**needs, "count": count}
            _write(root, data | ({"fallbacks": [fallback]} if count == 2 else {}))
        return {"fake", "ranks", "devices"}

    return write


KINDS: dict[str, Callable[[Bundle, Path], set[str]]] = {
    "one": _one,
    "routed": _routed,
    "nvidia": _devices("cuda"),
    "amd": _devices("rocm"),
}


def _argv(folder: Path, command: str) -> list[str]:
    return [
        *(sys.executable, str(ENGINE), command, "--port", "${port}"),
        *("--conditions", str(folder / "conditions"), "--model", "${model}"),
    ]


def _server(folder: Path, number: int, group: int, devices: int = 0) -> dict[str, Any]:
    return {
        "name": f"server-{number}",
        "argv": [*_argv(folder, "serve"), "--ranks", "2", "--devices", str(devices)],
        "env": {},
        "port_offset": number,
        "devices": list(range(devices or 1)),
        "group": group,
    }


def _launch(bundle: Bundle, folder: Path, *processes: dict[str, Any]) -> dict[str, Any]:
    data = launch_json(bundle.port, folder / "model")
    data["engine"] |= {"version": "1.0", "program": str(folder / "bin" / "chaos-engine")}
    return data | {
        "needs": {"runtime": "cpu", "device": "cpu", "title": "CPU", "names": [], "count": 1},
        "processes": processes,
        "startup_timeout_s": STARTUP_S,
        "supervision": LIMITS,
    }


def _write(root: Path, launch: dict[str, Any]) -> None:
    (root / "launch.json").write_text(json.dumps(launch))
    serving = {"ttft_s": 0.05, "tpot_s": 0.025, "output_tokens_per_s": None}
    bands = {"tpot_s": [0.001, 0.15], "ttft_s": None}
    expected = {"schema_version": 1, "feasible": True, "serving": serving, "bands": bands}
    (root / "expected.json").write_text(json.dumps(expected))
