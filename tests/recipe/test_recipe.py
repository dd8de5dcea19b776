"""What a recipe holds, why each value is there, and that it survives writing and reading."""

from __future__ import annotations

import subprocess
import sys

import pytest

from recipe_core.base.documents import parse_yaml, to_yaml
from recipe_core.base.errors import BundleError, InputError, NoAnswer
from recipe_core.engines.grammar import meanings
from recipe_core.engines.spec import engine, engine_names
from recipe_core.recipe import (
    Recipe,
    make_recipe,
    passing_on,
    recipe_request,
    relaunch,
    with_claims,
)
from recipe_core.recipe.decision import decide
from recipe_core.recipe.fallbacks import fallbacks
from recipe_core.recipe.migrate import migrate
from recipe_core.recipe.parameters import read_parameters
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan_candidate
from tests.conftest import make_request
from tests.fixtures.paths import ROOT
from tests.fixtures.recipes import fallback_request, recipe_of

OLD = ROOT / "tests" / "data" / "recipe-before-kind.yaml"
TRAINING = {"kind": "training", "sequence_length": 4096, "global_batch": 64, "tokens": 1e9}
TRAINING |= dict.fromkeys(("mode", "input_tokens", "output_tokens", "concurrency"))


def training_request(**parts):
    return make_request("meta-llama/Llama-3.1-8B", "h100-sxm", 8, workload=TRAINING, **parts)


def qwen(count=1, **parts):
    return make_request("Qwen/Qwen3-8B", "h100-sxm", count, **parts)


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return recipe_of("Qwen/Qwen3-8B", "h100-sxm", 4)


def test_a_recipe_comes_back_from_its_yaml_and_its_fields_are_frozen(recipe):
    """What version 1 holds; a change of it is a new version with a migration."""
    assert Recipe.parse(parse_yaml(to_yaml(recipe.model_dump(mode="json")))) == recipe
    fields = (
        "schema_version kind name built_by request model device engine environment candidate "
        "provenance max_context estimate fallbacks variants parameters claims notes lock"
    )
    assert list(Recipe.model_fields) == fields.split()


def test_the_same_request_gives_the_same_recipe_in_another_process(recipe):
    code = (
        "from tests.conftest import make_request\n"
        "from recipe_core.recipe import make_recipe\n"
        "print(make_recipe(make_request('Qwen/Qwen3-8B', 'h100-sxm', 4)).digest)"
    )
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, timeout=120, check=True)
    assert done.stdout.strip() == recipe.digest


def test_every_fallback_is_what_its_changes_lead_to(recipe):
    """The changed request has exactly this split, can run, and does what the fallback says."""
    kinds = {"other-split", "fewer-gpus", "other-precision", "lower-context", "other-device"}
    assert {each.kind for each in recipe.fallbacks} == kinds
    for fallback in recipe.fallbacks:
        table, row = plan_candidate(fallback_request(PlanRequest.parse(recipe.request), fallback))
        estimate = table.estimate(row).to_json()
        assert estimate["feasible"], (fallback.kind, estimate["reasons"])
        assert table.candidate(row) == fallback.candidate
        assert estimate["serving"]["tpot_s"] == pytest.approx(fallback.figures["tpot_s"], rel=1e-9)


def test_fallbacks_can_be_started():
    """With the user's own options too, and on other devices."""
    options = {"engine_options": {"tool_call_parser": "hermes"}}
    found = make_recipe(make_request("Qwen/Qwen3-8B", "h100-sxm", 3, 2, options=options))
    assert found.fallbacks
    for each in found.fallbacks:
        assert decide(fallback_request(PlanRequest.parse(found.request), each)).started().processes


def test_fallbacks_change_what_they_are_about(recipe):
    by_kind = {each.kind: each for each in recipe.fallbacks}
    assert by_kind["fewer-gpus"].gpus <= recipe.device.count // 2
    assert by_kind["lower-context"].changes["workload.max_context"] == recipe.max_context // 2
    other = [each.candidate for each in recipe.fallbacks if each.kind == "other-precision"]
    dtypes = [(each["weight_dtype"], each["kv_dtype"]) for each in other]
    assert (recipe.candidate["weight_dtype"], recipe.candidate["kv_dtype"]) not in dtypes
    others = {each.device for each in recipe.fallbacks if each.kind == "other-device"}
    assert recipe.device.name not in others
    assert len(others) >= 2


