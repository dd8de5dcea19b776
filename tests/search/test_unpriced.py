"""Where a price is unknown: what limits on money say, and how splits rank by cost."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.present.terminal import plan_text
from recipe_core.request.schema import PlanRequest
from recipe_core.search.changes import fixes
from recipe_core.search.limits import LIMITS
from recipe_core.search.plan import Plan
from recipe_core.search.plans import estimate_batch, plan
from recipe_core.search.slos import keeping
from tests.conftest import request_values
from tests.fixtures.rows import over, table
from tests.fixtures.sizes import examples

PRICED = ("h100-sxm", "mi300x", "l40s", "b200-sxm")
GH200 = {"device": "gh200-144gb", "per_node": 4}
"""Nobody is known to offer it."""
TITLE = "GH200 Grace Hopper 144 GB"
RUN = {"kind": "training", "sequence_length": 4096, "global_batch": 64, "tokens": 1e9}
SERVICE = {"mode": "closed", "input_tokens": 1024, "output_tokens": 256, "concurrency": 64}
WORKLOADS: dict[str, dict[str, Any]] = {"serving": SERVICE, "training": RUN}
MODELS = {"serving": "meta-llama/Llama-3.1-70B-Instruct", "training": "meta-llama/Llama-3.1-8B"}
RATE = {"serving": "output_tokens_per_s_per_gpu", "training": "tokens_per_s_per_gpu"}
COST = {"serving": "usd_per_million_output_tokens", "training": "usd_per_million_tokens"}


def asked(kind: str, places: list[Any], **objective: Any) -> PlanRequest:
    first, *beside = [place if isinstance(place, dict) else {"device": place} for place in places]
    return PlanRequest.parse(
        {
            "model": MODELS[kind],
            "workload": WORKLOADS[kind],
            "hardware": first,
            "options": {"hardware": beside},
            "objective": objective or {"optimize": "cost"},
        }
    )


def order_of(splits: Plan, rows: Any) -> list[tuple[str, str]]:
    """Rows by their splits and devices, whatever number their cluster has."""
    return [
        (splits.setting(row).cluster.device.name, splits.key(row).partition(".on")[0])
        for row in map(int, rows)
    ]


JUDGED = table("search", "money")


def test_every_limit_on_money_is_tried_here_and_on_one_stated_split_too() -> None:
    assert {rule.name for rule in LIMITS.values() if rule.money} == {name for _, name, *_ in JUDGED}
    split = {"engine": "vllm", "tp": 4, "pp": 1, "dp": 1}
    limit = {"limits": {"usd_per_hour": 60}}
    values = request_values("Qwen/Qwen3-32B", "gh200-144gb", 4, candidate=split, objective=limit)
    (answer,) = estimate_batch([values])
    assert not answer["feasible"]
    assert "the limit of $60 an hour cannot be judged" in answer["reasons"][0]


@over("kind name limit said", JUDGED)
def test_a_limit_on_money_refuses_what_has_no_price(
    kind: str, name: str, limit: float, said: str
) -> None:
    alone = plan(asked(kind, [GH200], limits={name: limit}))
    assert alone.best is None
    code = next(code for code, rule in LIMITS.items() if rule.name == name)
    row = alone.nearest_row()
    assert alone.codes(row) == {code}
    reason = (
        "no price of NVIDIA GH200 Grace Hopper 144 GB (HBM3e) is known, "
        f"so the limit of {said} cannot be judged; state hardware.usd_per_device_hour"
    )
    assert alone.reasons(row) == [reason]
    assert alone.beyond_limits() == []
    assert fixes(alone, row) == []
    assert reason in plan_text(alone, 3)
    known = plan(asked(kind, [GH200 | {"usd_per_device_hour": 0.001}], limits={name: limit}))
    assert len(known.order) == int(alone.runs.sum())
    beside = plan(asked(kind, ["h100-sxm", GH200], limits={name: limit}))
    assert {device for device, _ in order_of(beside, beside.order)} == {"h100-sxm"}
    free = plan(asked(kind, ["h100-sxm"], limits={name: limit}))
    assert order_of(beside, beside.order) == order_of(free, free.order)
    measure = next(n for n, m in beside.measures.items() if m.limit == "gpus")
    assert keeping(beside, measure, None) == len(beside.order)


@cache
def mixed(kind: str, *places: str) -> Plan:
    return plan(asked(kind, [GH200 if name == GH200["device"] else name for name in places]))


@pytest.mark.parametrize("kind", WORKLOADS)
@settings(max_examples=examples(12, least=5), deadline=None)
@given(
    places=st.lists(st.sampled_from(PRICED), min_size=1, max_size=3, unique=True),
    at=st.integers(0, 3),
)
def test_a_device_without_a_price_changes_the_order_of_no_others(
    kind: str, places: list[str], at: int
) -> None:
    added = [*places[:at], "gh200-144gb", *places[at:]]
    without, splits = mixed(kind, *places), mixed(kind, *added)
    number = len(without.order)
    assert order_of(splits, splits.order[:number]) == order_of(without, without.order)
    last = order_of(splits, splits.order[number:])
    alone = mixed(kind, "gh200-144gb")
    assert last == order_of(alone, alone.order)
    assert splits.tied == without.tied


def test_cost_orders_priced_devices_before_those_without_a_price() -> None:
    """One unknown price used to turn the goal into the fewest devices, for all splits."""
    objective = {"optimize": "cost", "limits": {"tpot_ms": 40}}
    splits = plan(asked("serving", ["h100-sxm", GH200], **objective))
    held = splits.order[splits.holds[splits.order]]  # what queues ranks last
    cost = splits.columns[COST["serving"]][held]
    priced = np.isfinite(cost)
    assert priced.any()
    assert not priced.all()
    assert not (np.diff(priced.astype(int)) > 0).any()
    ranked = cost[priced]
    assert (ranked >= np.maximum.accumulate(ranked) * 0.999).all()
    rate = splits.columns[RATE["serving"]][held][~priced]
    assert (rate <= np.minimum.accumulate(rate) * 1.001).all()
    places = ["h100-sxm", {"device": "gb300", "per_node": 4}]
    splits = plan(asked("serving", places))
    assert (splits.price_note, splits.to_json(1)["unpriced"]) == (None, [])
    cost = splits.columns[COST["serving"]][splits.order]
    assert np.isfinite(cost).all()
    holds = splits.holds[splits.order]  # those that queue come after them
    for part in (cost[holds], cost[~holds]):
        assert (part >= np.maximum.accumulate(part) * 0.999).all()
    assert None not in splits.beats(splits.order[1:], int(splits.order[0]))
    assert {device for device, _ in order_of(splits, splits.order)} == {"h100-sxm", "gb300"}
    limited = plan(asked("serving", places, limits={"usd_per_hour": 1e4}))
    assert len(limited.order) == len(splits.order)


@pytest.mark.parametrize("kind", WORKLOADS)
def test_costs_are_not_compared_with_unknown_ones_and_the_plan_says_so(kind: str) -> None:
    splits = mixed(kind, "h100-sxm", "gh200-144gb")
    best = int(splits.order[0])
    lacking = [row for row in map(int, splits.order) if "GH200" in splits.label(row)]
    priced = [row for row in map(int, splits.order[1:]) if "GH200" not in splits.label(row)]
    assert set(splits.beats(lacking, best)) == {None}
    assert None not in splits.beats(priced, best)
    assert None not in splits.beats(lacking, lacking[0])
    assert splits.against_best(lacking[0]) == ""
    values = splits.to_json(len(splits))
    assert values["unpriced"] == ["gh200-144gb"]
    chances = {case["hardware"]["device"]: case["beats_best"] for case in values["candidates"]}
    assert chances["gh200-144gb"] is None
    assert values["counts"]["tied_with_best"] == splits.tied < len(priced) + 1
    assert splits.price_note == f"No price of {TITLE} is known: its splits come last."
    assert f"{splits.price_note} State usd_per_device_hour" in plan_text(splits, 3)
    alone = mixed(kind, "gh200-144gb")
    assert alone.price_note == f"No price of {TITLE} is known: splits rank by output per device."
    fast = plan(asked(kind, ["h100-sxm", GH200], optimize="throughput"))
    assert fast.price_note is None
    assert fast.to_json(1)["unpriced"] == ["gh200-144gb"]
    assert None not in fast.beats(fast.order, int(fast.order[0]))
    assert mixed(kind, "h100-sxm").to_json(1)["unpriced"] == []


@pytest.mark.parametrize("weights", [{"cost": 1.0, "throughput": 1.0}, {"cost": 3.0, "gpus": 1.0}])
def test_weights_with_cost_put_unknown_prices_last(weights: dict[str, float]) -> None:
    splits = plan(asked("training", ["h100-sxm", GH200], weights=weights))
    without = plan(asked("training", ["h100-sxm"], weights=weights))
    number = len(without.order)
    assert order_of(splits, splits.order[:number]) == order_of(without, without.order)
    assert {device for device, _ in order_of(splits, splits.order[number:])} == {"gh200-144gb"}
