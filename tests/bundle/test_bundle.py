"""What is in a bundle, how it is written and read, and what `recipe check` says of it."""

import hashlib
import json
import stat
import subprocess
import sys
import tracemalloc
import zipfile

import numpy as np
import pytest

from recipe_core.base.errors import BundleError, NoAnswer
from recipe_core.bundle.signing import MANIFEST, new_key
from recipe_core.bundle.verify import check_bundle, read_bundle, unpack_bundle
from recipe_core.bundle.write import bundle_files, bundle_sbom, write_bundle, zip_bundle, zip_bytes
from recipe_core.payload.launcher.bench import Options, draw_sent_lengths, plan_traffic
from recipe_core.payload.launcher.devices import Device
from recipe_core.payload.launcher.machine import Machine
from recipe_core.payload.launcher.plan import Workload
from recipe_core.payload.launcher.typed_json import Fields, read_typed
from recipe_core.recipe import make_recipe, recipe_request
from tests.conftest import make_request
from tests.fixtures.command_line import recipe as run
from tests.fixtures.paths import DATA
from tests.fixtures.recipes import fallback_request, recipe_for_request, recipe_of
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import table
from tests.fixtures.training import training_request
from tests.nightly.attack.hostile_bundles import pack, seal

SHORT = {"input_tokens": 64, "output_tokens": 64}


def test_the_same_recipe_gives_the_same_bytes(recipe, files):
    again = make_recipe(make_request(candidate={"tp": 8, "pp": 1, "dp": 1}))
    assert zip_bytes(again) == zip_bundle(files)
    assert json.loads(files["expected.json"]) == recipe.estimate
    assert json.loads(files[MANIFEST])["files"] == {
        name: hashlib.sha256(data).hexdigest() for name, data in files.items() if name != MANIFEST
    }


