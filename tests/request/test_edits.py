"""Edits of a request by field name, and what they keep consistent."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest

from recipe_core.hardware.request import HardwareRequest
from recipe_core.request.edit import TRAINING_TOKENS, change, select_split
from recipe_core.request.link import DEFAULT, START_LOADS, to_query
from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import LOADS
from recipe_core.request.split_key import cluster_of, key_of, split_key, split_of
from recipe_core.search.plans import plan
from tests.fixtures.refusals import refusal


@pytest.mark.parametrize("mode", sorted(LOADS))
def test_a_new_mode_swaps_the_load(mode: str) -> None:
    request = change(change(DEFAULT, {"workload.concurrency": 7}), {"workload.mode": mode})
    stated = {name for name in LOADS.values() if getattr(request.workload, name) is not None}
    assert stated == {LOADS[mode]}
    assert getattr(request.workload, LOADS[mode]) == (7 if mode == "closed" else START_LOADS[mode])


LAMBDA = {"hardware.offer": "lambda-h100-sxm"}
TO_MI300X = {"hardware.device": "mi300x"}


def edited(*edits: dict[str, Any], request: PlanRequest = DEFAULT) -> PlanRequest:
    """A request after several edits, one after the other."""
    return reduce(change, edits, request)


def test_a_new_device_leaves_the_old_ones_offer_and_fills_its_node() -> None:
    there = edited(LAMBDA, TO_MI300X).hardware
    assert (there.offer, there.per_node) == (None, 8)
    assert edited(LAMBDA, {"hardware.per_node": 2}, TO_MI300X).hardware.per_node == 2


def test_an_offer_a_commitment_and_a_price_replace_each_other() -> None:
    spot = edited(LAMBDA, {"hardware.commitment": "spot"})
    assert (spot.hardware.offer, spot.hardware.commitment) == (None, "spot")
    named = change(spot, LAMBDA).hardware
    assert (named.offer, named.commitment) == ("lambda-h100-sxm", None)
    price = {"hardware.usd_per_device_hour": 1.0}
    reserved = {"hardware.commitment": "reserved", "hardware.term_months": 12}
    own = change(spot, price | reserved)
    assert change(own, {"hardware.commitment": "spot"}).hardware.term_months is None
    assert change(own, TO_MI300X).hardware == HardwareRequest(device="mi300x")
    own = edited(LAMBDA, price)
    assert (own.hardware.offer, own.hardware.usd_per_device_hour) == (None, 1.0)
    back = change(own, LAMBDA).hardware
    assert (back.offer, back.usd_per_device_hour) == ("lambda-h100-sxm", None)


def test_longer_lengths_stretch_the_context_and_a_candidate_is_set_as_a_whole() -> None:
    longer = edited({"workload.max_context": 2048}, {"workload.input_tokens": 4000})
    assert longer.workload.max_context == 4256
    assert "shorter than" in str(refusal(change, DEFAULT, {"workload.max_context": 10}))
    request = change(DEFAULT, {"candidate": {"tp": 8, "pp": 1, "dp": 1}})
    stated = {"candidate.tp": "8", "candidate.pp": "1", "candidate.dp": "1"}
    assert to_query(request) == {"v": "1"} | stated
    assert change(request, {"candidate": None}) == DEFAULT


def test_training_starts_from_its_usual_run_and_keeps_model_and_hardware() -> None:
    limits = {"objective.limits.tpot_ms": 40.0, "objective.limits.gpus": 4}
    here = change(DEFAULT, TO_MI300X | limits | {"candidate": {"tp": 8}})
    there = change(here, {"workload.kind": "training"})
    assert (there.workload.kind, there.workload.tokens) == ("training", TRAINING_TOKENS)
    assert (there.model, there.hardware, there.candidate) == (here.model, here.hardware, None)
    assert there.objective.limits.model_dump(exclude_none=True) == {"gpus": 4}
    assert change(there, {"workload.kind": "serving"}).workload == DEFAULT.workload
    short = edited({"model": "EleutherAI/pythia-12b"}, {"workload.kind": "training"})
    assert short.workload.sequence_length == 2048  # all that the model has
    assert len(plan(short))


def test_taking_a_split_swaps_clusters_and_keeps_its_prefill_pool() -> None:
    other = HardwareRequest(device="mi300x", per_node=4)
    request = change(DEFAULT, {"options.hardware": (other,)})
    after = change(request, select_split(request, "vllm.bf16.bf16.tp4.pp1.dp1.ep1.on1"))
    assert (after.hardware, after.options.hardware) == (other, (DEFAULT.hardware,))
    assert after.candidate.tp == 4
    request = change(DEFAULT, {"options.disaggregated": True})
    key = "vllm.bf16.bf16.tp2.pp1.dp1.ep1.x2.pre4.tp1.pp1.dp1.ep1"
    candidate = change(request, select_split(request, key)).candidate
    pools = (candidate.tp, candidate.replicas, candidate.prefill.tp, candidate.prefill.replicas)
    assert pools == (2, 2, 1, 4)
    assert key_of(candidate.model_dump()) == key


def test_a_key_is_read_back() -> None:
    for key in (
        "vllm.bf16.auto.tp4.pp1.dp2.ep1",
        "sglang.fp8-block.fp8.tp8.pp1.dp1.ep1.cp2.on3",
        "vllm.bf16.auto.tp4.pp1.dp1.ep1.x1.pre2.tp2.pp1.dp1.ep1",
        "sglang.fp8.auto.tp8.pp1.dp1.ep8.cp2.x3.pre12.tp1.pp2.dp4.ep4.on1",
        "torchtitan.bf16.tp2.pp4.v2.cp1.ep1.dp4.z1.mb2.full",
        "torchtitan.bf16.tp2.pp1.v1.cp1.ep1.dp16.z3.mb1.none.s8",
    ):
        candidate = split_of(key)
        assert split_key(candidate, cluster_of(key)) == key
        assert key_of(candidate) == key.split(".on")[0]
    assert split_of("vllm.tp4") is None
    for open_split in ({"tp": 4, "pp": 1}, {"micro_batch": 4}):
        assert key_of(open_split) is None
