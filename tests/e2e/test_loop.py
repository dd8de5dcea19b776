"""Plan, build, up, bench, calibrate, plan, for three sizes of model: the second plan is nearer."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.paths import ROOT

MISSING = [
    name
    for name in ("torch", "transformers", "openai", "accelerate")
    if importlib.util.find_spec(name) is None
]


@pytest.mark.engine
@pytest.mark.skipif(
    bool(MISSING),
    reason=f"NOT TESTED: the loop, because {', '.join(MISSING)} is missing; pip install '.[torch]'",
)
def test_what_was_measured_brings_the_next_plan_nearer(tmp_path: Path, demo_model: Path) -> None:
    """How near the first plan was depends on what else runs here; that is not asserted."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    machine, runs = tmp_path / "machine.yaml", tmp_path / "runs.json"
    profile = ("profile", "--device", "cpu", "--quick", "--seconds", "15", "-o", str(machine))
    subprocess.run(
        [sys.executable, "-m", "recipe_core", *profile], check=True, env=environment, timeout=400
    )
    loop = [sys.executable, str(ROOT / "benchmarks" / "loop.py"), "--model", str(demo_model)]
    done = subprocess.run(
        [*loop, "--profile", str(machine), "--json", str(runs)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=1800,
    )
    assert runs.is_file(), done.stdout + done.stderr  # its exit code is about times
    by_size = {run["size"]: run for run in json.loads(runs.read_text())}
    assert set(by_size) == {"tiny", "small", "medium"}
    for run in by_size.values():
        before, after, measured = run["predicted"], run["learned"], run["measured"]
        for figure in ("tpot_s", "ttft_s"):
            first, second = (abs(one[figure] / measured[figure] - 1) for one in (before, after))
            assert second < max(first, 0.05), (run["size"], figure, before, after, measured)
