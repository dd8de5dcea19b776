"""What a lock pins, what it says when something else is here, and digests of a registry."""

import hashlib
import itertools
import json
import re
import struct
from functools import partial
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
from pydantic import ValidationError

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.base.web import Deadline
from recipe_core.bundle.write import bundle_files, write_bundle
from recipe_core.engines.spec import engine
from recipe_core.engines.training_programs import install_on, program_facts
from recipe_core.models.catalog import load_model_spec
from recipe_core.models.checkpoint import checkpoint_digest, snapshot_of, split_revision
from recipe_core.recipe import Additions, locking, make_recipe, passing_on
from recipe_core.recipe.comparison import verify_lock
from recipe_core.recipe.lock import ImageLock, pinned_packages
from recipe_core.recipe.locking import image_digest, image_place
from recipe_core.recipe.place import Parameters
from tests.conftest import make_request, request_values
from tests.fixtures.command_line import recipe as run
from tests.fixtures.recipes import recipe_for_request, recipe_of
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.web_servers import Clock, Handler, certificate_in, serving

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def write_safetensors(path, shape=(4, 4)):
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


def qwen(model="Qwen/Qwen3-8B", **parts):
    return make_request(model, "h100-sxm", 1, **parts)


def test_a_lock_pins_what_is_started():
    recipe = recipe_for_request(qwen())
    lock = recipe.lock
    assert lock.recipe_digest == recipe.digest
    assert (lock.engine.name, lock.engine.version) == (recipe.engine.name, recipe.engine.version)
    assert lock.engine.packages == {"vllm": f"=={recipe.engine.version}"}
    assert lock.model.architecture_digest == load_model_spec("Qwen/Qwen3-8B").digest
    assert (lock.seeds["bench"], lock.determinism) == (1, {})  # nothing promises equal runs
    asked = passing_on(qwen(), {"seed": "42"}, {"VLLM_BATCH_INVARIANT": "1"})
    stated = make_recipe(asked).lock
    assert (stated.seeds["seed"], stated.determinism) == (42, {"VLLM_BATCH_INVARIANT": "1"})
    # the image is the engine's or the user's, and does not move
    assert lock.image.reference == engine("vllm").image("cuda", "sm_90").reference
    digest = f"sha256:{'ab' * 32}"
    place = Parameters(image=f"registry.local/vllm:v1@{digest}")
    mine = make_recipe(qwen(), Additions(parameters=place)).lock.image
    assert (mine.reference, mine.digest) == ("registry.local/vllm:v1", digest)
    for moving in ("vllm/vllm-openai", "vllm/vllm-openai:latest", "localhost:5000/vllm"):
        with pytest.raises(ValidationError, match="latest"):
            ImageLock(reference=moving)
    without_tag = Additions(parameters=Parameters(image=f"registry.local/vllm@{digest}"))
    assert "needs a tag" in str(refusal(make_recipe, qwen(), without_tag))
    # and the oldest software of the host is in it
    for device, what in (("h100-sxm", "driver"), ("mi300x", "rocm")):
        recipe = recipe_of("Qwen/Qwen3-8B", device, 1)
        assert recipe.lock.floors == {what: engine("vllm").floors[recipe.device.runtime].version}


def test_packages_are_read_off_the_install():
    words = "pip install vllm==0.32.0 'transformers[serving]==5.23.0' 'torch>=2.11,<2.14' ./here"
    packages = {"vllm": "==0.32.0", "transformers": "==5.23.0", "torch": "<2.14,>=2.11"}
    assert pinned_packages(f"{words} && export A=b") == packages
    wheel = "https://host/v0.32.0/vllm-0.32.0%2Bcpu-cp38-abi3-manylinux_2_34_x86_64.whl"
    from_a_wheel = pinned_packages(f"pip install {wheel} --extra-index-url https://host/whl/cpu")
    assert from_a_wheel == {"vllm": "==0.32.0+cpu"}
    # frameworks are installed beside the torch of their devices
    for name, runtime in itertools.product(program_facts().engines, ("rocm", "cpu")):
        first = install_on(name, runtime).split(" && ")[0]
        assert f"--index-url https://download.pytorch.org/whl/{runtime}" in first
    assert "index-url" not in install_on("torchtitan", "cuda")


