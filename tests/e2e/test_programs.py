"""Programs of scripts/ and benchmarks/, and real measurements, held to what they promise."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from recipe_core.base.documents import to_json
from recipe_core.bundle.verify import read_bundle
from recipe_core.calibration.trials import verify as module
from recipe_core.calibration.trials.verify import Choice, verify_outputs
from recipe_core.hardware.cluster import device_profile
from recipe_core.hardware.request import read_profile
from tests.conftest import request_values
from tests.fixtures.engines import build
from tests.fixtures.needs import TORCH, needs
from tests.fixtures.paths import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.nightly, needs("a real engine", *TORCH)]
RECIPE = (sys.executable, "-m", "recipe_core")
PROFILE = ("profile", "--device", "cpu", "--quick", "--seconds", "15", "-o")


def run(*words: object, code: int | None = 0) -> str:
    """What a program prints; its exit code is as given, None for any."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, env=environment)
    assert code is None or done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_the_demo_plans_builds_starts_answers_measures_and_stops(tmp_path, demo_model):
    folder = tmp_path / "demo"
    shutil.copytree(demo_model, folder / "model")
    shown = run(sys.executable, ROOT / "scripts" / "demo.py", folder)
    machine = device_profile(read_profile(str(folder / "machine.yaml")))
    assert machine.roofline["gemm"]["bf16"].status == "fitted"
    for words in (
        *("model: up to date", "$ recipe profile", "calibrated by 1 own run"),
        *(f"{machine.title}: The only layout holds the load", "http://127.0.0.1:8501/measured"),
    ):
        assert words in shown
    assert (folder / "calibration" / "calibration.json").is_file()
    measured = json.loads((folder / "bundle" / "run" / "measurement.json").read_text())
    assert measured["metrics"]["failed"] == 0
    assert measured["metrics"]["requests"] >= 8
    assert len(measured["completion"]["text"].split()) > 5
    assert measured["engine"]["version"] == version("transformers")
    for figure in ("ttft_s", "tpot_s", "request_latency_s", "output_tokens_per_s"):
        ratio = measured["metrics"][figure] / measured["predicted"][figure]
        assert measured["ratio"][figure] == pytest.approx(ratio, rel=1e-3)
    recipe = read_bundle(folder / "bundle").recipe
    for tokens in ("input_tokens", "output_tokens"):
        assert abs(measured["workload"][tokens] - recipe.request["workload"][tokens]) < 6
    learnt = json.loads((demo_model / "demo_model.json").read_text())
    assert learnt["loss_after"] <= 0.12 < learnt["loss_before"]
    assert recipe.candidate["engine"] == "transformers"
    assert recipe.request["hardware"]["device"]["name"] == machine.name
    assert not (folder / "bundle" / "run" / "state.json").exists()


@pytest.mark.torchrun
def test_a_training_plan_ends_in_a_served_model_that_answers(tmp_path: Path) -> None:
    folder = tmp_path / "chain"
    shown = run(sys.executable, ROOT / "scripts" / "chain.py", folder)
    train = folder / "train" / "run"
    with (train / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    steps = int(json.loads((folder / "train" / "expected.json").read_text())["run"]["steps"])
    # the stop for measuring lost none and repeated none
    assert [int(row["step"]) for row in rows] == list(range(1, steps + 1))
    assert float(rows[-1]["loss"]) < 0.3 * float(rows[0]["loss"])
    measured = json.loads((train / "measurement.json").read_text())
    assert measured["steps"]["count"] == 10
    ratio = measured["metrics"]["step_s"] / measured["predicted"]["step_s"]
    assert measured["ratio"]["step_s"] == pytest.approx(ratio, rel=1e-3)
    assert json.loads((train / "model" / "config.json").read_text())["dtype"] == "bfloat16"
    assert read_bundle(folder / "train").recipe.kind == "training"
    assert "In the soup there are" in shown.splitlines()[-1]
    assert not list(folder.glob("*/run/state.json"))


def test_this_machine_is_measured_planned_on_and_learned_from(tmp_path, demo_model):
    """How near the first plan was depends on what else runs here; that is not asserted."""
    out, request, runs = (tmp_path / name for name in ("machine.yaml", "request.json", "runs.json"))
    assert "gemm bf16" in run(*RECIPE, *PROFILE, out)
    ours = device_profile(read_profile(str(out)))
    measured = (ours.host, ours.memory_bandwidth_bytes_per_s, ours.peak_flops_per_s["bf16"])
    assert {figure.status for figure in measured} == {"measured"}
    assert "median error" in str(ours.roofline["gemm"]["bf16"].note)
    values = request_values(device=str(out), model="Qwen/Qwen3-0.6B", per_node=1)
    request.write_text(to_json(values))
    best = json.loads(run(*RECIPE, "plan", request, "--json"))
    assert best["counts"]["feasible"] >= 1
    low, high = best["candidates"][0]["estimate"]["bands"]["tpot_s"]
    assert 0 < low < high
    words = (ROOT / "benchmarks" / "loop.py", "--model", demo_model, "--profile", out)
    run(sys.executable, *words, "--json", runs, code=None)  # its exit code is about times
    by_size = {each["size"]: each for each in json.loads(runs.read_text())}
    assert set(by_size) == {"tiny", "small", "medium"}
    for size, each in by_size.items():
        before, after, measured = each["predicted"], each["learned"], each["measured"]
        for figure in ("tpot_s", "ttft_s"):
            first, second = (abs(plan[figure] / measured[figure] - 1) for plan in (before, after))
            assert second < max(first, 0.05), (size, figure, before, after, measured)


def test_outputs_of_the_embedded_engine_repeat(tmp_path, demo_model, monkeypatch):
    bundle = build(demo_model, tmp_path)
    known = module.reproducibility("transformers").model_copy(update={"switches": ()})
    monkeypatch.setattr(module, "reproducibility", lambda name: known)  # one start is enough
    report = verify_outputs(bundle, (), Choice(prompts=4, tokens=12, timeout_s=600))
    by_name = {comparison.name: comparison for comparison in report.comparisons}
    assert by_name["repeat-greedy"].alike.share == 1
    assert by_name["batch"].alike.unit == "words"
    # Its batch draws as its first request said, which was greedy.
    assert "nothing was drawn" in report.left_out["the same seeds twice"]
    assert "tells none" in report.left_out["log-probabilities"]
    json.dumps(report.to_json())
    assert not list(bundle.glob("run/verify/work-*"))


@needs("scaling of real servers", "haproxy")
def test_real_servers_scale_as_they_were_simulated(demo_model: Path, tmp_path: Path) -> None:
    """Runs on two cores, idle or not, were 0.02 to 0.2 replicas apart on average.

    The share within the limit of latency is not judged: it falls where others use the machine.
    """
    benchmark, out = ROOT / "benchmarks" / "live_scaling.py", tmp_path / "run.json"
    shown = run(sys.executable, benchmark, "--model", demo_model, "--json", out, code=None)
    assert out.is_file(), shown
    day: dict[str, Any] = json.loads(out.read_text())
    measured, simulated = day["measured"], day["simulated"]
    assert (day["requests"] > 50, day["failed"]) == (True, 0)
    assert 2 <= measured["most"] <= day["scaling"]["max_replicas"]
    assert measured["last"] < measured["most"]
    assert abs(measured["most"] - simulated["most"]) <= 1
    assert day["replicas_apart"] < 0.7, day
    assert 0.7 < measured["replica_s"] / simulated["replica_s"] < 1.4, day
