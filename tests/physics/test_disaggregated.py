"""Prefill and decode pools: their rates, what goes between them, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from recipe_core.base.errors import InputError, RecipeError
from recipe_core.base.labels import split_name
from recipe_core.launch.serving.start import launch
from recipe_core.physics.serving.continuous_batching import decode_step
from recipe_core.physics.serving.estimates import estimate
from recipe_core.physics.serving.memory import memory as memory_of
from recipe_core.physics.serving.operators import Step, step_parts, total
from recipe_core.physics.serving.pools import transfer_bytes, transfer_s
from recipe_core.physics.serving.speculative import engine_step
from recipe_core.recipe import deployment_of, make_recipe, relaunch
from recipe_core.request.link import from_query, to_query
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import estimate_batch, plan_candidate
from recipe_core.search.problem import resolve
from recipe_core.search.serving_candidates import one_case
from recipe_core.search.verdict import check_request
from recipe_core.space.exchange import dispatching
from tests.conftest import make_request, request_values

LLAMA, DEEPSEEK = "meta-llama/Llama-3.1-70B-Instruct", "deepseek-ai/DeepSeek-V3"
POOLS = {"engine": "vllm", "tp": 4, "pp": 1, "dp": 2, "prefill": {"tp": 4, "replicas": 2}}
CLOSED = {"mode": "closed", "concurrency": 64}
OPEN = {"mode": "open", "request_rate": 4.0, "concurrency": None}
OFFLINE = {"mode": "offline", "requests": 4000, "concurrency": None}


def values(model=LLAMA, workload=CLOSED, nodes=2, device="h100-sxm", **candidate):
    return request_values(
        model, device, 8, nodes, workload=dict(workload), candidate=POOLS | candidate
    )


def estimate_of(*args, **parts):
    return estimate_batch([values(*args, **parts)])[0]


def columns(*args, **parts):
    """The setting and the one case of a request."""
    request = PlanRequest.parse(values(*args, **parts))
    exact = one_case(resolve(request), request.candidate)
    assert exact is not None
    return exact


def instant(setting):
    """The same devices on links that take no time."""
    free = {"value": 1e30}
    links = {}
    for name in ("fabric", "network"):
        link = getattr(setting.cluster, name)
        bandwidth, latency = (
            link.bandwidth_bytes_per_s.model_copy(update=free),
            link.latency_s.model_copy(update={"value": 1e-30}),
        )
        links[name] = link.model_copy(
            update={"bandwidth_bytes_per_s": bandwidth, "latency_s": latency}
        )
    return replace(setting, cluster=replace(setting.cluster, **links))


@pytest.mark.parametrize(
    ("model", "split", "prefill", "per_token"),
    [
        (LLAMA, {"tp": 4}, {"tp": 4}, 80 * 2 * 2 * 128 * 2),  # 2 of 8 heads a rank
        (
            LLAMA,
            {"tp": 8},
            {"tp": 2},
            80 * 4 * 2 * 128 * 2,
        ),  # the narrower pool holds 4 heads a rank
        (
            LLAMA,
            {"tp": 2, "pp": 2},
            {"tp": 4, "pp": 2},
            40 * 4 * 2 * 128 * 2,
        ),  # stages go side by side
        (DEEPSEEK, {"tp": 8}, {"tp": 8}, 61 * 576 * 2),  # a latent goes whole, once
        (DEEPSEEK, {"tp": 1, "dp": 8, "ep": 8}, {"tp": 8}, 61 * 576 * 2),
    ],
)
def test_the_cache_of_a_prompt_is_sent_by_as_many_ranks_as_the_narrower_pool_has(
    model, split, prefill, per_token
):
    chosen, cases = columns(model, **({"dp": 1} | split), prefill=prefill)
    assert transfer_bytes(chosen, cases)[0] == 1024 * per_token


@pytest.mark.parametrize(("tp", "link"), [(4, "fabric"), (8, "network")])
def test_the_transfer_takes_latency_and_bytes_over_the_rate_of_what_joins_the_pools(tp, link):
    """Two pools of four share a node of eight; two of eight do not."""
    chosen, cases = columns(tp=tp, dp=1, prefill={"tp": tp})
    profile = getattr(chosen.cluster, link)
    rate = profile.bandwidth_bytes_per_s.value * profile.efficiency.value
    latency = profile.latency_s.value + (
        profile.latency_per_rank_s.value if profile.latency_per_rank_s else 0.0
    )
    assert transfer_s(chosen, cases)[0] == pytest.approx(
        latency + transfer_bytes(chosen, cases)[0] / rate
    )


def test_a_rack_joins_pools_of_different_nodes():
    chosen, cases = columns(DEEPSEEK, nodes=8, device="gb200", tp=8, dp=1, prefill={"tp": 8})
    assert (
        transfer_s(chosen, cases)[0]
        < 0.2 * transfer_s(*columns(DEEPSEEK, device="b200-sxm", tp=8, dp=1, prefill={"tp": 8}))[0]
    )


@pytest.mark.parametrize("workload", [CLOSED, OPEN, OFFLINE], ids=lambda load: load["mode"])
def test_parts_add_up(workload):
    answer = estimate_of(workload=workload)
    assert sum(answer["breakdown_s"]["decode"].values()) == pytest.approx(
        answer["serving"]["tpot_s"], rel=1e-12
    )
    assert sum(answer["breakdown_s"]["prefill"].values()) == pytest.approx(
        answer["serving"]["ttft_s"], rel=1e-12
    )
    assert {"transfer", "handoff", "prompts_ahead"} <= set(answer["breakdown_s"]["prefill"])
    assert "prefill_interference" not in answer["breakdown_s"]["decode"]


@pytest.mark.parametrize("concurrency", [1, 7, 64, 2000])
def test_a_closed_loop_has_as_many_requests_in_it_as_are_in_flight(concurrency):
    """Little's law: requests per second × seconds of a request."""
    serving = estimate_of(workload={"mode": "closed", "concurrency": concurrency})["serving"]
    assert serving["output_tokens_per_s"] / 256 * serving["request_latency_s"] == pytest.approx(
        concurrency, rel=1e-4
    )


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_queued_requests_go_through_at_the_rate_of_the_slower_pool(replicas):
    answer = estimate_of(workload=OFFLINE, nodes=4, prefill={"tp": 4, "replicas": replicas})
    pools = answer["pools"]
    slower = min(pools["prefill"]["requests_per_s"], pools["decode"]["requests_per_s"])
    assert answer["serving"]["output_tokens_per_s"] / 256 == pytest.approx(slower, rel=0.02)
    assert pools["prefill"]["requests_per_s"] == pytest.approx(
        replicas * estimate_of(prefill={"tp": 4})["pools"]["prefill"]["requests_per_s"]
    )


