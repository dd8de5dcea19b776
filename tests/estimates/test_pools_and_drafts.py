"""Prefill and decode pools, and speculative decoding: rates, transfers, tokens a step, memory."""

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest

from recipe_core.base.errors import InputError
from recipe_core.commands.verdict import judge_request
from recipe_core.estimates.columns.splits import dispatching_cases
from recipe_core.estimates.serving.continuous_batching import decode_step
from recipe_core.estimates.serving.estimates import estimate_serving
from recipe_core.estimates.serving.kernels import Step, total
from recipe_core.estimates.serving.memory import serving_memory
from recipe_core.estimates.serving.operators import serving_step_parts
from recipe_core.estimates.serving.pools import (
    pool_request_s,
    pool_steps,
    transfer_bytes,
    transfer_s,
)
from recipe_core.estimates.serving.speculative import engine_step, tokens_per_step
from recipe_core.estimates.serving.weights import draft_layer, draft_projection
from recipe_core.launch.start import launch_deployment
from recipe_core.models.catalog import catalog_model
from recipe_core.plans.plans import estimate_batch, plan_candidate
from recipe_core.plans.problem import resolve_problem
from recipe_core.plans.serving_candidates import stated_serving_case
from recipe_core.plans.splits import row_reasons
from recipe_core.recipe import make_recipe, relaunch, row_deployment
from recipe_core.request.schema import PlanRequest
from recipe_core.request.split_key import split_name
from tests.conftest import make_request, request_values
from tests.fixtures.catalogues import table
from tests.fixtures.properties import broken
from tests.fixtures.rows import over

LLAMA, DEEPSEEK = "meta-llama/Llama-3.1-70B-Instruct", "deepseek-ai/DeepSeek-V3"
GPT_OSS, NEXT = "openai/gpt-oss-120b", "Qwen/Qwen3-Next-80B-A3B-Instruct"
CLOSED = {"mode": "closed", "concurrency": 64}
OPEN = {"mode": "open", "request_rate": 4.0, "concurrency": None}
OFFLINE = {"mode": "offline", "requests": 4000, "concurrency": None}
STATIC = {"mode": "static", "batch": 16, "concurrency": None}


def values(model=LLAMA, workload=CLOSED, nodes=2, device="h100-sxm", **candidate):
    """A request for a decode pool of two servers beside a prefill pool of two."""
    split = {"engine": "vllm", "tp": 4, "pp": 1, "dp": 2, "prefill": {"tp": 4, "replicas": 2}}
    candidate = split | candidate
    return request_values(model, device, 8, nodes, workload=dict(workload), candidate=candidate)


def estimate_of(*args, **parts):
    return estimate_batch([values(*args, **parts)])[0]


def asked(*args, **parts):
    return PlanRequest.parse(values(*args, **parts))


def exact(request):
    """The setting and the one case of a request."""
    return stated_serving_case(resolve_problem(request), request.candidate)


def columns(*args, **parts):
    return exact(asked(*args, **parts))


def instant(setting):
    """The same devices on links that take no time."""
    links = {}
    for name in ("fabric", "network"):
        link = getattr(setting.cluster, name)
        bandwidth = link.bandwidth_bytes_per_s.model_copy(update={"value": 1e30})
        latency = link.latency_s.model_copy(update={"value": 1e-30})
        changes = {"bandwidth_bytes_per_s": bandwidth, "latency_s": latency}
        links[name] = link.model_copy(update=changes)
    return replace(setting, cluster=replace(setting.cluster, **links))


@over("model split prefill per_token", table("choices.yaml", "sent"))
def test_the_narrower_pool_s_ranks_send_a_prompts_cache(model, split, prefill, per_token):
    chosen, cases = columns(model, **({"dp": 1} | split), prefill=prefill)
    assert transfer_bytes(chosen, cases)[0] == 1024 * per_token


