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
from recipe_core.measured.serving_runs import Run
from recipe_core.request.size import SizeRequest
from recipe_core.sizing.answer import Answer
from tests.doors.test_mcp import call, said
from tests.fixtures.command_line import Done, recipe
from tests.hardware.test_own_device import OURS

KEYS = ["schema_version", "best", "devices", "unpriced", "refused"]
LENGTHS = {"input_tokens": 1024, "output_tokens": 256}
OPEN = {"mode": "open", "request_rate": 4.0} | LENGTHS
OFFLINE = {"mode": "offline", "requests": 1000} | LENGTHS
STATIC = {"mode": "static", "batch": 16} | LENGTHS


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


HOPELESS = values(objective={"limits": {"tpot_ms": 0.5}})
WRONG = values(objective={"limits": {"tpot_ms": -1}})


def asked(command: str, request: dict[str, Any], *words: str, cwd: Path | None = None) -> Done:
    """A command with a request on standard input."""
    where = {} if cwd is None else {"cwd": cwd}
    return recipe(command, "-", *words, stdin=to_yaml(request), columns=200, **where)


def answered(*devices: Any, **parts: Any) -> dict[str, Any]:
    answer: dict[str, Any] = Answer(rb.size(values(*devices, **parts))).to_json()
    assert list(answer) == KEYS
    json.dumps(answer, allow_nan=False)
    return answer


def test_the_text_says_the_best_and_every_device() -> None:
    done = asked("size", values("l40s", "h100-sxm", "gh200-144gb"))
    assert (done.returncode, done.stderr) == (0, "")
    first, *rest = done.stdout.splitlines()
    assert first.startswith("1 × NVIDIA L40S 48 GB, $")
    assert "an hour" in first
    assert "holds the limits with" in first
    text = "\n".join(rest)
    assert "h100-sxm" in text
    assert "no on-demand price of NVIDIA GH200 Grace Hopper 144 GB (HBM3e) is known" in text
    assert "it would win below" in text


def test_json_is_the_answer_of_the_library() -> None:
    request = values("l40s", "gh200-144gb", "mi250x")
    done = asked("size", request, "--json")
    assert done.returncode == 0
    answer = json.loads(done.stdout)
    assert (set(answer), answer["best"]) == (set(KEYS), answer["devices"][0])
    assert [row["device"] for row in answer["devices"]] == ["l40s"]
    assert {row["device"] for row in answer["unpriced"]} == {"gh200-144gb", "mi250x"}
    assert answer["refused"] == []
    assert answer == json.loads(json.dumps(Answer(rb.size(request)).to_json()))


def test_where_nothing_holds_the_exit_code_is_1() -> None:
    done = asked("size", HOPELESS)
    assert done.returncode == 1
    assert done.stdout.startswith("No hardware keeps the limits. Nearest: ")
    assert "refused:" in done.stdout
    answer = json.loads(asked("size", HOPELESS, "--json").stdout)
    assert (answer["best"], answer["devices"]) == (None, [])
    assert {row["device"] for row in answer["refused"]} == {"l40s", "h100-sxm"}
    assert all(row["reasons"] and row["nearest"] for row in answer["refused"])


def test_a_wrong_field_is_named_with_exit_code_2() -> None:
    watts = OURS | {"tdp_watts": OURS["memory_bytes"]}
    for request, field in (
        (WRONG, "objective.limits.tpot_ms"),
        (values("l40z"), "hardware.any.devices.0"),
        (values("l40s", watts), "hardware.any.devices.1.tdp"),
        (values(options={"hardware": [{"device": "l4"}]}), "options.hardware"),
        (values(candidate={"zero_stage": 2}), "candidate.zero_stage"),
        (values(hardware={"any": {"colour": "red"}}), "hardware"),
    ):
        done = asked("size", request)
        assert (done.returncode, done.stdout) == (2, ""), field
        assert field in done.stderr


def test_a_ladder_shows_every_count_of_a_device() -> None:
    request = values("l40s", "h100-sxm", objective={"limits": {"tpot_ms": 60}, "confidence": 0.8})
    plain, more = asked("size", request), asked("size", request, "--ladder", "l40s")
    assert more.returncode == 0
    assert set(plain.stdout.splitlines()) < set(more.stdout.splitlines())
    ladder = more.stdout.partition("NVIDIA L40S 48 GB:\n")[2]
    counts = [line.split()[0] for line in ladder.splitlines() if "●" in line]
    assert counts[:3] == ["1", "2", "3"]
    missing = asked("size", request, "--ladder", "b200-sxm")
    assert "b200-sxm was not sized; sized: l40s, h100-sxm" in missing.stdout


