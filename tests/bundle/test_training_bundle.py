"""Training bundles: what is in them, and that their own launcher reads them."""

import ast
import json
import re
from pathlib import PurePosixPath

from packaging.specifiers import SpecifierSet

from recipe_core.bundle.verify import read_bundle
from recipe_core.bundle.write import bundle_files, write_bundle, zip_bytes
from recipe_core.launch.start import launch_reasons
from recipe_core.payload.launcher.plan import load_plan
from recipe_core.plans.plans import plan_splits
from recipe_core.plans.splits import row_estimates
from recipe_core.recipe import Additions, make_recipe
from recipe_core.request.schema import PlanRequest
from recipe_core.targets import Parameters
from tests.fixtures.recipes import recipe_for_request
from tests.fixtures.rows import over
from tests.fixtures.training import LLAMA_8B, training_request

CPU = {"device": "cpu", "per_node": 2}


def sharded(dp, engine="torch"):
    split = {"engine": engine, "tp": 1, "pp": 1, "dp": dp}
    return {**split, "zero_stage": 3, "micro_batch": 1, "recompute": "full"}


def request(candidate, nodes=1, model=LLAMA_8B, hardware=None, **work):
    sizes = {"sequence_length": 128, "global_batch": 16, "tokens": 2**20}
    return training_request(candidate, nodes, model, hardware, **sizes, **work)


def test_a_training_bundle_verifies_and_its_launcher_reads_it(tiny_config, tmp_path):
    config = tiny_config | {"_name_or_path": "tiny"}
    split = {"engine": "torch", "tp": 1, "pp": 1, "dp": 2, "micro_batch": 4}
    recipe = recipe_for_request(request(split, model=config, hardware=CPU))
    folder = write_bundle(recipe, tmp_path / "bundle")
    assert read_bundle(folder).recipe == recipe
    assert zip_bytes(recipe) == zip_bytes(recipe)
    for name in ("train.py", "trainer/loop.py", "data/text.txt", "launcher/runs.py"):
        assert (folder / name).is_file()
    settings = json.loads((folder / "train.json").read_text())
    assert settings["model"]["config"]["hidden_size"] == 256
    assert settings["model"]["tokenizer"] == "data"
    assert settings["steps"] == 2**20 // (16 * 128)
    plan = load_plan(folder)
    assert (plan.kind, plan.nodes, plan.node, plan.needs_model) == ("training", 1, None, False)
    (process,) = plan.processes
    assert process.argv[0] == "torchrun"
    assert {str(folder / "train.json"), "127.0.0.1"} <= set(process.argv)
    assert not process.answers


@over(
    "engine, method",
    [
        ("torch", "pretrain"),
        ("accelerate", "pretrain"),
        ("deepspeed", "pretrain"),
        ("trl", "dpo"),
        ("llama-factory", "lora"),
        ("unsloth", "lora"),
        ("axolotl", "lora"),
    ],
    share=3,
)
def test_every_module_that_a_shipped_one_imports_travels_with_it(engine, method):
    asked = training_request({"engine": engine}, 1, "Qwen/Qwen3-8B", tokens=1e8, method=method)
    files = bundle_files(recipe_for_request(asked))
    programs = [path for path in files if path.endswith(".py")]
    assert any(path.startswith("launcher/") for path in programs)
    missing = {
        f"{path} imports {name}"
        for path in programs
        for name in _relative_imports(files[path].decode())
        if not any(str(place) in files for place in _module_places(path, name))
    }
    assert missing == set()


def _relative_imports(source):
    """Names of modules that a source takes from its own folder."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            yield from [node.module] if node.module else [alias.name for alias in node.names]


def _module_places(path, name):
    module = PurePosixPath(path).parent.joinpath(*name.split("."))
    return module.with_suffix(".py"), module / "__init__.py"


@over("name", ["torch", "deepspeed", "torchtitan", "accelerate"], share=2)
def test_a_framework_without_an_image_comes_with_what_one_is_built_from(name):
    """Exact packages, on torch's own image, within the versions that the recipe is locked to."""
    asked = request(sharded(16, name), 2)
    found = make_recipe(asked)
    files = bundle_files(found)
    text = files["container/Containerfile"].decode()
    torch = {"torchtitan": r"2\.14\.1"}.get(name, r"2\.13\.0")
    kinds = "(runtime@sha256:[0-9a-f]{64}|devel)$"
    image = rf"^FROM pytorch/pytorch:{torch}-cuda13\.0-cudnn9-"
    assert re.search(image + kinds, text, re.MULTILINE)
    packages = dict(re.findall(r"^ {4}([\w-]+)==([\w.]+)", text, re.MULTILINE))
    for package, specifier in found.lock.engine.packages.items():
        assert packages[package] in SpecifierSet(specifier), package
    assert "Build one from container/Containerfile" in files["README.md"].decode()
    assert not any(path.startswith("targets/jobset") for path in files)
    place = Parameters(image="registry.example/trainer:1")
    named = bundle_files(make_recipe(asked, Additions(parameters=place)))
    assert b"registry.example/trainer:1" in named["targets/jobset/jobset.yaml"]


def test_no_image_is_built_where_no_base_is_known():
    asked = request(sharded(8), hardware={"device": "mi300x"})
    assert "container/Containerfile" not in bundle_files(make_recipe(asked))


def test_a_model_with_a_home_is_asked_for_when_it_starts(tmp_path):
    folder = write_bundle(recipe_for_request(request(sharded(16), 2)), tmp_path / "bundle")
    plan = load_plan(folder, node=1, head="10.0.0.7")
    assert plan.needs_model
    assert [process.name for process in plan.processes] == ["trainer-1"]
    assert any("10.0.0.7" in word for word in plan.processes[0].argv)
    assert json.loads((folder / "train.json").read_text())["model"]["config"] is None


def test_adapters_are_trained_beside_the_weights_of_a_folder(tiny_config, tmp_path):
    """Rank and factor as asked, at the rate of pre-training; `tests/trainer` runs such settings."""
    (tmp_path / "config.json").write_text(json.dumps(tiny_config))
    split = {"engine": "torch", "tp": 1, "pp": 1, "dp": 2, "zero_stage": 3, "micro_batch": 4}
    rates = set()
    for work in ({"method": "lora", "lora_rank": 8}, {"method": "pretrain"}):
        asked = request(split, model=str(tmp_path), hardware=CPU, **work)
        settings = json.loads(bundle_files(make_recipe(asked))["train.json"])
        rates.add(settings["optimizer"]["learning_rate"])
        lora = {"rank": 8, "alpha": 16.0, "targets": "all"}
        assert settings.get("lora") == (lora if "lora_rank" in work else None)
        weights = "pretrained" if "lora_rank" in work else "random"
        assert settings["model"]["weights"] == weights
    assert len(rates) == 1


def test_an_open_request_gets_the_best_split_that_can_be_started():
    asked = request(None).to_json() | {"options": {"engines": ["torch"]}}
    table = plan_splits(PlanRequest.parse(asked))
    chosen = make_recipe(PlanRequest.parse(asked)).candidate
    for row in map(int, table.order):
        reasons = launch_reasons(*row_estimates(table, row))
        if table.candidate(row) == chosen:
            break
        assert reasons
    assert reasons == []
