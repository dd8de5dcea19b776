"""What a lock pins, and what it says when something else is here."""

from __future__ import annotations

import itertools
import json
import re
import struct

import pytest
from pydantic import ValidationError

from recipe_core.base.errors import InputError
from recipe_core.bundle.write import bundle_files
from recipe_core.engines.spec import engine
from recipe_core.engines.training_programs import facts, install_on
from recipe_core.model.catalog import load_model
from recipe_core.model.checkpoint import checkpoint_digest
from recipe_core.model.revision import snapshot_of, split_revision
from recipe_core.recipe import Additions, make_recipe, passing_on
from recipe_core.recipe.lock import ImageLock, pinned_packages
from recipe_core.recipe.lockcheck import verify_lock
from recipe_core.recipe.parameters import read_parameters
from recipe_core.recipe.place import Parameters
from tests.conftest import make_request
from tests.fixtures.recipes import recipe_for_request, recipe_of

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def write_safetensors(path, shape=(4, 4)) -> None:
    """A file with one tensor of zeros."""
    size = 2 * shape[0] * shape[1]
    tensor = {"dtype": "BF16", "shape": list(shape), "data_offsets": [0, size]}
    header = json.dumps({"w": tensor}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))


@pytest.fixture
def snapshot(tmp_path, tiny_config):
    """A folder as the hub's cache has them: links to files named by what they hold."""
    root = tmp_path / "models--org--tiny"
    folder, blobs = root / "snapshots" / COMMIT, root / "blobs"
    folder.mkdir(parents=True)
    blobs.mkdir()
    (folder / "config.json").write_text(json.dumps(tiny_config))
    write_safetensors(blobs / ("ab" * 32))
    (folder / "model.safetensors").symlink_to(blobs / ("ab" * 32))
    return folder


def recipe_of_folder(folder):
    workload = {"input_tokens": 64, "output_tokens": 64}
    return recipe_of(str(folder), "h100-sxm", 1, workload=workload)


def qwen(model="Qwen/Qwen3-8B", **parts):
    return make_request(model, "h100-sxm", 1, **parts)


def test_a_lock_pins_what_is_started():
    recipe = recipe_for_request(qwen())
    lock = recipe.lock
    assert lock.recipe_digest == recipe.digest
    assert (lock.engine.name, lock.engine.version) == (recipe.engine.name, recipe.engine.version)
    assert lock.engine.packages == {"vllm": f"=={recipe.engine.version}"}
    assert lock.model.architecture_digest == load_model("Qwen/Qwen3-8B").digest
    assert lock.seeds["bench"] == 1
    assert lock.determinism == {}  # nothing promises equal runs by itself
    asked = passing_on(qwen(), {"seed": "42"}, {"VLLM_BATCH_INVARIANT": "1"})
    stated = make_recipe(asked).lock
    assert stated.seeds["seed"] == 42
    assert stated.determinism == {"VLLM_BATCH_INVARIANT": "1"}


def test_the_image_is_the_engines_or_the_users_and_does_not_move():
    own = recipe_for_request(qwen()).lock.image
    assert own.reference == engine("vllm").image("cuda", "sm_90").reference
    digest = f"sha256:{'ab' * 32}"
    place = Parameters(image=f"registry.local/vllm:v1@{digest}")
    mine = make_recipe(qwen(), Additions(parameters=place)).lock.image
    assert (mine.reference, mine.digest) == ("registry.local/vllm:v1", digest)
    for moving in ("vllm/vllm-openai", "vllm/vllm-openai:latest", "localhost:5000/vllm"):
        with pytest.raises(ValidationError, match="latest"):
            ImageLock(reference=moving)
        with pytest.raises(InputError, match="moves"):
            read_parameters({"image": moving})
    without_tag = Additions(parameters=Parameters(image=f"registry.local/vllm@{digest}"))
    with pytest.raises(InputError, match="needs a tag"):
        make_recipe(qwen(), without_tag)


@pytest.mark.parametrize(("device", "what"), [("h100-sxm", "driver"), ("mi300x", "rocm")])
def test_the_oldest_host_software_is_in_the_lock(device, what):
    recipe = recipe_of("Qwen/Qwen3-8B", device, 1)
    assert recipe.lock.floors == {what: engine("vllm").floors[recipe.device.runtime].version}


def test_packages_are_read_off_the_install():
    words = "pip install vllm==0.32.0 'transformers[serving]==5.23.0' 'torch>=2.11,<2.14' ./here"
    packages = {"vllm": "==0.32.0", "transformers": "==5.23.0", "torch": "<2.14,>=2.11"}
    assert pinned_packages(f"{words} && export A=b") == packages
    wheel = "https://host/v0.32.0/vllm-0.32.0%2Bcpu-cp38-abi3-manylinux_2_34_x86_64.whl"
    from_a_wheel = pinned_packages(f"pip install {wheel} --extra-index-url https://host/whl/cpu")
    assert from_a_wheel == {"vllm": "==0.32.0+cpu"}


CUDA_ALONE = re.compile(r"pip install [\"']?(vllm==0.32.0|sglang==0.5.23)[\"']?( |$)")


