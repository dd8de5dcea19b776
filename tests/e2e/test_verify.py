"""A bundle of the embedded engine really starts, and its outputs are compared."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from recipe_core.bundle.write import write_bundle
from recipe_core.recipe import make_recipe
from recipe_core.request.schema import PlanRequest
from recipe_core.trials import verify as module
from recipe_core.trials.verify import Choice, verify

MISSING = [
    name
    for name in ("torch", "transformers", "openai", "accelerate")
    if importlib.util.find_spec(name) is None
]


@pytest.mark.engine
@pytest.mark.skipif(
    bool(MISSING),
    reason=f"NOT TESTED: outputs: {', '.join(MISSING)} missing; pip install '.[torch]'",
)
def test_outputs_of_the_embedded_engine_repeat(
    tmp_path: Path, demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {
        "model": str(demo_model),
        "hardware": {"device": "cpu", "per_node": 1},
        "workload": {"input_tokens": 64, "output_tokens": 16, "concurrency": 2},
        "candidate": {"engine": "transformers"},
    }
    bundle = write_bundle(make_recipe(PlanRequest.parse(values)), tmp_path / "bundle")
    known = module.reproducibility("transformers").model_copy(update={"switches": ()})
    monkeypatch.setattr(module, "reproducibility", lambda name: known)  # one start is enough
    report = verify(bundle, (), Choice(prompts=4, tokens=12, timeout_s=600), tell=print)
    by_name = {one.name: one for one in report.comparisons}
    assert by_name["repeat-greedy"].alike.share == 1
    assert by_name["batch"].alike.unit == "words"
    # Its batch draws as its first request said, which was greedy.
    assert "nothing was drawn" in report.left_out["the same seeds twice"]
    assert "tells none" in report.left_out["log-probabilities"]
    json.dumps(report.to_json())
    assert not list(bundle.glob("run/verify/work-*"))
