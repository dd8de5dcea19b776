from __future__ import annotations

import hashlib
import json
import stat
import subprocess
import sys
import zipfile
from random import Random

import pytest

from recipe_core.base.documents import parse_yaml
from recipe_core.base.errors import BundleError, InputError, NoAnswer
from recipe_core.bundle.manifest import MANIFEST
from recipe_core.bundle.verify import check_bundle, read_bundle, unpack
from recipe_core.bundle.write import bundle_files, write_bundle, zip_bytes, zipped
from recipe_core.launcher.machine import Device, Machine
from recipe_core.recipe import Recipe, make_recipe, recipe_request
from recipe_core.request.schema import PlanRequest
from tests.conftest import make_request, request_values
from tests.fixtures.paths import DATA
from tests.fixtures.recipes import fallback_request, recipe_for_request
from tests.nightly.attack.hostile_bundles import pack, seal

SHORT = {"input_tokens": 64, "output_tokens": 64}


def test_the_same_recipe_gives_the_same_bytes(recipe, files):
    again = make_recipe(make_request(candidate={"tp": 8, "pp": 1, "dp": 1}))
    assert zip_bytes(again) == zipped(files)


def test_a_bundle_reads_back_as_its_recipe(recipe, tmp_path):
    for target in (tmp_path / "b.zip", tmp_path / "folder"):
        checked = read_bundle(write_bundle(recipe, target))
        assert checked.recipe == recipe
        assert checked.warnings == ()


def test_a_bundle_holds_what_it_promises(recipe, files):
    assert {"launch.py", "launcher/main.py", "monitoring/rules.yaml"} <= set(files)
    manifest = json.loads(files[MANIFEST])
    assert manifest["files"] == {
        name: hashlib.sha256(data).hexdigest() for name, data in files.items() if name != MANIFEST
    }
    assert json.loads(files["expected.json"]) == recipe.estimate
    assert Recipe.parse(parse_yaml(files["recipe.yaml"].decode())) == recipe
    # Every target is there or said not to be.
    readme = files["README.md"].decode()
    assert "targets/kubernetes/deployment.yaml" in files
    for command in (
        "kubectl apply -k targets/kubernetes",
        "docker compose -f targets/compose/compose.yaml up",
        "sbatch targets/slurm",
    ):
        assert command in readme
    assert "Not for kubernetes-keda" in readme  # one copy does not scale
    assert recipe.lock.image.reference in files["targets/compose/compose.yaml"].decode()


def test_what_is_launched_is_what_was_estimated(recipe, files):
    launch = json.loads(files["launch.json"])
    (process,) = launch["processes"]
    words = dict(zip(process["argv"], process["argv"][1:], strict=False))
    for flag, value in {
        "--tensor-parallel-size": recipe.candidate["tp"],
        "--max-num-seqs": recipe.candidate["max_num_seqs"],
        "--max-num-batched-tokens": recipe.candidate["max_batched_tokens"],
        "--gpu-memory-utilization": recipe.candidate["memory_fraction"],
        "--max-model-len": recipe.max_context,
    }.items():
        assert words[flag] == str(value)
    assert launch["needs"]["count"] == 8


def test_the_launcher_needs_only_the_standard_library_and_refuses_another_machine(folder):
    def launch(*words):
        command = [sys.executable, "-S", str(folder / "launch.py"), *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=folder.parent)

    done = launch("--help")
    assert done.returncode == 0, done.stderr
    assert "preflight" in done.stdout
    done = launch("preflight")  # there are no GPUs here
    assert done.returncode == 1
    assert "cuda" in (done.stdout + done.stderr).lower()
    assert "Traceback" not in done.stderr


