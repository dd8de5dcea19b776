"""A device that is not shipped, through requests, links, estimates, recipes and bundles."""

import json
import math
from itertools import product

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import HardwareError
from recipe_core.bundle.verify import check_bundle, read_bundle
from recipe_core.bundle.write import write_bundle
from recipe_core.commands.context import CommandContext
from recipe_core.commands.judge import judge_command
from recipe_core.doors.api import create_api
from recipe_core.doors.cli import load_commands
from recipe_core.estimates.measured.support import device_support
from recipe_core.hardware.cluster import (
    cluster,
    device_names,
    device_profile,
    device_values,
    is_own,
    roofline,
)
from recipe_core.hardware.prices import offers_of
from recipe_core.hardware.profile import Device
from recipe_core.hardware.request import MAX_BYTES, HardwareRequest, read_profile, with_profiles
from recipe_core.hardware.upload import profile_template, uploaded_profile
from recipe_core.plans.plans import estimate_batch, plan_candidate, plan_splits
from recipe_core.plans.rank import nearest_row
from recipe_core.plans.splits import row_reasons
from recipe_core.recipe import Recipe, make_recipe, recipe_request
from recipe_core.recipe.comparison import diff_recipes, verify_lock
from recipe_core.recipe.resolve import hardware_named, machine_of, recipe_for, resolve_recipe
from recipe_core.request.describe import request_summary
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT, MAX_VALUE, from_query, to_query
from recipe_core.request.schema import PlanRequest
from recipe_core.views.plan_words import figures_phrase
from tests.conftest import make_request, request_values
from tests.fixtures.paths import ROOT
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

MEASURED = {"source": "ours", "status": "measured"}
OURS = table("own_device", "ours")
WHOLE = device_values(device_profile(OURS))
SLOW = OURS | {"memory_bandwidth_bytes_per_s": {"value": 1e12, **MEASURED}}
TRAINING = {"kind": "training", "sequence_length": 4096, "global_batch": 64, "tokens": 1e8}


def figure(value):
    return {"value": value, **MEASURED}


def uploaded(values):
    return device_profile(uploaded_profile(values.encode(), "mine.yaml"))


@pytest.fixture(scope="module")
def recipe():
    return make_recipe(make_request(device=OURS))


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(to_yaml(OURS))
    return file


def test_what_a_profile_leaves_out_is_its_bases_and_a_whole_one_needs_none():
    base, ours = device_profile("h100-sxm"), device_profile(OURS)
    assert ours.memory_bytes.value == 64e9
    assert roofline(ours, "gemm", "bf16").compute_efficiency == 0.5
    assert roofline(ours, "gemm", "fp8") == roofline(base, "gemm", "fp8")
    assert ours.tdp_watts == base.tdp_watts
    assert (ours.name, ours.known_as, ours.aliases) == ("my-h100", "h100-sxm", base.aliases)
    assert {"ours", "sheet"} <= set(ours.sources)
    any_dtype = device_profile(
        OURS | {"roofline": {"gemm": {"any": OURS["roofline"]["gemm"]["bf16"]}}}
    )
    assert roofline(any_dtype, "gemm", "fp8").compute_efficiency == 0.5
    assert roofline(any_dtype, "moe", "bf16") == roofline(base, "moe", "bf16")
    alone = device_values(device_profile("mi300x")) | {"name": "mi400", "title": "Ours"}
    del alone["roofline"]
    assert device_profile(alone).known_as is None
    assert device_support(device_profile(alone)).level == "computed"
    profiles, split = (alone, "mi300x", alone | {"known_as": "mi300x"}), {"tp": 2, "pp": 1, "dp": 1}
    requests = [request_values(device=each, per_node=2, candidate=split) for each in profiles]
    bases = [answer["basis"]["usd_per_hour"] for answer in estimate_batch(requests)]
    assert (bases[0], bases[2]) == ("unknown", bases[1])
    assert bases[1].startswith(tuple(offer.name for offer in offers_of(device_profile("mi300x"))))
    assert device_support(device_profile("h100-sxm")).level == "measured"
    found = device_support(device_profile(OURS))
    assert (found.level, found.runs, "Your profile" in found.basis_text) == ("calibrated", 0, True)