def test_a_request_that_names_hardware_falls_back_to_that():
    hardware = [{"device": "l40s", "per_node": 4}]
    found = make_recipe(qwen(2, options={"hardware": hardware}))
    others = {each.device for each in found.fallbacks if each.kind == "other-device"}
    assert {found.device.name} | others == {"h100-sxm", "l40s"}


def test_training_has_fallbacks_too():
    request = training_request()
    decision = decide(request)
    found = fallbacks(decision, request)
    assert {"fewer-gpus", "lower-context", "other-device"} <= {each.kind for each in found}
    for each in found:
        table, row = plan_candidate(fallback_request(decision.request, each))
        assert table.feasible[row]
        assert table.candidate(row) == each.candidate


def test_every_option_says_what_set_it():
    for parts, option, layer in (
        ({}, "tensor_parallel_size", "objective"),
        ({"candidate": {"tp": 2}}, "tensor_parallel_size", "user"),
        ({}, "max_num_seqs", "device"),
        ({"candidate": {"max_num_seqs": 64}}, "max_num_seqs", "user"),
        ({}, "dtype", "model"),
        ({"options": {"weight_dtypes": ["bf16", "fp8"]}}, "dtype", "objective"),
        ({}, "gpu_memory_utilization", "base"),
        ({}, "max_model_len", "objective"),
        ({"workload": {"max_context": 4096}}, "max_model_len", "user"),
        ({"options": {"max_batched_tokens": [4096]}}, "max_num_batched_tokens", "objective"),
        ({}, "host", "base"),
    ):
        found = recipe_of("Qwen/Qwen3-8B", "h100-sxm", 4, **parts)
        assert found.provenance[f"options.{option}"] == layer, (parts, option)
        of_options = {name for name in found.provenance if name.startswith("options.")}
        assert of_options == {f"options.{name}" for name in found.engine.options}


ENGINES = """
transformers cpu cb_max_batch_tokens device
transformers cpu cb_num_blocks objective
transformers cpu dtype model
transformers cpu device architecture
tgi h100-sxm num_shard objective
tgi h100-sxm max_total_tokens objective
llama-cpp h100-sxm cache_type_k model
dynamo h100-sxm tensor_parallel_size objective
triton-tensorrt-llm h100-sxm max_batch_size device
"""


def test_options_of_every_engine_say_what_set_them():
    for name, device, option, layer in map(str.split, ENGINES.strip().splitlines()):
        parts = {"options": {"engines": [name]}, "workload": {"concurrency": 2}}
        found = recipe_of("meta-llama/Llama-3.2-1B-Instruct", device, 1, **parts)
        assert found.provenance[f"options.{option}"] == layer, (name, option)
    for spec in map(engine, engine_names()):  # every meaning is of an option there is
        assert set(spec.options.means) <= set(spec.options.by_name)
        assert meanings(spec)


def test_what_hardware_asks_for_is_the_architectures():
    found = recipe_of("Qwen/Qwen3-8B", "mi300x", 1)
    assert found.environment["VLLM_ROCM_USE_AITER"] == "1"
    assert found.provenance["environment.VLLM_ROCM_USE_AITER"] == "architecture"
    assert found.provenance["environment.VLLM_NO_USAGE_STATS"] == "base"


def test_what_a_user_adds_is_the_users():
    options = {"tool-call-parser": "hermes", "enable_auto_tool_choice": "true"}
    found = make_recipe(passing_on(qwen(), options, {"VLLM_LOGGING_LEVEL": "INFO"}))
    assert found.engine.options["enable_auto_tool_choice"] is True
    for name in ("options.tool_call_parser", "environment.VLLM_LOGGING_LEVEL"):
        assert found.provenance[name] == "user"
    (process,) = relaunch(found).processes
    assert process.argv[process.argv.index("--tool-call-parser") + 1] == "hermes"
    assert process.env["VLLM_LOGGING_LEVEL"] == "INFO"


