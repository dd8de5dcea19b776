"""Devices and releases that a machine really has meet what the engine's releases answered."""

import json

import pytest

from recipe_core.bundle.write import bundle_files
from recipe_core.payload.launcher.devices import Device
from recipe_core.payload.launcher.errors import InputError
from recipe_core.payload.launcher.portability import answer_support, read_support
from recipe_core.payload.launcher.typed_json import Fields
from recipe_core.recipe import make_recipe
from tests.conftest import make_request
from tests.fixtures.rows import over, table


@pytest.fixture(scope="module")
def sparse():
    """The part ``kernels`` of a bundle whose model attends sparsely, for H200s."""
    made = make_recipe(make_request(model="deepseek-ai/DeepSeek-V3.2", device="h200-sxm"))
    return json.loads(bundle_files(made)["launch.json"])["kernels"]


def supported(kernels):
    return read_support(Fields({"kernels": kernels}, "launch.json"))


@over("release architecture name status words", table("launcher_support", "outcomes"))
def test_a_start_is_refused_where_that_release_refuses(
    sparse, release, architecture, name, status, words
):
    devices = [Device(0, name, None, architecture=architecture)] * 8
    found = list(answer_support(supported(sparse), "vllm", release, devices, ["NVIDIA H200"]))
    assert [one[0] for one in found] == ([status] if status else [])
    for status, detail, hint in found:
        assert words in f"{status}: {detail} {hint}"


def test_a_bundle_of_an_engine_that_was_not_asked_has_none(sparse):
    assert read_support(Fields({}, "launch.json")) is None
    own = {"engines": ["transformers"]}
    made = make_recipe(make_request("Qwen/Qwen3-4B", per_node=1, options=own))
    assert "kernels" not in json.loads(bundle_files(made)["launch.json"])
    with pytest.raises(InputError, match="releases"):
        supported({**sparse, "releases": []})
    with pytest.raises(InputError, match="verdict"):
        supported({**sparse, "told": [{**sparse["told"][0], "verdict": "maybe"}]})
