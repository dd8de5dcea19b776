"""Bundles of real engines to break: the embedded one, and vLLM's CPU build where there is one.

Both serve a small model without training, which is made once for each folder. Built as users do,
with `recipe build`; only the limits of supervision are shorter.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from recipe_core.base.documents import to_yaml
from tests.fixtures.bundles import Bundle
from tests.fixtures.paths import ROOT

from .deployments import Deployment

LIMITS = {
    "crash_budget": 4,
    "window_s": 240,
    "backoff_s": 0.5,
    "backoff_most_s": 5,
    "stable_s": 20,
    "hang_s": 20,
    "slow_s": 600,
    "drain_s": 5,
    "poll_s": 0.5,
}
_UNTRAINED = (
    "import sys, pathlib, demo_model as m; "
    "m.ensure(pathlib.Path(sys.argv[1]), training=m.Training(steps=1))"
)
_WORKLOAD = {"input_tokens": 64, "output_tokens": 16, "concurrency": 2, "max_context": 512}
_VLLM = {
    "engine": "vllm",
    "tp": 1,
    "pp": 1,
    "dp": 1,
    "weight_dtype": "fp32",
    "memory_fraction": 0.3,
    "max_num_seqs": 8,
}
_FACTS: dict[str, dict[str, Any]] = {"embedded": {}, "vllm": {"candidate": _VLLM}}
_made: dict[str, Path] = {}


def make(kind: str, folder: Path, port: int, programs: Path | None = None) -> Deployment:
    """A bundle of a real engine; ``programs`` is the folder with vLLM's program."""
    bundle, conditions, model = folder / "bundle", folder / "conditions", folder / "model"
    conditions.mkdir(parents=True)
    shutil.copytree(_model(), model)
    request = {
        "model": str(model),
        "hardware": {"device": "cpu", "per_node": 1},
        "workload": _WORKLOAD,
        **_FACTS[kind],
    }
    (folder / "request.yaml").write_text(to_yaml(request))
    words = ["-m", "recipe_core", "build", str(folder / "request.yaml"), "-o", str(bundle)]
    subprocess.run([sys.executable, *words], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    for path in (bundle / "launch.json", *bundle.glob("fallbacks/*/launch.json")):
        data = json.loads(path.read_text())
        data["supervision"] = LIMITS
        data["parameters"]["port"] = port
        path.write_text(json.dumps(data))
    made = Bundle(bundle, port)
    made.seal()
    path = (
        f"{programs}:/usr/local/bin:/usr/bin:/bin" if programs else "/usr/local/bin:/usr/bin:/bin"
    )
    features = {"ranks"} if kind == "vllm" else set[str]()
    return Deployment(kind, made, conditions, {"PATH": path}, frozenset(features))


def _model() -> Path:
    """A model that is made once for all deployments of this process."""
    if "model" not in _made:
        folder = Path(tempfile.mkdtemp(prefix="chaos-model-")) / "model"
        command = [sys.executable, "-c", _UNTRAINED, str(folder)]
        subprocess.run(command, check=True, cwd=ROOT / "scripts", stdout=subprocess.DEVNULL)
        _made["model"] = folder
    return _made["model"]
