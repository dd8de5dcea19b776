from __future__ import annotations

import hashlib
import io
import json
import stat
import subprocess
import sys
import zipfile

import pytest

from recipe_core.base.documents import parse_yaml
from recipe_core.base.errors import BundleError, InputError, NoAnswer
from recipe_core.bundle.manifest import MANIFEST
from recipe_core.bundle.verify import check_bundle, read_bundle, unpack
from recipe_core.bundle.write import EPOCH, bundle_files, write_bundle, zip_bytes
from recipe_core.launcher.machine import Device, Machine
from recipe_core.recipe import Recipe, make_recipe, recipe_request
from recipe_core.request.schema import PlanRequest
from tests.conftest import make_request, request_values
from tests.fixtures.paths import DATA
from tests.fixtures.recipes import fallback_request, recipe_for_request, recipe_of


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return recipe_of(candidate={"tp": 8, "pp": 1, "dp": 1})


def repack(recipe: Recipe, change) -> bytes:
    """The bundle's zip after ``change`` edited its members (name → bytes)."""
    files = bundle_files(recipe)
    change(files)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, EPOCH) if isinstance(name, str) else name, data)
    return buffer.getvalue()


def test_the_same_recipe_gives_the_same_bytes(recipe):
    again = make_recipe(make_request(candidate={"tp": 8, "pp": 1, "dp": 1}))
    assert zip_bytes(recipe) == zip_bytes(again)


def test_a_bundle_reads_back_as_its_recipe(recipe, tmp_path):
    for target in (tmp_path / "b.zip", tmp_path / "folder"):
        checked = read_bundle(write_bundle(recipe, target))
        assert checked.recipe == recipe
        assert checked.warnings == ()


def test_a_bundle_holds_what_it_promises(recipe):
    files = bundle_files(recipe)
    assert {
        "recipe.yaml",
        "expected.json",
        "launch.json",
        "launch.py",
        "launcher/main.py",
        "README.md",
        MANIFEST,
    } <= set(files)
    manifest = json.loads(files[MANIFEST])
    assert manifest["files"] == {
        name: hashlib.sha256(data).hexdigest() for name, data in files.items() if name != MANIFEST
    }
    assert json.loads(files["expected.json"]) == recipe.estimate
    assert Recipe.parse(parse_yaml(files["recipe.yaml"].decode())) == recipe


def test_what_is_launched_is_what_was_estimated(recipe):
    launch = json.loads(bundle_files(recipe)["launch.json"])
    (process,) = launch["processes"]
    words = dict(zip(process["argv"], process["argv"][1:], strict=False))
    assert words["--tensor-parallel-size"] == str(recipe.candidate["tp"])
    assert words["--max-num-seqs"] == str(recipe.candidate["max_num_seqs"])
    assert words["--max-num-batched-tokens"] == str(recipe.candidate["max_batched_tokens"])
    assert words["--gpu-memory-utilization"] == str(recipe.candidate["memory_fraction"])
    assert words["--max-model-len"] == str(recipe.max_context)
    assert launch["needs"]["count"] == 8