def test_the_request_alone_makes_the_recipe_again():
    options = {"engine_options": {"seed": "1", "tool-call-parser": "qwen3"}}
    request = make_request("Qwen/Qwen3-8B@abc123", "h100-sxm", 1, options=options)
    added = {"seed": "7", "--max-loras": "2"}
    found = make_recipe(passing_on(request, added, {"NCCL_DEBUG": "WARN"}))
    expected = {"seed": 7, "tool_call_parser": "qwen3", "max_loras": 2, "revision": "abc123"}
    assert found.request["options"]["engine_options"] == expected
    again = make_recipe(recipe_request(found))
    for part in ("engine", "environment", "candidate"):
        assert getattr(again, part) == getattr(found, part)
    assert again.engine.options["seed"] == 7
    assert again.environment["NCCL_DEBUG"] == "WARN"


def test_additions_do_not_change_what_was_estimated():
    for options, field in (
        ({"tensor_parallel_size": "4"}, "tensor_parallel_size"),
        ({"tool_call_parsers": "hermes"}, "options"),
        ({"seed": "soon"}, "seed"),
        ({"enable_auto_tool_choice": "perhaps"}, "enable_auto_tool_choice"),
    ):
        with pytest.raises(InputError) as error:
            make_recipe(passing_on(qwen(), options, {}))
        assert field in str(error.value.field)


def test_parameters_come_as_text_and_wrong_ones_are_named():
    found = read_parameters({"port": "9000", "namespace": "prod", "node_selector": '{"zone": "a"}'})
    assert (found.port, found.namespace, found.node_selector) == (9000, "prod", {"zone": "a"})
    for name, value, says in (
        ("prot", "9000", "not known"),
        ("port", "99999", "65535"),
        ("namespace", "Prod Uction", "characters"),
        ("host", "a; rm -rf /", "characters"),
    ):
        with pytest.raises(InputError, match=says) as error:
            read_parameters({name: value})
        assert error.value.field == f"parameters.{name}"


def test_secrets_are_refused_and_not_repeated(tiny_config):
    for options, environment, secret in (
        ({"api_key": "correct horse"}, {}, "correct horse"),
        ({}, {"HF_TOKEN": "swordfish"}, "swordfish"),
        ({}, {"NOTE": "hf_" + "a1B2" * 8}, "a1B2"),
        ({}, {"PROXY": "http://me:mypassword@proxy:3128"}, "mypassword"),
    ):
        with pytest.raises(InputError) as error:
            make_recipe(passing_on(qwen(), options, environment))
        assert secret not in str(error.value)
    with pytest.raises(InputError, match="Hugging Face token"):
        make_recipe(make_request(tiny_config | {"note": "hf_" + "x" * 34}, "h100-sxm", 1))


def test_a_recipe_of_the_form_before_kinds_is_read_and_starts_as_it_did():
    values = parse_yaml(OLD.read_text())
    migrated, said = migrate(values)
    found = Recipe.parse(values)
    assert (found.kind, found.schema_version, found.lock) == ("serving", 1, None)
    assert found.estimate == values["estimate"]
    candidates = [each["candidate"] for each in values["alternatives"]]
    assert [each.candidate for each in found.fallbacks] == candidates
    assert found.fallbacks[0].figures["tpot_s"] == values["alternatives"][0]["tpot_s"]
    assert len(said) == 1
    assert migrate(migrated) == (migrated, [])
    (process,) = relaunch(found).processes
    words = dict(zip(process.argv, process.argv[1:], strict=False))
    sizes = "tensor_parallel_size max_model_len max_num_seqs max_num_batched_tokens"
    for name in (*sizes.split(), "gpu_memory_utilization"):
        assert words[f"--{name.replace('_', '-')}"] == str(values["engine"]["options"][name])


