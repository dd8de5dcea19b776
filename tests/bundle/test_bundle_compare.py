"""What `recipe check` says of a bundle that nobody vouches for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from recipe_core.bundle.manifest import MANIFEST, Manifest
from recipe_core.bundle.signing import new_key
from recipe_core.bundle.verify import check_bundle, read_bundle
from recipe_core.bundle.write import bundle_files, write_bundle, zipped
from recipe_core.recipe import Recipe, make_recipe
from recipe_core.request.schema import PlanRequest
from tests.conftest import make_request
from tests.fixtures.command_line import recipe as run
from tests.fixtures.recipes import recipe_for_request, recipe_of

TRAINING = {
    "model": "Qwen/Qwen3-8B",
    "hardware": {"device": "h100-sxm", "per_node": 8},
    "options": {"engines": ["torch"]},
    "workload": {
        "kind": "training",
        "sequence_length": 4096,
        "global_batch": 64,
        "tokens": 100_000_000,
    },
}


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return recipe_of(candidate={"tp": 8, "pp": 1, "dp": 1})


def sealed(recipe: Recipe, changes: dict[str, bytes | None]) -> bytes:
    """The bundle after ``changes``, with a manifest made anew."""
    files: dict[str, Any] = bundle_files(recipe) | changes
    listed = {n: data for n, data in files.items() if n != MANIFEST and data is not None}
    manifest = Manifest.of(recipe.name, recipe.digest, listed)
    return zipped({**listed, MANIFEST: manifest.model_dump_json().encode()})


def test_an_unsigned_bundle_is_called_so(recipe: Recipe, tmp_path: Path) -> None:
    path = write_bundle(recipe, tmp_path / "b.zip")
    answer = check_bundle(path)
    assert answer["signed"] is None
    assert answer["verdict"].startswith("unsigned: anyone may have changed it")
    assert not any(answer["differs"].values())
    assert run("check", str(path)).stdout.startswith("ok, unsigned: anyone may have changed it")


@pytest.mark.parametrize(
    ("changes", "kind", "name"),
    [
        ({"launch.py": b"import os"}, "changed", "launch.py"),
        ({"launch.json": b"{}"}, "changed", "launch.json"),
        ({"targets/compose/compose.yaml": b"x: 1"}, "changed", "targets/compose/compose.yaml"),
        ({"launcher/json.py": b"import os"}, "added", "launcher/json.py"),
        ({"launcher/errors.py": None}, "missing", "launcher/errors.py"),
    ],
)
def test_what_was_sealed_anew_is_held_against_its_recipe(
    recipe: Recipe, tmp_path: Path, changes: dict[str, bytes | None], kind: str, name: str
) -> None:
    path = tmp_path / "b.zip"
    path.write_bytes(sealed(recipe, changes))
    answer = check_bundle(path)
    assert answer["differs"] == {"changed": [], "missing": [], "added": [], "refusal": None} | {
        kind: [name]
    }
    assert f"{kind}: {name}" in answer["warnings"][0]
    assert "note: It differs from what recipe-builder" in run("check", str(path)).stdout
    assert json.loads(run("check", str(path), "--json").stdout)["differs"][kind] == [name]


def test_another_version_is_expected_to_differ(recipe: Recipe, tmp_path: Path) -> None:
    older = recipe.model_copy(update={"built_by": "recipe-builder 0.0.1"}).locked()
    path = tmp_path / "b.zip"
    path.write_bytes(sealed(older, {"launch.py": b"older"}))
    assert "names recipe-builder 0.0.1, and versions write different" in " ".join(
        check_bundle(path)["warnings"]
    )


def test_only_a_given_key_makes_a_bundle_its_authors(recipe: Recipe, tmp_path: Path) -> None:
    private, public = new_key()
    path = write_bundle(recipe, tmp_path / "b.zip", private)
    assert "not compared with a key of yours" in check_bundle(path)["verdict"]
    assert check_bundle(path)["differs"] is not None
    answer = check_bundle(path, public)
    assert answer["verdict"].endswith("the given key")
    assert answer["differs"] is None


def test_a_recipe_that_this_version_refuses_is_not_compared(recipe: Recipe, tmp_path: Path) -> None:
    refused = recipe.model_copy(update={"candidate": {**recipe.candidate, "tp": 7}})
    path = tmp_path / "b.zip"
    path.write_bytes(
        sealed(recipe, {"recipe.yaml": json.dumps(refused.model_dump(mode="json")).encode()})
    )
    answer = check_bundle(path)
    assert answer["differs"]["refusal"]
    assert "could not be compared" in answer["warnings"][0]


@pytest.mark.parametrize("place", ["b", "b.zip"])
def test_bundles_of_all_kinds_differ_in_nothing(
    tmp_path: Path, tiny_config: dict[str, Any], place: str
) -> None:
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