@pytest.mark.parametrize("workload", [OPEN, CLOSED], ids=lambda load: load["mode"])
def test_more_prefill_replicas_lower_the_time_to_first_token_only(workload):
    answers = [
        estimate_of(workload=workload, nodes=4, prefill={"tp": 4, "replicas": n})["serving"]
        for n in (1, 2, 4)
    ]
    first = [answer["ttft_s"] for answer in answers]
    assert first == sorted(first, reverse=True)
    assert first[2] < first[0]
    assert [answer["tpot_s"] for answer in answers] == pytest.approx(
        [answers[0]["tpot_s"]] * 3, rel=0.02
    )


def test_with_nothing_to_wait_for_tpot_is_that_of_decoding_alone():
    """No transfer, little to prefill: as good as all requests decode at once, and none of their
    steps has a prompt in it.
    """
    chosen, cases = columns(
        workload=CLOSED | {"output_tokens": 4096}, nodes=8, prefill={"tp": 8, "replicas": 6}
    )
    free = instant(chosen)
    answer = estimate(free, cases)
    alone = float(
        total(engine_step(free, cases, decode_step(cases, cases.load / cases.replicas)))[0]
    )
    assert answer.serving.tpot_s[0] == pytest.approx(alone, rel=0.005)
    assert answer.serving.tpot_s[0] <= alone
    assert answer.serving.prefill["transfer"][0] < 1e-5


def test_decoding_is_not_disturbed_by_prompts():
    long_prompts = CLOSED | {"input_tokens": 8192, "concurrency": 32}
    shared = estimate_batch([values(workload=long_prompts, prefill=None)])[0]["serving"]
    assert estimate_of(workload=long_prompts)["serving"]["tpot_s"] < 0.9 * shared["tpot_s"]