def test_the_transfer_takes_latency_and_bytes_over_the_rate_of_what_joins_the_pools():
    """Two pools of four share a node of eight; two of eight do not, unless they share a rack."""
    for tp, link in ((4, "fabric"), (8, "network")):
        chosen, cases = columns(tp=tp, dp=1, prefill={"tp": tp})
        profile = getattr(chosen.cluster, link)
        rate = profile.bandwidth_bytes_per_s.value * profile.efficiency.value
        per_rank = profile.latency_per_rank_s
        latency = profile.latency_s.value + (per_rank.value if per_rank else 0.0)
        expected = latency + transfer_bytes(chosen, cases)[0] / rate
        assert transfer_s(chosen, cases)[0] == pytest.approx(expected)
    split = {"tp": 8, "dp": 1, "prefill": {"tp": 8}}
    inside = transfer_s(*columns(DEEPSEEK, nodes=8, device="gb200", **split))[0]
    assert inside < 0.2 * transfer_s(*columns(DEEPSEEK, device="b200-sxm", **split))[0]


def test_pools_of_every_size_keep_what_holds_of_all_estimates():
    """Also Little's law: as many requests are in a closed loop as are in flight."""
    sizes = product([1, 7, 64, 1000, 100_000], (1, 4), (1, 2), (1, 8))
    pools = [
        asked(workload=CLOSED | {"concurrency": load}, nodes=8, dp=dp, prefill=prefill)
        for load, dp, pp, n in sizes
        for prefill in ({"tp": 2, "pp": pp, "replicas": n},)
    ]
    pools += [asked(workload=OPEN), asked(workload=OFFLINE)]
    for request, answer in zip(pools, estimate_batch(map(PlanRequest.to_json, pools)), strict=True):
        assert answer["feasible"], answer["reasons"]
        assert broken(request, answer) == []
        assert {"transfer", "handoff", "prompts_ahead"} <= set(answer["breakdown_s"]["prefill"])
        assert all(0 < answer["pools"][pool]["busy"] <= 1.0001 for pool in ("prefill", "decode"))
        assert broken(request, {"memory": answer["memory"]["prefill"]}, "memory parts add up") == []


@over("replicas", [1, 2, 4])
def test_queued_requests_go_through_at_the_rate_of_the_slower_pool(replicas):
    answer = estimate_of(workload=OFFLINE, nodes=4, prefill={"tp": 4, "replicas": replicas})
    rates = [answer["pools"][name]["requests_per_s"] for name in ("prefill", "decode")]
    assert answer["serving"]["output_tokens_per_s"] / 256 == pytest.approx(min(rates), rel=0.02)
    one = estimate_of(prefill={"tp": 4})["pools"]["prefill"]["requests_per_s"]
    assert rates[0] == pytest.approx(replicas * one)


def test_with_nothing_to_wait_for_tpot_is_that_of_decoding_alone():
    """No transfer, little to prefill: all requests decode at once, in steps without prompts."""
    load, prefill = CLOSED | {"output_tokens": 4096}, {"tp": 8, "replicas": 6}
    chosen, cases = columns(workload=load, nodes=8, prefill=prefill)
    free = instant(chosen)
    serving = estimate_serving(free, cases).serving
    step = engine_step(free, cases, decode_step(cases, cases.load / cases.replicas))
    alone = float(total(step)[0])
    assert serving.tpot_s[0] == pytest.approx(alone, rel=0.005)
    assert serving.tpot_s[0] <= alone
    assert serving.prefill["transfer"][0] < 1e-5


def test_the_queue_for_a_step_of_one_prompt_is_that_of_deterministic_service():
    """M/D/1: a wait of ρ·s / 2(1 - ρ), with prompts as long as a step's budget and one replica."""
    load = {"mode": "open", "input_tokens": 8192, "output_tokens": 2, "concurrency": None}

    def served(rate):
        return estimate_of(workload=load | {"request_rate": rate}, prefill={"tp": 4})

    most = served(0.01)["pools"]["prefill"]["requests_per_s"]
    for busy in (0.2, 0.5, 0.9):
        wait = served(busy * most)["breakdown_s"]["prefill"]["prompts_ahead"]
        assert wait == pytest.approx(busy / (2 * (1 - busy)) / most, rel=0.01)


