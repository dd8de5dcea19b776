"""Candidates are counted before they are made; what is too large says what would fit."""

from __future__ import annotations

from itertools import product
from typing import Any, get_args

import numpy as np
import pytest

from recipe_core.base import budget
from recipe_core.base.budget import Budget, Cancelled
from recipe_core.base.errors import LimitError
from recipe_core.request.schema import PlanRequest
from recipe_core.search import serving_candidates, size
from recipe_core.search.plans import plan, plan_candidate
from recipe_core.space.splits import ExpertSharing, count_splits, enumerate_splits
from tests.conftest import make_request
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

MIXTRAL = "mistralai/Mixtral-8x7B-Instruct-v0.1"


def refused_above(rows: int, request: PlanRequest) -> LimitError:
    """The request takes just this many candidates: one fewer is refused."""
    with budget.limited(Budget(rows)):
        assert len(plan(request)) == rows
    with budget.limited(Budget(rows - 1)):
        return refusal(plan, request, kind=LimitError)


def test_the_count_is_what_would_be_made() -> None:
    devices = (1, 2, 3, 8, 12, 16, 60, 64)
    for count, sharing, heads in product(devices, get_args(ExpertSharing), (None, 1, 2, 8)):
        made = enumerate_splits(count, shares_experts=sharing, kv_heads=heads)
        counted = count_splits(count, shares_experts=sharing, kv_heads=heads)
        assert counted == len(made["tp"]), (count, sharing, heads)


@over("options", table("search", "counted"))
def test_a_plan_has_as_many_candidates_as_were_counted(options: dict[str, Any]) -> None:
    for model in (MIXTRAL, "Qwen/Qwen3-8B"):
        request = make_request(model, nodes=2, options=options)
        with budget.limited(Budget(None)) as account:
            rows = len(plan(request))
        assert account.planned == rows
        assert f"{rows - 1:,}" in refused_above(rows, request).message


def test_training_counts_too() -> None:
    serving = dict.fromkeys(("mode", "input_tokens", "output_tokens", "concurrency"))
    workload = {"kind": "training", "sequence_length": 8192, "global_batch": 512} | serving
    beside = {"hardware": [{"device": "mi300x", "per_node": 8}]}
    for options in ({}, beside):
        request = make_request(workload=workload, options=options)
        with budget.limited(Budget(None)) as account:
            rows = len(plan(request))
        assert account.planned == rows
        error = refused_above(rows, request)
        named = "options.hardware" if options else "micro_batch"
        assert named in str(error)


def test_nothing_is_made_of_what_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five million candidates: counted from a few hundred splits, and refused."""
    made = []
    whole = serving_candidates._varied
    monkeypatch.setattr(
        serving_candidates, "_varied", lambda *args: made.append(args) or whole(*args)
    )
    loads, steps = list(range(1, 257)), [64 * n for n in range(1, 65)]
    options = {"loads": loads, "max_batched_tokens": steps}
    refused = refusal(plan, make_request(nodes=8, options=options), kind=LimitError)
    assert not made
    assert refused.field == "options.loads"
    fitting = int(refused.hint.rpartition(" ")[2].rstrip("."))
    fewer = make_request(nodes=8, options=options | {"loads": loads[: fitting - 1]})
    with budget.limited(Budget(seconds=1e-9)):  # it fits by number, and begins
        assert "took longer" in str(refusal(plan, fewer, kind=LimitError))


def test_splits_alone_or_several_options_together_may_be_too_many() -> None:
    options = {"engines": ["tensorrt-llm"], "context_parallel": True}

    def asked(nodes: int) -> PlanRequest:
        return make_request(MIXTRAL, nodes=nodes, options=options)

    with budget.limited(Budget(20_000)):
        refused = refusal(plan, asked(512), kind=LimitError)
        assert refused.field == "hardware.nodes"
        nodes = int(refused.hint.partition(", ")[2].split()[0].replace(",", ""))
        assert len(plan(asked(nodes))) <= 20_000
        refusal(plan, asked(nodes + 1), kind=LimitError)
    options = {"loads": list(range(1, 30)), "max_batched_tokens": [1024 * n for n in range(1, 30)]}
    with budget.limited(Budget(100)):
        refused = refusal(plan, make_request(options=options), kind=LimitError)
    assert all(f"options.{name}" in refused.message for name in options)


def test_pairs_of_pools_are_counted_exactly() -> None:
    for devices in (1, 2, 5, 8, 16):
        sizes = [n for n in (1, 1, 2, 3, 4, 8) if n <= devices]
        copies = range(1, devices + 1)
        brute = sum(
            several * decode + prefills * prefill <= devices
            for decode, prefill, several, prefills in product(sizes, sizes, copies, copies)
        )
        assert size.count_pairs(devices, np.array(sizes)) == brute


def test_a_calculation_ends_at_its_next_chunk_and_one_stated_split_has_no_size() -> None:
    left = iter([False, False, True])
    with budget.limited(Budget(), lambda: next(left, True)) as account, pytest.raises(Cancelled):
        plan(make_request(nodes=2, options={"engines": ["vllm", "sglang", "tensorrt-llm"]}))
    assert account.planned
    stated = {"tp": 8, "pp": 1, "dp": 512}
    with budget.limited(Budget(10)):
        assert len(plan_candidate(make_request(nodes=512, candidate=stated))[0]) == 1
