"""What who extends the package is promised: one YAML for a GPU or a model, three files an engine.

Each is added to copies of the folders and used at once through the command line; and what is
missing of it is said by file, field and fix.
"""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from recipe_core.base.documents import read_document, to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.base.resources import shipped_path
from recipe_core.engines import grammar, options, spec
from recipe_core.hardware import cluster, offer_tables
from recipe_core.launch import serving
from recipe_core.launch.process import LaunchFolder
from recipe_core.launch.serving import rules
from recipe_core.models import catalog
from tests.conftest import request_values
from tests.engines import test_engines_meaning
from tests.fixtures.command_line import recipe
from tests.fixtures.launch_words import read_by_meaning
from tests.fixtures.paths import DATA
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

GPU, MODEL, ENGINE = "x200-sxm", "Acme/Wide-7B", "mini-serve"
BASE_GPU, BASE_MODEL, BASE_ENGINE = "h100-sxm", "meta-llama/Llama-3.1-8B-Instruct", "tgi"

Change = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class Folders:
    """Copies of the folders that additions go into, which the loaders read instead."""

    hardware: Path
    models: Path
    engines: Path
    options: Path
    launch: Path

    def files(self) -> set[Path]:
        """Every file of the copies."""
        return {file for folder in vars(self).values() for file in folder.rglob("*.*")}

    def gpu(self, change: Change | None = None, file: str = GPU):
        """Twice an H100, in one file."""
        document = read_document(self.hardware / f"{BASE_GPU}.yaml")
        document |= {"name": GPU, "title": "Acme X200", "aliases": ["Acme X200"]}
        for name in ("memory_bytes", "memory_bandwidth_bytes_per_s"):
            document[name]["value"] *= 2
        write(self.hardware / f"{file}.yaml", document, change)

    def model(self, change: Change | None = None, file: str = "Acme--Wide-7B"):
        """Llama 3.1 8B with fewer layers, in one file."""
        document = read_document(self.models / f"{BASE_MODEL.replace('/', '--')}.yaml")
        document |= {"id": MODEL, "aliases": ["Acme/Wide-7B-Base"]}
        document["config"]["num_hidden_layers"] = 28
        document["published"]["parameters"] = 7157813248
        write(self.models / f"{file}.yaml", document, change)

    def engine(self, change: Change | None = None, file: str = ENGINE):
        """An engine with the figures of TGI."""
        document = read_document(self.engines / f"{BASE_ENGINE}.yaml")
        for name in ("images", "metrics", "floors"):
            document.pop(name, None)
        document |= table("extending", "mini_serve")
        document["overheads"] = {"cuda": document["overheads"]["cuda"]}
        write(self.engines / f"{file}.yaml", document, change)

    def table(self, change: Change | None = None):
        """The engine's options, and what they mean."""
        document = read_document(DATA / "mini-serve" / "options.yaml")
        write(self.options / f"{ENGINE}-1.2.3.yaml", document, change)

    def module(self, text: str | None = None):
        """The module that starts the engine."""
        (self.launch / "mini_serve.py").write_text(LAUNCH if text is None else text)
        importlib.invalidate_caches()


LAUNCH = (DATA / "mini-serve" / "launch.txt").read_text()


def write(path: Path, document: dict[str, Any], change: Change | None):
    if change is not None:
        change(document)
    path.write_text(to_yaml(document))
    forget()


