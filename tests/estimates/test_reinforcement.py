"""A step of reinforcement learning: rollout, scoring, updates, weights; and memory by phase."""

import numpy as np
import pytest

from recipe_core.estimates.training.estimates import estimate_training
from recipe_core.estimates.training.reinforcement import at_longest, at_mean, forward_s
from recipe_core.estimates.training.results import PHASE_TITLES
from recipe_core.estimates.training.rollouts import beside_bytes
from recipe_core.estimates.training.schedule import training_step_parts
from recipe_core.plans.plans import plan_candidate, plan_splits
from recipe_core.plans.problem import resolve_problem
from recipe_core.plans.training_candidates import stated_training_case
from recipe_core.request.edit import change
from recipe_core.request.schema import PlanRequest
from recipe_core.views.estimates import estimate_text
from recipe_core.views.explanations.training_time import STEP, training_times
from tests.fixtures.catalogues import table
from tests.fixtures.training import training_request

PARAMETERS = 7_615_616_512
GRPO = table("relations.yaml", "bases")["grpo"]
APART = {"placement": "apart", "devices": 8}


def request(rollout=None, nodes=1, split=None, **work):
    work = GRPO["workload"] | {"rollout": GRPO["workload"]["rollout"] | (rollout or {})} | work
    values = {"workload": work, "candidate": GRPO["candidate"] | (split or {})}
    values["hardware"] = GRPO["hardware"] | {"nodes": nodes}
    return PlanRequest.parse(GRPO | values)


def estimates(*args, **more):
    asked = resolve_problem(request(*args, **more))
    return estimate_training(*stated_training_case(asked, asked.candidate))


def answer(*args, **more):
    plans, row = plan_candidate(request(*args, **more))
    return plans.estimate(row)


def loop(*args, **more):
    found = answer(*args, **more)
    assert found.feasible, found.reasons
    return found.reinforcement


def test_phases_add_up_and_updates_are_those_of_training_at_the_mean_length():
    for rollout, more in (({}, {}), ({}, {"method": "ppo"}), ({"reward": "model"}, {})):
        found = answer(rollout | ({"reward_s": 3.0} if rollout else {}), **more)
        phases_s = sum(found.reinforcement.phases_s.values())
        assert phases_s == pytest.approx(found.training.step_s, rel=1e-6)
    ppo = loop(method="ppo")
    assert ppo.phases_s["critic"] == pytest.approx(ppo.phases_s["update"])
    assert ppo.phases_s["values"] == pytest.approx(ppo.phases_s["old_log_probs"])
    found, step = answer(global_batch=256).reinforcement, estimates(global_batch=256)
    trained = training_step_parts(step.setting, at_mean(step.setting.sampling, step.cases))
    assert found.updates == 4
    assert found.phases_s["update"] == pytest.approx(4 * float(sum(trained.values())[0]))
    for scored in ("reference", "old_log_probs"):
        assert found.phases_s[scored] == pytest.approx(4 * float(forward_s(trained)[0]))
    # a forward pass is a third of a step without recomputation
    step = estimates(split={"recompute": "none", "micro_batch": 1})
    parts = training_step_parts(step.setting, at_mean(step.setting.sampling, step.cases))
    assert float(forward_s(parts)[0] / sum(parts.values())[0]) == pytest.approx(1 / 3, abs=0.05)


def test_the_rollout_takes_its_tokens_and_the_longest_answers_tail():
    exact, long = loop({"max_response_tokens": 768}), loop({"max_response_tokens": 4096})
    tokens = 128 * 8 * 768
    assert exact.rollout_tail_s == 0
    assert exact.phases_s["rollout"] == pytest.approx(tokens / exact.rollout_tokens_per_s)
    assert long.rollout_tail_s > 0
    rest = long.phases_s["rollout"] - long.rollout_tail_s
    assert rest == pytest.approx(tokens / long.rollout_tokens_per_s)
    per_token = long.rollout_tail_s / (4096 - 768)
    # a decode step of one sequence reads all weights: 15.2 GB at 3.35 TB/s, and what comes on top
    assert 2 * PARAMETERS / 3.35e12 < per_token < 4 * PARAMETERS / 3.35e12


def test_apart_takes_the_longer_of_the_halves():
    for prompts in (128, 1024):
        found = answer(APART | {"prompts": prompts}, nodes=2, split={"dp": 8})
        phases = dict(found.reinforcement.phases_s)
        synced, rollout = phases.pop("weight_sync"), phases.pop("rollout")
        longer = max(rollout, sum(phases.values()))
        assert found.training.step_s == pytest.approx(longer + synced, rel=1e-3)