def test_ranks_that_share_experts_step_together_and_a_lone_prompt_has_all_their_experts():
    """Between a lone prompt and one on each rank; the pool's capacity is that of full steps."""
    chosen, cases = columns(
        DEEPSEEK, device="b200-sxm", tp=8, dp=1, prefill={"tp": 1, "dp": 8, "ep": 8}
    )
    pool = replace(cases.prefill_pool, output_tokens=np.ones(1))
    steps = pool_steps(chosen, pool)
    lone, single = steps.lone, steps.single
    assert steps.ranks[0] == 8
    assert {name for name in single if lone[name][0] < single[name][0]} == {"experts", "all_to_all"}
    assert all(lone[name][0] <= single[name][0] for name in single)
    lone_s, single_s = float(total(lone)[0]), float(total(single)[0])
    rates = np.array([1e-6, 0.02, 0.05, 0.1, 0.2, 0.5, 0.97]) / steps.prompt_s
    prompts = np.array([steps.together(rate)[0] for rate in rates])
    assert prompts[0] == 1 / 8
    assert (np.diff(prompts) >= 0).all()
    assert 1 < prompts[-1] <= steps.group[0]
    for rate, several in zip(rates, prompts, strict=True):
        seconds = float(total(steps.parts(np.array([several])))[0])
        assert seconds >= lone_s * (1 - 1e-9)
        if 1 / 8 < several < steps.group[0]:
            assert several == pytest.approx(rate * seconds)
    assert total(steps.parts(np.array([1 / 8])))[0] == pytest.approx(lone_s)
    assert total(steps.parts(np.array([1.0])))[0] == pytest.approx(single_s)
    # eight alone wait for each other, the ninth of them for the eight
    assert steps.bunch_s(np.array([1 / 8]))[0] == pytest.approx(lone_s)
    assert steps.bunch_s(np.array([1.0]))[0] == pytest.approx(single_s)
    # dense layers, and tensor parallel attention, have no such ranks
    for dense in (columns(prefill={"tp": 4, "dp": 2}), columns(DEEPSEEK, nodes=4, tp=8, dp=1)):
        steps = pool_steps(dense[0], replace(dense[1].prefill_pool, output_tokens=np.ones(1)))
        assert (steps.ranks[0], steps.lone) == (1, steps.single)


def test_a_hand_off_takes_the_place_of_what_servers_of_a_generation_add_to_a_request():
    chosen, cases = columns(DEEPSEEK, device="b200-sxm", engine="sglang", dp=1)
    factor = chosen.engine.kernel_time("sm_100", "request")
    assert factor > 1.5
    overhead = chosen.engine.overhead(chosen.cluster.device.runtime)
    own_s = overhead.request_s + overhead.input_token_s * 1024
    assert pool_request_s(chosen, cases)[0] == pytest.approx(own_s)
    prefill = estimate_serving(chosen, cases).serving.prefill
    assert prefill["request"][0] == pytest.approx(own_s)
    assert prefill["handoff"][0] == chosen.engine.handoff_s.value


RACK = {"engine": "sglang", "tp": 1, "dp": 32, "ep": 32, "max_num_seqs": 256}
RACK |= {"prefill": {"tp": 1, "dp": 4, "ep": 4}}


def rack(model="nvidia/DeepSeek-R1-0528-FP4", device="gb200", **candidate):
    """A request for a decode pool over eight nodes, and a prefill pool on one."""
    hardware = {"device": device, "per_node": 4, "nodes": 12}
    return values(model, nodes=12, device=device, **(RACK | candidate)) | {"hardware": hardware}


def test_many_cases_answer_as_each_alone_does():
    pools = [values(), values(prefill=None), values(prefill={"tp": 2}), values(workload=OPEN)]
    racks = [rack(), rack(dp=4, ep=4), rack(dp=8, ep=8), rack(max_num_seqs=2048), rack(tp=2)]
    for several in ([*pools, values(tp=2)], racks):
        assert estimate_batch(several) == [estimate_batch([value])[0] for value in several]


def gathering(setting):
    """The same where the engine never dispatches."""
    split = setting.engine.split
    exchange = split.exchange.model_copy(update={"between_nodes": None})
    split = split.model_copy(update={"exchange": exchange})
    return replace(setting, engine=setting.engine.model_copy(update={"split": split}))


def exchange_s(setting, cases):
    step = decode_step(cases, np.full(len(cases), 64.0))
    return serving_step_parts(setting, cases, step)["all_to_all"][0]


def started_with(request, *roles):
    """What is launched, and the first process in one of the roles."""
    started = launch_deployment(row_deployment(*plan_candidate(request)))
    return started, next(p for p in started.processes if p.role in roles)


