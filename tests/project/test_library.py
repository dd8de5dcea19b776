"""The public library: small, lazy, typed, and what docs and gallery say of it is executed."""

from __future__ import annotations

import runpy
import subprocess
import sys
from typing import Any

import pytest

import recipe_core as rb
from recipe_core.base.data_files import DataFile
from recipe_core.bundle.write import bundle_of
from recipe_core.plans.plan import Plan
from recipe_core.request.link import from_query, link_query
from recipe_core.request.presets import EXAMPLES_FILE, ExampleFile, examples
from recipe_core.views.decision import case_answer
from tests.conftest import request_values
from tests.fixtures.paths import ROOT
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over

PUBLIC = {"plan", "estimate", "check", "build", "write", "read", "validate", "Request", "Plan"}
PUBLIC |= {"Split", "Estimate", "Recipe", "RecipeError", "InputError", "NoAnswer"}
TRAINING = {
    "model": "meta-llama/Llama-3.1-8B",
    "hardware": {"device": "h100-sxm", "per_node": 8},
    "workload": {"kind": "training", "sequence_length": 4096, "global_batch": 64, "tokens": 1e9},
}
KINDS = {"serving": request_values(), "training": TRAINING}


def test_the_public_names_are_there_and_described():
    assert set(rb.__all__) >= PUBLIC
    for name in rb.__all__:
        assert (getattr(rb, name).__doc__ or "").strip(), name
    assert set(rb.__all__) <= set(dir(rb))
    assert (ROOT / "recipe_core" / "py.typed").exists()
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = rb.no_such_name
    # importing it imports nothing else
    code = (
        "import sys; before = set(sys.modules); import recipe_core; "
        "print(*sorted(name for name in set(sys.modules) - before if 'recipe_core' in name))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["recipe_core"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_split_is_built_without_a_second_search(kind, monkeypatch, tmp_path):
    plan = rb.plan(KINDS[kind])
    searches: list[str] = []

    def noted(name: str, method: Any) -> Any:
        def noting(*args: Any, **parts: Any) -> Any:
            searches.append(name)
            return method.__func__(*args, **parts)

        return classmethod(noting)

    for cls in (Plan, Plan):
        for name in ("search", "together"):
            if hasattr(cls, name):
                monkeypatch.setattr(cls, name, noted(name, getattr(cls, name)))
    recipe = rb.build(plan.best)
    assert searches in ([], ["together"])  # the fallbacks of serving, in one plan
    assert recipe.candidate == plan.best.candidate
    path = rb.write(recipe, tmp_path / "out.zip")
    assert len(searches) <= 1
    assert rb.read(path) == recipe
    whole = rb.build(KINDS[kind])
    assert len(searches) <= 3  # one for the split, one for the fallbacks
    assert whole.candidate == recipe.candidate
    assert bundle_of(whole).files["launch.json"] == bundle_of(recipe).files["launch.json"]


def test_requests_come_from_values_files_and_objects_and_a_refused_split_is_not_built(tmp_path):
    values = request_values()
    path = tmp_path / "request.yaml"
    path.write_text(rb.Request.parse(values).model_dump_json(exclude_none=True))
    assert rb.plan(values).best.key == rb.plan(path).best.key == rb.plan(str(path)).best.key
    assert "object or the path" in str(refusal(rb.plan, 7))
    cramped = rb.plan(request_values(per_node=1, model="meta-llama/Llama-3.1-70B-Instruct"))
    assert "cannot run" in str(refusal(rb.build, cramped.refused[0], kind=rb.NoAnswer))


def test_the_examples_of_the_folder_are_executed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "compare_devices.py"), run_name="__main__")
    assert "h100-sxm: TP" in capsys.readouterr().out


def test_the_gallery_has_ten_cases_that_differ():
    cases = examples().values()
    assert len({case.title for case in cases}) == len(cases) >= 10
    assert {case.asked.workload.kind for case in cases} == {"serving", "training"}
    assert len({case.asked.hardware.device_name[:2] for case in cases}) >= 3
    assert all(case.answer for case in list(cases)[:6])  # those that the start page shows
    # a case with a wrong field names it
    document = DataFile(EXAMPLES_FILE, "example").read()
    document["examples"]["chat-70b"]["titel"] = "Chat"
    error = refusal(DataFile(EXAMPLES_FILE, "example").validated, document, ExampleFile)
    assert "examples.yaml: examples.chat-70b.titel" in str(error)


@over("name", examples(), share=4)
def test_a_case_is_a_link_whose_best_split_holds_its_load_and_can_be_built(name):
    request = examples()[name].asked
    assert from_query(link_query(request)) == (request, [])
    board = rb.plan(request)
    assert board.feasible[board.best_row]
    assert board.holds[board.best_row]
    assert examples()[name].answer in ("", case_answer(board))
    assert {"recipe.yaml", "launch.json"} <= set(bundle_of(rb.build(request)).files)