def test_what_stays_on_the_device_leaves_the_rest_to_the_engine():
    found = answer({"offload": False})
    memory, sampled = found.memory, found.reinforcement
    states = memory.parameters_bytes + memory.optimizer_bytes + memory.master_bytes
    states += memory.reference_bytes
    # fp32 shards and moments of an eighth, and an eighth of the frozen reference
    assert states == pytest.approx((12 + 2) * PARAMETERS / 8, rel=0.01)
    engine = sampled.rollout_memory_share * memory.capacity_bytes
    least, most = beside_bytes()
    assert sampled.rollout_bytes == pytest.approx(engine + states + 1.7e9 + least, rel=1e-3)
    assert sampled.rollout_bytes <= memory.capacity_bytes
    # left out, the share leaves the most that was seen beside it, in steps of a twentieth
    free = (memory.capacity_bytes - engine - states - 1.7e9) - most
    assert 0 <= free < 0.05 * memory.capacity_bytes
    assert sampled.training_bytes == found.training.peak_memory_bytes
    # the longest answer counts for memory
    step = estimates({"max_response_tokens": 1024})
    packed = at_longest(step.setting.sampling, step.cases)
    assert (packed.micro_batch[0], packed.sequence_length[0]) == (1, 2 * (256 + 768))
    assert packed.micro_batches[0] == step.cases.micro_batches[0]


def test_the_fastest_degree_is_taken_and_the_run_counts_both_halves():
    stated = [answer({"tp": tp}) for tp in (1, 2, 4, 8)]
    times = [one.reinforcement.phases_s["rollout"] for one in stated if one.feasible]
    assert loop({"tp": None}).phases_s["rollout"] == pytest.approx(min(times))
    found = answer(APART, nodes=2, tokens=1e9)
    tokens = 128 * 8 * 1024
    assert found.run.steps == np.ceil(1e9 / tokens)
    assert found.training.tokens_per_s == pytest.approx(tokens / found.training.step_s)
    assert found.training.tokens_per_s_per_gpu == pytest.approx(found.training.tokens_per_s / 16)
    assert found.cost.usd_per_hour == 32.0
    per_step = 32.0 * found.training.step_s / 3600
    assert found.reinforcement.usd_per_step == pytest.approx(per_step)


def test_text_and_plans_show_phases_and_rank_by_the_whole_step():
    table, row = plan_candidate(request(method="ppo", tokens=1e9))
    found = table.estimate(row)
    text = estimate_text(table.candidate(row), found.to_json())
    for words in ("(1,024 answers, 1 update)", "memory per GPU", "a step costs $"):
        assert words in text
    lines = {line.name: line for line in training_times(table, row).lines[STEP]}
    for name, seconds in found.reinforcement.phases_s.items():
        assert (PHASE_TITLES[name] in lines) is (seconds > 0)
        assert (PHASE_TITLES[name] in text) is (seconds > 0)
    assert lines["Rollout"].numbers.startswith(f"{128 * 8 * 768:,}")
    values = request(nodes=1).to_json() | {"candidate": None}
    values["options"] |= {"engines": ["verl"], "nodes": "all"}
    table = plan_splits(PlanRequest.parse(values))
    assert "rollout" in table.shown.tabled
    best = table.best_row
    rollout_s = table.estimate(best).reinforcement.phases_s["rollout"]
    assert table.columns["rollout_s"][best] == pytest.approx(rollout_s)
    steps = table.columns["step_s"][table.order[:20]]
    assert steps[0] == pytest.approx(steps.min(), rel=0.05)


def test_a_method_that_samples_brings_a_usual_rollout_and_takes_it_away():
    # sizes left out are all answers at their longest
    work = request(APART, nodes=2).workload
    assert (work.global_batch, work.sequence_length) == (1024, 2 * 256 + 2 * 768)
    plain = training_request(model=GRPO["model"], nodes=1, sequence_length=4096)
    sampling = change(plain, {"workload.method": "grpo"})
    rollout = sampling.workload.rollout
    assert sampling.workload.global_batch == rollout.sequences
    assert sampling.workload.sequence_length == rollout.longest_tokens
    assert change(sampling, {"workload.method": "ppo"}).workload.rollout == rollout
    assert change(sampling, {"workload.method": "finetune"}).workload.rollout is None
