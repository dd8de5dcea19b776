"""A real profile of this machine, by the command line: what it writes, a request plans on."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from recipe_core.base.documents import to_json
from recipe_core.hardware.cluster import device
from recipe_core.hardware.custom import read_profile
from tests.conftest import request_values


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="NOT TESTED: profiling this machine, because torch is missing; pip install '.[torch]'",
)
def test_this_machine_is_measured_and_planned_on(tmp_path: Path) -> None:
    out = tmp_path / "machine.yaml"

    def recipe(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "recipe_core", *words],
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    shown = recipe("profile", "-o", str(out), "--device", "cpu", "--seconds", "15", "--quick")
    assert "gemm bf16" in shown
    ours = device(read_profile(str(out)))
    assert ours.host is not None
    assert ours.host.status == "measured"
    assert ours.memory_bandwidth_bytes_per_s.status == "measured"
    assert ours.peak_flops_per_s["bf16"].status == "measured"
    assert "median error" in str(ours.roofline["gemm"]["bf16"].note)
    request = tmp_path / "request.json"
    values = request_values(device=str(out), model="Qwen/Qwen3-0.6B", per_node=1)
    request.write_text(to_json(values))
    best = json.loads(recipe("plan", str(request), "--json"))
    assert best["counts"]["feasible"] >= 1
    low, high = best["candidates"][0]["estimate"]["bands"]["tpot_s"]
    assert 0 < low < high