@over("name", device_names(), share=8)
def test_a_template_is_a_profile_that_computes_the_same(name):
    shipped = device_profile(name)
    again = uploaded(profile_template(shipped))
    changed = {
        field
        for field, value in device_values(again).items()
        if value != device_values(shipped).get(field)
    }
    assert changed == {"name", "title", "known_as"}
    assert uploaded(profile_template(again)) == again


def filled(value):
    """Values with ``{figure: x}`` as a measured figure."""
    if not isinstance(value, dict):
        return value
    own = {name: filled(part) for name, part in value.items() if name != "figure"}
    return figure(value["figure"]) | own if "figure" in value else own


NOT_A_NUMBER = [{"memory_bytes": figure(math.nan)}, "memory_bytes.value", "nan"]
LIMITS = list(map(filled, table("own_device", "limits")))


@over("fields, field, said", [NOT_A_NUMBER, *table("own_device", "wrong_profiles")])
def test_a_wrong_profile_names_field_value_and_fix(fields, field, said):
    error = refusal(cluster, HardwareRequest(device=OURS | filled(fields)), kind=HardwareError)
    assert said in str(error)
    assert error.field.startswith("hardware.device")
    assert field is None or error.field == f"hardware.device.{field}"


def test_the_documented_profile_is_one_and_a_date_of_yaml_a_text():
    assert uploaded(to_yaml(OURS).replace("'2026-11-20'", "2026-11-20")) == device_profile(OURS)
    text = (ROOT / "docs" / "reference" / "hardware.md").read_text()
    ours = uploaded(text.split("```yaml\n")[1].split("```")[0])
    assert roofline(ours, "attention_decode", "fp8").compute_efficiency == 0.6
    rows = [row.split("|")[1:2] for row in text.split("| field |")[1].splitlines()]
    documented = {name for row in rows for cell in row for name in cell.split("`")[1::2]}
    assert set(Device.model_fields) - {"schema_version"} <= documented


@over("data, said", table("own_device", "no_profiles"))
def test_what_is_no_profile_is_refused_with_the_reason(data, said):
    assert said in str(refusal(uploaded_profile, data.encode("latin-1"), "file.yaml"))
    for long in (b"#" * (MAX_BYTES + 1), b"name: x\nnote: " + b"x" * MAX_BYTES):
        assert "limit" in str(refusal(uploaded_profile, long, "file.yaml"))


def test_profiles_and_clusters_of_one_name_are_told_apart():
    profiles, split = (OURS, SLOW, "h100-sxm", OURS), {"tp": 8, "pp": 1, "dp": 1}
    requests = [request_values(device=profile, candidate=split) for profile in profiles]
    answers = estimate_batch(requests)
    assert answers[0] == answers[3]
    assert [estimate_batch([request])[0] for request in requests] == answers
    trainings = [
        {**request_values("meta-llama/Llama-3.1-8B-Instruct", profile), "workload": TRAINING}
        for profile in profiles
    ]
    steps = [answer["training"]["step_s"] for answer in estimate_batch(trainings)]
    times = [answer["serving"]["tpot_s"] for answer in answers]
    assert times[2] < times[0] < times[1]
    assert len(set(steps)) == 3
    assert steps[2] < steps[0]
    beside = {"hardware": [{"device": SLOW}, {"device": "h100-sxm"}]}
    request = make_request(device=OURS, options=beside)
    table = plan_splits(request)
    devices = [table.setting(int(row)).cluster.device for row in table.order]
    assert {each.memory_bandwidth_bytes_per_s.value for each in devices} == {1e12, 3.35e12}
    assert devices[0] == device_profile("h100-sxm")
    assert request_summary(request).count("my-h100") == 2
    alone = plan_splits(make_request(device=OURS)).setting(0).cluster.device
    assert (alone, is_own(alone)) == (device_profile(OURS), True)


