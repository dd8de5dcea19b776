"""Parameters that wait in host memory: what fits on the device then, what the host needs, time."""

import pytest

from recipe_core.plans.plan_json import can_bundle
from recipe_core.plans.plans import plan_candidate, plan_splits
from recipe_core.plans.splits import find_row, row_key
from recipe_core.request.edit import change
from recipe_core.request.schema import PlanRequest
from recipe_core.views.explanations.operators import time_text
from recipe_core.views.explanations.training_time import STEP, training_times
from tests.fixtures.rows import over, table
from tests.fixtures.training import training_answer, training_request

LLAMA_70B, GIB = "meta-llama/Llama-2-70b-hf", 2**30
SPLIT = {"tp": 1, "pp": 1, "dp": 2, "zero_stage": 3, "micro_batch": 2, "recompute": "full"}


def two_cards(candidate=None, method="qlora", device="rtx-4090", model=LLAMA_70B, **work):
    """Two cards of 24 GB, each with a micro-batch of two sequences of 2,048 tokens."""
    sizes = {"sequence_length": 2048, "global_batch": 4, "tokens": 2.1e6, "lora_rank": 64}
    workload = {"kind": "training", "method": method} | sizes | work
    values = {"model": model, "hardware": {"device": device, "per_node": 2}, "workload": workload}
    return PlanRequest.parse(values if candidate is None else values | {"candidate": candidate})


def answer(*args, **parts):
    plans, row = plan_candidate(two_cards(*args, **parts))
    return plans.estimate(row)


@over("model, device, method, micro_batch, gib, step_s", table("host_parameters", "fsdp_qlora"))
def test_published_runs_on_two_cards(model, device, method, micro_batch, gib, step_s):
    """AnswerDotAI/fsdp_qlora, benchmarks_03_2024.md: 1,024 sequences on two cards, rank 64."""
    candidate = {"engine": "axolotl", "offload": "parameters"} | SPLIT
    candidate["micro_batch"] = micro_batch
    estimate = answer(candidate, method, device, model, global_batch=2 * micro_batch)
    assert estimate.feasible
    assert 0.78 < estimate.memory.total_bytes / GIB / gib < 1.02
    assert 0.85 < estimate.training.step_s / step_s < 1.35


@pytest.mark.parametrize("device", ["rtx-3090", "rtx-4090"])
def test_a_plan_keeps_parameters_on_the_host_where_nothing_fits_otherwise(device):
    plans = plan_splits(two_cards(device=device))
    best = plans.candidate(plans.best_row)
    assert (best["offload"], best["zero_stage"], best["dp"]) == ("parameters", 3, 2)
    assert {plans.candidate(int(row)).get("offload") for row in plans.order} == {"parameters"}
    assert find_row(plans, row_key(plans, plans.best_row)) == plans.best_row
    assert can_bundle(plans, plans.best_row)
    host = plans.estimate(plans.best_row).memory.host_bytes
    assert 2 * 35 < 2 * host / 1e9 < 128  # both halves and what the first process loads


def test_without_the_host_it_is_refused_and_with_it_what_fits_stays_where_it_is():
    assert not plan_splits(two_cards({"offload": "none"})).feasible.any()
    small = plan_splits(two_cards(model="meta-llama/Llama-2-7b-hf"))
    assert {small.candidate(int(row)).get("offload") for row in small.order} == {None}


def test_the_host_holds_what_deepspeed_reckons_with():
    """``estimate_zero3_model_states_mem_needs``: 18 bytes a parameter, times 1.5."""
    stated = {"engine": "deepspeed", "offload": "parameters"} | SPLIT
    estimate = answer(stated, "finetune")
    told = 68_976_648_192 * 18 * 1.5
    assert 2 * estimate.memory.host_bytes == pytest.approx(told, rel=1e-3)
    assert not estimate.feasible
    assert any("of host memory per node" in reason for reason in estimate.reasons)


@over("candidate, method, device, said", table("host_parameters", "refused"))
def test_what_cannot_wait_on_the_host_is_refused(candidate, method, device, said):
    estimate = answer(SPLIT | candidate, method, device)
    assert any(said in reason for reason in estimate.reasons)


def test_copies_take_time_that_computing_does_not_hide():
    """Twice as much work a copy hides more of them; one more copy where ZeRO-3 gathers again."""
    parts = {
        (engine, micro): training_answer(
            {"engine": engine, "offload": "parameters"} | SPLIT | {"dp": 8, "micro_batch": micro},
            nodes=1,
            method="finetune",
            sequence_length=512,
            global_batch=64,
        )["breakdown_s"]["step"]
        for engine in ("accelerate", "deepspeed")
        for micro in (1, 4)
    }
    hidden = {key: part.get("host_parameters", 0.0) for key, part in parts.items()}
    assert hidden["accelerate", 4] < hidden["accelerate", 1] / 3
    assert parts["deepspeed", 1]["optimizer"] > 0
    assert all("host_parameters" in part for part in parts.values())


def test_one_device_needs_no_replica_to_leave_its_parameters():
    request = training_request(
        {"engine": "accelerate", "offload": "parameters", "dp": 1, "tp": 1, "pp": 1},
        1,
        method="finetune",
        global_batch=8,
        sequence_length=2048,
    )
    plans, row = plan_candidate(request)
    assert plans.feasible[row]
    assert plans.estimate(row).memory.parameters_bytes == 0


def test_copies_are_explained_with_what_hides_them():
    plans, row = plan_candidate(two_cards({"engine": "axolotl", "offload": "parameters"} | SPLIT))
    lines = {line.name: line for line in training_times(plans, row).lines[STEP]}
    copies = lines["Parameters from host memory"]
    assert " - " in copies.numbers  # four bits a weight leave computing that hides them
    seconds = plans.estimate(row).breakdown_s.step["host_parameters"]
    assert copies.value == time_text(seconds)
    alone = {"engine": "accelerate", "offload": "parameters"} | SPLIT | {"dp": 1}  # no gathers
    asked = change(two_cards(alone, "finetune"), {"model": "meta-llama/Llama-2-7b-hf"})
    plans, row = plan_candidate(asked)
    lines = {line.name: line for line in training_times(plans, row).lines[STEP]}
    assert " - " in lines["Parameters from host memory"].numbers