def forget():
    """Empty every cache of the package: what was read of one set of folders is not of another."""
    for name, module in list(sys.modules.items()):
        if name.startswith("recipe_core."):
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folders]:
    names = ("hardware", "models", "engines", "options", "launch")
    copies = Folders(*(tmp_path / name for name in names))
    sources = (shipped_path("hw_profiles"), catalog.FOLDER, spec.FOLDER, options.FOLDER)
    for name, source in zip(names[:4], sources, strict=True):
        shutil.copytree(source, tmp_path / name)
    copies.launch.mkdir()
    for reader in (cluster, offer_tables):
        monkeypatch.setattr(reader, "shipped_path", lambda name: copies.hardware)
    monkeypatch.setattr(catalog, "FOLDER", copies.models)
    monkeypatch.setattr(spec, "FOLDER", copies.engines)
    for reader in (options, grammar, rules):
        monkeypatch.setattr(reader, "FOLDER", copies.options)
    monkeypatch.setattr(serving, "__path__", [*serving.__path__, str(copies.launch)])
    forget()
    yield copies
    for name in ("mini_serve", "other_module"):
        sys.modules.pop(f"{serving.__name__}.{name}", None)
    monkeypatch.undo()
    forget()


def planned(model: str = BASE_MODEL, device: str = BASE_GPU, **parts: Any) -> dict[str, Any]:
    """The answer of ``recipe plan``."""
    request = json.dumps(request_values(model, device, 2, **parts))
    done = recipe("plan", "-", "--json", stdin=request)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def refused(done, code: int, *words: str):
    """One error, in a sentence, that has these words."""
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    text = " ".join(done.stderr.split())
    assert [word for word in words if word not in text] == [], text


def put(path: str, value: Any) -> Change:
    """Set a field by its dotted name, or leave it out."""

    def change(document: Any) -> None:
        *steps, last = (int(step) if step.isdigit() else step for step in path.split("."))
        for step in steps:
            document = document[step]
        if value == {"gone": True}:
            del document[last]
        else:
            document[last] = value

    return change


def test_a_gpu_is_one_file(folders):
    before = folders.files()
    folders.gpu()
    assert len(folders.files() - before) == 1
    listed = json.loads(recipe("hardware", "Acme X200", "--json").stdout)
    assert listed["name"] == GPU
    split = {"engine": "vllm", "tp": 1, "pp": 1, "dp": 2}
    new, old = (
        planned(device=device, candidate=split)["candidates"][0]["estimate"]
        for device in (GPU, BASE_GPU)
    )
    assert new["memory"]["capacity_bytes"] > 1.9 * old["memory"]["capacity_bytes"]
    assert new["serving"]["tpot_s"] < old["serving"]["tpot_s"]
    folders.gpu(put("aliases", ["NVIDIA H100 80GB HBM3"]))
    done = recipe("hardware", "NVIDIA H100 80GB HBM3")
    refused(done, 2, f"{GPU}.yaml: aliases: 'nvidia h100 80gb hbm3' is an alias of h100-sxm")


def test_a_model_is_one_file(folders):
    before = folders.files()
    folders.model()
    assert len(folders.files() - before) == 1
    new, old = (
        planned(model)["candidates"][0]["estimate"]["memory"]["weights_bytes"]
        for model in ("acme/wide-7b-base", BASE_MODEL)  # an alias; letters do not matter
    )
    assert new == pytest.approx(old * 7157813248 / 8030261248, rel=0.01)
    assert MODEL in recipe("models").stdout
    (folders.models / "Acme--Wide-7B.yaml").unlink()
    folders.model(file="acme--wide-7b")
    refused(recipe("models", MODEL), 2, "acme--wide-7b.yaml: id: 'Acme/Wide-7B' is not the name")


LISTED = {
    "gpu": ("hardware", GPU, f"{GPU}.yaml"),
    "model": ("models", MODEL, "Acme--Wide-7B.yaml"),
    "engine": ("engines", ENGINE, f"{ENGINE}.yaml"),
    "table": ("engines", ENGINE, f"{ENGINE}-1.2.3.yaml"),
}
"""The command that reads what each method of ``Folders`` writes, its name and its file."""