def test_top_prints_as_many_devices() -> None:
    def listed(*words: str) -> list[str]:
        lines = asked("size", values(), *words).stdout.splitlines()
        return [line.split()[0] for line in lines if line.startswith((" l40s", " h100-sxm"))]

    assert (listed(), listed("--top", "1")) == (["l40s", "h100-sxm"], ["l40s"])
    assert asked("size", values(), "--top", "0").returncode == 2


def test_the_plans_commands_choose_the_hardware_and_say_it(tmp_path: Path) -> None:
    best = answered()["best"]
    said_ = "hardware: any → 1 × NVIDIA L40S 48 GB, $"
    plan = asked("plan", values(), "--json")
    assert (plan.returncode, plan.stderr.startswith(said_)) == (0, True)
    first = json.loads(plan.stdout)["candidates"][0]
    assert first["candidate"]["engine"] == best["split"]["engine"]
    estimate = asked("estimate", values(), "--json")
    assert estimate.stderr.startswith(said_)
    figures = json.loads(estimate.stdout)
    assert figures["cost"]["usd_per_hour"] == best["usd_per_hour"]
    check = asked("check", values(), "--json")
    assert check.stderr.startswith(said_)
    assert json.loads(check.stdout)["ok"]
    build = asked("build", values(), "--output", str(tmp_path / "bundle"))
    assert build.returncode == 0
    assert said_ in build.stderr
    assert (tmp_path / "bundle" / "recipe.yaml").exists()


def test_without_an_answer_the_plans_commands_say_why(tmp_path: Path) -> None:
    build = ("build", "--output", str(tmp_path / "bundle"))
    for command, *words in (("plan",), ("estimate",), ("check",), build):
        done = asked(command, HOPELESS, *words, cwd=tmp_path)
        assert done.returncode in (1, 2)
        assert "no hardware keeps the limits" in done.stderr
        assert list(tmp_path.iterdir()) == []


def test_devices_without_a_price_are_not_chosen_but_named() -> None:
    request = values("gh200-144gb")
    assert "keeps the limits among devices with a price." in asked("size", request).stdout
    with pytest.raises(NoAnswer) as refused:
        rb.plan(request)
    assert "NVIDIA GH200 Grace Hopper 144 GB" in refused.value.message
    assert "usd_per_device_hour" in (refused.value.hint or "")


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(create_api(folders=False), raise_server_exceptions=True)


def test_the_api_sizes(client: TestClient) -> None:
    answer = client.post("/size", json=values())
    assert (answer.status_code, set(answer.json())) == (200, set(KEYS))
    assert answer.json() == json.loads(json.dumps(answered()))
    assert client.post("/size", json=HOPELESS).json()["best"] is None
    wrong = client.post("/size", json=WRONG)
    assert wrong.status_code == 422
    assert wrong.json()["error"]["field"] == "objective.limits.tpot_ms"


def test_the_api_plans_what_is_open(client: TestClient) -> None:
    best = client.post("/size", json=values()).json()["best"]
    estimate = client.post("/estimate", json=values()).json()
    assert estimate["cost"]["usd_per_hour"] == best["usd_per_hour"]
    assert client.post("/plan", json=values()).json()["prices"][0] is not None
    refused = client.post("/plan", json=HOPELESS)
    assert refused.status_code == 409
    assert "no hardware keeps the limits" in refused.json()["error"]["message"]


SPLIT = {"engine": "vllm", "tp": 1, "dp": 1}
RUN = {"id": "ours", "model": "Qwen/Qwen3-8B", "device": "l40s", "per_node": 1} | SPLIT | LENGTHS
RUN |= {"mode": "closed", "load": 32, "tpot_ms": 90.0}
"""Slower than estimated."""


def test_runs_of_ones_own_move_a_size(client: TestClient, tmp_path: Path) -> None:
    request = values("l40s", candidate={"engine": "vllm", "tp": 1})
    plain = client.post("/size", json=request).json()["best"]
    body = {"request": request, "measured": [RUN]}
    answer = client.post("/size", json=body)
    assert answer.status_code == 200, answer.json()
    own = answer.json()["best"]
    assert own["count"] > plain["count"] or own["figures"]["tpot_s"] > plain["figures"]["tpot_s"]
    learned = rb.size(request, measured=[Run.model_validate(RUN)])
    assert own == json.loads(json.dumps(Answer(learned).to_json()))["best"]
    table = tmp_path / "own.csv"
    table.write_text("\n".join(",".join(map(str, row)) for row in (RUN, RUN.values())) + "\n")
    done = asked("size", request, "--measured", str(table), "--json")
    assert (done.returncode, json.loads(done.stdout)["best"]) == (0, own)
    assert "run" in done.stderr
    wrong = client.post("/size", json=body | {"colour": "red"})
    assert (wrong.status_code, wrong.json()["error"]["field"]) == (422, "colour")