def linked(files):
    info = zipfile.ZipInfo("launcher/link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    files[info] = b"/etc/passwd"


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
        (lambda f: f.update({f"f{n}": b"" for n in range(600)}), "500"),
        (lambda f: f.update({"big": b"\0" * (5 << 20)}), "4,194,304"),
        (linked, "not a plain file"),
    ],
)
def test_damaged_or_dangerous_archives_are_refused(files, tmp_path, change, says):
    changed = dict(files)
    change(changed)
    path = pack(changed, tmp_path / "b.zip")
    for read in (read_bundle, unpack):
        with pytest.raises(BundleError, match=says):
            read(path)
    assert [p.name for p in tmp_path.iterdir()] == ["b.zip"]


def test_links_in_a_folder_are_refused(folder):
    (folder / "run.log").symlink_to("/etc/passwd")
    with pytest.raises(BundleError, match="not a plain file"):
        read_bundle(folder)


def flip(path, data, files, places):
    """Change a byte: the archive is refused, or the byte means nothing (such as a date)."""
    for place in places:
        path.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        try:
            assert read_bundle(path).files == files
        except BundleError:
            continue


def test_no_cut_and_no_flipped_byte_gets_through_or_crashes(files, archive):
    data = archive.read_bytes()
    for cut in (0, 10, 1000, -10):
        archive.write_bytes(data[:cut])
        with pytest.raises(BundleError, match="not a complete zip"):
            read_bundle(archive)
    flip(archive, data, files, Random(1).sample(range(len(data)), 40))


@pytest.mark.nightly
def test_no_flipped_byte_anywhere_gets_through_or_crashes(files, archive):
    data = archive.read_bytes()
    flip(archive, data, files, range(0, len(data), len(data) // 400))


def test_a_recipe_with_unknown_fields_is_refused_and_an_older_one_is_read(files, tmp_path):
    surprising = {**files, "recipe.yaml": files["recipe.yaml"] + b"surprise: 1\n"}
    with pytest.raises(BundleError, match="surprise"):
        read_bundle(pack(seal(surprising), tmp_path / "b.zip"))
    old = {**files, "recipe.yaml": (DATA / "recipe-before-kind.yaml").read_bytes()}
    checked = read_bundle(pack(seal(old), tmp_path / "b.zip"))
    assert checked.recipe.name == "qwen3-8b-h100-sxm-tp2-vllm"
    assert "predates recipe kinds" in checked.warnings[0]


def test_a_bundle_is_written_whole_and_only_over_one(recipe, folder):
    place = folder.parent
    (place / "mine").mkdir()
    (place / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="other content"):
        write_bundle(recipe, place / "mine")
    assert [p.name for p in (place / "mine").iterdir()] == ["thesis.tex"]
    for target in (place / "no" / "b.zip", place / "no" / "such" / "folder"):
        with pytest.raises(InputError, match="cannot write"):
            write_bundle(recipe, target)
    (folder / "README.md").write_text("edited")
    write_bundle(recipe, folder)
    assert read_bundle(folder).recipe == recipe
    assert sorted(p.name for p in place.iterdir()) == ["b", "mine"]


def test_unpacking_twice_gives_the_same_folder(archive):
    folder = unpack(archive)
    (folder / "run").mkdir()
    assert unpack(archive) == folder == archive.with_suffix("")
    assert (folder / "run").is_dir()


def test_a_recipe_of_a_folder_travels_without_it(tmp_path, tiny_config):
    """The config goes with the recipe, so that another machine can estimate it again."""
    (tmp_path / "config.json").write_text(json.dumps(tiny_config))
    recipe = make_recipe(make_request(str(tmp_path), "h100-sxm", 1, workload=SHORT))
    (tmp_path / "config.json").unlink()
    assert read_bundle(write_bundle(recipe, tmp_path / "b.zip")).warnings == ()
    assert recipe_request(recipe).model["hidden_size"] == 256


def test_nothing_secret_gets_in(tiny_config, monkeypatch):
    """Even without the form of a secret: its value is in a variable that is called one."""
    monkeypatch.setenv("HF_TOKEN", "hf_planted_secret")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted")
    found = make_recipe(make_request(tiny_config, "h100-sxm", 1, workload=SHORT))
    assert b"planted" not in b"".join(bundle_files(found).values())
    monkeypatch.setenv("REGISTRY_PASSWORD", "tr0ub4dor-and-3")
    config = tiny_config | {"note": "tr0ub4dor-and-3"}
    found = make_recipe(make_request(config, "h100-sxm", 1, workload=SHORT))
    with pytest.raises(InputError, match="REGISTRY_PASSWORD") as error:
        bundle_files(found)
    assert "tr0ub4dor" not in str(error.value)


def test_a_bundle_over_nodes_says_what_runs_where():
    found = make_recipe(make_request("meta-llama/Llama-3.1-405B-Instruct", "h100-sxm", 8, 2))
    files = bundle_files(found)
    launch = json.loads(files["launch.json"])
    assert "python launch.py up --node N --head ADDRESS_OF_NODE_0" in files["README.md"].decode()
    assert (launch["nodes"], {process["node"] for process in launch["processes"]}) == (2, {0, 1})
    assert launch["needs"]["count"] == 16


def test_what_it_says_of_this_machine(archive, monkeypatch):
    names = ["NVIDIA H100 80GB HBM3"] * 8
    for devices, ok in ((names, True), (names[:4], False), (["NVIDIA L4"] * 8, False), ([], False)):
        listed = tuple(Device(n, name, 80 << 30) for n, name in enumerate(devices))
        here = Machine("cuda" if devices else "cpu", listed, "x", 8, 1, 1)
        monkeypatch.setattr("recipe_core.bundle.host_check.machine.detect", lambda here=here: here)
        answer = check_bundle(archive)
        assert (answer["ok"], answer["fits_here"], bool(answer["machine"])) == (True, ok, not ok)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"per_node": 1}, "short"),
        ({"per_node": 6, "nodes": 2, "candidate": {"tp": 4, "pp": 1, "dp": 3}}, "2 nodes"),
        ({"candidate": {"tp": 8, "pp": 1, "dp": 1, "weight_dtype": "int4"}}, "int4"),
        ({"objective": {"limits": {"tpot_ms": 0.1}}}, "exceeds the limit"),
    ],
)
def test_what_cannot_start_is_not_built(parts, says):
    with pytest.raises(NoAnswer, match=says):
        make_recipe(make_request(**parts))


