"""The decision about a layout, and the chips of what a request decides besides."""

import datetime
import re

import pytest

from recipe_core.engines.spec import engine_names
from recipe_core.hardware.prices import all_offers
from recipe_core.hardware.request import HardwareRequest
from recipe_core.plans.limits import bounded_figures, stated_limits
from recipe_core.plans.plans import plan_splits
from recipe_core.request.edit import change, select_split
from recipe_core.request.link import DEFAULT
from recipe_core.request.scaling import Scaling
from recipe_core.views.chips import device_text, request_chips
from recipe_core.views.decision import NEAR, describe_decision
from recipe_core.views.verdict import main_figures
from tests.fixtures.plans import LLAMA_70B, LONG, planned

TP4 = "vllm.bf16.bf16.tp4.pp1.dp1.ep1"
OTHER = HardwareRequest(device="mi300x", per_node=8)
TRAINING = {"workload.kind": "training", "workload.tokens": 1e10}


def decided(*changes, row=None):
    plan = planned(*changes)
    return describe_decision(plan, plan.best_row if row is None else row)


# The decision


def offer_of(device):
    """An offer with a whole date and nothing to doubt but its age."""
    offers = (o for o in all_offers() if o.device == device and o.commitment == "on-demand")
    return next(o for o in offers if re.fullmatch(r"\d{4}-\d\d-\d\d", o.date) and not o.doubts)


def test_the_money_of_a_month_is_marked_where_its_price_is_old(monkeypatch):
    offer = offer_of("h100-sxm")
    on_it = change(DEFAULT, {"model": LLAMA_70B, "hardware.offer": offer.name})
    said = {}
    for days in (0, 400):
        day = datetime.date.fromisoformat(offer.date) + datetime.timedelta(days=days)
        monkeypatch.setattr("recipe_core.hardware.offers.current_day", lambda day=day: day)
        plan = plan_splits(on_it)
        said[days] = describe_decision(plan, plan.best_row)
    devices = int(plan.raw("gpus")[plan.best_row])
    month = f"${offer.usd_per_device_hour * devices * 730:,.0f} a month"
    assert said[400].where.endswith(f"{month}†")
    assert any("400 days old" in text for text in said[400].caveats)
    assert not any("days old" in text for text in said[0].caveats)
    assert said[0].where.endswith(month)


def test_a_price_of_ones_own_is_taken_at_its_word_and_none_is_no_money():
    own = decided(("hardware.usd_per_device_hour", 2.0))
    assert own.where == "8 × H100 SXM5 · $11,680 a month"
    assert own.caveats == ()
    unpriced = planned(("hardware.device", "mi250x"))
    assert "$" not in describe_decision(unpriced, unpriced.best_row).where


def test_the_decision_names_layout_engine_and_formats_without_identifiers():
    decision = decided()
    assert decision.layout == "TP 8"
    assert decision.engine == "vLLM"
    assert "bf16 weights" in decision.formats
    half = decided(("objective.optimize", "cost"))
    assert half.where.startswith("4 of 8 × H100 SXM5")
    training = planned(*TRAINING.items(), ("hardware.nodes", 4))
    decision = describe_decision(training, training.best_row)
    assert decision.formats == "bf16"


def test_without_limits_it_says_so_and_does_not_warn():
    decision = decided()
    assert "No limit" in decision.verdict
    assert (decision.state, decision.doubtful) == ("holds", False)
    assert not any("limit" in text for text in decision.caveats)


def test_the_limit_that_is_nearest_is_named_where_it_is_near():
    plan = planned()
    tpot = float(plan.values("tpot")[plan.best_row])  # in ms
    own_load = ("workload.concurrency", 64)
    for share, near in ((0.85, True), (NEAR - 0.2, False)):
        limited = planned(own_load, ("objective.limits.tpot_ms", round(tpot / share, 3)))
        decision = describe_decision(limited, limited.best_row)
        named = [text for text in decision.caveats if "limit" in text]
        assert bool(named) == near
        assert decision.verdict
        if near:
            assert "85 %" in named[0]
            assert "time per output token" in named[0].lower()


def test_a_limit_on_a_percentile_is_near_where_the_percentile_is():
    asked = (
        ("workload.mode", "open"),
        ("workload.request_rate", 4.0),
        ("objective.limits.percentile", 95),
        ("objective.confidence", 0.5),
    )
    plan = planned(*asked, ("objective.limits.ttft_ms", 60_000))
    [code] = stated_limits(plan)
    slowest_s = float(bounded_figures(plan, code)[plan.best_row])
    assert slowest_s > 1.2 * float(plan.columns["ttft_s"][plan.best_row])
    tight = planned(*asked, ("objective.limits.ttft_ms", round(slowest_s * 1e3 / 0.9, 3)))
    [row] = [r for r in tight.order if tight.candidate(r) == plan.candidate(plan.best_row)]
    decision = describe_decision(tight, row)
    assert any("90 % is used" in text for text in decision.caveats), decision


