"""A bundle of vLLM for this machine's CPU; real starts find a fake `vllm` on the path."""

import json
import os
import sys
from pathlib import Path

import pytest

from recipe_core.bundle.write import write_bundle
from recipe_core.recipe import make_recipe
from tests.conftest import make_request
from tests.fixtures.paths import ROOT


@pytest.fixture
def fake_vllm(tmp_path, monkeypatch):
    if (Path(sys.executable).parent / "vllm").exists():
        pytest.skip("a real vllm lies beside this Python, which is found before the fake")
    program = tmp_path / "programs" / "vllm"
    program.parent.mkdir()
    found = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom tests.fixtures import fake_vllm\n"
    program.write_text(f"#!{sys.executable}\n{found}fake_vllm.main()\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def vllm_bundle(tmp_path, tiny_config):
    """Writes a bundle of a small model; takes fields of its config and of the candidate."""

    def written(name="bundle", layers=4, **fields):
        model = tmp_path / f"model-{layers}"
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text(json.dumps(tiny_config | {"num_hidden_layers": layers}))
        (model / "model.safetensors").write_bytes(b"")
        split = {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1, "max_num_seqs": 16}
        split |= {"memory_fraction": 0.2, **fields}
        work = {"input_tokens": 32, "output_tokens": 8, "concurrency": 2, "max_context": 512}
        parts = {"workload": work, "objective": {"optimize": "tpot"}, "candidate": split}
        recipe = make_recipe(make_request(str(model), "cpu", 1, **parts))
        return write_bundle(recipe, tmp_path / name)

    return written