def test_the_queue_for_a_step_of_one_prompt_is_that_of_deterministic_service():
    """M/D/1: a wait of ρ·s / 2(1 - ρ), with prompts as long as a step's budget and one replica."""
    load = {"mode": "open", "input_tokens": 8192, "output_tokens": 2, "concurrency": None}
    prefill = {"tp": 4}
    most = estimate_of(workload=load | {"request_rate": 0.01}, prefill=prefill)["pools"]["prefill"][
        "requests_per_s"
    ]
    for busy in (0.2, 0.5, 0.9):
        wait = estimate_of(workload=load | {"request_rate": busy * most}, prefill=prefill)[
            "breakdown_s"
        ]["prefill"]["prompts_ahead"]
        assert wait == pytest.approx(busy / (2 * (1 - busy)) / most, rel=0.01)


def test_an_arrival_rate_that_a_pool_cannot_serve_is_refused():
    most = min(estimate_of()["pools"][pool]["requests_per_s"] for pool in ("prefill", "decode"))
    for share, feasible in ((0.9, True), (1.1, False)):
        answer = estimate_of(workload=OPEN | {"request_rate": share * most})
        assert answer["feasible"] is feasible
    assert "requests/s arrive; this split serves" in answer["reasons"][0]


def test_one_call_or_many_say_the_same():
    plain = values(prefill=None)
    several = [values(), plain, values(prefill={"tp": 2}), values(workload=OPEN), values(tp=2)]
    assert estimate_batch(several) == [estimate_batch([value])[0] for value in several]


def test_both_pools_are_counted_and_shown():
    answer = estimate_of()
    assert answer["pools"]["prefill"]["gpus"] == answer["pools"]["decode"]["gpus"] == 8
    serving = answer["serving"]
    assert serving["output_tokens_per_s_per_gpu"] * 16 == pytest.approx(
        serving["output_tokens_per_s"]
    )
    for memory in (answer["memory"], answer["memory"]["prefill"]):
        parts = ("weights_bytes", "kv_needed_bytes", "activations_bytes", "runtime_bytes")
        assert sum(memory[name] for name in parts) == memory["total_bytes"]
    assert any("pool bounds the rate" in note for note in answer["notes"])
    table, row = plan_candidate(PlanRequest.parse(values()))
    assert split_name(table.candidate(row)) == "tp 4 · dp 2, prefill on 2 × tp 4"


def test_what_is_left_open_is_chosen_beside_the_prefill_pool():
    request = PlanRequest.parse(values() | {"candidate": {"prefill": {"tp": 8}}})
    table, row = plan_candidate(request)
    best = table.candidate(row)
    assert table.reasons(row) == []
    assert best["prefill"]["tp"] == 8
    assert best["tp"] * best["pp"] * best["dp"] <= 8
    assert max(table.columns["gpus"]) == 16


def test_drafts_go_with_pools():
    plain, drafts = (
        estimate_of()["serving"],
        estimate_of(speculative={"tokens": 3, "acceptance": 0.8}),
    )
    assert drafts["serving"]["tpot_s"] < 0.7 * plain["tpot_s"]
    assert drafts["breakdown_s"]["decode"]["draft"] > 0


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        ({"dp": 8}, "tp(4) × pp(1) × dp(8) + a prefill pool of 8 = 40 devices; only 16 available"),
        (
            {"replicas": 3},
            "tp(4) × pp(1) × dp(2) × 3 replicas + a prefill pool of 8 = 32 devices; "
            "only 16 available",
        ),
        ({"prefill": {"tp": 1}}, "prefill pool: needs "),
        ({"prefill": {"tp": 3}}, "prefill pool: 64 attention heads are not divisible by tp 3"),
        ({"engine": "transformers"}, "cannot transfer KV caches from a prefill pool"),
    ],
)
def test_pools_that_cannot_run_say_why(candidate, reason):
    answer = estimate_of(**candidate)
    assert not answer["feasible"]
    assert any(reason in said for said in answer["reasons"])


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"workload": {"mode": "static", "batch": 8, "concurrency": None}}, "candidate.prefill"),
        ({"candidate": {"prefill": None, "replicas": 2}}, "candidate.replicas"),
        (
            {"objective": {"limits": {"ttft_ms": 500, "percentile": 95}}},
            "objective.limits.percentile",
        ),
        ({"candidate": {"prefill": {"pp": 2}}}, "candidate.prefill.tp"),
        ({"candidate": {"prefill": {"tp": 2, "zp": 2}}}, "candidate.prefill.zp"),
    ],
)
def test_what_pools_do_not_go_with_is_an_error(parts, field):
    request = request_values(nodes=2, **(parts | {"candidate": POOLS | parts.get("candidate", {})}))
    with pytest.raises(InputError) as caught:
        plan_candidate(PlanRequest.parse(request))
    assert caught.value.field == field


