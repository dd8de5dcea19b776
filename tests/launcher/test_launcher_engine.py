"""Nothing faked: the demo's model, trained here, served by `transformers serve`, measured."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import DEMO_MODEL
from tests.fixtures.bundles import Bundle, launch_json
from tests.fixtures.patience import PATIENCE
from tests.fixtures.ports import free_port

MODULES = ("torch", "transformers", "openai", "fastapi", "uvicorn", "accelerate")
MISSING = [name for name in MODULES if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.engine,
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"NOT TESTED: the real engine: {', '.join(MISSING)} missing; pip install '.[torch]'",
    ),
]


def real(port: int, model: Path) -> dict[str, Any]:
    data = launch_json(port, model)
    data["engine"] |= {"name": "transformers", "program": "transformers", "module": "transformers"}
    data["engine"] |= {"version": "5.23.0", "requires": list(MODULES)}
    flags = "--host ${host} --port ${port} --device cpu --continuous-batching --cb-num-blocks 32"
    data["processes"][0] |= {
        "argv": ["transformers", "serve", "${model}", *flags.split()],
        "env": {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": "${run}/hub"},
    }
    data["startup_timeout_s"] = PATIENCE
    data["api"]["body"] = {
        "generation_config": json.dumps({"eos_token_id": -1, "do_sample": False}),
        "stream_options": None,
    }
    data["workload"] |= {"input_tokens": 64, "output_tokens": 24, "concurrency": 2}
    return data


def test_demo_model_is_served_and_measured(tmp_path, demo_model, capsys):
    words = [sys.executable, str(DEMO_MODEL), str(demo_model)]
    again = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "up to date" in again.stdout
    learnt = json.loads((demo_model / "demo_model.json").read_text())
    assert learnt["loss_after"] <= 0.12 < learnt["loss_before"]
    bundle = Bundle(tmp_path / "bundle", free_port())
    bundle.root.mkdir()
    (bundle.root / "launch.json").write_text(json.dumps(real(bundle.port, demo_model)))
    expected = {"schema_version": 1, "serving": {"tpot_s": 0.006}}
    (bundle.root / "expected.json").write_text(json.dumps(expected))
    bundle.seal()
    assert bundle.run("bench") == 0
    assert "time per output token" in capsys.readouterr().out
    data = json.loads((bundle.root / "run" / "measurement.json").read_text())
    assert data["metrics"]["failed"] == 0
    assert data["workload"]["output_tokens"] == 24
    assert abs(data["workload"]["input_tokens"] - 64) < 6
    assert data["engine"]["version"] == "5.23.0"
    assert data["ratio"]["tpot_s"] > 0
    assert len(data["completion"]["text"].split()) > 5
    assert not bundle.up
