"""Nothing faked: the demo's model, trained here, served by `transformers serve`, measured."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import DEMO_MODEL
from tests.fixtures.bundles import serving_bundle
from tests.fixtures.needs import TORCH, needs
from tests.fixtures.patience import PATIENCE
from tests.fixtures.ports import free_port

MODULES = (*TORCH, "fastapi", "uvicorn")
FLAGS = "--host ${host} --port ${port} --device cpu --continuous-batching --cb-num-blocks 32"


def real(data):
    program = {"name": "transformers", "program": "transformers", "module": "transformers"}
    data["engine"] |= program | {"version": "5.23.0", "requires": list(MODULES)}
    data["processes"][0] |= {
        "argv": ["transformers", "serve", "${model}", *FLAGS.split()],
        "env": {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": "${run}/hub"},
    }
    generation = {"eos_token_id": -1, "do_sample": False}
    body = {"generation_config": json.dumps(generation), "stream_options": None}
    data["api"]["body"], data["startup_timeout_s"] = body, PATIENCE
    data["workload"] |= {"input_tokens": 64, "output_tokens": 24, "concurrency": 2}


@pytest.mark.nightly
@pytest.mark.engine
@needs("the real engine", *MODULES)
def test_demo_model_is_served_and_measured(tmp_path, demo_model):
    words = [sys.executable, str(DEMO_MODEL), str(demo_model)]
    again = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "up to date" in again.stdout
    learnt = json.loads((demo_model / "demo_model.json").read_text())
    assert learnt["loss_after"] <= 0.12 < learnt["loss_before"]
    bundle = serving_bundle(tmp_path / "bundle", tmp_path / "model", free_port())
    bundle.edit(lambda data: data["parameters"].update(model=str(demo_model)))
    bundle.edit(real)
    assert "time per output token" in bundle.says(0, "bench")
    data = bundle.read("measurement.json")
    assert data["metrics"]["failed"] == 0
    assert data["workload"]["output_tokens"] == 24
    assert abs(data["workload"]["input_tokens"] - 64) < 6
    assert data["engine"]["version"] == "5.23.0"
    assert data["ratio"]["tpot_s"] > 0
    assert len(data["completion"]["text"].split()) > 5
    assert not bundle.up