def test_the_launcher_needs_only_the_standard_library(recipe, tmp_path):
    folder = write_bundle(recipe, tmp_path / "bundle")
    done = subprocess.run(
        [sys.executable, "-S", str(folder / "launch.py"), "--help"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "preflight" in done.stdout


def test_preflight_refuses_a_machine_without_the_gpus(recipe, tmp_path):
    folder = write_bundle(recipe, tmp_path / "bundle")
    done = subprocess.run(
        [sys.executable, str(folder / "launch.py"), "preflight"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert "cuda" in (done.stdout + done.stderr).lower()
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: f.update({"launch.py": f["launch.py"] + b"\n# more"}), "launch.py differs"),
        (lambda f: f.pop("expected.json"), "expected.json is missing"),
        (lambda f: f.update({"extra.py": b"import os"}), "extra.py is not in the manifest"),
        (lambda f: f.update({"../outside.py": b"x"}), "leads outside"),
        (lambda f: f.update({"/etc/passwd": b"x"}), "leads outside"),
        (lambda f: f.update({"a\\..\\b": b"x"}), "leads outside"),
        (lambda f: f.update({"C:evil": b"x"}), "leads outside"),
        (lambda f: f.pop(MANIFEST), "not a recipe bundle"),
        (lambda f: f.update({MANIFEST: b"[]"}), "lists no files"),
        (lambda f: f.update({MANIFEST: b"{"}), "not valid JSON"),
        (lambda f: f.update({"Launch.py": b"x"}), "twice"),
        (lambda f: f.update({f"f{n}": b"" for n in range(600)}), "a bundle may have 500"),
        (lambda f: f.update({"big": b"\0" * (5 << 20)}), "the limit is 4,194,304"),
    ],
)
def test_damaged_or_dangerous_archives_are_refused(recipe, tmp_path, change, says):
    path = tmp_path / "b.zip"
    path.write_bytes(repack(recipe, change))
    with pytest.raises(BundleError, match=says):
        read_bundle(path)
    with pytest.raises(BundleError, match=says):
        unpack(path)
    assert [p.name for p in tmp_path.iterdir()] == ["b.zip"]


def test_links_in_an_archive_are_refused(recipe, tmp_path):
    def link(files):
        info = zipfile.ZipInfo("launcher/link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        files[info] = b"/etc/passwd"

    path = tmp_path / "b.zip"
    path.write_bytes(repack(recipe, link))
    with pytest.raises(BundleError, match="not a plain file"):
        read_bundle(path)


def test_links_in_a_folder_are_refused(recipe, tmp_path):
    folder = write_bundle(recipe, tmp_path / "b")
    (folder / "run.log").symlink_to("/etc/passwd")
    with pytest.raises(BundleError, match="not a plain file"):
        read_bundle(folder)


@pytest.mark.parametrize("cut", [0, 10, 1000, -10])
def test_truncated_archives_are_refused(recipe, tmp_path, cut):
    path = tmp_path / "b.zip"
    path.write_bytes(zip_bytes(recipe)[:cut])
    with pytest.raises(BundleError, match="not a complete zip"):
        read_bundle(path)


def test_no_flipped_byte_gets_through_or_crashes(recipe, tmp_path):
    """Any changed byte: the archive is refused, or the byte means nothing (such as a date)."""
    data, path = zip_bytes(recipe), tmp_path / "b.zip"
    for place in range(0, len(data), len(data) // 400):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        try:
            assert read_bundle(path).files == bundle_files(recipe)
        except BundleError:
            continue


def test_a_recipe_with_unknown_fields_is_refused(recipe, tmp_path):
    def edit(files):
        files["recipe.yaml"] += b"surprise: 1\n"
        manifest = json.loads(files[MANIFEST])
        manifest["files"]["recipe.yaml"] = hashlib.sha256(files["recipe.yaml"]).hexdigest()
        files[MANIFEST] = json.dumps(manifest).encode()

    path = tmp_path / "b.zip"
    path.write_bytes(repack(recipe, edit))
    with pytest.raises(BundleError, match="surprise"):
        read_bundle(path)


def test_a_folder_with_other_content_is_left_alone(recipe, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="other content"):
        write_bundle(recipe, tmp_path / "mine")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_an_old_bundle_is_replaced_whole(recipe, tmp_path):
    folder = write_bundle(recipe, tmp_path / "b")
    (folder / "README.md").write_text("edited")
    write_bundle(recipe, folder)
    assert read_bundle(folder).recipe == recipe
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


def test_an_unwritable_place_leaves_nothing(recipe, tmp_path):
    with pytest.raises(InputError, match="cannot write"):
        write_bundle(recipe, tmp_path / "no" / "such" / "b.zip")
    with pytest.raises(InputError, match="cannot write"):
        write_bundle(recipe, tmp_path / "no" / "such" / "folder")
    assert list(tmp_path.iterdir()) == []


def test_unpacking_twice_gives_the_same_folder(recipe, tmp_path):
    archive = write_bundle(recipe, tmp_path / "b.zip")
    folder = unpack(archive)
    (folder / "run").mkdir()
    assert unpack(archive) == folder == tmp_path / "b"
    assert (folder / "run").is_dir()


def test_a_recipe_of_a_folder_travels_without_it(tmp_path, tiny_config):
    """The config goes with the recipe, so that another machine can estimate it again."""
    (tmp_path / "config.json").write_text(json.dumps(tiny_config))
    recipe = make_recipe(
        make_request(
            str(tmp_path), "h100-sxm", 1, workload={"input_tokens": 64, "output_tokens": 64}
        )
    )
    (tmp_path / "config.json").unlink()
    bundle = write_bundle(recipe, tmp_path / "b.zip")
    assert read_bundle(bundle).warnings == ()
    assert recipe_request(recipe).model["hidden_size"] == 256


def test_nothing_secret_gets_in(recipe, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_planted_secret")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted")
    assert b"planted" not in b"".join(bundle_files(make_recipe(make_request())).values())


def test_a_secret_of_this_machine_is_found_wherever_it_hides(tiny_config, monkeypatch):
    """Even where it has no form of a secret: its value is in a variable that is called one."""
    monkeypatch.setenv("REGISTRY_PASSWORD", "tr0ub4dor-and-3")
    found = make_recipe(
        make_request(
            tiny_config | {"note": "tr0ub4dor-and-3"},
            "h100-sxm",
            1,
            workload={"input_tokens": 64, "output_tokens": 64},
        )
    )
    with pytest.raises(InputError, match="REGISTRY_PASSWORD") as error:
        bundle_files(found)
    assert "tr0ub4dor" not in str(error.value)


def test_every_target_is_in_the_bundle_or_said_not_to_be(recipe):
    files = bundle_files(recipe)
    readme = files["README.md"].decode()
    assert {
        "targets/compose/compose.yaml",
        "targets/kubernetes/deployment.yaml",
        "monitoring/rules.yaml",
    } <= set(files)
    for command in (
        "kubectl apply -k targets/kubernetes",
        "docker compose -f targets/compose/compose.yaml up",
        "sbatch targets/slurm",
    ):
        assert command in readme
    assert "Not for kubernetes-keda" in readme  # one copy does not scale
    assert recipe.lock.image.reference in files["targets/compose/compose.yaml"].decode()


def test_a_bundle_over_nodes_says_what_runs_where():
    found = make_recipe(make_request("meta-llama/Llama-3.1-405B-Instruct", "h100-sxm", 8, 2))
    files = bundle_files(found)
    launch = json.loads(files["launch.json"])
    assert "python launch.py up --node N --head ADDRESS_OF_NODE_0" in files["README.md"].decode()
    assert (launch["nodes"], {process["node"] for process in launch["processes"]}) == (2, {0, 1})
    assert launch["needs"]["count"] == 16


def test_a_training_bundle_holds_the_trainer(tmp_path):
    absent = ("mode", "input_tokens", "output_tokens", "concurrency")
    workload = {
        "kind": "training",
        "sequence_length": 4096,
        "global_batch": 64,
        "tokens": 1e9,
    } | dict.fromkeys(absent)
    found = make_recipe(
        make_request(
            "meta-llama/Llama-3.1-8B",
            "h100-sxm",
            8,
            workload=workload,
            options={"engines": ["torch"]},
        )
    )
    checked = read_bundle(write_bundle(found, tmp_path / "b.zip"))
    assert (checked.recipe, checked.warnings) == (found, ())
    assert {"trainer/main.py", "train.json", "targets/slurm/job.sbatch"} <= set(checked.files)
    launch = json.loads(checked.files["launch.json"])
    assert (launch["kind"], launch["processes"][0]["argv"][0]) == ("training", "torchrun")
    settings = json.loads(checked.files["train.json"])
    assert settings["split"]["dp"] == found.candidate["dp"]
    assert "Step time" in checked.files["README.md"].decode()


def test_an_old_bundle_is_read_and_says_so(recipe, tmp_path):
    old = (DATA / "recipe-before-kind.yaml").read_bytes()

    def edit(files):
        files["recipe.yaml"] = old
        manifest = json.loads(files[MANIFEST])
        manifest["files"]["recipe.yaml"] = hashlib.sha256(old).hexdigest()
        files[MANIFEST] = json.dumps(manifest).encode()

    path = tmp_path / "b.zip"
    path.write_bytes(repack(recipe, edit))
    checked = read_bundle(path)
    assert checked.recipe.name == "qwen3-8b-h100-sxm-tp2-vllm"
    assert "predates recipe kinds" in checked.warnings[0]


def test_what_it_says_of_this_machine(recipe, tmp_path, monkeypatch):
    path = write_bundle(recipe, tmp_path / "b.zip")
    names = ["NVIDIA H100 80GB HBM3"] * 8
    for devices, ok in ((names, True), (names[:4], False), (["NVIDIA L4"] * 8, False), ([], False)):
        here = Machine(
            "cuda" if devices else "cpu",
            tuple(Device(n, name, 80 << 30) for n, name in enumerate(devices)),
            "x",
            8,
            1,
            1,
        )
        monkeypatch.setattr("recipe_core.bundle.host_check.machine.detect", lambda here=here: here)
        answer = check_bundle(path)
        assert (answer["ok"], answer["fits_here"], bool(answer["machine"])) == (True, ok, not ok)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"per_node": 1}, "short"),
        (
            {"per_node": 6, "nodes": 2, "candidate": {"tp": 4, "pp": 1, "dp": 3}},
            "do not fit into 2 nodes",
        ),
        (
            {"candidate": {"tp": 8, "pp": 1, "dp": 1, "weight_dtype": "int4"}},
            "cannot load as int4",
        ),
        ({"objective": {"limits": {"tpot_ms": 0.1}}}, "exceeds the limit"),
    ],
)
def test_what_cannot_start_is_not_built(parts, says):
    with pytest.raises(NoAnswer, match=says):
        make_recipe(make_request(**parts))


