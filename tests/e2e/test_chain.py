"""Plan, train, checkpoint, go on, serve, ask: what `make chain` shows, held to its promises."""

from __future__ import annotations

import csv
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from recipe_core.bundle.verify import read_bundle
from tests.fixtures.paths import ROOT

MISSING = [
    name
    for name in ("torch", "transformers", "openai", "accelerate")
    if importlib.util.find_spec(name) is None
]


@pytest.mark.engine
@pytest.mark.torchrun
@pytest.mark.skipif(
    bool(MISSING),
    reason=f"NOT TESTED: the chain: {', '.join(MISSING)} missing; pip install '.[torch]'",
)
def test_a_training_plan_ends_in_a_served_model_that_answers(tmp_path: Path) -> None:
    folder = tmp_path / "chain"
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "chain.py"), str(folder)],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = folder / "train" / "run"
    with (run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    steps = int(json.loads((folder / "train" / "expected.json").read_text())["run"]["steps"])
    assert [int(row["step"]) for row in rows] == list(
        range(1, steps + 1)
    )  # the stop for measuring lost none and repeated none
    assert float(rows[-1]["loss"]) < 0.3 * float(rows[0]["loss"])
    measured = json.loads((run / "measurement.json").read_text())
    assert measured["steps"]["count"] == 10
    assert measured["ratio"]["step_s"] == pytest.approx(
        measured["metrics"]["step_s"] / measured["predicted"]["step_s"], rel=1e-3
    )
    assert json.loads((run / "model" / "config.json").read_text())["dtype"] == "bfloat16"
    assert read_bundle(folder / "train").recipe.kind == "training"
    assert "In the soup there are" in done.stdout.splitlines()[-1]
    assert not list(folder.glob("*/run/state.json"))
