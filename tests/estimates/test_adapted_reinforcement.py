"""Reinforcement learning of adapters: what it saves in memory, and what is sent to the engine."""

import pytest

from recipe_core.base.errors import InputError
from recipe_core.plans.plan_json import can_bundle
from recipe_core.plans.plans import plan_candidate, plan_splits
from recipe_core.request.schema import PlanRequest
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

QWEN_7B = "Qwen/Qwen2.5-7B-Instruct"


def request(model=QWEN_7B, devices=1, method="grpo", rollout=None, **work):
    answers = {"prompts": 16 * devices, "samples": 5, "prompt_tokens": 200, "response_tokens": 800}
    answers |= {"max_prompt_tokens": 512, "max_response_tokens": 1024} | (rollout or {})
    workload = {"kind": "training", "method": method, "tokens": 1e8, "rollout": answers}
    sizes = {"adapters": "lora", "lora_rank": 32}
    values = {"model": model, "hardware": {"device": "h100-sxm", "per_node": devices}}
    return PlanRequest.parse(values | {"workload": workload | sizes | work})


def best(*args, **more):
    plans, row = plan_candidate(request(*args, **more))
    found = plans.estimate(row)
    assert found.feasible, found.reasons
    return found


@over("model, devices, fits_whole", table("reinforcement", "adapters"))
def test_published_sizes_fit_with_adapters(model, devices, fits_whole):
    """verl-project/verl, examples/tuning: ``qwen2-*_grpo-lora_*_h100_fsdp_vllm.sh``."""
    adapted = plan_splits(request(model, devices))
    assert adapted.best is not None
    assert adapted.candidate(adapted.best_row)["engine"] == "verl"
    assert can_bundle(adapted, adapted.best_row)
    assert (plan_splits(request(model, devices, adapters=None)).best is not None) is fits_whole


def test_only_adapters_are_sent_and_the_engine_keeps_its_weights_on_the_host():
    found = best(devices=2)
    loop, weights = found.reinforcement, 2 * 7_615_616_512
    assert loop.weight_sync_bytes == pytest.approx(2 * 80_740_352)  # rank 32 on all matrices
    assert loop.offloaded_bytes * loop.rollout_tp == pytest.approx(weights, rel=1e-3)
    assert loop.phases_s["state_moves"] > 0


def test_devices_apart_are_sent_whole_weights():
    apart = best(devices=4, rollout={"placement": "apart", "devices": 2}).reinforcement
    assert apart.weight_sync_bytes == pytest.approx(2 * 7_615_616_512, rel=1e-3)
    assert apart.offloaded_bytes == 0


def test_the_reference_is_the_model_without_its_adapters():
    for rollout, scored in (({}, True), ({"reference": False}, False)):
        found = best(devices=2, rollout=rollout)
        assert found.memory.reference_bytes == 0
        assert (found.reinforcement.phases_s["reference"] > 0) is scored


def test_a_critic_has_adapters_too():
    alone, critic = best(devices=4), best(devices=4, method="ppo")
    assert critic.memory.optimizer_bytes == pytest.approx(2 * alone.memory.optimizer_bytes)
    assert critic.run.checkpoint_bytes == pytest.approx(2 * alone.run.checkpoint_bytes)


def test_adapters_of_other_methods_are_said_by_the_method():
    values = {"model": QWEN_7B, "hardware": {"device": "h100-sxm"}}
    work = {"kind": "training", "sequence_length": 2048, "global_batch": 64}
    asked = values | {"workload": work | {"method": "lora", "adapters": "lora"}}
    error = refusal(PlanRequest.parse, asked, kind=InputError)
    assert "adapters goes with method grpo and ppo, not lora" in error.message