def launch_of(files, folder=""):
    return json.loads(files[f"{folder}launch.json"])


def test_fallbacks_are_rendered_as_their_own_bundles_are(recipe, files):
    listed = {entry["name"]: entry for entry in launch_of(files)["fallbacks"]}
    assert [entry["kind"] for entry in listed.values()] == [f.kind for f in recipe.fallbacks]
    for number, fallback in enumerate(recipe.fallbacks, 1):
        folder = f"fallbacks/{number}-{fallback.kind}/"
        own = bundle_files(recipe_for_request(fallback_request(recipe_request(recipe), fallback)))
        there, alone = launch_of(files, folder), launch_of(own)
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
    assert {"trainer/main.py", "train.json", "targets/slurm/job.sbatch"} <= set(files)
    assert json.loads(files["train.json"])["split"]["dp"] == recipe.candidate["dp"]
    assert "Step time" in files["README.md"].decode()
    fewer = [entry["name"] for entry in launch_of(files)["fallbacks"]]
    assert {name.partition("-")[2] for name in fewer} <= {"fewer-gpus", "other-device"}
    counts = [launch_of(files, f"fallbacks/{name}/")["needs"]["count"] for name in fewer]
    assert {4, 2} <= set(counts)  # half of the devices, and half of these
    for name in fewer:
        words = launch_of(files, f"fallbacks/{name}/")["processes"][0]["argv"]
        assert f"${{root}}/fallbacks/{name}/train.json" in words
        assert "${root}/train.py" in words
        assert f"fallbacks/{name}/train.json" in files
        assert f"fallbacks/{name}/train.py" not in files