def test_agents_size_without_ladders_unless_asked() -> None:
    answer = call("size", request=values("l40s", "gh200-144gb"))
    assert not answer.is_error
    short = answer.structured_content
    assert short is not None
    assert (set(short), [row["device"] for row in short["devices"]]) == (set(KEYS), ["l40s"])
    assert not any("ladder" in row for row in (*short["devices"], *short["unpriced"]))
    assert "ladder" not in short["best"]
    full = call("size", request=values("l40s", "gh200-144gb"), ladders=True).structured_content
    assert full is not None
    rungs = full["best"]["ladder"]
    assert [rung["devices_rented"] for rung in rungs] == sorted(
        {rung["devices_rented"] for rung in rungs}
    )
    for row in full["devices"] + full["unpriced"] + [full["best"]]:
        assert row.pop("ladder")
    assert full == short
    assert said(call("size", request=WRONG))["field"] == "objective.limits.tpot_ms"


def test_the_library_sizes_values_requests_and_files(tmp_path: Path) -> None:
    found = rb.size(values())
    assert found.best is found.devices[0]
    assert [one.profile.name for one in found.devices] == ["l40s", "h100-sxm"]
    assert (found.unpriced, found.refused) == ([], [])
    file = tmp_path / "size.yaml"
    file.write_text(to_yaml(values()))
    for same in (SizeRequest.parse(values()), file, str(file)):
        assert rb.size(same).choice == found.choice
    assert found.choice.hardware.device == "l40s"
    with pytest.raises(InputError):
        rb.size(WRONG)


def test_a_candidate_holds_every_device_to_it() -> None:
    answer = answered(candidate={"tp": 2})
    assert {row["split"]["tp"] for row in answer["devices"]} == {2}
    engines = answered(candidate={"engine": "transformers"})["devices"]
    assert [row["engine"] for row in engines] == ["transformers", "transformers"]
    whole = answered(candidate={"tp": 2, "pp": 1, "dp": 2})["devices"]
    assert [row["count"] for row in whole] == [4, 4]
    none = answered(candidate={"tp": 3})
    assert none["best"] is None
    assert all("not divisible by tp 3" in row["reasons"][0] for row in none["refused"])


EXTRAS: dict[str, Any] = {"growth": {"per_month": 0.1}, "availability": {}, "purchase": {}}


@pytest.mark.parametrize(("load", "field"), [(OFFLINE, "requests"), (STATIC, "batch")])
@pytest.mark.parametrize("extras", [{}, EXTRAS], ids=["plain", "extras"])
def test_batches_are_sized(load: dict[str, Any], field: str, extras: dict[str, Any]) -> None:
    request = values(workload=load, objective={}, **extras)
    answer = Answer(rb.size(request)).to_json()
    assert len(answer["devices"]) == 2
    prices = [row["usd_per_million_output_tokens"] for row in answer["devices"]]
    assert prices == sorted(prices)
    largest = answer["best"]["largest_load"]
    assert (largest["field"], largest["bounded"]) == (field, field == "batch")
    assert largest["value"] is None or largest["value"] >= 16
    assert asked("size", request).returncode == 0


def test_an_offline_rate_decides_how_many() -> None:
    limits = {"output_tokens_per_s_at_least": 15_000}
    few = answered("h100-sxm", workload=OFFLINE, objective={"limits": limits})["best"]
    more = {"limits": limits, "confidence": 0.9}
    sure = answered("h100-sxm", workload=OFFLINE, objective=more)["best"]
    assert few["figures"]["output_tokens_per_s"] >= 15_000
    assert sure["confidence"] >= 0.9 > few["confidence"]
    assert sure["count"] > few["count"]


def test_pools_may_be_apart() -> None:
    limits = {"ttft_ms": 500, "tpot_ms": 20}
    options = {"disaggregated": True, "engines": ["vllm"]}
    alike = answered("h100-sxm", objective={"limits": limits}, options={"engines": ["vllm"]})
    apart = answered("h100-sxm", objective={"limits": limits}, options=options)
    assert apart["best"]["usd_per_million_output_tokens"] <= (
        alike["best"]["usd_per_million_output_tokens"] * 1.001
    )
    stated = {"engine": "vllm", "tp": 1, "pp": 1, "dp": 1}
    pools = {**stated, "prefill": {"tp": 1, "pp": 1, "replicas": 1}}
    request = values("h100-sxm", candidate=pools, options=options, **EXTRAS)
    best = Answer(rb.size(request)).to_json()["best"]
    assert best["count"] == 2
    assert best["split"]["prefill"]


