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
from recipe_core.base.resources import root
from recipe_core.engines import grammar, options, spec
from recipe_core.hardware import cluster, offer_tables
from recipe_core.launch import serving
from recipe_core.launch.modules import LaunchFolder
from recipe_core.launch.serving import rules
from recipe_core.model import catalog
from tests.conftest import request_values
from tests.engines import test_engines_meaning
from tests.fixtures.command_line import Done, recipe
from tests.fixtures.launch_words import read_by_meaning

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

    def gpu(self, change: Change | None = None, file: str = GPU) -> None:
        """Twice an H100, in one file."""
        document = read_document(self.hardware / f"{BASE_GPU}.yaml")
        document |= {"name": GPU, "title": "Acme X200", "aliases": ["Acme X200"]}
        for field in ("memory_bytes", "memory_bandwidth_bytes_per_s"):
            document[field]["value"] *= 2
        write(self.hardware / f"{file}.yaml", document, change)

    def model(self, change: Change | None = None, file: str = "Acme--Wide-7B") -> None:
        """Llama 3.1 8B with fewer layers, in one file."""
        document = read_document(self.models / f"{BASE_MODEL.replace('/', '--')}.yaml")
        document |= {"id": MODEL, "aliases": ["Acme/Wide-7B-Base"]}
        document["config"]["num_hidden_layers"] = 28
        document["published"]["parameters"] = 7157813248
        write(self.models / f"{file}.yaml", document, change)

    def engine(self, change: Change | None = None, file: str = ENGINE) -> None:
        """An engine with the figures of TGI."""
        document = read_document(self.engines / f"{BASE_ENGINE}.yaml")
        for field in ("images", "metrics", "floors"):
            document.pop(field, None)
        document |= {"name": ENGINE, "title": "Mini Serve", "version": "1.2.3"}
        document |= {"program": ENGINE, "module": "mini_serve", "runtimes": ["cuda"]}
        document |= {"install": "pip install mini-serve==1.2.3", "kv_dtypes": ["bf16", "fp16"]}
        document |= {"free_kv_dtypes": [], "online_weight_dtypes": []}
        document["overheads"] = {"cuda": document["overheads"]["cuda"]}
        write(self.engines / f"{file}.yaml", document, change)

    def table(self, change: Change | None = None) -> None:
        """The engine's options, and what they mean."""
        write(self.options / f"{ENGINE}-1.2.3.yaml", json.loads(json.dumps(TABLE)), change)

    def module(self, text: str | None = None) -> None:
        """The module that starts the engine."""
        (self.launch / "mini_serve.py").write_text(LAUNCH if text is None else text)
        importlib.invalidate_caches()


TABLE = {
    "schema_version": 1,
    "engine": ENGINE,
    "version": "1.2.3",
    "options": {
        "--model": {"type": "str"},
        "--host": {"type": "str"},
        "--port": {"type": "str"},
        "--gpus": {"type": "int"},
        "--dtype": {"type": "str", "choices": ["bfloat16", "float16"]},
        "--longest": {"type": "int"},
        "--most-tokens": {"type": "int"},
        "--most-requests": {"type": "int"},
        "--memory-share": {"type": "float"},
        "--log-level": {"type": "str"},
    },
    "means": {
        "model": "model",
        "gpus": "tp",
        "dtype": "dtype",
        "longest": "max_context",
        "most_tokens": "max_batched_tokens",
        "most_requests": "max_num_seqs",
        "memory_share": "memory_fraction",
    },
}

LAUNCH = '''"""Mini Serve: one server a replica."""

from recipe_core.launch.process import Launch
from recipe_core.launch.serving import rules
from recipe_core.launch.serving.groups import groups
from recipe_core.launch.serving.processes import processes
from recipe_core.launch.user_options import check_options


def launch(deployment):
    """One server a replica, on consecutive ports."""
    engine, candidate = deployment.setting.engine, deployment.candidate
    stated = {
        "model": "${model}",
        "host": "${host}",
        "port": "${port}",
        "gpus": candidate.tp,
        "dtype": deployment.activation_word,
        "longest": deployment.max_context,
        "most_tokens": candidate.max_batched_tokens,
        "most_requests": candidate.max_num_seqs,
        "memory_share": candidate.memory_fraction,
    }
    stated |= check_options(deployment.engine_options, engine, engine.options, stated)
    argv, env = ("mini-serve", *engine.argv(stated)), rules.environment(deployment)
    return Launch(
        processes=tuple(processes(groups(deployment), lambda g, r: argv, lambda g, r: dict(env))),
        options=stated,
        health="/health",
        startup_timeout_s=600,
        api_path="/v1/completions",
        api_model="${model}",
    )
'''