@over("change dispatched", table("choices.yaml", "dispatched"))
def test_a_decode_pool_over_a_rack_dispatches_what_it_is_launched_with(change, dispatched):
    """The estimate, the words and the variables say the same."""
    request = PlanRequest.parse(rack(**change))
    setting, cases = exact(request)
    assert dispatching_cases(setting, cases).tolist() == [dispatched is not None]
    exchanged, gathered = exchange_s(setting, cases), exchange_s(gathering(setting), cases)
    assert exchanged < 0.8 * gathered if dispatched else exchanged == gathered
    _, decode = started_with(request, "decode", "server")
    if setting.engine.name == "sglang":
        words = {
            "--moe-a2a-backend": "deepep" if dispatched else "none",
            "--deepep-mode": "low_latency" if dispatched else None,
            "--deepep-dispatcher-output-dtype": dispatched,
            "--moe-dense-tp-size": "1" if dispatched else None,
        }
        argv = dict(pairwise(decode.argv))
        assert words == {flag: argv.get(flag) for flag in words}
    limit = decode.env.get("SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK")
    assert limit == (str(request.candidate.max_num_seqs) if dispatched else None)
    assert (decode.env.get("SGLANG_MOE_NVFP4_DISPATCH") == "1") == (dispatched == "nvfp4")


def test_a_prefill_pool_gathers_and_a_dispatch_has_a_slot_for_each_token_and_expert():
    request = PlanRequest.parse(rack(prefill={"tp": 1, "dp": 8, "ep": 8}))
    setting, cases = exact(request)
    pool, prompts = cases.prefill_pool, np.array([4096.0])
    step = Step(prompts, prompts / 2, 0 * prompts, 0 * prompts, 0 * prompts + 1)
    assert serving_step_parts(setting, pool, step) == serving_step_parts(
        gathering(setting), pool, step
    )
    started, prefill = started_with(request, "prefill")
    assert prefill.argv[prefill.argv.index("--moe-a2a-backend") + 1] == "none"
    assert "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK" not in prefill.env
    assert "deep_ep" in started.requires
    # DeepEP's layout: 2.1 GB for 128 tokens, 288 experts and a hidden size of 7168
    setting, cases = exact(PlanRequest.parse(rack(max_num_seqs=128)))
    with_slots, without = (
        serving_memory(of, cases, np.ones(1)).runtime_bytes[0]
        for of in (setting, gathering(setting))
    )
    assert with_slots - without == 4 * 128 * 256 * 7168 * 2
    assert (with_slots - without) * 288 / 256 == pytest.approx(2.116e9, rel=0.01)


def test_both_pools_are_counted_and_an_arrival_rate_that_they_cannot_serve_is_refused():
    answer = estimate_of()
    most = min(answer["pools"][pool]["requests_per_s"] for pool in ("prefill", "decode"))
    for share, feasible in ((0.9, True), (4, False)):
        served = estimate_of(workload=OPEN | {"request_rate": share * most})
        assert served["feasible"] is feasible
    assert "requests a second arrive" in served["reasons"][0]
    assert answer["pools"]["prefill"]["gpus"] == answer["pools"]["decode"]["gpus"] == 8
    serving = answer["serving"]
    per_gpu = serving["output_tokens_per_s_per_gpu"]
    assert per_gpu * 16 == pytest.approx(serving["output_tokens_per_s"])
    assert any("pool bounds the rate" in note for note in answer["notes"])
    table, row = plan_candidate(asked())
    assert split_name(table.candidate(row)) == "TP 4 × DP 2, prefill on 2 × TP 4"


def test_what_is_left_open_is_chosen_beside_the_prefill_pool():
    request = PlanRequest.parse(values() | {"candidate": {"prefill": {"tp": 8}}})
    table, row = plan_candidate(request)
    best = table.candidate(row)
    assert (row_reasons(table, row), best["prefill"]["tp"]) == ([], 8)
    assert best["tp"] * best["pp"] * best["dp"] <= 8
    assert max(table.columns["gpus"]) == 16


def test_recipes_checks_and_descriptions_keep_pools():
    request = asked()
    roles = {process.role for process in relaunch(make_recipe(request)).processes}
    assert roles == {"router", "prefill", "decode"}
    answer = judge_request(request)
    assert (answer["ok"], answer["candidate"]["prefill"]["replicas"]) == (True, 2)
    request = asked(speculative={"tokens": 2, "acceptance": 0.6})
    table, row = plan_candidate(request)
    described = type(request.candidate).model_validate(table.candidate(row))
    again, other = plan_candidate(request.model_copy(update={"candidate": described}))
    assert again.estimate(other) == table.estimate(row)


