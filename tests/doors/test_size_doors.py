"""Sizing through every door: the command line, the API, agents and the library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import recipe_core as rb
from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import HardwareError, InputError, NoAnswer
from recipe_core.doors.api import create_api
from recipe_core.estimates.measured.runs import Run
from recipe_core.request.size import SizeRequest
from recipe_core.sizing.answer import Answer
from tests.fixtures import agents
from tests.fixtures.command_line import recipe
from tests.fixtures.paths import ROOT
from tests.fixtures.refusals import refusal

KEYS = ["schema_version", "best", "price_warning", "devices", "unpriced", "refused"]
LENGTHS = {"input_tokens": 1024, "output_tokens": 256}
OPEN: dict[str, Any] = {"mode": "open", "request_rate": 4.0} | LENGTHS
OFFLINE = {"mode": "offline", "requests": 1000} | LENGTHS
STATIC = {"mode": "static", "batch": 16} | LENGTHS
FIGURE = {"value": 64e9, "source": "ours", "status": "measured"}
OURS: dict[str, Any] = {
    "schema_version": 1,
    "name": "my-h100",
    "based_on": "h100-sxm",
    "memory_bytes": FIGURE,
    "sources": {"ours": {"title": "Our GEMM runs", "date": "2026-11-20"}},
}


def values(*devices: Any, **parts: Any) -> dict[str, Any]:
    """A buyer's request for two devices, or those named."""
    market = {"devices": list(devices or ("l40s", "h100-sxm")), "most_devices": 8}
    return {
        "model": "Qwen/Qwen3-8B",
        "hardware": {"any": market},
        "workload": OPEN,
        "objective": {"limits": {"tpot_ms": 60}},
        **parts,
    }


def owned(*lots: dict[str, Any], rent: str = "l40s") -> dict[str, Any]:
    """Hardware of which machines are owned."""
    return {"any": {"devices": [rent], "owned": [{"device": "l40s"} | lot for lot in lots]}}


HOPELESS = values(objective={"limits": {"tpot_ms": 0.5}})
WRONG = values(objective={"limits": {"tpot_ms": -1}})


def asked(command: str, request: dict[str, Any], *words: str, cwd: Path = ROOT):
    """A command with a request on standard input."""
    return recipe(command, "-", *words, stdin=to_yaml(request), columns=200, cwd=cwd)