def write(path: Path, document: dict[str, Any], change: Change | None) -> None:
    if change is not None:
        change(document)
    path.write_text(to_yaml(document))


def forget() -> None:
    """Empty every cache of the package: what was read of one set of folders is not of another."""
    for name, module in list(sys.modules.items()):
        if name.startswith("recipe_core."):
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folders]:
    copies = Folders(
        *(tmp_path / name for name in ("hardware", "models", "engines", "options", "launch"))
    )
    shutil.copytree(root("hw_profiles"), copies.hardware)
    shutil.copytree(catalog.FOLDER, copies.models)
    shutil.copytree(spec.FOLDER, copies.engines)
    shutil.copytree(options.FOLDER, copies.options)
    copies.launch.mkdir()
    for reader in (cluster, offer_tables):
        monkeypatch.setattr(reader, "root", lambda name: copies.hardware)
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
    done = recipe(
        "plan", "-", "--json", stdin=json.dumps(request_values(model, device, 2, **parts))
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def refused(done: Done, code: int, *words: str) -> None:
    """One error, in a sentence, that has these words."""
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    text = " ".join(done.stderr.split())
    assert [word for word in words if word not in text] == [], text


def drop(field: str) -> Change:
    return lambda document: document.pop(field)


def put(path: str, value: Any) -> Change:
    """Set a field by its dotted name."""

    def change(document: dict[str, Any]) -> None:
        *steps, last = path.split(".")
        for step in steps:
            document = document[step]
        document[last] = value

    return change


# --- a GPU ------------------------------------------------------------------------------------


def test_a_gpu_is_one_file(folders: Folders) -> None:
    folders.gpu()
    listed = json.loads(recipe("hardware", "Acme X200", "--json").stdout)
    assert listed["name"] == GPU
    split = {"engine": "vllm", "tp": 1, "pp": 1, "dp": 2}
    new, old = (
        planned(device=device, candidate=split)["candidates"][0]["estimate"]
        for device in (GPU, BASE_GPU)
    )
    assert new["memory"]["capacity_bytes"] > 1.9 * old["memory"]["capacity_bytes"]
    assert new["serving"]["tpot_s"] < old["serving"]["tpot_s"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop("memory_bytes"), ("memory_bytes: is missing. Add it.",)),
        (put("memory_bytes.value", "much"), ("memory_bytes.value", "(it is 'much')")),
        (put("memory", 80), ("memory: is not a field", "'memory_bytes'")),
        (put("name", "x200"), ("'x200' is not the name of the file", "x200.yaml")),
        (put("tdp_watts.source", "hearsay"), ("'hearsay' is not listed under sources",)),
        (put("node.fabric", "nvlink9"), ("node.fabric: 'nvlink9'", "fabrics/nvlink9.yaml")),
        (put("node.network", "nvlink4"), ("node.network: 'nvlink4' is a scale-up link",)),
        (put("architecture", "sm_190"), ("weight_dtypes: fp32", "sm_190", "dtypes.yaml")),
        (put("kv_dtypes", ["fp8"]), ("kv_dtypes needs bf16, fp16 or fp32",)),
        (put("tdp_watts.status", "fitted"), ("has no command", "tdp_watts is fitted")),
    ],
)
def test_what_a_gpu_lacks_is_said(folders: Folders, change: Change, words: tuple[str, ...]) -> None:
    folders.gpu(change)
    refused(recipe("hardware", GPU), 2, f"{GPU}.yaml", *words)


