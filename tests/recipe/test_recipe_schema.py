"""The published schemas are those of the code, and say what the code says."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from recipe_core.base.errors import InputError
from recipe_core.bundle.manifest import MANIFEST
from recipe_core.bundle.write import bundle_files
from recipe_core.present.schemas import NAMES, schema
from tests.conftest import request_values
from tests.fixtures.over_time_answers import ANSWER
from tests.fixtures.paths import ROOT
from tests.fixtures.recipes import recipe_of

jsonschema = pytest.importorskip(
    "jsonschema", reason="needs jsonschema to hold documents against the schemas"
)


def test_the_files_are_not_stale():
    words = [sys.executable, "scripts/schemas.py", "--check"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, f"run python scripts/schemas.py: {done.stdout}{done.stderr}"


def test_each_is_a_schema_with_no_room_for_unknown_fields():
    for name in NAMES:
        found = json.loads((ROOT / "docs" / "schema" / f"{name}.schema.json").read_text())
        jsonschema.validators.validator_for(found).check_schema(found)
        kinds = [found["$defs"][each["$ref"].rpartition("/")[2]] for each in found.get("anyOf", [])]
        assert all(each["additionalProperties"] is False for each in kinds or [found]), name
    with pytest.raises(InputError, match="unknown schema 'recipes'"):
        schema("recipes")


def test_documents_pass_and_changed_ones_do_not():
    recipe = recipe_of("Qwen/Qwen3-8B", "h100-sxm", 2)
    documents = {
        "request": request_values(),
        "recipe": recipe.model_dump(mode="json"),
        "manifest": json.loads(bundle_files(recipe)[MANIFEST]),
        "estimate": recipe.estimate,
        "simulate": ANSWER.to_json(),
    }
    for name, document in documents.items():
        jsonschema.validate(document, schema(name))
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(document | {"surprise": 1}, schema(name))