def test_a_prefill_pool_that_takes_every_device_leaves_no_split():
    with pytest.raises(RecipeError, match="no split"):
        plan_candidate(make_request(candidate={"prefill": {"tp": 8}}))


def test_recipes_keep_pools_and_requests_are_checked():
    request = PlanRequest.parse(values())
    started = relaunch(make_recipe(request))
    assert {p.role for p in started.processes} == {"router", "prefill", "decode"}
    answer = check_request(request)
    assert answer["ok"]
    assert answer["candidate"]["prefill"]["replicas"] == 2


def test_links_keep_pools():
    request = PlanRequest.parse(values())
    assert from_query(to_query(request)) == (request, [])


def test_a_described_candidate_asks_for_the_same():
    request = PlanRequest.parse(values(speculative={"tokens": 2, "acceptance": 0.6}))
    table, row = plan_candidate(request)
    again, other = plan_candidate(
        request.model_copy(
            update={"candidate": type(request.candidate).model_validate(table.candidate(row))}
        )
    )
    assert again.estimate(other) == table.estimate(row)


def test_numbers_stay_finite_for_every_pool_size():
    loads = [1, 10, 1000, 100_000]
    every = [
        values(
            workload={"mode": "closed", "concurrency": load},
            nodes=8,
            dp=dp,
            prefill={"tp": 2, "pp": pp, "replicas": n},
        )
        for load in loads
        for dp in (1, 4)
        for pp in (1, 2)
        for n in (1, 8)
    ]
    for answer in estimate_batch(every):
        assert answer["feasible"], answer["reasons"]
        assert all(np.isfinite(value) and value > 0 for value in answer["serving"].values())
        assert 0 < answer["pools"]["prefill"]["busy"] <= 1.0001
        assert 0 < answer["pools"]["decode"]["busy"] <= 1.0001


RACK = {"engine": "sglang", "tp": 1, "dp": 32, "ep": 32, "max_num_seqs": 256}
R1_FP4 = "nvidia/DeepSeek-R1-0528-FP4"


def rack(model=R1_FP4, device="gb200", **candidate):
    """A request for a decode pool over eight nodes, and a prefill pool on one."""
    split = RACK | {"prefill": {"tp": 1, "dp": 4, "ep": 4}} | candidate
    return values(model, nodes=12, device=device, **split) | {
        "hardware": {"device": device, "per_node": 4, "nodes": 12}
    }


def gathering(setting):
    """The same where the engine never dispatches."""
    split = setting.engine.split
    exchange = split.exchange.model_copy(update={"between_nodes": None})
    split = split.model_copy(update={"exchange": exchange})
    return replace(setting, engine=setting.engine.model_copy(update={"split": split}))


def decoded(setting, cases, batch=64.0):
    return step_parts(setting, cases, decode_step(cases, np.full(len(cases), batch)))


