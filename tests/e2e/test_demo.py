"""The main job with a real engine: what `make demo` shows, held to its promises."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recipe_core.bundle.verify import read_bundle
from recipe_core.hardware.cluster import device
from recipe_core.hardware.custom import read_profile
from tests.fixtures.paths import ROOT

MISSING = [
    name
    for name in ("torch", "transformers", "openai", "accelerate")
    if importlib.util.find_spec(name) is None
]


@pytest.mark.engine
@pytest.mark.skipif(
    bool(MISSING),
    reason=f"NOT TESTED: the demo, because {', '.join(MISSING)} is missing; pip install '.[torch]'",
)
def test_the_demo_plans_builds_starts_answers_measures_and_stops(
    tmp_path: Path, demo_model: Path
) -> None:
    folder = tmp_path / "demo"
    shutil.copytree(demo_model, folder / "model")
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "demo.py"), str(folder)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "model: up to date" in done.stdout
    assert "$ recipe profile" in done.stdout
    machine = device(read_profile(str(folder / "machine.yaml")))
    assert machine.host is not None
    assert machine.roofline["gemm"]["bf16"].status == "fitted"
    assert f"{machine.title}: The only split holds the load" in done.stdout
    assert "calibrated by 1 own run" in done.stdout
    assert (folder / "calibration" / "calibration.json").is_file()
    assert "http://127.0.0.1:8501/measured" in done.stdout
    assert "measured" in done.stdout
    measured = json.loads((folder / "bundle" / "run" / "measurement.json").read_text())
    assert measured["metrics"]["failed"] == 0
    assert measured["metrics"]["requests"] >= 8
    assert len(measured["completion"]["text"].split()) > 5
    for figure in ("ttft_s", "tpot_s", "request_latency_s", "output_tokens_per_s"):
        assert measured["predicted"][figure] > 0
        assert measured["ratio"][figure] == pytest.approx(
            measured["metrics"][figure] / measured["predicted"][figure], rel=1e-3
        )
    recipe = read_bundle(folder / "bundle").recipe
    assert recipe.candidate["engine"] == "transformers"
    assert recipe.request["hardware"]["device"]["name"] == machine.name
    assert not (folder / "bundle" / "run" / "state.json").exists()