def _launch_of(files: dict[str, bytes], folder: str = "") -> dict:
    return json.loads(files[f"{folder}launch.json"])


def test_fallbacks_are_rendered_as_their_own_bundles_are(recipe):
    files = bundle_files(recipe)
    listed = {entry["name"]: entry for entry in _launch_of(files)["fallbacks"]}
    assert [entry["kind"] for entry in listed.values()] == [f.kind for f in recipe.fallbacks]
    for number, fallback in enumerate(recipe.fallbacks, 1):
        folder = f"fallbacks/{number}-{fallback.kind}/"
        own = bundle_files(make_recipe(fallback_request(recipe_request(recipe), fallback)))
        there, alone = _launch_of(files, folder), _launch_of(own)
        for part in ("processes", "engine", "workload", "health", "api"):
            assert there[part] == alone[part]
        assert there["needs"]["count"] == fallback.gpus
        expected = json.loads(files[f"{folder}expected.json"])
        assert expected["serving"]["tpot_s"] == fallback.figures["tpot_s"]


def test_a_training_fallback_has_its_own_settings_and_shares_the_program():
    workload = {"kind": "training", "sequence_length": 4096, "global_batch": 64, "tokens": 1e9}
    values = request_values("meta-llama/Llama-3.1-8B", options={"engines": ["torch"]})
    recipe = recipe_for_request(PlanRequest.parse(values | {"workload": workload}))
    files = bundle_files(recipe)
    fewer = [entry["name"] for entry in _launch_of(files)["fallbacks"]]
    assert {name.partition("-")[2] for name in fewer} <= {"fewer-gpus", "other-device"}
    counts = [_launch_of(files, f"fallbacks/{name}/")["needs"]["count"] for name in fewer]
    assert {4, 2} <= set(counts)  # half of the devices, and half of these
    for name in fewer:
        words = _launch_of(files, f"fallbacks/{name}/")["processes"][0]["argv"]
        assert f"${{root}}/fallbacks/{name}/train.json" in words
        assert "${root}/train.py" in words
        assert f"fallbacks/{name}/train.json" in files
        assert f"fallbacks/{name}/train.py" not in files