def test_a_link_holds_the_profile():
    request = change(DEFAULT, {"hardware.device": OURS, "hardware.per_node": 4})
    query = to_query(request)
    assert json.loads(query["hardware.device"]) == OURS
    assert from_query(query) == (request, [])
    other = change(request, {"options.hardware": (HardwareRequest(device=SLOW),)})
    assert from_query(to_query(other)) == (other, [])
    shipped = change(other, {"hardware.device": "mi300x"}).hardware
    assert shipped == HardwareRequest(device="mi300x", per_node=4)
    largest = max(len(json.dumps(device_values(device_profile(name)))) for name in device_names())
    assert largest < MAX_BYTES < MAX_VALUE
    unknown_field = [json.dumps(OURS | {"memory": 1}), "memory_bytes"]
    for value, said in [unknown_field, *table("own_device", "bad_links")]:
        request, ignored = from_query({"hardware.device": value, "hardware.per_node": "4"})
        assert (request.hardware.device, request.hardware.per_node) == ("h100-sxm", 4), value
        assert said in ignored[0]
    # a bad profile beside others names its field
    bad = {"device": OURS | {"tdp_watts": figure(0)}}
    _, ignored = from_query({"options.hardware": json.dumps([bad])})
    assert "tdp_watts.value 0 " in ignored[0]
    request = make_request(options={"hardware": [{"device": "l40s"}, bad]})
    error = refusal(plan_splits, request, kind=HardwareError)
    assert error.field == "options.hardware.1.device.tdp_watts.value"


def test_the_api_takes_profiles_and_reads_no_path(path):
    client = TestClient(create_api(folders=True))  # even where folders of models may be read

    def status(door, body):
        return client.post(f"/{door}", json=body).status_code

    assert status("plan?top=1", request_values(device=OURS)) == 200
    beside = {"hardware": [{"device": str(path)}]}
    for body in (request_values(device=str(path)), request_values(options=beside)):
        for door in ("plan", "estimate", "check", "build", "recipe"):
            refused = client.post(f"/{door}", json=body)
            error = refused.json()["error"]
            assert (refused.status_code, "hardware" in error["field"]) == (422, True)
            assert "paths are not read" in error["message"]
    for hardware, code in ((str(path), 422), (OURS, 200)):
        body = {"command": "vllm serve Qwen/Qwen3-8B", "hardware": hardware}
        assert status("check", body) == code
    made = client.post("/recipe", json=request_values(device=OURS)).json()
    assert status("build", made) == 200
    assert status("resolve", {"recipe": made, "hardware": str(path)}) == 422
    made["request"]["hardware"]["device"] = str(path)
    assert status("build", made) == 422


def test_files_are_read_only_where_asked_line_by_line_by_the_command_line(path):
    assert read_profile(str(path)) == OURS
    beside = [{"device": str(path)}, {"device": "l40s"}]
    values = request_values(device=str(path), options={"hardware": beside})
    assert "with_profiles" in str(
        refusal(plan_splits, PlanRequest.parse(values), kind=HardwareError)
    )
    request = PlanRequest.parse(with_profiles(values))
    assert request.hardware.device == OURS
    assert [each.device_name for each in request.options.hardware] == ["my-h100", "l40s"]
    assert estimate_batch([with_profiles(values)])[0]["feasible"]
    assert "error" in estimate_batch([values])[0]
    lines = path.with_name("many.jsonl")
    values = [request_values(device=str(path)), request_values(device=str(path.parent / "no.yaml"))]
    lines.write_text("\n".join(json.dumps(value | {"candidate": {"tp": 8}}) for value in values))
    for command in ("estimate", "check"):
        done = CliRunner().invoke(load_commands(), [command, str(lines)])
        first, second = map(json.loads, done.stdout.splitlines())
        assert "error" not in first
        assert "cannot read" in second["error"]["message"]
    command = "vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 1"
    answer = judge_command(command, CommandContext.of(hardware=OURS))
    assert answer["verdict"] == "cannot start"
    assert answer["hardware"]["device"] == OURS
    # a file that is too large or gone is refused
    path.write_text("x" * (MAX_BYTES + 1))
    assert "limit" in str(refusal(read_profile, str(path)))
    path.unlink()
    assert "cannot read" in str(refusal(with_profiles, values[0]))


