"""Bundles to break: a server with ranks, replicas behind a router, devices with a fallback, a run.

Those of real engines are the embedded one and vLLM's CPU build where there is one. They serve a
small model without training, and are built as users do; only limits of supervision are shorter.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.fixtures.bundles import Bundle, serving_bundle, training_bundle
from tests.fixtures.engines import build, demo_model
from tests.fixtures.paths import ROOT

LIMITS = {
    **{"crash_budget": 4, "window_s": 30, "backoff_s": 0.1, "backoff_most_s": 1, "stable_s": 3},
    **{"hang_s": 4, "slow_s": 3, "drain_s": 2, "poll_s": 0.2},
}
"""Short, so that hundreds of faults take minutes; a busy machine still answers within them."""
REAL_LIMITS = {
    **{"crash_budget": 4, "window_s": 240, "backoff_s": 0.5, "backoff_most_s": 5, "stable_s": 20},
    **{"hang_s": 20, "slow_s": 600, "drain_s": 5, "poll_s": 0.5},
}
OFFLINE = {
    **dict.fromkeys(("HF_HUB_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK"), "1"),
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
DEVICE = "FAKE H100 80GB"
KINDS = {
    "one": frozenset({"serving", "fake", "ranks"}),
    "routed": frozenset({"serving", "fake", "ranks", "router"}),
    "nvidia": frozenset({"serving", "fake", "ranks", "devices"}),
    "amd": frozenset({"serving", "fake", "ranks", "devices"}),
    "training": frozenset({"training"}),
}
REAL = {"embedded": frozenset({"serving"}), "vllm": frozenset({"serving", "ranks", "vllm"})}
"""What each deployment has that a fault may need."""
PATIENCE_S, REAL_PATIENCE_S = 180.0, 900.0
"""How long anything may take; a state that is not reached by then is a finding."""
STEPS = 1_000_000
"""Of a training run: more than any trial has time for."""

# What vendors' tools print of as many devices as the file lists.
NVIDIA_SMI = """#!/bin/sh
[ -s {devices} ] || {{ echo 'NVIDIA-SMI has failed' >&2; exit 9; }}
while read -r name; do echo "{title}, 81559"; done < {devices}
"""
AMD_SMI = """#!{python}
import json, sys
names = open("{devices}").read().split()
if not names: sys.exit("no AMD GPU")
print(json.dumps([{{"gpu": n, "asic": {{"market_name": "{title}"}},
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
    patience_s: float = PATIENCE_S

    @property
    def slowness(self) -> float:
        """How many times as long as a fake one a start takes, about."""
        return 15.0 if self.kind in REAL else 1.0

    @property
    def model(self) -> Path:
        """The folder of the weights."""
        launch = json.loads((self.bundle.root / "launch.json").read_text())
        return Path(launch["parameters"]["model"])


def make(kind: str, folder: Path, port: int) -> Deployment:
    """A bundle of a kind, with a launcher of its own, and the folder of its conditions."""
    if kind in REAL:
        return _real(kind, folder, port)
    conditions, tools = folder / "conditions", folder / "bin"
    for path in (conditions, tools):
        path.mkdir(parents=True)
    if kind == "training":
        bundle = training_bundle(folder / "bundle", folder, port, STEPS)
        bundle.edit(lambda launch: launch.update(supervision=LIMITS))
        bundle.stand_alone()
        (bundle.root / "run").mkdir()
        (bundle.root / "run" / "fake.json").write_text('{"every": 20}')
        return Deployment(kind, bundle, conditions, features=KINDS[kind])
    bundle = serving_bundle(folder / "bundle", folder / "model", port)
    (folder / "model" / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    (conditions / "version").write_text("engine 1.0\n")
    (conditions / "devices").write_text("GPU\nGPU\n")
    serving = {"ttft_s": 0.05, "tpot_s": 0.025, "output_tokens_per_s": None}
    expected = {"schema_version": 1, "feasible": True, "serving": serving}
    expected["bands"] = {"tpot_s": [0.001, 0.15], "ttft_s": None}
    (bundle.root / "expected.json").write_text(json.dumps(expected))
    engine = tools / "chaos-engine"
    _program(engine, f"#!/bin/sh\ncat {conditions}/version\n")
    runtime = {"nvidia": "cuda", "amd": "rocm"}.get(kind)

    def change(launch: dict[str, Any], devices: int) -> None:
        words = [sys.executable, str(Path(__file__).with_name("engine.py")), "--port", "${port}"]
        words += ["--conditions", str(conditions), "--model", "${model}", "--ranks", "2"]
        launch["processes"][0] |= {
            "argv": [*words, "--devices", str(devices)],
            "env": {"PYTHONPATH": str(ROOT)},
            "devices": list(range(devices or 1)),
        }
        launch["engine"] |= {"version": "1.0", "program": str(engine)}
        launch["needs"] = {"runtime": "cpu", "device": "cpu", "title": "CPU", "names": []}
        if runtime:
            launch["needs"] = {"runtime": runtime, "device": "h100", "title": DEVICE}
            launch["needs"]["names"] = [DEVICE]
        launch["needs"]["count"] = devices or 1
        launch |= {"startup_timeout_s": 30, "supervision": LIMITS}

    bundle.edit(lambda launch: change(launch, 2 if runtime else 0))
    if runtime:
        known = {"devices": conditions / "devices", "title": DEVICE, "python": sys.executable}
        text = NVIDIA_SMI if kind == "nvidia" else AMD_SMI
        _program(tools / f"{kind}-smi", text.format(**known))
        bundle.add_fallback("1-fewer-gpus", lambda launch: change(launch, 1))
    if kind == "routed":
        bundle.put_replicas(routed=True)
    bundle.stand_alone()
    environment = {"PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin"}
    return Deployment(kind, bundle, conditions, environment, KINDS[kind])


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _real(kind: str, folder: Path, port: int) -> Deployment:
    """A bundle of a real engine; vLLM's program lies in the folder $CHAOS_VLLM."""
    (folder / "conditions").mkdir(parents=True)
    shutil.copytree(_model(), folder / "model")
    root = build(folder / "model", folder, 0.15 if kind == "vllm" else None)
    for path in (root / "launch.json", *root.glob("fallbacks/*/launch.json")):
        data = json.loads(path.read_text())
        data["supervision"] = REAL_LIMITS
        data["parameters"]["port"] = port
        path.write_text(json.dumps(data))
    bundle = Bundle(root, port)
    bundle.seal()
    programs = filter(None, [os.environ.get("CHAOS_VLLM"), "/usr/local/bin:/usr/bin:/bin"])
    environment = {"PATH": ":".join(programs)} | OFFLINE
    conditions = folder / "conditions"
    return Deployment(kind, bundle, conditions, environment, REAL[kind], REAL_PATIENCE_S)


@cache
def _model() -> Path:
    return demo_model(Path(tempfile.mkdtemp(prefix="chaos-model-")) / "model")