CUDA_ALONE = re.compile(r"pip install [\"']?(vllm==0.32.0|sglang==0.5.23)[\"']?( |$)")


@over("engine_name, device, expected", table("recipe", "installs"))
def test_a_bundle_installs_the_build_of_its_devices(engine_name, device, expected):
    """README, launch.json (the launcher's hint) and lock; PyPI's packages are for CUDA."""
    recipe = recipe_of("Qwen/Qwen3-0.6B", device, 1, candidate={"engine": engine_name})
    files = bundle_files(recipe)
    stated = json.loads(files["launch.json"])["engine"]["install"]
    assert expected in stated
    assert recipe.lock.engine.install == stated
    assert stated in files["README.md"].decode()
    assert bool(CUDA_ALONE.search(stated)) == (recipe.device.runtime == "cuda")


def test_a_revision_follows_an_at_sign_and_is_locked_and_started():
    for text, *parts in table("recipe", "revisions"):
        assert split_revision(text) == tuple(parts)
    recipe = make_recipe(qwen("Qwen/Qwen3-8B@v1.0"))
    assert (recipe.lock.model.id, recipe.lock.model.revision) == ("Qwen/Qwen3-8B", "v1.0")
    assert recipe.engine.options["revision"] == "v1.0"
    assert recipe.model.id == "Qwen/Qwen3-8B"
    request = qwen("Qwen/Qwen3-0.6B@v1", candidate={"engine": "transformers"})
    assert "revision" in str(refusal(make_recipe, request))  # the engine cannot be told it


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


def levels(recipe, lock, folder=None):
    return {each.name: each.level for each in verify_lock(recipe, lock, folder)}


def test_a_snapshot_is_locked_and_what_differs_is_named(snapshot, monkeypatch):
    workload = {"input_tokens": 64, "output_tokens": 64}
    recipe = recipe_of(str(snapshot), "h100-sxm", 1, workload=workload)
    lock = recipe.lock
    assert (lock.model.id, lock.model.revision) == ("org/tiny", COMMIT)
    assert lock.model.checkpoint.of == "content"
    assert snapshot_of("/models/tiny") is None
    installed = {"vllm": recipe.engine.version}
    monkeypatch.setattr("recipe_core.recipe.comparison.version", installed.get)
    found = levels(recipe, lock, snapshot)
    same = {"recipe", "package vllm", "model revision", "checkpoint (content)"}
    assert {found[name] for name in same} == {"same"}
    assert "differs" not in found.values()
    installed["vllm"] = "0.1.0"
    changed = recipe.model_copy(update={"notes": ("another",)})
    found = levels(changed, lock, snapshot)
    assert found["recipe"] == found["package vllm"] == "differs"
    older = lock.engine.model_copy(update={"version": "0.1.0"})
    found = levels(recipe, lock.model_copy(update={"engine": older}))
    assert found["vllm of this builder"] == "differs"
    # a floor may be passed but not missed
    lower = lock.model_copy(update={"floors": {"driver": "525.60.13"}})
    for driver, level in (("550.54.15", "same"), ("470.1", "differs"), (None, "absent")):
        monkeypatch.setattr("recipe_core.recipe.comparison._probe", lambda what, has=driver: has)
        assert levels(recipe, lower)["driver (at least)"] == level
    # other weights are another checkpoint
    before = checkpoint_digest(snapshot)
    other = snapshot.parent.parent / "blobs" / ("cd" * 32)
    write_safetensors(other)
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(other)
    assert checkpoint_digest(snapshot).digest != before.digest


