"""What a recipe holds, why each value is there, what differs between two, and its schema."""

import json
import subprocess
import sys

import pytest

from recipe_core.base.documents import parse_yaml, to_yaml
from recipe_core.base.errors import BundleError, NoAnswer
from recipe_core.bundle.signing import MANIFEST
from recipe_core.bundle.write import bundle_files
from recipe_core.engines.grammar import option_meanings
from recipe_core.engines.spec import engine, engine_names
from recipe_core.plans.plans import plan_candidate
from recipe_core.recipe import Additions, Recipe, make_recipe, passing_on, recipe_request, relaunch
from recipe_core.recipe.build import with_claims
from recipe_core.recipe.comparison import diff_recipes, diff_text
from recipe_core.recipe.decision import decide
from recipe_core.recipe.fallbacks import fallbacks
from recipe_core.recipe.place import Parameters, read_parameters
from recipe_core.recipe.schema import migrate
from recipe_core.request.schema import PlanRequest
from recipe_core.views.catalog import NAMES, document_schema
from tests.conftest import LLAMA_70B, make_request, request_values
from tests.fixtures.over_time import ANSWER
from tests.fixtures.paths import DATA, ROOT
from tests.fixtures.recipes import fallback_request, recipe_of
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.training import LLAMA_8B, training_values


def training(model=LLAMA_8B, hardware=None, **parts):
    work = {"sequence_length": 4096, "global_batch": 64, "tokens": 1e9}
    values = training_values(nodes=1, model=model, hardware=hardware, **work)
    return PlanRequest.parse(values | parts)


def qwen(count=1, **parts):
    return make_request("Qwen/Qwen3-8B", "h100-sxm", count, **parts)


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return recipe_of("Qwen/Qwen3-8B", "h100-sxm", 4)


def test_every_fallback_is_what_its_changes_lead_to(recipe):
    """The changed request has exactly this split, can run, and does what the fallback says."""
    request, kinds = training(), {"fewer-gpus", "lower-context", "other-device"}
    trained = fallbacks(decide(request), request)
    assert kinds <= {each.kind for each in trained}
    assert {each.kind for each in recipe.fallbacks} == kinds | {"other-split", "other-precision"}
    for asked, found, kind, figure in (
        (PlanRequest.parse(recipe.request), recipe.fallbacks, "serving", "tpot_s"),
        (decide(request).request, trained, "training", "step_s"),
    ):
        for fallback in found:
            table, row = plan_candidate(fallback_request(asked, fallback))
            estimate = table.estimate(row).to_json()
            assert estimate["feasible"], (fallback.kind, estimate["reasons"])
            assert table.candidate(row) == fallback.candidate
            expected = pytest.approx(fallback.figures[figure], rel=1e-9)
            assert estimate[kind][figure] == expected