def test_two_gpus_with_one_alias_are_told_apart(folders: Folders) -> None:
    folders.gpu(put("aliases", ["NVIDIA H100 80GB HBM3"]))
    done = recipe("hardware", "NVIDIA H100 80GB HBM3")
    refused(done, 2, f"{GPU}.yaml: aliases: 'nvidia h100 80gb hbm3' is an alias of h100-sxm")


# --- a model ----------------------------------------------------------------------------------


def test_a_model_is_one_file(folders: Folders) -> None:
    folders.model()
    new, old = (
        planned(model)["candidates"][0]["estimate"]["memory"]["weights_bytes"]
        for model in ("acme/wide-7b-base", BASE_MODEL)  # an alias; letters do not matter
    )
    assert new == pytest.approx(old * 7157813248 / 8030261248, rel=0.01)
    assert MODEL in recipe("models").stdout


def test_a_model_is_found_by_the_letters_of_its_id(folders: Folders) -> None:
    folders.model(file="acme--wide-7b")
    refused(recipe("models", MODEL), 2, "acme--wide-7b.yaml: id: 'Acme/Wide-7B' is not the name")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop("published"), ("published: is missing. Add it.",)),
        (drop("config"), ("give config, or same_as",)),
        (put("confg", {}), ("confg: is not a field", "'config'")),
        (lambda document: document["sources"].pop("config"), ("sources.config is missing",)),
        (put("published.source", "hearsay"), ("'hearsay' is not listed under sources",)),
        (put("published.parameters", "7B"), ("published.parameters", "(it is '7B')")),
        (put("same_as", "Acme/Nothing"), ("same_as: 'Acme/Nothing' is not in the catalog",)),
        (put("aliases", ["it's/quoted: so"]), ("aliases:", "on a line of its own")),
    ],
)
def test_what_a_model_lacks_is_said(
    folders: Folders, change: Change, words: tuple[str, ...]
) -> None:
    folders.model(change)
    refused(recipe("models", MODEL), 2, "Acme--Wide-7B.yaml", *words)


# --- an engine --------------------------------------------------------------------------------


def built(folder: Path, *words: str) -> Done:
    """``recipe build`` of a split on the engine."""
    candidate = {"engine": ENGINE, "tp": 2, "pp": 1, "dp": 1}
    request = json.dumps(request_values(BASE_MODEL, BASE_GPU, 2, candidate=candidate))
    return recipe("build", "-", "-o", str(folder), *words, stdin=request)


def test_an_engine_is_yaml_options_and_a_module(folders: Folders, tmp_path: Path) -> None:
    folders.engine()
    folders.table()
    folders.module()
    best = planned(options={"engines": [ENGINE]})["candidates"][0]["candidate"]
    assert best["engine"] == ENGINE
    done = built(tmp_path / "bundle", "--option", "log_level=debug")
    assert done.returncode == 0, done.stderr
    recorded = read_document(tmp_path / "bundle" / "recipe.yaml")["candidate"]
    (process,) = read_document(tmp_path / "bundle" / "launch.json")["processes"]
    assert process["argv"][0] == ENGINE
    assert process["argv"][-2:] == ["--log-level", "debug"]
    told = read_by_meaning(spec.engine(ENGINE), process["argv"])
    fields = ("tp", *test_engines_meaning.LIMITS)
    assert [told[field] for field in fields] == [recorded[field] for field in fields]


def test_the_tests_of_engines_take_up_a_new_one(folders: Folders) -> None:
    folders.engine()
    folders.table()
    folders.module()
    test_engines_meaning.test_every_output_says_what_was_estimated(ENGINE)
    folders.module(LAUNCH.replace("candidate.max_num_seqs", "candidate.max_num_seqs + 1"))
    sys.modules.pop(f"{serving.__name__}.mini_serve")
    forget()
    with pytest.raises(AssertionError, match="max_num_seqs"):
        test_engines_meaning.test_every_output_says_what_was_estimated(ENGINE)