def alone(model=LLAMA, drafts=None, workload=CLOSED, tp=8):
    """The estimate of a server of eight H200, with drafts."""
    load = dict(workload) | ({"speculative": drafts} if drafts else {})
    return estimate_of(model, load, 1, "h200-sxm", tp=tp, dp=1, prefill=None)


def tpot_s(*args, **more):
    return alone(*args, **more)["serving"]["tpot_s"]


def drafted(method, acceptance=0.7, tokens=2):
    return {"tokens": tokens, "acceptance": acceptance, "method": method}


def test_a_step_yields_what_the_paper_tabulates():
    """Leviathan et al. 2023, table 1: speed-ups with a draft that costs nothing."""
    acceptance, tokens, yields = np.array(table("choices.yaml", "speed_ups")).T
    assert tokens_per_step(tokens, acceptance) == pytest.approx(yields, abs=0.005)
    assert tokens_per_step(np.zeros(3), np.array([0.0, 0.3, 0.99])).tolist() == [1.0, 1.0, 1.0]


@over("model", [LLAMA, DEEPSEEK])
def test_longer_drafts_are_more_work_and_higher_acceptance_less_time(model):
    lengths, shares = np.array([1, 2, 4, 8]), np.array([0.0, 0.5, 0.9])
    times = np.array(
        [[tpot_s(model, {"tokens": int(n), "acceptance": a}) for a in shares] for n in lengths]
    )
    yields = tokens_per_step(*np.broadcast_arrays(lengths[:, None] * 1.0, shares))
    assert (np.diff(times * yields, axis=0) >= 0).all()
    assert (np.diff(times, axis=1) < 0).all()


@over("model workload", product((LLAMA, DEEPSEEK, GPT_OSS, NEXT), (CLOSED, OPEN, STATIC)))
def test_drafts_that_are_never_accepted_only_cost(model, workload):
    split = {"workload": workload, "tp": 2 if model == NEXT else 8}
    plain = alone(model, **split)["serving"]
    for method, tokens in product(("eagle", "ngram"), (1, 3)):
        useless = alone(model, drafted(method, 0, tokens), **split)["serving"]
        assert useless["tpot_s"] > plain["tpot_s"]
        assert useless["output_tokens_per_s"] <= plain["output_tokens_per_s"]


def test_draft_layers_have_their_published_parameters_and_n_grams_run_none():
    """DeepSeek-V3's README_WEIGHTS: 11.5 billion, besides shared embedding and head."""
    model = catalog_model(DEEPSEEK)
    held = sum(item.numel for item in draft_layer(model).tensors(model.hidden))
    assert held + draft_projection(model) == pytest.approx(11.5e9, rel=0.01)
    assert "draft" not in alone(DEEPSEEK, drafted("ngram"))["breakdown_s"]["decode"]


def test_drafts_of_a_split_go_before_those_of_the_workload():
    stated = {"engine": "vllm", "tp": 8, "speculative": drafted("ngram")}
    load = {"speculative": {"tokens": 5, "acceptance": 0.1}}
    table, row = plan_candidate(make_request(workload=load, candidate=stated))
    assert table.candidate(row)["speculative"] == drafted("ngram")


@over("where split", product(("workload", "candidate"), ({"tp": 8, "pp": 1, "dp": 1}, {})))
def test_recipes_start_what_drafts(where, split):
    """The checkpoint of a draft stays with the recipe, wherever it was named."""
    parts = {"candidate": {"engine": "vllm"} | split, "workload": {}}
    parts[where]["speculative"] = drafted("eagle")
    with pytest.raises(InputError, match="checkpoint of its own"):
        make_recipe(make_request(**parts))
    parts[where]["speculative"] = drafted("eagle") | {"model": "org/eagle-draft"}
    recipe = make_recipe(make_request(**parts))
    assert recipe.candidate["speculative"]["model"] == "org/eagle-draft"
    drafting = relaunch(recipe).options["speculative_config"]
    assert (drafting["model"], drafting["num_speculative_tokens"]) == ("org/eagle-draft", 2)
