"""What `recipe check` says of a bundle that nobody vouches for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from recipe_core.bundle.signing import new_key
from recipe_core.bundle.verify import check_bundle, read_bundle
from recipe_core.bundle.write import bundle_files, write_bundle
from recipe_core.recipe import make_recipe
from recipe_core.request.schema import PlanRequest
from tests.conftest import make_request
from tests.fixtures.command_line import recipe as run
from tests.fixtures.recipes import recipe_for_request, recipe_of
from tests.nightly.attack.hostile_bundles import pack, seal

TRAINING = {
    "model": "Qwen/Qwen3-8B",
    "hardware": {"device": "h100-sxm", "per_node": 8},
    "options": {"engines": ["torch"]},
    "workload": {"kind": "training", "sequence_length": 4096, "global_batch": 64, "tokens": 10**8},
}


def sealed(files: Mapping[str, bytes], path: Path, **changes: Any) -> Path:
    """The bundle after ``changes``, with a manifest made anew."""
    changed = {**files, **changes}
    return pack(seal({name: data for name, data in changed.items() if data is not None}), path)


def test_an_unsigned_bundle_is_called_so(archive):
    answer = check_bundle(archive)
    assert answer["signed"] is None
    assert answer["verdict"].startswith("unsigned: anyone may have changed it")
    assert not any(answer["differs"].values())
    assert run("check", str(archive)).stdout.startswith("ok, unsigned: anyone may have changed it")


def test_what_was_sealed_anew_is_held_against_its_recipe(files, tmp_path):
    path = tmp_path / "b.zip"
    differs: dict[str, Any] = {"changed": [], "missing": [], "added": [], "refusal": None}
    for kind, changes in {
        "changed": {
            "launch.py": b"",
            "launch.json": b"{}",
            "targets/compose/compose.yaml": b"x: 1",
        },
        "added": {"launcher/json.py": b"import os"},
        "missing": {"launcher/errors.py": None},
    }.items():
        names = sorted(changes)
        answer = check_bundle(sealed(files, path, **changes))
        assert {**answer["differs"], kind: sorted(answer["differs"][kind])} == {
            **differs,
            kind: names,
        }
        assert all(name in answer["warnings"][0].partition(f"{kind}: ")[2] for name in names)
    assert "note: It differs from what recipe-builder" in run("check", str(path)).stdout
    assert json.loads(run("check", str(path), "--json").stdout)["differs"]["missing"] == names


def test_another_version_is_expected_to_differ(recipe, tmp_path):
    older = recipe.model_copy(update={"built_by": "recipe-builder 0.0.1"}).locked()
    path = sealed(bundle_files(older), tmp_path / "b.zip", **{"launch.py": b"older"})
    assert "recipe-builder 0.0.1" in " ".join(check_bundle(path)["warnings"])


def test_only_a_given_key_makes_a_bundle_its_authors(recipe, tmp_path):
    private, public = new_key()
    path = write_bundle(recipe, tmp_path / "b.zip", private)
    answer = check_bundle(path)
    assert "not compared with a key of yours" in answer["verdict"]
    assert answer["differs"] is not None
    answer = check_bundle(path, public)
    assert answer["verdict"].endswith("the given key")
    assert answer["differs"] is None


def test_a_recipe_that_this_version_refuses_is_not_compared(recipe, files, tmp_path):
    refused = recipe.model_copy(update={"candidate": {**recipe.candidate, "tp": 7}})
    text = json.dumps(refused.model_dump(mode="json")).encode()
    answer = check_bundle(sealed(files, tmp_path / "b.zip", **{"recipe.yaml": text}))
    assert answer["differs"]["refusal"]
    assert "could not be compared" in answer["warnings"][0]


@pytest.mark.parametrize("place", ["b", pytest.param("b.zip", marks=pytest.mark.nightly)])
def test_bundles_of_all_kinds_differ_in_nothing(tmp_path, tiny_config, place):
    """Also those of a folder that is gone, of a configuration, of a training run, of variables."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(tiny_config))
    load = {"input_tokens": 64, "output_tokens": 64}
    recipes = [
        make_recipe(make_request(str(folder), "h100-sxm", 1, workload=load)),
        recipe_of(tiny_config, "mi300x", 1, workload=load),
        recipe_for_request(PlanRequest.parse(TRAINING)),
        recipe_of("Qwen/Qwen3-8B", "h100-sxm", 2, options={"environment": {"NCCL_DEBUG": "WARN"}}),
    ]
    (folder / "config.json").unlink()
    for number, each in enumerate(recipes):
        path = write_bundle(each, tmp_path / f"{number}{place}")
        assert not any(check_bundle(path)["differs"].values()), each.name
        assert read_bundle(path).recipe == each
