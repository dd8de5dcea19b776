"""A bundle of vLLM for this machine's CPU; real starts find a fake `vllm` on the path."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipe_core.bundle.write import write_bundle
from recipe_core.recipe import make_recipe
from recipe_core.request.schema import PlanRequest
from tests.fixtures.paths import ROOT


@pytest.fixture
def fake_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake as `vllm` on the path."""
    if (Path(sys.executable).parent / "vllm").exists():
        pytest.skip("a real vllm lies beside this Python, which is found before the fake")
    folder = tmp_path / "programs"
    folder.mkdir()
    program = folder / "vllm"
    found = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom tests.fixtures import fake_vllm\n"
    program.write_text(f"#!{sys.executable}\n{found}fake_vllm.main()\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def vllm_bundle(tmp_path: Path, tiny_config: dict[str, Any]) -> Callable[..., Path]:
    """Writes a bundle of a small model; takes fields of its config and of the candidate."""

    def written(name: str = "bundle", layers: int = 4, **fields: Any) -> Path:
        model = tmp_path / f"model-{layers}"
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text(json.dumps(tiny_config | {"num_hidden_layers": layers}))
        (model / "model.safetensors").write_bytes(b"")
        split = {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1, "max_num_seqs": 16}
        values = {
            "model": str(model),
            "hardware": {"device": "cpu", "per_node": 1},
            "workload": {
                "input_tokens": 32,
                "output_tokens": 8,
                "concurrency": 2,
                "max_context": 512,
            },
            "objective": {"optimize": "tpot"},
            "candidate": {**split, "memory_fraction": 0.2, **fields},
        }
        return write_bundle(make_recipe(PlanRequest.parse(values)), tmp_path / name)

    return written