def test_what_is_no_recipe_is_refused_by_name(recipe):
    for change, says in (
        ({"schema_version": 2}, "reads up to 1"),
        *(({"schema_version": value}, "schema_version") for value in (0, "1", True)),
        ({"surprise": 1}, "surprise"),
        ({"kind": "cooking"}, "kind"),
        ({"name": "../etc\nx"}, "name"),
        ({"candidate": 3}, "candidate"),
    ):
        with pytest.raises(BundleError, match=says):
            Recipe.parse(recipe.model_dump(mode="json") | change)
    for value in (None, [], "recipe", 1, {}):
        with pytest.raises(BundleError, match="schema_version"):
            Recipe.parse(value)


def _measurement(recipe: Recipe, parts: dict | None = None) -> dict:
    return {
        "created": "2026-10-01T12:00:00+00:00",
        "recipe": recipe.name,
        "recipe_digest": "ab" * 32,
        "machine": {"runtime": "cuda", "devices": [{"name": "NVIDIA H100 80GB HBM3"}] * 4},
        "engine": {"name": "vllm", "version": recipe.engine.version},
        "workload": {"mode": "closed", "concurrency": 64},
        "metrics": {"tpot_s": 0.01, "requests": 256, "ttft_p95_s": None},
    } | (parts or {})


def test_a_measurement_becomes_a_claim_that_expires(recipe):
    found = with_claims(recipe, [_measurement(recipe)])
    (claim,) = found.claims
    measured = (claim.device, claim.count, claim.version, claim.metrics["tpot_s"])
    assert measured == ("h100-sxm", recipe.device.count, recipe.engine.version, 0.01)
    assert claim.doubts(found, claim.date) == []
    assert "expired" in claim.doubts(found, claim.expires.replace(year=claim.expires.year + 1))[0]
    assert found.lock.recipe_digest == found.digest != recipe.digest
    other = make_recipe(qwen(4, candidate={"tp": 2, "pp": 1, "dp": 1}))
    assert "of another split" in claim.doubts(other, claim.date)


def test_a_measured_training_run_is_a_claim_too():
    found = make_recipe(training_request(options={"engines": ["torch"]}))
    own = {"engine": {"version": found.engine.version}, "metrics": {"step_s": 7.5}}
    measured = _measurement(found, own)
    del measured["workload"]
    (claim,) = with_claims(found, [measured]).claims
    assert (claim.metrics, claim.workload["sequence_length"]) == ({"step_s": 7.5}, 4096)


def test_measurements_of_something_else_are_refused(recipe):
    for parts, says in (
        ({"recipe": "another"}, "is of the recipe another"),
        ({"engine": {"version": "0.1.0"}}, "pins"),
        ({"machine": {"runtime": "rocm", "devices": []}}, "measured on rocm"),
        ({"machine": {"runtime": "cuda", "devices": [{"name": "NVIDIA L4"}]}}, "NVIDIA L4"),
        ({"metrics": None}, "is not a measurement"),
        ({"created": "yesterday"}, "is not a measurement"),
    ):
        with pytest.raises(InputError, match=says):
            with_claims(recipe, [_measurement(recipe, parts)])


@pytest.mark.parametrize("name", ["torch", "torchtitan", "deepspeed", "megatron", "accelerate"])
def test_a_training_recipe_is_as_whole_as_a_serving_one(name):
    found = make_recipe(training_request(options={"engines": [name]}))
    assert (found.kind, found.engine.name, found.max_context) == ("training", name, None)
    assert Recipe.parse(parse_yaml(to_yaml(found.model_dump(mode="json")))) == found
    assert {process.role for process in relaunch(found).processes} == {"trainer"}
    assert found.provenance["candidate.tp"] == "objective"
    assert found.lock.engine.version == found.engine.version


def test_training_is_decided_and_refused_in_words():
    large = make_request("meta-llama/Llama-3.1-70B-Instruct", "h100-sxm", 1, workload=TRAINING)
    with pytest.raises(NoAnswer, match=r"none of \d+ splits can run; .* GiB short"):
        make_recipe(large)
    for name in ("engine_options", "environment"):
        with pytest.raises(InputError, match="serving"):
            make_recipe(training_request(options={name: {"seed": "1"}}))
