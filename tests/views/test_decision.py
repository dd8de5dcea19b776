"""The decision of a buyer, and the best of each device side by side."""

from functools import cache

import pytest

import recipe_core as rb
from recipe_core.request.size import SizeRequest
from recipe_core.sizing.answer import Answer
from recipe_core.sizing.decision import SAFE
from recipe_core.sizing.size import size_devices
from recipe_core.views import columns, size_view
from recipe_core.views.by_device import (
    device_columns,
    factor_sentence,
    plan_by_device,
    size_by_device,
)
from recipe_core.views.decision import left_out_sentence, runner_up

MODEL = "meta-llama/Llama-3.3-70B-Instruct"
OPEN = {"mode": "open", "input_tokens": 1024, "output_tokens": 256, "request_rate": 5}


@cache
def sizing():
    limits = {"tpot_ms": 50, "ttft_ms": 2000}
    objective = {"limits": limits, "confidence": 0.8}
    values = {"model": MODEL, "hardware": "any", "workload": OPEN}
    return size_devices(SizeRequest.parse(values | {"objective": objective}))


@cache
def answer():
    return Answer(sizing()).to_json()


def rows_of(found):
    held = [rung for row in found["devices"] for rung in row["ladder"] if rung["holds"]]
    return [*held, *found["devices"]]


def test_the_cheapest_the_safest_and_the_smallest_are_what_their_names_say():
    found, chosen = answer(), answer()["decision"]
    rows = rows_of(found)
    assert len(rows) > 100
    taken = dict(chosen["cheapest"])
    assert taken == {name: found["best"][name] for name in taken}
    assert chosen["cheapest"]["usd_per_month"] == min(row["usd_per_month"] for row in rows)
    assert chosen["smallest"]["devices_rented"] == min(row["devices_rented"] for row in rows)
    safest = chosen["safest"]
    assert safest["confidence"] >= SAFE
    as_safe = [
        float((device.plan.columns["usd_per_hour"] * device.dearer)[rows].min())
        for device in sizing().devices
        if (rows := device.holds & (device.confidence >= SAFE)).any()
    ]
    assert safest["usd_per_hour"] == pytest.approx(min(as_safe))
    for row in chosen.values():
        split = {"hardware": row["request"], "candidate": row["split"]}
        values = {"model": MODEL, "workload": OPEN, **split}
        estimate = rb.estimate(values)
        assert estimate.cost.usd_per_hour * 730 == pytest.approx(row["usd_per_month"])
        assert estimate.tpot_s.value == pytest.approx(row["figures"]["tpot_s"])


def test_the_runner_up_is_the_next_device_with_its_difference():
    found = answer()
    second = runner_up(found)
    first, other = found["devices"][:2]
    assert second["device"] == other["device"]
    assert second["difference_usd"] == pytest.approx(
        other["usd_per_month"] - first["usd_per_month"]
    )
    assert second["difference_share"] == pytest.approx(
        other["usd_per_month"] / first["usd_per_month"] - 1
    )
    assert size_view.short(other) in second["sentence"]
    assert " a month more (+" in second["sentence"]
    assert runner_up({"devices": [first]}) is None
    for chance, tie in ((0.45, True), (0.2, False), (None, False)):
        said = runner_up({"devices": [first, other | {"beats_best": chance}]})["sentence"]
        assert ("), no measurable difference." in said) == tie, said


def test_what_only_a_switch_lets_in_is_counted():
    said = left_out_sentence(answer())
    assert "cards for consumers, workstations and the edge" in said
    assert "that nobody is known to offer" in said
    assert left_out_sentence({"left_out": []}) == ""


def test_the_best_of_each_device_stands_side_by_side():
    found = answer()
    rows = size_by_device(found)
    assert [row["device"] for row in rows] == [row["device"] for row in found["devices"]]
    for row, of in zip(rows, found["devices"], strict=True):
        assert row["usd_per_month"] == of["usd_per_month"]
        hour = row["usd_per_device_hour"] * row["devices_rented"]
        assert hour * 730 == pytest.approx(row["usd_per_month"])
    heads = [column.title for column in device_columns(rows)]
    assert {"Device", "Layout", "$ per M tokens", "$ a month", "Sure", "Price from"} <= set(heads)
    assert len(columns.cell_texts(rows, device_columns(rows))) == len(rows)


def test_a_plan_over_clusters_has_the_best_of_each_and_says_where_the_price_makes_it():
    values = {
        "model": "deepseek-ai/DeepSeek-R1",
        "hardware": {"device": "mi300x", "usd_per_device_hour": 1.5},
        "options": {"hardware": [{"device": "h200-sxm", "usd_per_device_hour": 3.6}]},
        "workload": {"input_tokens": 1024, "output_tokens": 1024, "concurrency": 64},
        "objective": {"optimize": "cost"},
    }
    plan = rb.plan(values)
    rows = plan_by_device(plan)
    assert {row["device"] for row in rows} == {"mi300x", "h200-sxm"}
    assert rows[0]["usd_per_million_tokens"] == pytest.approx(
        plan.columns["usd_per_million_output_tokens"][plan.best_row]
    )
    said = factor_sentence(*rows)
    assert said.endswith("is the price: $1.50 against $3.60 per device-hour.")
    assert factor_sentence(*reversed(rows)) == said
    alike = [{**row, "usd_per_device_hour": 2.0} for row in rows]
    assert "what the devices do" in factor_sentence(*alike)
    same = [{**row, "usd_per_million_tokens": 2.0} for row in rows]
    assert factor_sentence(*same) == ""
    unknown = [{**row, "usd_per_device_hour": None} for row in rows]
    assert factor_sentence(*unknown) == ""
