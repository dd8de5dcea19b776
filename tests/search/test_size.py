"""Candidates are counted before they are made; what is too large says what would fit."""

from __future__ import annotations

from typing import Any

import pytest

from recipe_core.base import budget
from recipe_core.base.budget import Budget, Cancelled
from recipe_core.base.errors import LimitError
from recipe_core.request.schema import PlanRequest
from recipe_core.search import serving_candidates, size
from recipe_core.search.plans import plan, plan_candidate
from recipe_core.space.splits import ExpertSharing, count_splits, enumerate_splits
from tests.conftest import make_request

MIXTRAL = "mistralai/Mixtral-8x7B-Instruct-v0.1"


@pytest.mark.parametrize("kv_heads", [None, 1, 2, 8])
@pytest.mark.parametrize("sharing", ["none", "all-ranks", "divisors"])
def test_the_count_is_what_would_be_made(sharing: ExpertSharing, kv_heads: int | None) -> None:
    for devices in (1, 2, 3, 8, 12, 16, 60, 64):
        made = enumerate_splits(devices, shares_experts=sharing, kv_heads=kv_heads)
        count = count_splits(devices, shares_experts=sharing, kv_heads=kv_heads)
        assert count == len(made["tp"]), devices


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"loads": [1, 2, 4], "max_batched_tokens": [2048, 4096]},
        {"engines": ["vllm", "sglang"], "speculative": [{"tokens": 2, "acceptance": 0.7}]},
        {"disaggregated": True},
        {"hardware": [{"device": "mi300x", "per_node": 8, "nodes": 2}]},
    ],
)
def test_a_plan_has_as_many_candidates_as_were_counted(options: dict[str, Any]) -> None:
    for model in (MIXTRAL, "Qwen/Qwen3-8B"):
        with budget.limited(Budget(None)) as account:
            rows = len(plan(make_request(model, nodes=2, options=options)))
        assert account.planned == rows
        with budget.limited(Budget(rows)):
            plan(make_request(model, nodes=2, options=options))
        with budget.limited(Budget(rows - 1)), pytest.raises(LimitError) as refused:
            plan(make_request(model, nodes=2, options=options))
        assert f"{rows - 1:,}" in refused.value.message


def test_training_counts_too() -> None:
    request = make_request(
        workload={
            "kind": "training", "sequence_length": 8192, "global_batch": 512, "mode": None,
            "input_tokens": None, "output_tokens": None, "concurrency": None,
        }
    )  # fmt: skip
    with budget.limited(Budget(None)) as account:
        rows = len(plan(request))
    assert account.planned == rows
    with budget.limited(Budget(rows - 1)), pytest.raises(LimitError, match="micro_batch"):
        plan(request)


def test_nothing_is_made_of_what_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five million candidates: counted from a few hundred splits, and refused."""
    made = []
    whole = serving_candidates._varied
    monkeypatch.setattr(
        serving_candidates, "_varied", lambda *args: made.append(args) or whole(*args)
    )
    loads, steps = list(range(1, 257)), [64 * n for n in range(1, 65)]
    request = make_request(nodes=8, options={"loads": loads, "max_batched_tokens": steps})
    with pytest.raises(LimitError) as refused:
        plan(request)
    assert not made
    assert refused.value.field == "options.loads"
    assert refused.value.hint
    fitting = int(refused.value.hint.rpartition(" ")[2].rstrip("."))
    fewer = {"loads": loads[: fitting - 1], "max_batched_tokens": steps}
    with budget.limited(Budget(seconds=1e-9)), pytest.raises(LimitError, match="took longer"):
        plan(make_request(nodes=8, options=fewer))  # it fits by number, and begins


def test_splits_alone_may_be_too_many() -> None:
    def asked(nodes: int) -> PlanRequest:
        return make_request(
            MIXTRAL, nodes=nodes, options={"engines": ["tensorrt-llm"], "context_parallel": True}
        )

    with budget.limited(Budget(20_000)), pytest.raises(LimitError) as refused:
        plan(asked(512))
    assert refused.value.field == "hardware.nodes"
    assert refused.value.hint
    nodes = int(refused.value.hint.partition(", ")[2].split()[0].replace(",", ""))
    with budget.limited(Budget(20_000)):
        assert len(plan(asked(nodes))) <= 20_000
    with budget.limited(Budget(20_000)), pytest.raises(LimitError):
        plan(asked(nodes + 1))


def test_several_options_may_be_too_long_together() -> None:
    options = {"loads": list(range(1, 30)), "max_batched_tokens": [1024 * n for n in range(1, 30)]}
    with budget.limited(Budget(100)), pytest.raises(LimitError) as refused:
        plan(make_request(options=options))
    assert "options.loads" in refused.value.message
    assert "options.max_batched_tokens" in refused.value.message


@pytest.mark.parametrize("devices", [1, 2, 5, 8, 16])
def test_pairs_of_pools_are_counted_exactly(devices: int) -> None:
    sizes = [n for n in (1, 1, 2, 3, 4, 8) if n <= devices]
    brute = sum(
        1
        for decode in sizes
        for prefill in sizes
        for several in range(1, devices + 1)
        for copies in range(1, devices + 1)
        if several * decode + copies * prefill <= devices
    )
    assert size.count_pairs(devices, serving_candidates.np.array(sizes)) == brute


def test_a_calculation_ends_at_its_next_chunk() -> None:
    left = iter([False, False, True])
    with budget.limited(Budget(), lambda: next(left, True)) as account, pytest.raises(Cancelled):
        plan(make_request(nodes=2, options={"engines": ["vllm", "sglang", "tensorrt-llm"]}))
    assert account.planned


def test_one_stated_split_has_no_size() -> None:
    stated = {"tp": 8, "pp": 1, "dp": 512}
    with budget.limited(Budget(10)):
        assert len(plan_candidate(make_request(nodes=512, candidate=stated))[0]) == 1
