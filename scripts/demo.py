"""The main job on this machine, nothing faked: profile, plan, build, start, ask, measure, learn.

    python scripts/demo.py [FOLDER]

Makes a small real model (trained to a loss of 0.12, no download), measures this machine, plans the
model for it, builds the bundle, starts its server, gets a completion, prints what was predicted
against what was measured, stops, and plans again with what the run taught. That is kept in the
folder, not in this machine's calibration. Between one and two minutes on two cores.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

from recipe_core.base.documents import to_yaml
from recipe_core.calibration.place import FILE, VARIABLE

SCRIPTS = Path(__file__).parent
RECIPE = [sys.executable, "-m", "recipe_core"]
CALIBRATION = "calibration"
NEEDED = ("torch", "transformers", "openai", "safetensors", "accelerate")


def run(words: list[str], shown: str) -> int:
    """Run a step, showing the command a user would type."""
    print(f"\n$ {shown}", flush=True)
    return subprocess.call(words)


def run_recipe(*words: str) -> None:
    """Run ``recipe`` with these words; a step that fails ends the demo with its code."""
    code = run(
        [*RECIPE, *words],
        shlex.join(["recipe", *(os.path.relpath(w) if w.startswith("/") else w for w in words)]),
    )
    if code:
        sys.exit(code)


def find_demo_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def demo_request(model: Path, machine: Path) -> dict[str, object]:
    workload = {"mode": "closed", "input_tokens": 128, "output_tokens": 64, "concurrency": 4}
    return {
        "model": str(model),
        "hardware": {"device": str(machine), "per_node": 1},
        "workload": workload,
        "objective": {"optimize": "throughput"},
    }


def main(folder: Path) -> None:
    missing = [
        name
        for name in NEEDED
        if subprocess.call([sys.executable, "-c", f"import {name}"], stderr=subprocess.DEVNULL)
    ]
    if missing:
        sys.exit(f"The demo needs {', '.join(missing)}: make demo, or pip install -e '.[torch]'")
    folder.mkdir(parents=True, exist_ok=True)
    model, request_file, bundle = folder / "model", folder / "request.yaml", folder / "bundle"
    machine = folder / "machine.yaml"
    os.environ[VARIABLE] = str((folder / CALIBRATION).resolve())
    (folder / CALIBRATION / FILE).unlink(missing_ok=True)  # of an earlier demo
    # spinning OpenMP threads stall everything when anything else is busy
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    if code := run(
        [sys.executable, str(SCRIPTS / "demo_model.py"), str(model)],
        "python scripts/demo_model.py demo/model",
    ):
        sys.exit(code)
    run_recipe("profile", "--device", "cpu", "--quick", "-o", str(machine))
    request_file.write_text(to_yaml(demo_request(model.resolve(), machine.resolve())))
    port = str(find_demo_port())
    run_recipe("plan", str(request_file))
    run_recipe("build", str(request_file), "-o", str(bundle))
    try:
        run_recipe("up", str(bundle), "--port", port)
        run_recipe("bench", str(bundle))
    finally:
        subprocess.call([*RECIPE, "down", str(bundle)])
    run_recipe("calibrate", str(bundle))
    run_recipe("plan", str(request_file))
    measured = json.loads((bundle / "run" / "measurement.json").read_text())
    print(f"\nIt said: {measured['completion']['text'].strip()!r}")
    calibration_path = os.path.relpath(folder / CALIBRATION)
    print(f"See predicted beside measured: {VARIABLE}={calibration_path} recipe serve, then open")
    print("http://127.0.0.1:8501/measured")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
