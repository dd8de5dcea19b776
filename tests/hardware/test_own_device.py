"""A device that is not shipped, through requests, links, estimates, recipes and bundles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from recipe_core.base.documents import parse_yaml, to_yaml
from recipe_core.base.errors import HardwareError, InputError
from recipe_core.bundle.verify import check_bundle, read_bundle
from recipe_core.bundle.write import write_bundle
from recipe_core.commands.ground import Ground
from recipe_core.commands.judge import check_command
from recipe_core.doors.api import create_api
from recipe_core.doors.cli import app
from recipe_core.hardware.cluster import cluster, device, device_names, is_own, plain, roofline
from recipe_core.hardware.custom import MAX_BYTES, read_profile, with_profiles
from recipe_core.hardware.prices import offers_of
from recipe_core.hardware.profile import Device
from recipe_core.hardware.request import HardwareRequest
from recipe_core.hardware.upload import template, uploaded_profile
from recipe_core.measured.support import support
from recipe_core.recipe import Recipe, make_recipe, recipe_request
from recipe_core.recipe.diff import diff
from recipe_core.recipe.lockcheck import verify_lock
from recipe_core.recipe.resolve import hardware_named, machine_of, recipe_for, resolve
from recipe_core.request.describe import summary
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT, MAX_VALUE, from_query, to_query
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import estimate_batch, plan, plan_candidate
from recipe_core.space.serving import Setting
from tests.conftest import make_request, request_values
from tests.fixtures.paths import ROOT

OURS: dict[str, Any] = {
    "schema_version": 1,
    "name": "my-h100",
    "based_on": "h100-sxm",
    "memory_bytes": {"value": 64e9, "source": "ours", "status": "measured"},
    "roofline": {
        "gemm": {
            "bf16": {
                "compute_efficiency": 0.5,
                "memory_efficiency": 0.7,
                "overhead_s": 4e-6,
                "smoothing": 3,
                "source": "ours",
                "status": "measured",
            }
        }
    },
    "sources": {"ours": {"title": "Our GEMM runs", "date": "2026-11-20"}},
}
WHOLE = plain(device(OURS))
SLOW = OURS | {
    "memory_bandwidth_bytes_per_s": {"value": 1e12, "source": "ours", "status": "measured"}
}
TRAINING = {"kind": "training", "sequence_length": 4096, "global_batch": 64, "tokens": 1e8}


def figure(value: float) -> dict[str, Any]:
    return {"value": value, "source": "ours", "status": "measured"}


def best(profile: Any, **parts: Any) -> dict[str, Any]:
    table = plan(make_request(device=profile, **parts))
    return table.estimate(int(table.order[0])).to_json()


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return make_recipe(make_request(device=OURS))


# --- what a profile says
# --------------------------------------------------------------------------------------------------


def test_what_a_profile_leaves_out_is_its_bases() -> None:
    base, ours = device("h100-sxm"), device(OURS)
    assert ours.memory_bytes.value == 64e9
    assert roofline(ours, "gemm", "bf16").compute_efficiency == 0.5
    assert roofline(ours, "gemm", "fp8") == roofline(base, "gemm", "fp8")
    assert ours.tdp_watts == base.tdp_watts
    assert (ours.name, ours.known_as, ours.aliases) == ("my-h100", "h100-sxm", base.aliases)
    assert {"ours", "sheet"} <= set(ours.sources)


def test_an_efficiency_for_any_dtype_speaks_for_every_dtype() -> None:
    cell = OURS["roofline"]["gemm"]["bf16"]
    ours = device(OURS | {"roofline": {"gemm": {"any": cell}}})
    assert roofline(ours, "gemm", "fp8").compute_efficiency == 0.5
    assert roofline(ours, "moe", "bf16") == roofline(device("h100-sxm"), "moe", "bf16")


def test_a_whole_profile_needs_no_base() -> None:
    alone = {
        name: value for name, value in plain(device("mi300x")).items() if name != "roofline"
    } | {"name": "mi400", "title": "Ours"}
    assert device(alone).known_as is None
    assert support(device(alone)).level == "computed"
    assert best(alone, per_node=2)["basis"]["usd_per_hour"] == "unknown"
    shipped = best("mi300x", per_node=2)["basis"]["usd_per_hour"]
    assert shipped.startswith(tuple(offer.name for offer in offers_of(device("mi300x"))))
    known = best(alone | {"known_as": "mi300x"}, per_node=2)["basis"]["usd_per_hour"]
    assert known == shipped


def test_a_profile_is_calibrated_at_best() -> None:
    assert support(device("h100-sxm")).level == "measured"
    found = support(device(OURS))
    assert (found.level, found.runs) == ("calibrated", 0)
    assert "Your profile" in found.said


@pytest.mark.parametrize("name", device_names())
def test_a_template_is_a_profile_that_computes_the_same(name: str) -> None:
    shipped = device(name)
    again = device(uploaded_profile(template(shipped).encode(), "mine.yaml"))
    changed = {field for field, value in plain(again).items() if value != plain(shipped).get(field)}
    assert changed == {"name", "title", "known_as"}
    assert device(uploaded_profile(template(again).encode(), "mine.yaml")) == again


@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        ({"name": "h100-sxm"}, "name", "my-h100-sxm"),
        ({"name": "H100"}, "name", "lowercase letters"),
        ({"name": "../x"}, "name", "lowercase letters"),
        ({"based_on": "h1000"}, "based_on", "h100-sxm"),
        ({"based_on": "other.yaml"}, "based_on", "paths are not read"),
        ({"based_on": ["h100-sxm"]}, "based_on", "unknown device"),
        ({"known_as": "mi300x"}, "known_as", "same vendor"),
        ({"memory": 80}, "memory", "memory_bytes"),
        ({"memory_bytes": 80e9}, "memory_bytes", "value: …"),
        ({"memory_bytes": figure(80)}, "memory_bytes.value", "bytes, between"),
        ({"memory_bytes": figure(float("nan"))}, "memory_bytes.value", "plausible"),
        ({"tdp_watts": figure(0.7e6)}, "tdp_watts.value", "watts"),
        ({"tdp_watts": figure(50)}, None, "idle_watts exceeds"),
        (
            {"peak_flops_per_s": {"bf16": figure(989)}},
            "peak_flops_per_s.bf16.value",
            "operations per second",
        ),
        ({"peak_flops_per_s": {"bf17": figure(989e12)}}, "peak_flops_per_s.bf17", "bf16"),
        ({"memory_bytes": figure(64e9) | {"status": "sure"}}, "memory_bytes.status", "measured"),
        ({"memory_bytes": figure(64e9) | {"source": "hearsay"}}, None, "hearsay"),
        ({"sources": {"sheet": {"title": "mine"}}}, "sources.sheet", "another name"),
        (
            {"sources": {"ours": {"title": "x", "url": "javascript:alert(1)"}}},
            "sources.ours.url",
            "https",
        ),
        (
            {"roofline": {"gemm": {"bf16": {"efficiency": 1}}}},
            "roofline.gemm.bf16.efficiency",
            "compute_efficiency",
        ),
        (
            {
                "roofline": {
                    "gemm": {"bf16": OURS["roofline"]["gemm"]["bf16"] | {"compute_efficiency": 80}}
                }
            },
            None,
            "less than or equal to 1",
        ),
        ({"node": {"fabric": "ib-ndr-400"}}, "node.fabric", "nvlink4"),
        ({"node": {"network": "tin-cans"}}, "node.network", "tin-cans"),
        ({"vendor": "amd"}, None, "rocm"),
        ({"title": "<script>"}, "title", "One line"),
        ({"title": "{{ $value }}"}, "title", "One line"),
        ({"title": "a\nb"}, "title", "One line"),
        ({"aliases": ["x" * 1000]}, "aliases.0", "One line"),
        ({"weight_dtypes": []}, "weight_dtypes", "at least 1"),
        ({"sources": "ours"}, "sources", "dictionary"),
        ({"roofline": [1]}, "roofline", "dictionary"),
    ],
)
def test_a_wrong_profile_names_field_value_and_fix(
    fields: dict[str, Any], field: str | None, said: str
) -> None:
    with pytest.raises(HardwareError) as caught:
        cluster(HardwareRequest(device=OURS | fields))
    assert said in str(caught.value)
    assert str(caught.value.field).startswith("hardware.device")
    if field is not None:
        assert caught.value.field == f"hardware.device.{field}"


def test_the_documented_profile_is_one() -> None:
    text = (ROOT / "docs" / "hardware.md").read_text()
    ours = device(uploaded_profile(text.split("```yaml\n")[1].split("```")[0].encode(), "docs"))
    assert roofline(ours, "attention_decode", "fp8").compute_efficiency == 0.6
    documented = {
        name
        for row in text.split("| field |")[1].splitlines()
        for name in row.split("|")[1:2]
        for name in name.split("`")[1::2]
    }
    assert set(Device.model_fields) - {"schema_version"} <= documented


def test_a_missing_field_names_the_way_out() -> None:
    with pytest.raises(HardwareError, match="based_on"):
        device({"schema_version": 1, "name": "x"})


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"#" * (MAX_BYTES + 1), "the limit is"),
        (b"name: x\nnote: " + b"x" * MAX_BYTES, "the limit is"),
        (b"PK\x03\x04", "not text"),
        (b"\x1f\x8b\x08", "not text"),
        (b"\x80\x04pickle", "not text"),
        (b"\xff\xfe", "UTF-8"),
        (b"a: [1", "not valid YAML"),
        (b"- 1\n- 2", "not a profile"),
        (b"", "not a profile"),
        (b"a: &x [1]\nb: *x", "alias"),
        (b"!!python/object/apply:os.system ['true']", "YAML tag"),
        (b"name: a\nname: b", "duplicate"),
        (b"a: " + b"[" * 100 + b"]" * 100, "more than 64 levels"),
        (b"name: my-h100", "is missing"),
    ],
)
def test_what_is_no_profile_is_refused_with_the_reason(data: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said):
        uploaded_profile(data, "file.yaml")


def test_a_date_that_yaml_reads_as_one_is_its_text() -> None:
    text = to_yaml(OURS).replace("'2026-11-20'", "2026-11-20")
    assert device(uploaded_profile(text.encode(), "x.yaml")) == device(OURS)


# --- content, never names
# --------------------------------------------------------------------------------------------------


def test_profiles_of_one_name_are_told_apart() -> None:
    requests = [
        request_values(device=each, candidate={"tp": 8, "pp": 1, "dp": 1})
        for each in (OURS, SLOW, "h100-sxm", OURS)
    ]
    answers = estimate_batch(requests)
    assert answers[0] == answers[3]
    times = [answer["serving"]["tpot_s"] for answer in answers[:3]]
    assert times[2] < times[0] < times[1]
    assert [estimate_batch([each])[0] for each in requests] == answers


def test_training_tells_them_apart_too() -> None:
    asked = [
        PlanRequest.parse(
            {**request_values("meta-llama/Llama-3.1-8B-Instruct", each), "workload": TRAINING}
        )
        for each in (OURS, SLOW, "h100-sxm")
    ]
    found = []
    for request in asked:
        table, row = plan_candidate(request)
        found.append(table.estimate(row).training.step_s)
    assert len(set(found)) == 3
    assert found[2] < found[0]


def test_clusters_side_by_side_may_share_a_name() -> None:
    request = make_request(
        device=OURS, options={"hardware": [{"device": SLOW}, {"device": "h100-sxm"}]}
    )
    table = plan(request)
    bandwidths = {
        table.setting(int(row)).cluster.device.memory_bandwidth_bytes_per_s.value
        for row in table.order
    }
    assert bandwidths == {1e12, 3.35e12}
    assert table.setting(int(table.order[0])).cluster.device == device("h100-sxm")
    assert summary(request).count("my-h100") == 2


def test_a_setting_is_of_the_profile_it_names() -> None:
    where: Setting = plan(make_request(device=OURS)).setting(0)
    assert where.cluster.device == device(OURS)
    assert is_own(where.cluster.device)


# --- links and doors
# --------------------------------------------------------------------------------------------------


def test_a_link_holds_the_profile() -> None:
    request = change(DEFAULT, {"hardware.device": OURS, "hardware.per_node": 4})
    query = to_query(request)
    assert json.loads(query["hardware.device"]) == OURS
    assert from_query(query) == (request, [])
    other = change(request, {"options.hardware": (HardwareRequest(device=SLOW),)})
    assert from_query(to_query(other)) == (other, [])
    assert change(other, {"hardware.device": "mi300x"}).hardware == HardwareRequest(
        device="mi300x", per_node=4
    )
    largest = max((json.dumps(plain(device(name))) for name in device_names()), key=len)
    assert len(largest) < MAX_BYTES < MAX_VALUE


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("/etc/mine.yaml", "paths are not read"),
        ("../../mine.YML", "paths are not read"),
        ('{"name": "x"}', "is missing"),
        ('{"name"', "not valid JSON"),
        (json.dumps(OURS | {"memory": 1}), "memory_bytes"),
    ],
)
def test_a_bad_device_in_a_link_is_left_out_and_said(value: str, said: str) -> None:
    request, ignored = from_query({"hardware.device": value, "hardware.per_node": "4"})
    assert (request.hardware.device, request.hardware.per_node) == ("h100-sxm", 4)
    assert said in ignored[0]


def test_a_bad_profile_beside_others_names_its_field() -> None:
    _, ignored = from_query(
        {"options.hardware": json.dumps([{"device": OURS | {"tdp_watts": figure(0)}}])}
    )
    assert "tdp_watts.value 0 is not a plausible" in ignored[0]
    with pytest.raises(HardwareError) as caught:
        plan(
            make_request(
                options={
                    "hardware": [{"device": "l40s"}, {"device": OURS | {"tdp_watts": figure(0)}}]
                }
            )
        )
    assert caught.value.field == "options.hardware.1.device.tdp_watts.value"


def test_the_api_takes_profiles_and_reads_no_path(tmp_path: Path) -> None:
    client = TestClient(create_api(folders=True))  # even where folders of models may be read
    answer = client.post("/plan", json=request_values(device=OURS), params={"top": 1})
    assert answer.status_code == 200
    path = tmp_path / "mine.yaml"
    path.write_text(to_yaml(OURS))
    for body in (
        request_values(device=str(path)),
        request_values(options={"hardware": [{"device": str(path)}]}),
    ):
        for door in ("plan", "estimate", "check", "build", "recipe"):
            refused = client.post(f"/{door}", json=body)
            assert refused.status_code == 422
            assert "paths are not read" in refused.json()["error"]["message"]
            assert "hardware" in refused.json()["error"]["field"]
    for body in (
        {"command": "vllm serve Qwen/Qwen3-8B", "hardware": f"{path}"},
        {"command": "vllm serve Qwen/Qwen3-8B", "hardware": OURS},
    ):
        assert client.post("/check", json=body).status_code == (
            200 if isinstance(body["hardware"], dict) else 422
        )
    made = client.post("/recipe", json=request_values(device=OURS)).json()
    assert client.post("/build", json=made).status_code == 200
    assert client.post("/resolve", json={"recipe": made, "hardware": str(path)}).status_code == 422
    made["request"]["hardware"]["device"] = str(path)
    assert client.post("/build", json=made).status_code == 422


def test_files_are_read_only_where_asked(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(to_yaml(OURS))
    values = request_values(
        device=str(path), options={"hardware": [{"device": str(path)}, {"device": "l40s"}]}
    )
    with pytest.raises(HardwareError, match="with_profiles"):
        plan(PlanRequest.parse(values))
    request = PlanRequest.parse(with_profiles(values))
    assert request.hardware.device == OURS
    assert [each.device_name for each in request.options.hardware] == ["my-h100", "l40s"]
    assert estimate_batch([with_profiles(values)])[0]["feasible"]
    assert "error" in estimate_batch([values])[0]
    path.unlink()
    with pytest.raises(InputError, match="cannot read"):
        PlanRequest.parse(with_profiles(values))


def test_the_command_line_reads_paths_line_by_line(tmp_path: Path) -> None:
    path, lines = tmp_path / "mine.yaml", tmp_path / "many.jsonl"
    path.write_text(to_yaml(OURS))
    values = [request_values(device=str(path)), request_values(device=str(tmp_path / "no.yaml"))]
    lines.write_text("\n".join(json.dumps(value | {"candidate": {"tp": 8}}) for value in values))
    for command in ("estimate", "check"):
        done = CliRunner().invoke(app, [command, str(lines)])
        first, second = map(json.loads, done.stdout.splitlines())
        assert "error" not in first
        assert "cannot read" in second["error"]["message"]


def test_a_command_is_judged_on_a_profile() -> None:
    answer = check_command(
        "vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 1", Ground.of(hardware=OURS)
    )
    assert answer["verdict"] == "cannot start"
    assert answer["hardware"]["device"] == OURS


# --- recipes and bundles
# --------------------------------------------------------------------------------------------------


def test_a_recipe_holds_the_whole_profile(recipe: Recipe) -> None:
    held = recipe.request["hardware"]["device"]
    assert held == WHOLE
    assert "based_on" not in held
    assert device(held) == device(OURS)
    assert (recipe.device.name, recipe.device.memory_bytes) == ("my-h100", 64_000_000_000)
    assert recipe.lock is not None
    assert recipe.lock.device is not None
    assert recipe.lock.device.profile_digest == device(OURS).digest
    table, row = plan_candidate(recipe_request(recipe))
    assert table.estimate(row).serving.to_json() == recipe.estimate["serving"]


def test_its_bundle_is_complete_and_checked(recipe: Recipe, tmp_path: Path) -> None:
    write_bundle(recipe, tmp_path / "bundle")
    answer = check_bundle(tmp_path / "bundle")
    assert answer["ok"]
    assert not answer["warnings"]
    assert read_bundle(tmp_path / "bundle").recipe == recipe
    needs = json.loads((tmp_path / "bundle" / "launch.json").read_text())["needs"]
    assert needs["memory_bytes"] == 64_000_000_000
    assert (
        "NVIDIA H100 80GB HBM3" in needs["names"]
    )  # what preflight holds the driver's names against
    assert (
        parse_yaml((tmp_path / "bundle" / "recipe.yaml").read_text())["request"]["hardware"][
            "device"
        ]
        == WHOLE
    )
    assert (
        "H100: 8" in (tmp_path / "bundle" / "targets" / "skypilot" / "task.yaml").read_text()
    )  # as the cloud knows it


def test_a_bundle_that_names_a_path_reads_none(recipe: Recipe, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(to_yaml(OURS))
    values = recipe.model_dump(mode="json")
    values["request"]["hardware"]["device"] = str(path)
    with pytest.raises(HardwareError, match="paths are not read"):
        plan(recipe_request(Recipe.parse(values)))


def test_another_profile_is_another_recipe(recipe: Recipe) -> None:
    slower = make_recipe(make_request(device=SLOW))
    found = diff(recipe, slower)
    assert not found["same"]
    fields = [row["field"] for rows in found["changed"].values() for row in rows]
    assert "request.hardware.device.memory_bandwidth_bytes_per_s.value" in fields
    assert "lock.device.profile_digest" in fields
    assert recipe.lock is not None
    assert {each.what: each.level for each in verify_lock(recipe, recipe.lock)}[
        "profile of my-h100"
    ] == "same"
    assert slower.lock is not None
    assert {each.what: each.level for each in verify_lock(recipe, slower.lock)}[
        "profile of my-h100"
    ] == "differs"


def test_fallbacks_and_variants_know_it(recipe: Recipe, tmp_path: Path) -> None:
    assert {each.device for each in recipe.fallbacks} > {"my-h100"}
    (tmp_path / "mine.yaml").write_text(to_yaml(SLOW))
    there = hardware_named(f"{tmp_path / 'mine.yaml'}:8", files=True)
    assert (there.device, there.per_node) == (SLOW, 8)
    with pytest.raises(HardwareError, match="paths are not read"):
        hardware_named(f"{tmp_path / 'mine.yaml'}:8")
    assert resolve(recipe, machine_of(there, recipe)).applied == ()
    assert recipe_for(recipe, there)[0].request["hardware"]["device"] == plain(device(SLOW))


def test_a_training_bundle_holds_it(tmp_path: Path) -> None:
    request = PlanRequest.parse(
        {**request_values(model="Qwen/Qwen3-0.6B", device=OURS, per_node=2), "workload": TRAINING}
    )
    write_bundle(make_recipe(request), tmp_path / "bundle")
    assert check_bundle(tmp_path / "bundle")["ok"]


def test_a_profile_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(to_yaml(OURS))
    assert read_profile(str(path)) == OURS
    path.write_text("x" * (MAX_BYTES + 1))
    with pytest.raises(InputError, match="the limit is"):
        read_profile(str(path))


def everywhere(value: float) -> dict[str, Any]:
    return {dtype: figure(value) for dtype in ("bf16", "fp16", "fp8", "int8", "fp32")}


@pytest.mark.parametrize(
    "fields",
    [
        {
            "memory_bytes": figure(2**28),
            "reserved_bytes": figure(1),
            "peak_flops_per_s": everywhere(1e9),
            "tdp_watts": figure(70),
        },
        {
            "memory_bytes": figure(2**50),
            "memory_bandwidth_bytes_per_s": figure(1e15),
            "peak_flops_per_s": everywhere(1e18),
        },
        {"memory_bytes": figure(2**50), "memory_bandwidth_bytes_per_s": figure(1e9)},
        {"architecture": "sm_91"},
        {"idle_watts": figure(1e-300), "node": {"host_memory_bytes": figure(1e300)}},
    ],
)
@pytest.mark.parametrize("workload", [{"concurrency": 8}, TRAINING])
def test_nothing_that_a_profile_may_say_breaks_an_estimate(
    fields: dict[str, Any], workload: dict[str, Any], tmp_path: Path
) -> None:
    board = plan(
        PlanRequest.parse(
            {**request_values("Qwen/Qwen3-0.6B", OURS | fields), "workload": workload}
        )
    )
    row = board.best_row
    if row is None:
        nearest = board.nearest_row()
        assert nearest is not None
        assert board.reasons(nearest)
        return
    assert "unknown" not in board.phrase(row)
    write_bundle(make_recipe(board.request), tmp_path / "bundle")
    assert check_bundle(tmp_path / "bundle")["ok"]