@pytest.mark.parametrize("place", ["b", pytest.param("b.zip", marks=pytest.mark.nightly)])
def test_bundles_of_all_kinds_are_read_back_and_differ_in_nothing(tmp_path, tiny_config, place):
    """Also those of a folder that is gone, of a configuration, of a training run, of variables."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(tiny_config))
    recipes = [
        make_recipe(make_request(str(folder), "h100-sxm", 1, workload=SHORT)),
        recipe_of(tiny_config, "mi300x", 1, workload=SHORT),
        recipe_for_request(training_request({"engine": "torch"}, 1, "Qwen/Qwen3-8B", tokens=1e8)),
        recipe_of("Qwen/Qwen3-8B", "h100-sxm", 2, options={"environment": {"NCCL_DEBUG": "WARN"}}),
    ]
    (folder / "config.json").unlink()
    for number, each in enumerate(recipes):
        path = write_bundle(each, tmp_path / f"{number}{place}")
        assert not any(check_bundle(path)["differs"].values()), each.name
        checked = read_bundle(path)
        assert (checked.recipe, checked.warnings) == (each, ())
    # the configuration travels with the recipe, and not the path of its folder
    assert recipe_request(recipes[0]).model["hidden_size"] == 256
    assert str(folder) not in json.dumps(bundle_sbom(recipes[0]))


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


LINK = zipfile.ZipInfo("launcher/link")
LINK.external_attr = (stat.S_IFLNK | 0o777) << 16


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
        (lambda f: f.update({"launcher//b": b"x"}), "has a name that no file"),
        (lambda f: f.pop(MANIFEST), "not a recipe bundle"),
        (lambda f: f.update({MANIFEST: b"[]"}), "lists no files"),
        (lambda f: f.update({MANIFEST: b"{"}), "not valid JSON"),
        (lambda f: f.update({"Launch.py": b"x"}), "twice"),
        (lambda f: f.update({f"f{n}": b"" for n in range(600)}), "500"),
        (lambda f: f.update({"big": b"\0" * (5 << 20)}), "4,194,304"),
        (lambda f: f.update({LINK: b"/etc/passwd"}), "not a plain file"),
    ],
)
def test_damaged_or_dangerous_archives_are_refused(files, tmp_path, change, says):
    changed = dict(files)
    change(changed)
    path = pack(changed, tmp_path / "b.zip")
    for read in (read_bundle, unpack_bundle):
        with pytest.raises(BundleError, match=says):
            read(path)
    assert [p.name for p in tmp_path.iterdir()] == ["b.zip"]


def test_a_member_is_unpacked_no_further_than_it_states(files, tmp_path):
    """Its 128 MiB would say 1 MiB; of an eighth of a gigabyte nothing is held."""
    path = pack(seal({**files, "big": bytes(128 << 20)}), tmp_path / "b.zip")
    data, stated = bytearray(path.read_bytes()), (1 << 20).to_bytes(4, "little")
    local, listed = data.index(b"big") - 30, data.rindex(b"big") - 46
    data[local + 22 : local + 26] = data[listed + 24 : listed + 28] = stated
    path.write_bytes(data)
    tracemalloc.start()
    assert "not a complete zip" in str(refusal(read_bundle, path, kind=BundleError))
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


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
    assert "other content" in str(refusal(write_bundle, recipe, place / "mine"))
    assert [p.name for p in (place / "mine").iterdir()] == ["thesis.tex"]
    for target in (place / "no" / "b.zip", place / "no" / "such" / "folder"):
        assert "cannot write" in str(refusal(write_bundle, recipe, target))
    (folder / "README.md").write_text("edited")
    write_bundle(recipe, folder)
    assert read_bundle(folder).recipe == recipe
    assert sorted(p.name for p in place.iterdir()) == ["b", "mine"]


def test_unpacking_twice_gives_the_same_folder(archive):
    folder = unpack_bundle(archive)
    (folder / "run").mkdir()
    assert unpack_bundle(archive) == folder == archive.with_suffix("")
    assert (folder / "run").is_dir()


def test_nothing_secret_gets_in(tiny_config, monkeypatch):
    """Even without the form of a secret: its value is in a variable that is called one."""
    monkeypatch.setenv("HF_TOKEN", "hf_planted_secret")
    monkeypatch.setenv("REGISTRY_PASSWORD", "tr0ub4dor-and-3")
    found = make_recipe(make_request(tiny_config, "h100-sxm", 1, workload=SHORT))
    assert b"planted" not in b"".join(bundle_files(found).values())
    config = tiny_config | {"note": "tr0ub4dor-and-3"}
    found = make_recipe(make_request(config, "h100-sxm", 1, workload=SHORT))
    error = str(refusal(bundle_files, found))
    assert "REGISTRY_PASSWORD" in error
    assert "tr0ub4dor" not in error


def test_what_it_says_of_this_machine(archive, monkeypatch):
    names = ["NVIDIA H100 80GB HBM3"] * 8
    for devices, ok in ((names, True), (names[:4], False), (["NVIDIA L4"] * 8, False), ([], False)):
        listed = tuple(Device(n, name, 80 << 30) for n, name in enumerate(devices))
        here = Machine("cuda" if devices else "cpu", listed, "x", 8, 1, 1)
        monkeypatch.setattr(
            "recipe_core.bundle.verify.machine.detect_machine", lambda here=here: here
        )
        answer = check_bundle(archive)
        assert (answer["ok"], answer["fits_here"], bool(answer["machine"])) == (True, ok, not ok)


def test_what_cannot_start_is_not_built():
    for parts, says in table("bundle", "unstartable"):
        assert says in str(refusal(make_recipe, make_request(**parts), kind=NoAnswer))


def launch_of(files, folder=""):
    return json.loads(files[f"{folder}launch.json"])


def test_a_benchmark_is_told_how_lengths_vary():
    def sent(**workload):
        model = workload.pop("model", "Qwen/Qwen3-8B")
        made = make_recipe(make_request(model, "h100-sxm", 1, workload=workload))
        work = launch_of(bundle_files(made))["workload"]
        varied = ("spread", "lengths", "context")
        return made, {name: value for name, value in work.items() if name.endswith(varied)}

    assert sent()[1] == {"input_spread": 0.1, "output_spread": 0.1}  # as estimates take it
    assert sent(input_spread=0, output_spread=0.3)[1] == {"output_spread": 0.3}
    fixed = {"shape": "fixed"}
    assert sent(input_lengths=fixed, output_lengths=fixed)[1] == {}
    assert sent(mode="static", batch=4, concurrency=None)[1] == {}
    embedding = {"model": "BAAI/bge-m3", "output_tokens": None, "input_tokens": 400}
    assert sent(**embedding)[1] == {}
    assert sent(**embedding, input_spread=0.5)[1] == {"input_spread": 0.5}
    shape = {"shape": "lognormal", "cv": 1.5}
    made, said = sent(output_lengths=shape, output_tokens=300)
    assert said.keys() == {"input_spread", "output_lengths", "max_context"}
    assert said["max_context"] == made.max_context
    lengths = said["output_lengths"]
    assert lengths == sorted(lengths)
    assert sum(lengths) / len(lengths) == pytest.approx(300, rel=0.01)
    assert np.std(lengths) / np.mean(lengths) == pytest.approx(1.5, rel=0.25)  # without its tail
    plan = read_typed(Workload, Fields(launch_of(bundle_files(made))["workload"], "workload"))
    traffic = plan_traffic(plan, Options(requests=200))
    inputs, outputs = draw_sent_lengths(plan, traffic)
    assert max(map(sum, zip(inputs, outputs, strict=True))) <= made.max_context
    assert sum(outputs) / 200 == pytest.approx(300, rel=0.05)


def test_fallbacks_are_rendered_as_their_own_bundles_are(recipe, files):
    first, *listed = launch_of(files)["choices"]
    assert (first["name"], "needs" in first) == ("first", False)
    assert [entry["kind"] for entry in listed] == [f.kind for f in recipe.fallbacks]
    for number, fallback in enumerate(recipe.fallbacks, 1):
        folder = f"fallbacks/{number}-{fallback.kind}/"
        own = bundle_files(recipe_for_request(fallback_request(recipe_request(recipe), fallback)))
        there, alone = launch_of(files, folder), launch_of(own)
        for part in ("processes", "engine", "workload", "health", "api"):
            assert there[part] == alone[part]
        assert listed[number - 1]["needs"] == [alone["needs"]]
        assert alone["needs"]["count"] == fallback.gpus
        expected = json.loads(files[f"{folder}expected.json"])
        assert expected["serving"]["tpot_s"] == fallback.figures["tpot_s"]


def test_a_training_fallback_has_its_own_settings_and_shares_the_program():
    work = {"sequence_length": 4096, "global_batch": 64, "tokens": 1e9}
    recipe = recipe_for_request(training_request({"engine": "torch"}, 1, **work))
    files = bundle_files(recipe)
    assert json.loads(files["train.json"])["split"]["dp"] == recipe.candidate["dp"]
    _, *listed = launch_of(files)["choices"]
    fewer = [entry["name"] for entry in listed]
    assert {name.partition("-")[2] for name in fewer} <= {"fewer-gpus", "other-device"}
    counts = [entry["needs"][0]["count"] for entry in listed]
    assert 4 in counts  # half of the devices; half of these may not start
    for name in fewer:
        words = launch_of(files, f"fallbacks/{name}/")["processes"][0]["argv"]
        assert f"${{root}}/fallbacks/{name}/train.json" in words
        assert "${root}/train.py" in words
        assert f"fallbacks/{name}/train.json" in files
        assert f"fallbacks/{name}/train.py" not in files


# What `recipe check` says of a bundle that nobody vouches for


def sealed(files, path, **changes):
    """The bundle after ``changes``, with a manifest made anew."""
    changed = {**files, **changes}
    return pack(seal({name: data for name, data in changed.items() if data is not None}), path)


def test_an_unsigned_bundle_is_called_so(recipe, archive, tmp_path):
    answer = check_bundle(archive)
    assert answer["signed"] is None
    assert answer["verdict"].startswith("unsigned: anyone may have changed it")
    assert not any(answer["differs"].values())
    assert run("check", str(archive)).stdout.startswith("ok, unsigned: anyone may have changed it")
    # only a given key makes it its author's
    private, public = new_key()
    path = write_bundle(recipe, tmp_path / "signed.zip", private)
    answer = check_bundle(path)
    assert "not compared with a key of yours" in answer["verdict"]
    assert answer["differs"] is not None
    answer = check_bundle(path, public)
    assert answer["verdict"].endswith("the given key")
    assert answer["differs"] is None


def test_what_was_sealed_anew_is_held_against_its_recipe(recipe, files, tmp_path):
    path = tmp_path / "b.zip"
    for kind, changes in {
        "changed": {
            "launch.py": b"",
            "launch.json": b"{}",
            "targets/compose/compose.yaml": b"",
        },
        "added": {"launcher/json.py": b"import os"},
        "missing": {"launcher/errors.py": None},
    }.items():
        names = sorted(changes)
        answer = check_bundle(sealed(files, path, **changes))
        found = {name: sorted(listed) for name, listed in answer["differs"].items() if listed}
        assert found == {kind: names}
        assert all(name in answer["warnings"][0].partition(f"{kind}: ")[2] for name in names)
    assert "note: It differs from what recipe-builder" in run("check", str(path)).stdout
    assert json.loads(run("check", str(path), "--json").stdout)["differs"]["missing"] == names
    # another version is expected to differ
    older = recipe.model_copy(update={"built_by": "recipe-builder 0.0.1"}).locked()
    sealed(bundle_files(older), path, **{"launch.py": b"older"})
    assert "recipe-builder 0.0.1" in " ".join(check_bundle(path)["warnings"])
    # a recipe that this version refuses is not compared
    refused = recipe.model_copy(update={"candidate": {**recipe.candidate, "tp": 7}})
    text = json.dumps(refused.model_dump(mode="json")).encode()
    answer = check_bundle(sealed(files, path, **{"recipe.yaml": text}))
    assert answer["differs"]["refusal"]
    assert "could not be compared" in answer["warnings"][0]
