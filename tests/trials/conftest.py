"""A bundle of vLLM for this machine's CPU whose `vllm` is a fake on the path."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipe_core.bundle.write import write_bundle
from recipe_core.recipe import make_recipe
from recipe_core.request.schema import PlanRequest
from tests.fixtures.paths import FIXTURES

FAKE = FIXTURES / "fake_vllm.py"


@pytest.fixture
def fake_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with the fake as `vllm`."""
    if (Path(sys.executable).parent / "vllm").exists():
        pytest.skip("a real vllm lies beside this Python, which is found before the fake")
    folder = tmp_path / "programs"
    folder.mkdir()
    program = folder / "vllm"
    program.write_text(f"#!{sys.executable}\n{FAKE.read_text()}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


@pytest.fixture
def vllm_bundle(
    tmp_path: Path, fake_vllm: Path, tiny_config: dict[str, Any]
) -> Callable[..., Path]:
    """Writes a bundle of a small model; takes fields of the candidate."""
    import json

    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(tiny_config))
    (model / "model.safetensors").write_bytes(b"")

    def written(name: str = "bundle", objective: str = "tpot", **fields: Any) -> Path:
        split = {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1, "max_num_seqs": 16}
        load = {"input_tokens": 32, "output_tokens": 8, "concurrency": 2, "max_context": 512}
        values = {
            "model": str(model),
            "hardware": {"device": "cpu", "per_node": 1},
            "workload": load,
            "objective": {"optimize": objective},
            "candidate": {**split, "memory_fraction": 0.2, **fields},
        }
        return write_bundle(make_recipe(PlanRequest.parse(values)), tmp_path / name)

    yield written  # type: ignore[misc]
    shutil.rmtree(model)