def test_what_this_version_only_estimates_anew_is_named_and_no_failure(tmp_path):
    recipe = make_recipe(qwen())
    device = recipe.lock.device.model_copy(update={"profile_digest": "0" * 64})
    lock = recipe.lock.model_copy(update={"device": device})
    assert not {"differs", "renewed"} & set(levels(recipe, recipe.lock).values())
    serving = recipe.estimate["serving"] | {"tpot_s": recipe.estimate["serving"]["tpot_s"] * 0.8}
    before = recipe.model_copy(update={"estimate": recipe.estimate | {"serving": serving}})
    before = before.model_copy(
        update={"lock": lock.model_copy(update={"recipe_digest": before.digest})}
    )
    found = {each.name: each for each in verify_lock(before, before.lock)}
    renewed = {name for name, each in found.items() if each.level == "renewed"}
    assert renewed == {"profile of h100-sxm", "serving.tpot_s"}
    assert "(+25.0 %" in found["serving.tpot_s"].actual
    bundle = tmp_path / "before"
    write_bundle(before, bundle)
    done = run("lock", str(bundle), "--verify", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["ok"]
    assert {row["what"] for row in answer["found"] if row["level"] == "renewed"} == renewed
    text = run("lock", str(bundle), "--verify").stdout
    assert re.search(r"^renewed +serving\.tpot_s: .*\(\+25\.0 %", text, re.MULTILINE)
    assert "the bundle starts what it started" in text
    # what the bundle itself says is another matter, also beside such numbers
    for changed in (
        before.model_copy(update={"notes": ("another",)}),  # the lock is of another recipe
        before.model_copy(
            update={
                "lock": before.lock.model_copy(
                    update={"engine": lock.engine.model_copy(update={"version": "0.1.0"})}
                )
            }
        ),
    ):
        write_bundle(changed, bundle)
        done = run("lock", str(bundle), "--verify", "--json")
        assert done.returncode == 1
        assert not json.loads(done.stdout)["ok"]
    (bundle / "launch.py").write_text("print('another')")
    done = run("lock", str(bundle), "--verify")
    assert (done.returncode, done.stdout) == (1, "")
    assert "launch.py" in done.stderr


# Digests of images, asked of a registry that runs here: HTTPS, tokens, refusals

MANIFEST = b'{"schemaVersion": 2, "manifests": []}'
DIGEST = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"
TOKEN = "a-token-for-everybody"


class Registry(Handler):
    """Public tags of ``vllm/engine``; how it answers is in the tag."""

    requests: ClassVar[list[tuple[str, str, str]]] = []
    clock = Clock()

    def answer(self):
        if urlsplit(self.path).path == "/token":
            query = parse_qs(urlsplit(self.path).query)
            assert query["service"] == ["tests"]
            token = "" if "no-token" in query["scope"][0] else TOKEN
            self.reply(200, json.dumps({"token": token}).encode())
            return
        authorization = self.headers.get("Authorization", "")
        self.requests.append((self.command, self.path, authorization))
        *_, tag = self.path.split("/")
        if authorization != f"Bearer {TOKEN}" and tag != "open":
            realm = f"http{'' if tag == 'plain-token' else 's'}://{self.headers['Host']}/token"
            scope = f"repository:{'no-token' if tag == 'no-token' else 'vllm/engine'}:pull"
            bearer = f'Bearer realm="{realm}",service="tests",scope="{scope}"'
            asked = 'Basic realm="x"' if tag == "password" else bearer
            self.reply(401, b"", **{"WWW-Authenticate": asked})
            return
        assert self.headers["Accept"].startswith("application/vnd.oci.image.index.v1+json, ")
        digest = DIGEST if tag in ("v1", "open") else "sha256:../../etc"
        headers = {} if tag == "no-header" else {"Docker-Content-Digest": digest}
        if tag in ("v1", "open", "no-header", "odd-header"):
            self.reply(200, MANIFEST, **headers)
        elif tag == "elsewhere":
            self.reply(307, b"", Location="https://127.0.0.1:1/v2/")
        elif tag == "dripping":
            self.drip(self.clock)
        elif tag == "headers":
            self.reply(200, b"", **{f"X-{number}": "1" for number in range(1000)})
        else:
            self.reply(429 if tag == "often" else 404, b"")


@pytest.fixture
def host(tmp_path, monkeypatch):
    """The address of a registry whose certificate is trusted."""
    path = certificate_in(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(locking, "Deadline", partial(Deadline, clock=Registry.clock))
    Registry.requests.clear()
    with serving(Registry, path) as address:
        yield address


def test_a_tag_has_a_digest(host):
    for tag in ("v1", "open", "no-header", "odd-header"):
        assert image_digest(f"{host}/vllm/engine:{tag}") == DIGEST
        method, path, authorization = Registry.requests[-1]
        assert path == f"/v2/vllm/engine/manifests/{tag}"
        assert method == ("GET" if "header" in tag else "HEAD")
        assert authorization == ("" if tag == "open" else f"Bearer {TOKEN}")


def test_what_a_registry_refuses_is_said(host, monkeypatch, tmp_path):
    for tag, message in table("recipe", "refusing_tags"):
        error = refusal(image_digest, f"{host}/vllm/engine:{tag}", kind=NoAnswer)
        assert message in str(error)
        assert TOKEN not in str(error)
        assert error.field == "lock.image"
    monkeypatch.setattr(locking, "MOST_MANIFEST_BYTES", 10)  # of a manifest without end
    error = refusal(image_digest, f"{host}/vllm/engine:no-header", kind=NoAnswer)
    assert "more than 10 bytes" in str(error)
    # a certificate that nobody vouches for
    Registry.requests.clear()
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate_in(tmp_path)))
    error = refusal(image_digest, f"{host}/vllm/engine:v1", kind=NoAnswer)
    assert "certificate" in str(error)
    assert Registry.requests == []