BUILD = {"source": "assumed", "status": "assumed"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop("memory"), ("memory: is missing. Add it.",)),
        (put("memory.pool", "of-it"), ("memory.pool", "of-device", "(it is 'of-it')")),
        (put("runtime", "cuda"), ("runtime: is not a field", "'runtimes'")),
        (put("name", "mini"), ("'mini' is not the name of the file", "mini.yaml")),
        (put("version", "nightly"), ("version: 'nightly' is not a release",)),
        (put("install", "pip install mini:latest"), ("install: names a version that moves",)),
        (
            put("installs", {"rocm": [BUILD | {"command": "pip install mini==1.2.3+rocm"}]}),
            ("installs: 'rocm' is not a runtime",),
        ),
        (
            put("installs", {"cuda": [BUILD | {"command": "pip install mini:latest"}]}),
            ("install: names a version that moves",),
        ),
        (put("runtimes", ["cuda", "rocm"]), ("overheads.rocm: is missing",)),
        (put("default_on", ["cpu"]), ("default_on: 'cpu' is not a runtime",)),
        (lambda document: document["batching"][0].update(not_on=["sm_90"]), ("batching:",)),
        (put("wraps", "maxi"), ("wraps: 'maxi' is not an engine",)),
        (put("wraps", "dynamo"), ("wraps: 'dynamo' wraps another engine itself",)),
    ],
)
def test_what_the_file_of_an_engine_lacks_is_said(
    folders: Folders, change: Change, words: tuple[str, ...]
) -> None:
    folders.table()
    folders.engine(change)
    refused(recipe("engines", ENGINE), 2, f"{ENGINE}.yaml", *words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop("means"), ("means: is missing", "`means: {OPTION: tp}`")),
        (put("means.gpu", "tp"), ("means.gpu: is not an option of the table", "'gpus'")),
        (put("means.gpus", "cards"), ("means.gpus", "(it is 'cards')")),
        (put("version", "1.2.4"), ("version: '1.2.4' is not the one in the file's name",)),
    ],
)
def test_what_the_options_of_an_engine_lack_is_said(
    folders: Folders, change: Change, words: tuple[str, ...]
) -> None:
    folders.engine()
    folders.table(change)
    refused(recipe("engines", ENGINE), 2, f"{ENGINE}-1.2.3.yaml", *words)


def test_an_engine_without_a_table_of_options_is_told_which(folders: Folders) -> None:
    folders.engine()
    refused(recipe("engines", ENGINE), 2, f"{ENGINE}-1.2.3.yaml: is missing. Add it")


def test_an_engine_without_a_module_is_planned_and_not_built(
    folders: Folders, tmp_path: Path
) -> None:
    folders.engine()
    folders.table()
    best = planned(options={"engines": [ENGINE]})["candidates"][0]
    assert best["candidate"]["engine"] == ENGINE
    file = "recipe_core/launch/serving/mini_serve.py"
    form = "launch(deployment: Deployment) -> Launch"
    refused(built(tmp_path / "bundle"), 1, ENGINE, f"{file} is missing", form)
    folders.module("def started(deployment): ...\n")
    forget()
    refused(built(tmp_path / "bundle"), 1, ENGINE, f"{file} does not define launch", form)
    assert not (tmp_path / "bundle").exists()


def test_engines_may_share_a_module(folders: Folders, tmp_path: Path) -> None:
    folders.engine(put("launcher", "other_module"))
    folders.table()
    (folders.launch / "other_module.py").write_text(LAUNCH)
    importlib.invalidate_caches()
    assert built(tmp_path / "bundle").returncode == 0


@pytest.mark.parametrize("name", ["os.path", "../x", "start", "Vllm", "serving.vllm", "_a"])
def test_nothing_outside_the_folder_is_imported(name: str) -> None:
    folder = LaunchFolder("recipe_core.launch.serving", (("launch", "()"),))
    with pytest.raises(NoAnswer, match="is not a name of a launch module"):
        folder.module("vllm", name)


def test_plans_import_no_launch_modules() -> None:
    """They are looked for when a launch needs one: starting the command line stays quick."""
    code = (
        "import sys; import recipe_core.recipe.decision; "
        "print([m for m in sys.modules if m.startswith('recipe_core.launch')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout
    assert "recipe_core.launch.serving.start" in loaded
    assert "recipe_core.launch.training.start" in loaded
    for name in ("vllm'", "tensorrt_llm'", "torchtitan'", "megatron'"):
        assert name not in loaded