def test_a_layout_that_queues_or_may_not_start_or_may_miss_a_limit_warns():
    plan = planned(LONG, ("workload.concurrency", 512))
    for flags, state in ((plan.queues, "queues"), (plan.uncertain, "uncertain")):
        row = next(int(row) for row in plan.order if flags[row])
        decision = describe_decision(plan, row)
        assert (decision.state, decision.doubtful) == (state, True)
        assert decision.verdict
    half = (("workload.concurrency", 64), ("objective.confidence", 0.5))  # as sure as a coin
    free = planned(*half)
    fastest_s = float(free.columns["tpot_s"][free.order].min())
    tight = planned(*half, ("objective.limits.tpot_ms", round(1001 * fastest_s, 3)))
    assert describe_decision(tight, tight.best_row).doubtful


def test_the_card_has_the_goals_figure_then_limited_ones_then_the_usual():
    plan = planned(("objective.optimize", "cost"), ("objective.limits.ttft_ms", 900.0))
    names = main_figures(plan, plan.best_row, 3)
    assert len(set(names)) == 3
    assert names[:2] == ["usd", "ttft"]


# Chips

CHIPPED = {
    "weights": {"options.weight_dtypes": ("fp8",)},
    "cache": {"options.kv_dtypes": ("auto", "fp8")},
    "engines": {"options.engines": ("vllm", "sglang")},
    "clusters": {"options.hardware": (OTHER,)},
    "pools": {"options.disaggregated": True},
    "context": {"options.context_parallel": True},
    "loads": {"options.loads": (16, 256)},
    "offer": {"hardware.offer": offer_of("h100-sxm").name},
    "layout": select_split(DEFAULT, TP4),
    "engine": {"candidate.engine": "sglang"},
    "frameworks": {**TRAINING, "options.engines": ("megatron", "torchtitan")},
    "scaling": {"options.scaling": Scaling(policy="keda", min_replicas=1, max_replicas=4)},
    "framework": {**TRAINING, "candidate.engine": "megatron"},
}
"""What is decided, by what it is about; each is one chip."""


def test_a_request_that_decides_nothing_more_has_no_chips():
    assert request_chips(DEFAULT) == []
    assert request_chips(change(DEFAULT, TRAINING)) == []


@pytest.mark.parametrize("name", CHIPPED)
def test_a_chip_takes_its_decision_back(name):
    request = change(DEFAULT, CHIPPED[name])
    (chip,) = request_chips(request)
    undone = change(request, chip.changes)
    plain = change(DEFAULT, TRAINING) if request.is_training else DEFAULT
    assert undone == plain
    assert request_chips(undone) == []


def test_each_of_several_chips_takes_only_its_own_decision_back():
    together = {
        field: value
        for name, fields in CHIPPED.items()
        for field, value in fields.items()
        if name in ("weights", "cache", "engines", "pools", "offer")
    }
    third = HardwareRequest(device="b200-sxm", per_node=8)
    request = change(DEFAULT, together | {"options.hardware": (OTHER, third)})
    labels = [chip.label for chip in request_chips(request)]
    assert len(set(labels)) == len(labels) == 7
    for chip in request_chips(request):
        left = [each.label for each in request_chips(change(request, chip.changes))]
        assert left == [label for label in labels if label != chip.label]
    while chips := request_chips(request):
        request = change(request, chips[0].changes)
    assert request == DEFAULT


def test_labels_have_no_identifiers():
    ids = {*engine_names(), "mi300x", "h100-sxm", "keda", "fp8", offer_of("h100-sxm").name}
    for fields in CHIPPED.values():
        (chip,) = request_chips(change(DEFAULT, fields))
        words = set(re.split(r"[\s,]+", chip.label))
        assert not words & ids, chip.label
        assert "_" not in chip.label


def test_a_framework_stays_where_only_the_layout_is_taken_back():
    request = change(DEFAULT, CHIPPED["framework"])
    plan = plan_splits(request)
    chosen = change(request, {"candidate": plan.candidate(plan.best_row)})
    (layout,) = request_chips(chosen)
    back = change(chosen, layout.changes)
    assert back.candidate.engine == "megatron"
    assert len(request_chips(back)) == 1


def test_devices_are_named_with_how_many_clusters_stand_beside_them():
    assert device_text(DEFAULT) == "8 × H100 SXM5"
    beside = change(DEFAULT, {"options.hardware": (OTHER,), "hardware.nodes": 2})
    assert device_text(beside) == "16 × H100 SXM5 +1"
