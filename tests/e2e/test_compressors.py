"""Bundles really make checkpoints with the tools that they name, on this machine's processor.

Each tool has an environment of its own: ``scripts/compressors_cpu`` installs them in
``.venv-compressors``; ``COMPRESSORS`` names the folder of others. ``make test-compressors`` does
both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recipe_core.accuracy.choice import choose_tool
from recipe_core.accuracy.choice import tool as named
from recipe_core.bundle.write import write_bundle
from recipe_core.compression.scripts.work import compression_launch, job_document
from recipe_core.models.catalog import catalog_model
from recipe_core.recipe import make_recipe
from recipe_core.request.compression import Compression
from recipe_core.request.schema import PlanRequest
from tests.fixtures.paths import ROOT
from tests.fixtures.rows import table

FOLDER = Path(os.environ.get("COMPRESSORS") or ROOT / ".venv-compressors")
pytestmark = pytest.mark.nightly
SMALL: dict[str, Any] = {
    "calibration": {"samples": 8, "tokens": 256},
    "verify": {"tokens": 512, "prompts": 2, "new_tokens": 8, "least_retained": 0.5},
}
GROUPS = {"int4_weight_only": 128, "nvfp4_w4a4": 16}


def python_of(tool: str) -> str:
    path = FOLDER / tool / "bin" / "python"
    if not path.is_file():
        pytest.skip(f"NOT TESTED: running {tool}, because there is none (make test-compressors)")
    return str(path)


def run(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(("tool", "technique", "method"), table("compressors", "ways"))
def test_a_script_writes_a_checkpoint(
    tool: str, technique: str, method: str, demo_model: Path, tmp_path: Path
) -> None:
    python = python_of(tool)
    values = {"technique": technique, "tool": tool, "method": method, **SMALL}
    asked = Compression.model_validate(values)
    usual = choose_tool(Compression(), "int8", "vllm", "cpu", needed=True)
    assert usual is not None
    way = named(tool).ways(technique)[method]
    chosen = replace(
        usual, technique=technique, tool=tool, method=method, scheme=way.scheme, request=asked,
        samples=8 if way.samples else 0, tokens=256, group=way.group or GROUPS.get(technique, 1),
    )  # fmt: skip
    model = catalog_model("meta-llama/Llama-3.1-8B")
    for path, text in compression_launch(chosen, model, "cpu").files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    job = job_document(chosen, model) | {"source": str(demo_model), "output": str(tmp_path / "out")}
    (tmp_path / "job.json").write_text(json.dumps(job))
    words = [python, "-B", str(tmp_path / "compress" / "make.py"), str(tmp_path / "job.json")]
    run(words)
    assert (tmp_path / "out" / "config.json").is_file()
    assert [*(tmp_path / "out").glob("*.safetensors"), *(tmp_path / "out").glob("*.onnx")]


def test_a_bundle_makes_and_checks_its_checkpoint(demo_model: Path, tmp_path: Path) -> None:
    python = python_of("llm-compressor")
    compression = {"technique": "int8_w8a8", "method": "RTN", "tool": "llm-compressor", **SMALL}
    request = {
        "model": str(demo_model),
        "hardware": {"device": "h100-sxm", "per_node": 1},
        "workload": {"input_tokens": 64, "output_tokens": 16, "concurrency": 2, "max_context": 256},
        "options": {"engines": ["vllm"], "compression": compression},
    }
    bundle = write_bundle(make_recipe(PlanRequest.parse(request)), tmp_path / "bundle")
    words = [sys.executable, str(bundle / "launch.py"), "compress", "--python", python]
    run(words)
    figures = json.loads((bundle / "run" / "compression.json").read_text())
    assert figures["verification"]["retained"]["perplexity"] > 0.9
    assert (bundle / "run" / "compressed" / "model-int8-w8a8" / "config.json").is_file()