def test_one_cluster_is_sized_for_what_it_carries() -> None:
    one = {"device": "h100-sxm", "per_node": 8, "offer": "lambda-h100-sxm"}
    answer = answered(hardware=one)
    assert [row["device"] for row in answer["devices"]] == ["h100-sxm"]
    best = answer["best"]
    assert (best["count"], best["devices_rented"], best["idle"]) == (1, 8, 7)
    assert best["largest_load"]["value"] > OPEN["request_rate"]  # type: ignore[operator]
    assert best["usd_per_device_hour_to_win"] is None
    assert asked("size", values(hardware=one), "--ladder", "h100-sxm").returncode == 0
    stated = answered(hardware={"device": "gh200-144gb", "usd_per_device_hour": 2.0})
    assert stated["best"]["usd_per_hour"] == 2.0
    assert stated["best"]["offer"] is None
    unknown = answered(hardware={"device": "gh200-144gb"})
    assert unknown["best"] is None
    assert [row["device"] for row in unknown["unpriced"]] == ["gh200-144gb"]


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
    assert by_path.returncode == 0
    assert json.loads(by_path.stdout) == json.loads(json.dumps(answer))
    market = {"devices": ["l40s"], "owned": [{"device": "mine.yaml", "count": 4}]}
    owned = asked("size", values(hardware={"any": market}), "--json", cwd=tmp_path)
    best = json.loads(owned.stdout)["best"]
    assert (best["device"], best["owned"], best["per_node"]) == ("my-h100", True, 4)
    text = asked("plan", values("mine.yaml"), cwd=tmp_path)
    assert text.returncode == 0
    assert "hardware: any → 1 × " in text.stderr


def test_a_wrong_profile_names_its_field() -> None:
    wrong = OURS | {"tdp_watts": {"value": -1, "source": "ours", "status": "measured"}}
    for market, field in [
        ({"devices": ["l40s", wrong]}, "hardware.any.devices.1.tdp_watts.value"),
        ({"owned": [{"device": wrong, "count": 2}]}, "hardware.any.owned.0.device.tdp_watts.value"),
    ]:
        with pytest.raises(HardwareError) as caught:
            rb.size(values(hardware={"any": {"devices": ["l40s"]} | market}))
        assert caught.value.field == field


def test_lots_of_one_device_keep_their_own_figures() -> None:
    """Two lots of owned machines: what makes each win is told of each."""
    lots = [{"device": "l40s", "count": 2}, {"device": "l40s", "count": 6}]
    prices = [{"usd_per_device_hour": 0.3}, {"usd_per_device_hour": 0.4}]
    market = {"devices": ["h100-sxm"], "owned": [a | b for a, b in zip(lots, prices, strict=True)]}
    load = OPEN | {"request_rate": 8.0}
    request = values(hardware={"any": market}, workload=load, growth={"per_month": 0.05})
    found = rb.size(request)
    answer = Answer(found)
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
    cheapest = min(table.columns["usd_per_hour"][table.order])
    assert price == pytest.approx(cheapest)


def owned_by(count: int, rate: float, **more: Any) -> dict[str, Any]:
    market = {"devices": ["l40s"], "owned": [{"device": "l40s", "count": count} | more]}
    load = OPEN | {"request_rate": rate}
    return answered(hardware={"any": market}, workload=load)


def test_machines_that_are_not_full_are_used() -> None:
    """12 devices in machines of 8: the 4 of the second count, where its servers fit in it."""
    answer = owned_by(12, 40.0, usd_per_device_hour=0.1)
    best = answer["best"]
    assert (best["owned"], best["count"] in range(9, 13)) == (True, True)
    request = values(
        hardware={"any": {"devices": ["l4"], "owned": [{"device": "l40s", "count": 12}]}}
    )
    (mine,) = (one for one in rb.size(request).sized if one.choice.machines[0].owned)
    degrees, columns = mine.plan.degree, mine.plan.columns
    server = degrees("tp") * degrees("pp")
    three = mine.plan.runs & (server == 3) & (columns["gpus"] == 12)
    assert three.any()
    assert not (three & mine.allowed).any()
    four = mine.plan.runs & (server == 4) & (columns["gpus"] == 12)
    assert (four & mine.allowed).any()


def test_owned_machines_cost_what_is_stated_or_their_power() -> None:
    stated = owned_by(4, 4.0, usd_per_device_hour=0.01)["best"]
    assert (stated["owned"], stated["usd_per_hour"]) == (True, 0.01 * stated["count"])
    assert owned_by(4, 4.0)["best"]["usd_per_hour"] > stated["usd_per_hour"]
    with pytest.raises(InputError) as refused:  # no free machine: it was priced by its power
        owned_by(4, 4.0, usd_per_device_hour=0)
    assert refused.value.field == "hardware.any.owned.0.usd_per_device_hour"
