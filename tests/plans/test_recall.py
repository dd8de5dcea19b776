"""Figures that an edit leaves as they were are recalled, and only those."""

from dataclasses import replace

import numpy as np
import pytest

from recipe_core.estimates.columns.recall import Recall
from recipe_core.estimates.ledger import recording
from recipe_core.plans.alternatives import find_alternatives
from recipe_core.plans.confidence_prices import price_confidences
from recipe_core.plans.plans import plan_splits
from tests.conftest import make_request
from tests.fixtures.recalled import RECALLS, forget_all

LLAMA, QWEN = "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-30B-A3B"
SEARCHED = {"concurrency": None}
RATE = {"mode": "open", "concurrency": None, "request_rate": 5.0}
LIMITS = {"tpot_ms": 20, "ttft_ms": 2000}
EDITS = (
    {"workload": RATE},
    {"workload": RATE | {"request_rate": 9.0}},
    {"workload": RATE, "objective": {"limits": {**LIMITS, "tpot_ms": 12}}},
    {"workload": RATE, "hardware": {"usd_per_device_hour": 1.0}},
    {"workload": SEARCHED},
    {"workload": SEARCHED, "objective": {"limits": {**LIMITS, "tpot_ms": 12}}},
    {"workload": SEARCHED, "objective": {"limits": LIMITS, "confidence": 0.95}},
    {"workload": {"concurrency": 32}},
    {"workload": {"concurrency": 32}, "objective": {"limits": {**LIMITS, "percentile": 90}}},
)


def request_of(model, edit):
    hardware = {"device": "h100-sxm", "per_node": 2, **edit.get("hardware", {})}
    objective = edit.get("objective", {"limits": LIMITS})
    return make_request(model, hardware=hardware, workload=edit["workload"], objective=objective)


def figures_of(plan):
    """All that pages show of a plan: its table, and what is planned beside it."""
    columns = {name: np.asarray(column).tobytes() for name, column in plan.columns.items()}
    beside = [choice.label for choice in find_alternatives(plan, runners_up=True)]
    prices = [price.to_json() for price in price_confidences(plan)]
    return columns, plan.order.tolist(), plan.chances.tobytes(), beside, prices


@pytest.mark.parametrize("model", [LLAMA, QWEN])
def test_an_edited_plan_has_the_figures_of_a_process_that_knows_nothing(model):
    requests = [request_of(model, edit) for edit in EDITS]
    forget_all()
    edited = [figures_of(plan_splits(request)) for request in requests]
    for request, figures in zip(requests, edited, strict=True):
        forget_all()
        assert figures_of(plan_splits(request)) == figures


@pytest.fixture
def block():
    return plan_splits(request_of(LLAMA, EDITS[0])).blocks[0]


def counted(recall, setting, cases, *more):
    """How often a value had to be made, of two that were asked for."""
    made = []
    for _ in range(2):
        recall.value(lambda: made.append(1), setting, cases, *more)
    return len(made)


def test_only_what_is_equal_is_recalled(block):
    recall, setting, cases = Recall(1024, without="load"), block.setting, block.cases
    assert counted(recall, setting, cases) == 1
    assert counted(recall, replace(setting, cluster=replace(setting.cluster)), cases) == 0
    assert counted(recall, setting, replace(cases, load=cases.load + 1)) == 0
    changed = {
        "setting": (replace(setting, judged_on="math"), cases),
        "cases": (setting, replace(cases, input_tokens=cases.input_tokens + 1)),
        "more": (setting, cases, cases.load),
    }
    for name, asked in changed.items():
        assert counted(recall, *asked) == 1, name
    price = replace(setting.cluster.price, usd_per_device_hour=1.0)
    dearer = replace(setting, cluster=replace(setting.cluster, price=price))
    assert counted(recall, dearer, cases) == 1
    unpriced = Recall(1024, priced=False)
    assert (counted(unpriced, setting, cases), counted(unpriced, dearer, cases)) == (1, 0)


def test_explanations_and_corrections_are_made_anew(block):
    recall = Recall(1024)
    counted(recall, block.setting, block.cases)
    with recording():
        assert counted(recall, block.setting, block.cases) == 2
    assert counted(recall, replace(block.setting, correction=object()), block.cases) == 2


def test_what_is_kept_is_bounded(block):
    few = Recall(len(block.cases) * 8, without="load")
    for tokens in range(20):
        counted(few, block.setting, replace(block.cases, block_tokens=block.cases.load + tokens))
    assert few._kept.currsize <= len(block.cases) * 8
    assert counted(Recall(len(block.cases)), block.setting, block.cases) == 2, "one takes all"


def test_a_plan_leaves_something_to_recall():
    forget_all()
    plan_splits(request_of(LLAMA, EDITS[0]))
    plan_splits(request_of(LLAMA, EDITS[4]))
    assert all(recall._kept for recall in RECALLS)