@pytest.mark.parametrize(
    ("engine_name", "device", "expected"),
    [
        ("vllm", "mi300x", "wheels.vllm.ai/rocm/0.32.0"),
        ("vllm", "mi355x", "wheels.vllm.ai/rocm/0.32.0"),
        ("vllm", "cpu", "vllm-0.32.0+cpu"),
        ("sglang", "mi300x", "python[all_hip]"),
        ("transformers", "cpu", "download.pytorch.org/whl/cpu"),
        ("transformers", "mi300x", "download.pytorch.org/whl/rocm"),
        ("vllm", "h100-sxm", "pip install vllm==0.32.0"),
    ],
)
def test_a_bundle_installs_the_build_of_its_devices(engine_name, device, expected):
    """README, launch.json (the launcher's hint) and lock; PyPI's packages are for CUDA."""
    recipe = recipe_of("Qwen/Qwen3-0.6B", device, 1, candidate={"engine": engine_name})
    files = bundle_files(recipe)
    stated = json.loads(files["launch.json"])["engine"]["install"]
    assert expected in stated
    assert recipe.lock.engine.install == stated
    assert stated in files["README.md"].decode()
    assert bool(CUDA_ALONE.search(stated)) == (recipe.device.runtime == "cuda")


def test_frameworks_are_installed_beside_the_torch_of_their_devices():
    for name, runtime in itertools.product(facts().engines, ("rocm", "cpu")):
        first = install_on(name, runtime).split(" && ")[0]
        assert f"--index-url https://download.pytorch.org/whl/{runtime}" in first
    assert "index-url" not in install_on("torchtitan", "cuda")


def test_a_revision_follows_an_at_sign_and_is_locked_and_started():
    for text, parts in {
        "org/name@main": ("org/name", "main"),
        f"org/name@{COMMIT}": ("org/name", COMMIT),
        "org/name": ("org/name", None),
        "/models/a@b": ("/models/a@b", None),
        "org/name@--flag": ("org/name@--flag", None),
    }.items():
        assert split_revision(text) == parts
    recipe = make_recipe(qwen("Qwen/Qwen3-8B@v1.0"))
    assert (recipe.lock.model.id, recipe.lock.model.revision) == ("Qwen/Qwen3-8B", "v1.0")
    assert recipe.engine.options["revision"] == "v1.0"
    assert recipe.model.id == "Qwen/Qwen3-8B"
    with pytest.raises(InputError, match="revision"):  # the engine cannot be told it
        make_recipe(qwen("Qwen/Qwen3-0.6B@v1", candidate={"engine": "transformers"}))


def test_a_snapshot_names_its_model_and_revision(snapshot):
    lock = recipe_of_folder(snapshot).lock
    assert (lock.model.id, lock.model.revision) == ("org/tiny", COMMIT)
    assert lock.model.checkpoint.of == "content"
    assert snapshot_of("/models/tiny") is None


def test_other_weights_are_another_checkpoint(snapshot):
    before = checkpoint_digest(snapshot)
    other = snapshot.parent.parent / "blobs" / ("cd" * 32)
    write_safetensors(other)
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(other)
    assert checkpoint_digest(snapshot).digest != before.digest


def test_a_plain_folder_is_known_by_its_headers(tmp_path):
    assert checkpoint_digest(tmp_path) is None  # no weights
    weights = tmp_path / "a.safetensors"
    write_safetensors(weights)
    first = checkpoint_digest(tmp_path)
    assert (first.of, first.files) == ("headers", 1)
    write_safetensors(weights, shape=(2, 8))
    assert checkpoint_digest(tmp_path).digest != first.digest
    weights.write_bytes(b"no")  # damaged
    assert checkpoint_digest(tmp_path) is None


def levels(found) -> dict[str, str]:
    return {each.what: each.level for each in found}


def test_nothing_differs_from_a_fresh_lock(snapshot, monkeypatch):
    recipe = recipe_of_folder(snapshot)
    monkeypatch.setattr("recipe_core.recipe.lockcheck.version", lambda name: recipe.engine.version)
    found = levels(verify_lock(recipe, recipe.lock, snapshot))
    same = {"recipe", "package vllm", "model revision", "checkpoint (content)"}
    assert {found[name] for name in same} == {"same"}
    assert "differs" not in found.values()


def test_what_differs_is_named(snapshot, monkeypatch):
    recipe = recipe_of_folder(snapshot)
    monkeypatch.setattr("recipe_core.recipe.lockcheck.version", lambda name: "0.1.0")
    changed = recipe.model_copy(update={"notes": ("another",)})
    found = levels(verify_lock(changed, recipe.lock, snapshot))
    assert found["recipe"] == found["package vllm"] == "differs"
    older = recipe.lock.engine.model_copy(update={"version": "0.1.0"})
    lock = recipe.lock.model_copy(update={"engine": older})
    assert levels(verify_lock(recipe, lock))["vllm of this builder"] == "differs"


def test_a_floor_may_be_passed_but_not_missed(monkeypatch):
    recipe = recipe_for_request(qwen())
    lock = recipe.lock.model_copy(update={"floors": {"driver": "525.60.13"}})
    for driver, level in (("550.54.15", "same"), ("470.1", "differs"), (None, "absent")):
        monkeypatch.setattr("recipe_core.recipe.lockcheck._probe", lambda what, has=driver: has)
        assert levels(verify_lock(recipe, lock))["driver (at least)"] == level