def plain(found: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(json.dumps(Answer(found).to_json(), allow_nan=False))
    assert list(answer)[: len(KEYS)] == KEYS  # and what own runs changed
    return answer


def answered(*devices: Any, **parts: Any) -> dict[str, Any]:
    return plain(rb.size(values(*devices, **parts)))


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(create_api(folders=False), raise_server_exceptions=True)


def test_every_door_gives_the_answer_of_the_library(client: TestClient, tmp_path: Path) -> None:
    request = values("l40s", "gh200-144gb", "mi250x")
    found = rb.size(request)
    assert found.best is found.devices[0]
    answer = plain(found)
    assert answer["best"] == answer["devices"][0]
    assert [row["device"] for row in answer["devices"]] == ["l40s"]
    assert {row["device"] for row in answer["unpriced"]} == {"gh200-144gb", "mi250x"}
    assert answer["refused"] == []
    file = tmp_path / "size.yaml"
    file.write_text(to_yaml(request))
    for same in (SizeRequest.parse(request), file, str(file)):
        assert rb.size(same).choice == found.choice
    assert found.choice.hardware.device == "l40s"
    done = asked("size", request, "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, answer)
    posted = client.post("/size", json=request)
    assert (posted.status_code, posted.json()) == (200, answer)
    # agents get ladders only where they ask for them
    full = agents.answered("size", request=request, ladders=True)
    counts = [rung["devices_rented"] for rung in full["best"]["ladder"]]
    assert counts == sorted(set(counts))
    short = agents.answered("size", request=request)
    assert not any("ladder" in row for row in (*short["devices"], *short["unpriced"]))
    for row in (*full["devices"], *full["unpriced"], full["best"]):
        assert row.pop("ladder")
    assert full == short


def test_every_door_names_a_wrong_field_and_says_where_nothing_holds(client: TestClient) -> None:
    wrong = client.post("/size", json=WRONG)
    field = "objective.limits.tpot_ms"
    assert (wrong.status_code, wrong.json()["error"]["field"]) == (422, field)
    assert agents.error_of("size", request=WRONG)["field"] == field
    assert refusal(rb.size, WRONG).field == field
    answer = client.post("/size", json=HOPELESS).json()
    assert (answer["best"], answer["devices"]) == (None, [])
    assert {row["device"] for row in answer["refused"]} == {"l40s", "h100-sxm"}
    assert all(row["reasons"] and row["nearest"] for row in answer["refused"])


def test_a_ladder_shows_every_count_of_a_device_and_top_as_many_devices() -> None:
    request = values(objective={"limits": {"tpot_ms": 60}, "confidence": 0.8})
    plain, more = asked("size", request), asked("size", request, "--ladder", "l40s")
    assert more.returncode == 0
    assert set(plain.stdout.splitlines()) < set(more.stdout.splitlines())
    ladder = more.stdout.partition("NVIDIA L40S 48 GB:\n")[2]
    counts = [line.split()[0] for line in ladder.splitlines() if " yes " in line]
    assert counts[:3] == ["1", "2", "3"]
    missing = asked("size", request, "--ladder", "b200-sxm")
    assert "b200-sxm was not sized; sized: l40s, h100-sxm" in missing.stdout

    def listed(*words: str) -> list[str]:
        lines = asked("size", values(), *words).stdout.splitlines()
        return [line.split()[0] for line in lines if line.startswith((" l40s", " h100-sxm"))]

    assert (listed(), listed("--top", "1")) == (["l40s", "h100-sxm"], ["l40s"])


def test_the_api_plans_on_the_best_hardware_and_says_where_there_is_none(
    client: TestClient,
) -> None:
    best = answered()["best"]
    plan = client.post("/plan", json=values()).json()
    assert plan["candidates"][0]["candidate"]["engine"] == best["split"]["engine"]
    assert plan["prices"][0] is not None
    estimate = client.post("/estimate", json=values()).json()
    assert estimate["cost"]["usd_per_hour"] == best["usd_per_hour"]
    refused = client.post("/plan", json=HOPELESS)
    assert refused.status_code == 409
    assert "no hardware keeps the limits" in refused.json()["error"]["message"]
    # a device without a price is not chosen but named
    error = refusal(rb.plan, values("gh200-144gb"), kind=NoAnswer)
    assert "NVIDIA GH200 Grace Hopper 144 GB" in error.message
    assert "usd_per_device_hour" in error.hint


def test_runs_of_ones_own_move_a_size(client: TestClient, tmp_path: Path) -> None:
    run = {"id": "ours", "model": "Qwen/Qwen3-8B", "device": "l40s", "per_node": 1} | LENGTHS
    run |= {"engine": "vllm", "tp": 1, "dp": 1, "mode": "closed", "load": 32}
    run |= {"tpot_ms": 90.0}  # slower than estimated
    request = values("l40s", candidate={"engine": "vllm", "tp": 1})
    before = plain(rb.size(request))["best"]
    body = {"request": request, "measured": [run]}
    answer = client.post("/size", json=body)
    assert answer.status_code == 200, answer.json()
    own = answer.json()["best"]
    assert own["count"] > before["count"] or own["figures"]["tpot_s"] > before["figures"]["tpot_s"]
    assert own == plain(rb.size(request, measured=[Run.model_validate(run)]))["best"]
    table = tmp_path / "own.csv"
    table.write_text("\n".join(",".join(map(str, row)) for row in (run, run.values())) + "\n")
    done = asked("size", request, "--measured", str(table), "--json")
    assert (done.returncode, json.loads(done.stdout)["best"]) == (0, own)
    assert "run" in done.stderr
    wrong = client.post("/size", json=body | {"colour": "red"})
    assert (wrong.status_code, wrong.json()["error"]["field"]) == (422, "colour")


EXTRAS: dict[str, Any] = {"growth": {"per_month": 0.1}, "availability": {}, "purchase": {}}


@pytest.mark.parametrize(("load", "field"), [(OFFLINE, "requests"), (STATIC, "batch")])
@pytest.mark.parametrize("extras", [{}, EXTRAS], ids=["plain", "extras"])
def test_batches_are_sized(load: dict[str, Any], field: str, extras: dict[str, Any]) -> None:
    request = values(workload=load, objective={}, **extras)
    answer = Answer(rb.size(request)).to_json()
    measure = {"requests": "usd", "batch": "usd_per_month"}[field]  # a job ends, a batch goes on
    prices = [row[measure] for row in answer["devices"]]
    assert (len(prices), prices) == (2, sorted(prices))
    largest = answer["best"]["largest_load"]
    assert (largest["field"], largest["bounded"]) == (field, field == "batch")
    assert largest["value"] is None or largest["value"] >= 16


def test_an_offline_rate_decides_how_many() -> None:
    limits = {"limits": {"output_tokens_per_s_at_least": 16_000}}
    few, sure = (
        answered("h100-sxm", workload=OFFLINE, objective=limits | more)["best"]
        for more in ({}, {"confidence": 0.9})
    )
    assert few["figures"]["output_tokens_per_s"] >= 16_000
    assert sure["confidence"] >= 0.9 > few["confidence"]
    assert sure["count"] > few["count"]


def test_pools_may_be_apart() -> None:
    objective = {"limits": {"ttft_ms": 500, "tpot_ms": 20}}
    options = {"disaggregated": True, "engines": ["vllm"]}
    alike, apart = (
        answered("h100-sxm", objective=objective, options=each)["best"]
        for each in ({"engines": ["vllm"]}, options)
    )
    price = "usd_per_million_output_tokens"
    assert apart[price] <= alike[price] * 1.001
    stated = {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1}
    pools = {**stated, "prefill": {"tp": 1, "pp": 1, "replicas": 1}}
    request = values("h100-sxm", candidate=pools, options=options, **EXTRAS)
    best = Answer(rb.size(request)).to_json()["best"]
    assert best["count"] == 2
    assert best["split"]["prefill"]


def test_a_model_may_be_an_inline_config(tiny_config: dict[str, Any]) -> None:
    best = answered("l40s", model=tiny_config)["best"]
    assert best["count"] == 1
    large = answered("l40s")["best"]["largest_load"]["value"]
    assert best["largest_load"]["value"] > large
    assert asked("size", values("l40s", model=tiny_config)).returncode == 0


def test_own_devices_are_chosen_from(tmp_path: Path) -> None:
    answer = answered(OURS, "l40s")
    assert answered(OURS, "l40s", "l40s", OURS) == answer  # what is listed twice is sized once
    assert {row["device"] for row in answer["devices"]} == {"my-h100", "l40s"}
    (ours,) = (row for row in answer["devices"] if row["device"] == "my-h100")
    assert ours["offer"]["device"] == "h100-sxm"
    (tmp_path / "mine.yaml").write_text(to_yaml(OURS))
    by_path = asked("size", values("mine.yaml", "l40s"), "--json", cwd=tmp_path)
    assert (by_path.returncode, json.loads(by_path.stdout)) == (0, answer)
    mine = values(hardware=owned({"device": "mine.yaml", "count": 4}))
    best = json.loads(asked("size", mine, "--json", cwd=tmp_path).stdout)["best"]
    assert (best["device"], best["owned"], best["per_node"]) == ("my-h100", True, 4)
    text = asked("plan", values("mine.yaml"), cwd=tmp_path)
    assert text.returncode == 0
    assert "hardware: any → 1 × " in text.stderr


def test_a_wrong_profile_names_its_field() -> None:
    wrong = OURS | {"tdp_watts": FIGURE | {"value": -1}}
    for market, field in (
        ({"devices": ["l40s", wrong]}, "hardware.any.devices.1.tdp_watts.value"),
        ({"owned": [{"device": wrong, "count": 2}]}, "hardware.any.owned.0.device.tdp_watts.value"),
    ):
        request = values(hardware={"any": {"devices": ["l40s"]} | market})
        assert refusal(rb.size, request, kind=HardwareError).field == field


def test_lots_of_one_device_keep_their_own_figures() -> None:
    """Two lots of owned machines: what makes each win is told of each."""
    lots = ({"count": 2, "usd_per_device_hour": 0.3}, {"count": 6, "usd_per_device_hour": 0.4})
    load = OPEN | {"request_rate": 8.0}
    market = owned(*lots, rent="h100-sxm")
    answer = Answer(rb.size(values(hardware=market, workload=load, growth={"per_month": 0.05})))
    assert len(answer.loads) == 3
    cheap, dear = [row for row in answer.to_json()["devices"] if row["owned"]]
    assert cheap["usd_per_hour"] < dear["usd_per_hour"]
    assert cheap["growth"] != dear["growth"]
    assert cheap["wins_at"]["limits"] == {}


def test_a_percentile_is_tried_on_every_engine_of_a_count() -> None:
    """Of equally dear engines the first by its means may break a percentile that another keeps."""
    limits = {"tpot_ms": 60, "percentile": 99}
    found = rb.size(values("l40s", objective={"limits": limits}))
    assert found.best is not None
    assert found.best.best is not None
    price = found.best.plan.columns["usd_per_hour"][found.best.best]
    table = rb.plan(found.choice)
    assert price == pytest.approx(min(table.columns["usd_per_hour"][table.order]))


def owned_by(count: int, rate: float, **more: Any) -> dict[str, Any]:
    market = owned({"count": count} | more)
    best: dict[str, Any] = answered(hardware=market, workload=OPEN | {"request_rate": rate})["best"]
    return best


def test_machines_that_are_not_full_are_used() -> None:
    """12 devices in machines of 8: the 4 of the second count, where its servers fit in it."""
    best = owned_by(12, 40.0, usd_per_device_hour=0.1)
    assert (best["owned"], best["count"] in range(9, 13)) == (True, True)
    sized = rb.size(values(hardware=owned({"count": 12}, rent="l4"))).sized
    (mine,) = (size for size in sized if size.choice.machines[0].owned)
    columns = mine.plan.columns
    server = columns["tp"] * columns["pp"]
    three, four = (mine.plan.runs & (server == n) & (columns["gpus"] == 12) for n in (3, 4))
    assert three.any()
    assert not (three & mine.allowed).any()
    assert (four & mine.allowed).any()


def test_owned_machines_cost_what_is_stated_or_their_power() -> None:
    stated = owned_by(4, 4.0, usd_per_device_hour=0.01)["usd_per_hour"]
    assert owned_by(4, 4.0)["usd_per_hour"] > stated
    with pytest.raises(InputError) as refused:  # no free machine: it was priced by its power
        owned_by(4, 4.0, usd_per_device_hour=0)
    assert refused.value.field == "hardware.any.owned.0.usd_per_device_hour"