@over("reference, place", table("recipe", "references"))
def test_a_reference_is_an_address_or_refused(reference, place):
    if place:
        assert image_place(reference).url == f"https://{place}"
    else:
        assert "no image with a tag" in str(refusal(image_place, reference))


def test_the_lock_takes_the_digest_from_the_registry(host, tmp_path):
    """Without --online nobody is asked; a bundle written with it starts the image by digest."""
    names = ("b.zip", "pinned", "amd.zip", "request.yaml")
    bundle, pinned, resolved, request = (str(tmp_path / name) for name in names)
    image = f"{host}/vllm/engine:v1"
    Path(request).write_text(to_yaml(request_values()))
    built = run("build", request, "-o", bundle, "--set", f"image={image}")
    assert built.returncode == 0, built.stderr
    offline = run("lock", bundle, "--json")
    assert json.loads(offline.stdout)["image"]["digest"] is None
    assert "image.digest is missing" in offline.stderr
    assert "--online" in offline.stderr
    assert Registry.requests == []
    online = run("lock", bundle, "--online", "-o", pinned, "--json")
    assert json.loads(online.stdout)["image"] == {"reference": image, "digest": DIGEST}
    manifest = (Path(pinned) / "targets/kubernetes/deployment.yaml").read_text()
    assert f"{image}@{DIGEST}" in manifest
    checked = run("check", pinned, "--json")
    assert json.loads(checked.stdout)["ok"], checked.stdout
    assert run("lock", pinned).stderr == ""
    moved = run("resolve", pinned, "--hardware", "mi300x:8", "-o", resolved)
    assert "wrote" in moved.stdout
    # the user's own image stays: only that of the engine is another one there
    assert json.loads(run("lock", resolved, "--json").stdout)["image"]["reference"] == image
    refused = run("lock", bundle, "-o", pinned)
    assert refused.returncode == 2
    assert "--online" in refused.stderr