def test_fallbacks_change_what_they_are_about(recipe):
    by_kind = {each.kind: each for each in recipe.fallbacks}
    assert by_kind["fewer-gpus"].gpus <= recipe.device.count // 2
    assert by_kind["lower-context"].changes["workload.max_context"] == recipe.max_context // 2
    other = [each.candidate for each in recipe.fallbacks if each.kind == "other-precision"]
    own, *dtypes = [(each["weight_dtype"], each["kv_dtype"]) for each in (recipe.candidate, *other)]
    assert own not in dtypes
    devices = {each.device for each in recipe.fallbacks if each.kind == "other-device"}
    assert recipe.device.name not in devices
    assert len(devices) >= 2
    # a request that names hardware falls back to that
    found = make_recipe(qwen(2, options={"hardware": [{"device": "l40s", "per_node": 4}]}))
    others = {each.device for each in found.fallbacks if each.kind == "other-device"}
    assert {found.device.name} | others == {"h100-sxm", "l40s"}
    # lengths in tokens stay: half the context cuts the longest, where it holds the mean
    for mean, longest, cut in ((1093, None, True), (1093, 2048, False)):
        shape = {"quantiles": {"p50": 900, "p90": 2000}}
        lengths = {"input_tokens": mean, "input_lengths": shape, "max_context": longest}
        shaped = make_recipe(qwen(workload=lengths))
        halves = [each.changes for each in shaped.fallbacks if each.kind == "lower-context"]
        assert halves == [{"workload.max_context": shaped.max_context // 2}] * cut
    # all can be started, with the user's own options too, and on other devices
    options = {"engine_options": {"tool_call_parser": "hermes"}}
    found = make_recipe(make_request("Qwen/Qwen3-8B", "h100-sxm", 3, 2, options=options))
    assert found.fallbacks
    for each in found.fallbacks:
        assert decide(fallback_request(PlanRequest.parse(found.request), each)).started().processes


@over("parts, option, layer", table("recipe", "provenance"))
def test_every_option_says_what_set_it(parts, option, layer):
    found = recipe_of("Qwen/Qwen3-8B", "h100-sxm", 4, **parts)
    assert found.provenance[f"options.{option}"] == layer
    of_options = {name for name in found.provenance if name.startswith("options.")}
    assert of_options == {f"options.{name}" for name in found.engine.options}


def test_what_hardware_asks_for_is_the_architectures():
    found = recipe_of("Qwen/Qwen3-8B", "mi300x", 1)
    assert found.environment["VLLM_ROCM_USE_AITER"] == "1"
    assert found.provenance["environment.VLLM_ROCM_USE_AITER"] == "architecture"
    assert found.provenance["environment.VLLM_NO_USAGE_STATS"] == "base"
    for spec in map(engine, engine_names()):  # every meaning is of an option there is
        assert set(spec.options.means) <= set(spec.options.by_name)
        assert option_meanings(spec)


def test_what_a_user_adds_is_the_users_and_the_request_alone_makes_the_recipe_again():
    options = {"tool-call-parser": "hermes", "enable_auto_tool_choice": "true"}
    found = make_recipe(passing_on(qwen(), options, {"VLLM_LOGGING_LEVEL": "INFO"}))
    assert found.engine.options["enable_auto_tool_choice"] is True
    for name in ("options.tool_call_parser", "environment.VLLM_LOGGING_LEVEL"):
        assert found.provenance[name] == "user"
    (process,) = relaunch(found).processes
    assert process.argv[process.argv.index("--tool-call-parser") + 1] == "hermes"
    assert process.env["VLLM_LOGGING_LEVEL"] == "INFO"

    options = {"engine_options": {"seed": "1", "tool-call-parser": "qwen3"}}
    request = make_request("Qwen/Qwen3-8B@abc123", "h100-sxm", 1, options=options)
    added = {"seed": "7", "--max-loras": "2"}
    found = make_recipe(passing_on(request, added, {"NCCL_DEBUG": "WARN"}))
    expected = {"seed": 7, "tool_call_parser": "qwen3", "max_loras": 2, "revision": "abc123"}
    assert found.request["options"]["engine_options"] == expected
    again = make_recipe(recipe_request(found))
    for part in ("engine", "environment", "candidate"):
        assert getattr(again, part) == getattr(found, part)
    assert (again.engine.options["seed"], again.environment["NCCL_DEBUG"]) == (7, "WARN")


def test_additions_that_change_what_was_estimated_or_are_secret_are_refused(tiny_config):
    for options, environment, field in table("recipe", "additions"):
        error = refusal(lambda o, e: make_recipe(passing_on(qwen(), o, e)), options, environment)
        assert field in str(error.field)
        assert "swordfish" not in str(error)
    request = make_request(tiny_config | {"note": "hf_" + "x" * 34}, "h100-sxm", 1)
    assert "Hugging Face token" in str(refusal(make_recipe, request))


def test_parameters_come_as_text_and_wrong_ones_are_named():
    found = read_parameters({"port": "9000", "namespace": "prod", "node_selector": '{"zone": "a"}'})
    assert (found.port, found.namespace, found.node_selector) == (9000, "prod", {"zone": "a"})
    for name, value, says in table("recipe", "parameters"):
        error = refusal(read_parameters, {name: value})
        assert error.field == f"parameters.{name}"
        assert says in str(error)


def test_a_recipe_of_the_form_before_kinds_is_read_and_starts_as_it_did():
    values = parse_yaml((DATA / "recipe-before-kind.yaml").read_text())
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
    for change, says in table("recipe", "no_recipes"):
        with pytest.raises(BundleError, match=says):
            Recipe.parse(recipe.model_dump(mode="json") | change)
    for value in (None, [], "recipe", 1, {}):
        assert "schema_version" in str(refusal(Recipe.parse, value, kind=BundleError))


def measurement(measured, **parts):
    own = {"recipe": measured.name, "engine": {"name": "vllm", "version": measured.engine.version}}
    return table("recipe", "measurement") | own | parts


def test_a_measurement_becomes_a_claim_that_expires_and_of_something_else_is_refused(recipe):
    found = with_claims(recipe, [measurement(recipe)])
    (claim,) = found.claims
    measured = (claim.device, claim.count, claim.version, claim.metrics["tpot_s"])
    assert measured == ("h100-sxm", recipe.device.count, recipe.engine.version, 0.01)
    assert claim.doubts(found, claim.date) == []
    assert "expired" in claim.doubts(found, claim.expires.replace(year=claim.expires.year + 1))[0]
    assert found.lock.recipe_digest == found.digest != recipe.digest
    other = make_recipe(qwen(4, candidate={"tp": 2, "pp": 1, "dp": 1}))
    assert "of another layout" in claim.doubts(other, claim.date)
    for parts, says in table("recipe", "measurements"):
        assert says in str(refusal(with_claims, recipe, [measurement(recipe, **parts)]))
    # a measured training run is a claim too
    found = make_recipe(training(options={"engines": ["torch"]}))
    own = {"engine": {"version": found.engine.version}, "metrics": {"step_s": 7.5}}
    measured = measurement(found, **own)
    del measured["workload"]
    (claim,) = with_claims(found, [measured]).claims
    assert (claim.metrics, claim.workload["sequence_length"]) == ({"step_s": 7.5}, 4096)


@pytest.mark.parametrize("name", ["torch", "torchtitan", "deepspeed", "megatron", "accelerate"])
def test_a_training_recipe_is_as_whole_as_a_serving_one(name):
    found = make_recipe(training(options={"engines": [name]}))
    assert (found.kind, found.engine.name, found.max_context) == ("training", name, None)
    assert Recipe.parse(parse_yaml(to_yaml(found.model_dump(mode="json")))) == found
    assert {process.role for process in relaunch(found).processes} == {"trainer"}
    assert found.provenance["candidate.tp"] == "objective"
    assert found.lock.engine.version == found.engine.version


def test_training_is_decided_and_refused_in_words():
    with pytest.raises(NoAnswer, match=r"none of \d+ layouts can run; .* GiB short"):
        make_recipe(training(LLAMA_70B, {"per_node": 1}, candidate={"offload": "none"}))
    for name in ("engine_options", "environment"):
        assert "serving" in str(refusal(make_recipe, training(options={name: {"seed": "1"}})))


# What differs between two


def fields(found):
    every = [row for rows in found["changed"].values() for row in rows]
    return {row["field"]: (row["before"], row["after"]) for row in every}


def test_what_changed_is_named_once_with_both_values_and_what_it_does():
    splits = ({"tp": 4, "pp": 1, "dp": 1}, {"tp": 2, "pp": 1, "dp": 2})
    before, after = (recipe_of("Qwen/Qwen3-8B", "h100-sxm", 4, candidate=s) for s in splits)
    same = diff_recipes(before, before)
    assert (same["same"], same["changed"]) == (True, {})
    assert all(row["ratio"] in (1, None) for row in same["estimate"])
    assert "no difference" in diff_text(same)
    found = diff_recipes(before, after)
    assert fields(found)["candidate.tp"] == (4, 2)
    assert fields(found)["engine.options.tensor_parallel_size"] == (4, 2)
    assert not any(name.startswith("request.candidate") for name in fields(found))
    assert "model.id" not in fields(found)
    back = fields(diff_recipes(after, before))
    assert back == {name: values[::-1] for name, values in fields(found).items()}
    (row,) = [row for row in found["estimate"] if row["figure"] == "serving.tpot_s"]
    first, second = (each.estimate["serving"]["tpot_s"] for each in (before, after))
    assert (row["before"], row["ratio"]) == (first, pytest.approx(second / first))
    low, high = before.estimate["bands"]["tpot_s"]
    assert row["in_band"] == (low <= row["after"] <= high)
    assert "serving.tpot_s" in diff_text(found)
    # parameters and options of the user differ too
    request = passing_on(qwen(), {}, {"VLLM_LOGGING_LEVEL": "INFO"})
    mine = make_recipe(request, Additions(parameters=Parameters(port=9000)))
    found = fields(diff_recipes(make_recipe(qwen()), mine))
    assert found["parameters.port"] == (8000, 9000)
    assert found["environment.VLLM_LOGGING_LEVEL"] == (None, "INFO")


# The published schemas


def test_schemas_are_those_of_the_code_and_take_documents_without_unknown_fields(recipe):
    jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema")
    words = [sys.executable, "scripts/schemas.py", "--check"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, f"run python scripts/schemas.py: {done.stdout}{done.stderr}"
    assert "unknown schema 'recipes'" in str(refusal(document_schema, "recipes"))
    for name in NAMES:
        found = document_schema(name)
        jsonschema.validators.validator_for(found).check_schema(found)
        kinds = [found["$defs"][each["$ref"].rpartition("/")[2]] for each in found.get("anyOf", [])]
        assert all(each["additionalProperties"] is False for each in kinds or [found]), name
    documents = {
        "request": request_values(),
        "recipe": recipe.model_dump(mode="json"),
        "manifest": json.loads(bundle_files(recipe)[MANIFEST]),
        "estimate": recipe.estimate,
        "simulate": ANSWER.to_json(),
    }
    for name, document in documents.items():
        jsonschema.validate(document, document_schema(name))
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(document | {"surprise": 1}, document_schema(name))
