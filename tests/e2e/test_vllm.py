"""A bundle of vLLM really serves, where vLLM is on the path.

Its CPU build will do: see scripts/engine_parsers.py.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recipe_core.base.documents import to_yaml
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
UNTRAINED = (
    "import sys, pathlib, demo_model as m; "
    "m.ensure(pathlib.Path(sys.argv[1]), training=m.Training(loss=100.0))"
)


def recipe(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "recipe_core", *words],
        capture_output=True,
        text=True,
        timeout=400,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.engine
@pytest.mark.skipif(
    shutil.which("vllm") is None, reason="NOT TESTED: starting vLLM, because no vllm is on the path"
)
@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="NOT TESTED: starting vLLM, because torch is missing for its model",
)
def test_a_bundle_of_vllm_starts_answers_and_stops(tmp_path: Path) -> None:
    model, wanted, bundle = tmp_path / "model", tmp_path / "request.yaml", tmp_path / "bundle"
    subprocess.run(
        [sys.executable, "-c", UNTRAINED, str(model)], check=True, timeout=300, cwd=ROOT / "scripts"
    )
    split = {
        "engine": "vllm",
        "tp": 1,
        "pp": 1,
        "dp": 1,
        "weight_dtype": "fp32",
        "memory_fraction": 0.3,
        "max_num_seqs": 8,
    }
    load = {"input_tokens": 64, "output_tokens": 16, "concurrency": 2, "max_context": 512}
    wanted.write_text(
        to_yaml(
            {
                "model": str(model),
                "hardware": {"device": "cpu", "per_node": 1},
                "workload": load,
                "candidate": split,
            }
        )
    )
    recipe("build", str(wanted), "-o", str(bundle))
    try:
        recipe("up", str(bundle), "--port", str(free_port()), "--timeout", "300")
        recipe("bench", str(bundle))
    finally:
        recipe("down", str(bundle))
    measured = json.loads((bundle / "run" / "measurement.json").read_text())
    assert measured["metrics"]["failed"] == 0
    assert measured["metrics"]["requests"] >= 4
    log = (bundle / "run" / "server-0.log").read_text(errors="replace")
    assert "max_model_len=512" in log or "'max_model_len': 512" in log