def test_a_recipe_and_its_bundle_hold_the_whole_profile(recipe, path, tmp_path):
    held = recipe.request["hardware"]["device"]
    assert held == WHOLE
    assert "based_on" not in held
    assert device_profile(held) == device_profile(OURS)
    assert (recipe.device.name, recipe.device.memory_bytes) == ("my-h100", 64_000_000_000)
    assert recipe.lock.device.profile_digest == device_profile(OURS).digest
    table, row = plan_candidate(recipe_request(recipe))
    assert table.estimate(row).serving.to_json() == recipe.estimate["serving"]
    values = recipe.model_dump(mode="json")
    values["request"]["hardware"]["device"] = str(path)
    refused = refusal(plan_splits, recipe_request(Recipe.parse(values)), kind=HardwareError)
    assert "paths are not read" in str(refused)
    bundle = tmp_path / "bundle"
    write_bundle(recipe, bundle)
    answer = check_bundle(bundle)
    assert (answer["ok"], len(answer["warnings"])) == (True, 0)
    assert read_bundle(bundle).recipe == recipe
    needs = json.loads((bundle / "launch.json").read_text())["needs"]
    assert needs["memory_bytes"] == 64_000_000_000
    assert "NVIDIA H100 80GB HBM3" in needs["names"]  # as the driver says it, for preflight
    assert "H100: 8" in (bundle / "targets" / "skypilot" / "task.yaml").read_text()
    values = request_values(model="Qwen/Qwen3-0.6B", device=OURS, per_node=2)
    trained = make_recipe(PlanRequest.parse({**values, "workload": TRAINING}))
    write_bundle(trained, tmp_path / "training")
    assert check_bundle(tmp_path / "training")["ok"]


def test_another_profile_is_another_recipe(recipe, path):
    slower = make_recipe(make_request(device=SLOW))
    found = diff_recipes(recipe, slower)
    fields = {row["field"] for rows in found["changed"].values() for row in rows}
    speed = "request.hardware.device.memory_bandwidth_bytes_per_s.value"
    assert not found["same"]
    assert {speed, "lock.device.profile_digest"} <= fields
    for locked, level in ((recipe, "same"), (slower, "differs")):
        levels = {each.name: each.level for each in verify_lock(recipe, locked.lock)}
        assert levels["profile of my-h100"] == level
    # fallbacks and variants know it
    assert {each.device for each in recipe.fallbacks} > {"my-h100"}
    path.write_text(to_yaml(SLOW))
    there = hardware_named(f"{path}:8", files=True)
    assert (there.device, there.per_node) == (SLOW, 8)
    assert "paths are not read" in str(refusal(hardware_named, f"{path}:8", kind=HardwareError))
    assert resolve_recipe(recipe, machine_of(there, recipe)).applied == ()
    assert recipe_for(recipe, there)[0].request["hardware"]["device"] == device_values(
        device_profile(SLOW)
    )


@over("workload, fields", product([{"concurrency": 8}, TRAINING], LIMITS), share=9)
def test_nothing_that_a_profile_may_say_breaks_an_estimate(fields, workload, tmp_path):
    values = request_values("Qwen/Qwen3-0.6B", OURS | fields)
    board = plan_splits(PlanRequest.parse({**values, "workload": workload}))
    row = board.best_row
    if row is None:
        assert row_reasons(board, nearest_row(board))
        return
    assert "unknown" not in figures_phrase(board, row)
    write_bundle(make_recipe(board.request), tmp_path / "bundle")
    assert check_bundle(tmp_path / "bundle")["ok"]
