"""Edits of a request by field name, and what they keep consistent."""

from __future__ import annotations

import pytest

from recipe_core.base.errors import InputError
from recipe_core.hardware.request import HardwareRequest
from recipe_core.request.edit import TRAINING_TOKENS, change, select_split
from recipe_core.request.link import DEFAULT, START_LOADS, to_query
from recipe_core.request.serving_workload import LOADS
from recipe_core.request.split_key import cluster_of, key_of, split_key, split_of
from recipe_core.search.plans import plan


@pytest.mark.parametrize("mode", sorted(LOADS))
def test_a_new_mode_swaps_the_load(mode: str) -> None:
    request = change(change(DEFAULT, {"workload.concurrency": 7}), {"workload.mode": mode})
    stated = {name for name in LOADS.values() if getattr(request.workload, name) is not None}
    assert stated == {LOADS[mode]}
    assert getattr(request.workload, LOADS[mode]) == (7 if mode == "closed" else START_LOADS[mode])


def test_a_new_device_leaves_the_old_ones_offer_and_fills_its_node() -> None:
    here = change(DEFAULT, {"hardware.offer": "lambda-h100-sxm"})
    there = change(here, {"hardware.device": "mi300x"})
    assert (there.hardware.offer, there.hardware.per_node) == (None, 8)
    assert (
        change(
            change(here, {"hardware.per_node": 2}), {"hardware.device": "mi300x"}
        ).hardware.per_node
        == 2
    )


def test_an_offer_and_a_commitment_replace_each_other() -> None:
    spot = change(
        change(DEFAULT, {"hardware.offer": "lambda-h100-sxm"}), {"hardware.commitment": "spot"}
    )
    assert (spot.hardware.offer, spot.hardware.commitment) == (None, "spot")
    named = change(spot, {"hardware.offer": "lambda-h100-sxm"})
    assert (named.hardware.offer, named.hardware.commitment) == ("lambda-h100-sxm", None)
    own = change(
        spot,
        {
            "hardware.usd_per_device_hour": 1.0,
            "hardware.commitment": "reserved",
            "hardware.term_months": 12,
        },
    )
    assert change(own, {"hardware.commitment": "spot"}).hardware.term_months is None
    assert change(own, {"hardware.device": "mi300x"}).hardware == HardwareRequest(device="mi300x")


def test_an_offer_and_a_price_replace_each_other() -> None:
    own = change(
        change(DEFAULT, {"hardware.offer": "lambda-h100-sxm"}),
        {"hardware.usd_per_device_hour": 2.0},
    )
    assert (own.hardware.offer, own.hardware.usd_per_device_hour) == (None, 2.0)
    back = change(own, {"hardware.offer": "lambda-h100-sxm"})
    assert (back.hardware.offer, back.hardware.usd_per_device_hour) == ("lambda-h100-sxm", None)


def test_longer_lengths_stretch_the_context() -> None:
    request = change(
        change(DEFAULT, {"workload.max_context": 2048}), {"workload.input_tokens": 4000}
    )
    assert request.workload.max_context == 4256


def test_an_impossible_edit_is_refused() -> None:
    with pytest.raises(InputError, match="shorter than"):
        change(DEFAULT, {"workload.max_context": 10})


def test_a_candidate_is_set_and_taken_out_as_a_whole() -> None:
    request = change(DEFAULT, {"candidate": {"tp": 8, "pp": 1, "dp": 1}})
    assert to_query(request) == {
        "v": "1",
        "candidate.tp": "8",
        "candidate.pp": "1",
        "candidate.dp": "1",
    }
    assert change(request, {"candidate": None}) == DEFAULT


def test_training_starts_from_its_usual_run_and_keeps_model_and_hardware() -> None:
    here = change(
        DEFAULT,
        {
            "hardware.device": "mi300x",
            "objective.limits.tpot_ms": 40.0,
            "objective.limits.gpus": 4,
            "candidate": {"tp": 8},
        },
    )
    there = change(here, {"workload.kind": "training"})
    assert (there.workload.kind, there.workload.tokens) == ("training", TRAINING_TOKENS)
    assert (there.model, there.hardware, there.candidate) == (here.model, here.hardware, None)
    assert there.objective.limits.model_dump(exclude_none=True) == {"gpus": 4}
    back = change(there, {"workload.kind": "serving"})
    assert back.workload == DEFAULT.workload


def test_training_of_a_short_model_starts_with_short_sequences() -> None:
    request = change(
        change(DEFAULT, {"model": "EleutherAI/pythia-12b"}), {"workload.kind": "training"}
    )
    assert request.workload.sequence_length == 2048
    assert len(plan(request))


def test_taking_a_split_of_another_cluster_swaps_the_clusters() -> None:
    other = HardwareRequest(device="mi300x", per_node=4)
    request = change(DEFAULT, {"options.hardware": (other,)})
    after = change(request, select_split(request, "vllm.bf16.bf16.tp4.pp1.dp1.ep1.on1"))
    assert (after.hardware, after.options.hardware) == (other, (DEFAULT.hardware,))
    assert after.candidate is not None
    assert after.candidate.tp == 4


@pytest.mark.parametrize(
    "key",
    [
        "vllm.bf16.auto.tp4.pp1.dp2.ep1",
        "sglang.fp8-block.fp8.tp8.pp1.dp1.ep1.cp2.on3",
        "vllm.bf16.auto.tp4.pp1.dp1.ep1.x1.pre2.tp2.pp1.dp1.ep1",
        "sglang.fp8.auto.tp8.pp1.dp1.ep8.cp2.x3.pre12.tp1.pp2.dp4.ep4.on1",
        "torchtitan.bf16.tp2.pp4.v2.cp1.ep1.dp4.z1.mb2.full",
        "torchtitan.bf16.tp2.pp1.v1.cp1.ep1.dp16.z3.mb1.none.s8",
    ],
)
def test_a_key_is_read_back(key: str) -> None:
    candidate = split_of(key)
    assert candidate is not None
    assert split_key(candidate, cluster_of(key)) == key
    assert key_of(candidate) == key.split(".on")[0]


def test_a_taken_split_keeps_its_prefill_pool() -> None:
    request = change(DEFAULT, {"options.disaggregated": True})
    key = "vllm.bf16.bf16.tp2.pp1.dp1.ep1.x2.pre4.tp1.pp1.dp1.ep1"
    candidate = change(request, select_split(request, key)).candidate
    assert candidate is not None
    assert candidate.prefill is not None
    assert (candidate.tp, candidate.replicas, candidate.prefill.replicas, candidate.prefill.tp) == (
        2,
        2,
        4,
        1,
    )
    assert key_of(candidate.model_dump()) == key


def test_a_candidate_that_leaves_something_open_has_no_key() -> None:
    assert key_of({"tp": 4, "pp": 1}) is None
    assert key_of({"micro_batch": 4}) is None
    assert split_of("vllm.tp4") is None