@pytest.mark.parametrize(
    ("change", "dispatched"),
    [
        ({}, "nvfp4"),
        ({"model": DEEPSEEK}, "fp8"),
        ({"dp": 8, "ep": 8}, "nvfp4"),
        ({"max_num_seqs": 1024}, "nvfp4"),
        ({"max_num_seqs": 1025}, None),  # more than its kernels take
        ({"dp": 4, "ep": 4}, None),  # in a node
        ({"dp": 16, "tp": 2, "ep": 16}, None),  # experts are cut
        ({"device": "b200-sxm"}, None),  # no fabric between nodes
        ({"model": "moonshotai/Kimi-K2-Thinking"}, None),  # int4 experts
        ({"model": "Qwen/Qwen3-Next-80B-A3B-Instruct-FP8"}, None),  # ten experts a token
        ({"speculative": {"tokens": 1, "acceptance": 0.8, "method": "mtp"}}, None),
        ({"engine": "vllm"}, None),
        ({"prefill": None}, None),
    ],
)
def test_a_decode_pool_over_a_rack_dispatches_what_it_is_launched_with(change, dispatched):
    """The estimate, the words and the variables say the same."""
    request = PlanRequest.parse(rack(**change))
    setting, cases = one_case(resolve(request), request.candidate)
    assert dispatching(setting, cases).tolist() == [dispatched is not None]
    exchanged, gathered = (
        decoded(of, cases)["all_to_all"][0] for of in (setting, gathering(setting))
    )
    if dispatched is None:
        assert exchanged == gathered
    else:
        assert exchanged < 0.8 * gathered
    decode = started_pool(request)
    if setting.engine.name == "sglang":
        words = {
            "--moe-a2a-backend": "deepep" if dispatched else "none",
            "--deepep-mode": "low_latency" if dispatched else None,
            "--deepep-dispatcher-output-dtype": dispatched,
            "--moe-dense-tp-size": "1" if dispatched else None,
        }
        argv = list(decode.argv)
        for flag, word in words.items():
            assert (argv[argv.index(flag) + 1] if flag in argv else None) == word
    limit = decode.env.get("SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK")
    assert limit == (str(request.candidate.max_num_seqs) if dispatched else None)
    assert (decode.env.get("SGLANG_MOE_NVFP4_DISPATCH") == "1") == (dispatched == "nvfp4")


def started_pool(request):
    """The first process that answers or decodes."""
    table, row = plan_candidate(request)
    started = launch(deployment_of(table, row))
    return next(p for p in started.processes if p.role in ("decode", "server"))


def test_a_prefill_pool_gathers():
    request = PlanRequest.parse(rack(prefill={"tp": 1, "dp": 8, "ep": 8}))
    setting, cases = one_case(resolve(request), request.candidate)
    pool, prompts = cases.prefill_pool, np.array([4096.0])
    step = Step(prompts, prompts / 2, 0 * prompts, 0 * prompts, 0 * prompts + 1)
    assert step_parts(setting, pool, step) == step_parts(gathering(setting), pool, step)
    table, row = plan_candidate(request)
    started = launch(deployment_of(table, row))
    prefill = next(p for p in started.processes if p.role == "prefill")
    assert prefill.argv[prefill.argv.index("--moe-a2a-backend") + 1] == "none"
    assert "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK" not in prefill.env
    assert "deep_ep" in started.requires


def test_a_dispatch_has_a_slot_for_each_token_and_expert():
    """DeepEP's layout: 2.1 GB for 128 tokens, 288 experts and a hidden size of 7168."""
    request = PlanRequest.parse(rack(max_num_seqs=128))
    setting, cases = one_case(resolve(request), request.candidate)
    sequences = np.ones(1)
    with_slots, without = (
        memory_of(of, cases, sequences).runtime_bytes[0] for of in (setting, gathering(setting))
    )
    assert with_slots - without == 4 * 128 * 256 * 7168 * 2
    assert (with_slots - without) * 288 / 256 == pytest.approx(2.116e9, rel=0.01)


def test_many_cases_dispatch_where_each_alone_does():
    several = [rack(), rack(dp=4, ep=4), rack(dp=8, ep=8), rack(max_num_seqs=2048), rack(tp=2)]
    assert estimate_batch(several) == [estimate_batch([value])[0] for value in several]


def test_decode_pools_of_a_rack_take_the_time_that_was_measured():
    """InferenceX, SGLang 0.5.8 on GB200 and GB300, 1,024 + 1,024 tokens, 32 ranks decode."""
    measured = (("gb200", 2048, 16.98), ("gb200", 4096, 21.67), ("gb300", 4096, 21.04))
    for device, concurrency, tpot_ms in measured:
        request = rack(
            device=device,
            max_num_seqs=concurrency // 32,
            prefill={"tp": 1, "dp": 4, "ep": 4, "replicas": 4},
        )
        load = {"mode": "closed", "concurrency": concurrency}
        request["workload"] |= load | {"input_tokens": 1024, "output_tokens": 1024}
        answer = estimate_batch([request])[0]
        assert 1e3 * answer["serving"]["tpot_s"] == pytest.approx(tpot_ms, rel=0.3)