@over(
    "kind, field, value, words",
    [(kind, *row) for kind in LISTED for row in table("extending", kind)],
)
def test_what_an_addition_lacks_is_said(folders, kind, field, value, words):
    command, name, file = LISTED[kind]
    if command == "engines":
        folders.engine()
        folders.table()
    getattr(folders, kind)(put(field, value))
    refused(recipe(command, name), 2, file, *words)


def built(folder: Path, *words: str):
    """``recipe build`` of a split on the engine."""
    candidate = {"engine": ENGINE, "tp": 2, "pp": 1, "dp": 1}
    request = json.dumps(request_values(BASE_MODEL, BASE_GPU, 2, candidate=candidate))
    return recipe("build", "-", "-o", str(folder), *words, stdin=request)


def test_an_engine_is_yaml_options_and_a_module(folders, tmp_path):
    before = folders.files()
    folders.engine()
    folders.table()
    folders.module()
    assert len(folders.files() - before) == 3
    best = planned(options={"engines": [ENGINE]})["candidates"][0]["candidate"]
    assert best["engine"] == ENGINE
    done = built(tmp_path / "bundle", "--option", "log_level=debug")
    assert done.returncode == 0, done.stderr
    recorded = read_document(tmp_path / "bundle" / "recipe.yaml")["candidate"]
    (process,) = read_document(tmp_path / "bundle" / "launch.json")["processes"]
    assert process["argv"][0] == ENGINE
    assert process["argv"][-2:] == ["--log-level", "debug"]
    meant = read_by_meaning(spec.engine(ENGINE), process["argv"])
    fields = ("tp", *test_engines_meaning.LIMITS)
    assert [meant[field] for field in fields] == [recorded[field] for field in fields]
    # the tests of engines take up a new one
    test_engines_meaning.test_every_output_says_what_was_estimated(ENGINE)
    folders.module(LAUNCH.replace("candidate.max_num_seqs", "candidate.max_num_seqs + 1"))
    sys.modules.pop(f"{serving.__name__}.mini_serve")
    forget()
    with pytest.raises(AssertionError, match="max_num_seqs"):
        test_engines_meaning.test_every_output_says_what_was_estimated(ENGINE)


def test_an_engine_without_options_or_a_module_is_told(folders, tmp_path):
    folders.engine()
    refused(recipe("engines", ENGINE), 2, f"{ENGINE}-1.2.3.yaml: is missing. Add it")
    folders.table()
    best = planned(options={"engines": [ENGINE]})["candidates"][0]
    assert best["candidate"]["engine"] == ENGINE
    file = "recipe_core/launch/serving/mini_serve.py"
    form = "launch_mini_serve(deployment: Deployment) -> Launch"
    refused(built(tmp_path / "bundle"), 1, ENGINE, f"{file} is missing", form)
    folders.module("def started(deployment): ...\n")
    forget()
    refused(
        built(tmp_path / "bundle"), 1, ENGINE, f"{file} does not define launch_mini_serve", form
    )
    assert not (tmp_path / "bundle").exists()
    # engines may share a module
    folders.engine(put("launcher", "other_module"))
    (folders.launch / "other_module.py").write_text(
        LAUNCH.replace("launch_mini_serve", "launch_other_module")
    )
    importlib.invalidate_caches()
    assert built(tmp_path / "bundle").returncode == 0


def test_nothing_outside_the_folder_is_imported():
    folder = LaunchFolder("recipe_core.launch.serving", "launch", "()")
    for name in ("os.path", "../x", "start", "Vllm", "serving.vllm", "_a"):
        error = refusal(folder.function, "vllm", name, kind=NoAnswer)
        assert "is not a name of a launch module" in str(error)
    # They are looked for when a launch needs one: starting the command line stays quick.
    code = (
        "import sys; import recipe_core.recipe.decision; "
        "print([m for m in sys.modules if m.startswith('recipe_core.launch')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "recipe_core.launch.start" in done.stdout
    for name in ("vllm'", "tensorrt_llm'", "torchtitan'", "megatron'"):
        assert name not in done.stdout
