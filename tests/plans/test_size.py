"""Candidates are counted before they are made, and who watches a calculation may end it."""

from functools import partial
from itertools import product
from typing import get_args

import pytest

from recipe_core.base import budget
from recipe_core.base.budget import Budget, Cancelled
from recipe_core.base.errors import LimitError
from recipe_core.estimates.columns.splits import ExpertSharing, count_splits, enumerate_splits
from recipe_core.plans import serving_candidates
from recipe_core.plans.plans import plan_candidate, plan_splits
from recipe_core.request.schema import PlanRequest
from tests.conftest import make_request
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.training import training_values

MIXTRAL = "mistralai/Mixtral-8x7B-Instruct-v0.1"


def refused_above(request):
    """What a request is refused with where one candidate fewer than it takes is allowed."""
    with budget.apply_budget(Budget(None)) as account:
        rows = len(plan_splits(request))
    assert account.planned == rows
    with budget.apply_budget(Budget(rows)):
        assert len(plan_splits(request)) == rows
    with budget.apply_budget(Budget(rows - 1)):
        refused = refusal(plan_splits, request, kind=LimitError)
    assert f"{rows - 1:,}" in refused.message
    return refused


def test_the_count_is_what_would_be_made_of_training_too():
    devices = (1, 2, 3, 8, 12, 16, 60, 64)
    for count, sharing, heads in product(devices, get_args(ExpertSharing), (None, 1, 2, 8)):
        made = enumerate_splits(count, shares_experts=sharing, kv_heads=heads)
        counted = count_splits(count, shares_experts=sharing, kv_heads=heads)
        assert counted == len(made["tp"]), (count, sharing, heads)
    beside = {"hardware": [{"device": "mi300x", "per_node": 8}]}
    for options, named in (({}, "micro_batch"), (beside, "options.hardware")):
        run = training_values(nodes=1, global_batch=512) | {"options": options}
        assert named in str(refused_above(PlanRequest.parse(run)))


@over("options", table("search", "counted"))
def test_a_plan_has_as_many_candidates_as_were_counted(options):
    for model in (MIXTRAL, "Qwen/Qwen3-8B"):
        refused_above(make_request(model, nodes=2, options=options))


def test_nothing_is_made_of_what_is_too_large(monkeypatch):
    """Five million candidates: counted from a few hundred splits, and refused."""
    made = []
    whole = serving_candidates._expand_variants
    monkeypatch.setattr(
        serving_candidates, "_expand_variants", lambda *args: made.append(args) or whole(*args)
    )
    options = {"loads": [*range(1, 257)], "max_batched_tokens": [*range(64, 4097, 64)]}
    refused = refusal(plan_splits, make_request(nodes=8, options=options), kind=LimitError)
    assert (made, refused.field) == ([], "options.loads")
    fitting = int(refused.hint.rpartition(" ")[2].rstrip("."))
    fewer = make_request(nodes=8, options=options | {"loads": options["loads"][: fitting - 1]})
    with budget.apply_budget(Budget(seconds=1e-9)):  # it fits by number, and begins
        assert "took longer" in str(refusal(plan_splits, fewer, kind=LimitError))


def test_splits_alone_or_several_options_together_may_be_too_many():
    options = {"engines": ["tensorrt-llm"], "context_parallel": True}
    asked = partial(make_request, MIXTRAL, options=options)
    with budget.apply_budget(Budget(20_000)):
        refused = refusal(plan_splits, asked(nodes=512), kind=LimitError)
        assert refused.field == "hardware.nodes"
        nodes = int(refused.hint.partition(", ")[2].split()[0].replace(",", ""))
        assert len(plan_splits(asked(nodes=nodes))) <= 20_000
        refusal(plan_splits, asked(nodes=nodes + 1), kind=LimitError)
    options = {"loads": [*range(1, 30)], "max_batched_tokens": [*range(1024, 30_000, 1024)]}
    with budget.apply_budget(Budget(100)):
        refused = refusal(plan_splits, make_request(options=options), kind=LimitError)
    assert all(f"options.{name}" in refused.message for name in options)


def test_a_calculation_ends_at_its_next_chunk_and_one_stated_split_has_no_size():
    left = iter([False, False, True])
    with (
        budget.apply_budget(Budget(), lambda: next(left, True)) as account,
        pytest.raises(Cancelled),
    ):
        plan_splits(make_request(nodes=2, options={"engines": ["vllm", "sglang", "tensorrt-llm"]}))
    assert account.planned
    stated = {"tp": 8, "pp": 1, "dp": 512}
    with budget.apply_budget(Budget(10)):
        assert len(plan_candidate(make_request(nodes=512, candidate=stated))[0]) == 1


P95 = {"objective": {"limits": {"percentile": 95, "tpot_ms": 60}}}


def watched(**parts):
    seen = []
    with budget.watched(lambda done, steps, _: seen.append((done, steps))):
        return plan_splits(make_request(**P95, **parts)), seen


def test_every_simulated_split_is_a_step_at_which_a_watcher_ends_the_work():
    table, seen = watched()
    simulations = [block.simulation for block in table.blocks if block.simulation is not None]
    simulated = sum(int((each.means_s["tpot_s"] > 0).sum()) for each in simulations)
    assert simulated > 1
    assert seen == [(n, simulated) for n in range(simulated + 1)]
    table, seen = watched(workload={"concurrency": None})
    assert table.request.load_searched
    assert len({steps for _, steps in seen}) == 1
    assert [done for done, _ in seen] == list(range(len(seen)))
    assert seen[-1][0] <= seen[-1][1]
    seen = []

    def enough(done, *_):
        seen.append(done)
        if done == 2:
            raise Cancelled

    with pytest.raises(Cancelled), budget.watched(enough):
        plan_splits(make_request(**P95))
    assert seen == [0, 1, 2]
    # nobody watches any more, and nothing is left of what was ended
    assert plan_splits(make_request(**P95)).order.size
    # means have no steps
    with budget.watched(lambda *_: pytest.fail("nothing is simulated")):
        plan_splits(make_request())
        budget.count_step()
