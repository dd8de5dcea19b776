"""The search: what varies, what is compared, and that alone and together are the same bits."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.base.errors import InputError
from recipe_core.recipe import make_recipe
from recipe_core.search.evaluated import CHUNK, evaluate
from recipe_core.search.plans import plan, plan_candidate
from recipe_core.search.problem import resolve
from recipe_core.search.rows import pareto_front
from recipe_core.search.sensitivity import flips
from recipe_core.search.serving_candidates import every_case
from recipe_core.search.serving_plan import PHYSICS
from recipe_core.space.splits import enumerate_splits
from tests.conftest import LLAMA_70B, make_request
from tests.fixtures.sizes import examples

MIXED = (
    "openai/gpt-oss-120b",
    "deepseek-ai/DeepSeek-V3",
    LLAMA_70B,
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
)


def test_candidates_alone_and_together_are_the_same_bits():
    """A thousand of them in the full run."""
    rng = np.random.default_rng(5)
    draws, compared = examples(250, least=40), 0
    for model in MIXED:
        found = resolve(
            make_request(
                model,
                nodes=4,
                options={"loads": [1, 7, 64, 500], "max_batched_tokens": [2048, 8192]},
            )
        )
        setting, cases = every_case(found)[0]
        together = evaluate(PHYSICS, setting, cases)
        for i in rng.choice(len(cases), draws, replace=False):
            alone = evaluate(PHYSICS, setting, cases.take([i]))
            assert alone.feasible[0] == together.feasible[i]
            for name in PHYSICS.quantities:
                assert np.array_equal(
                    alone.quantities[name][0], together.quantities[name][i], equal_nan=True
                ), (model, i, name)
            compared += 1
    assert compared == draws * len(MIXED)


def test_rows_beyond_a_chunk_have_their_details_too():
    found = resolve(make_request(nodes=4, options={"loads": [1 + n for n in range(256)]}))
    block = evaluate(PHYSICS, *every_case(found)[0])
    assert len(block.legal) > CHUNK
    assert block.estimates is None
    last = int(block.legal[-1])
    assert block.row(last).memory.total_bytes == block.quantities["total_bytes"][last]


def test_every_number_of_devices_is_tried():
    splits = enumerate_splits(12, shares_experts="none")
    assert {3, 6, 12} <= set((splits["tp"] * splits["pp"] * splits["dp"]).tolist())
    ranked = plan(make_request("Qwen/Qwen3-8B", per_node=8, options={"nodes": "any"})).columns
    assert set(ranked["gpus"][ranked["feasible"]].tolist()) == set(range(1, 9))


def test_experts_are_shared_by_divisors_where_the_engine_can():
    shared = enumerate_splits(8, shares_experts="divisors")
    rows = {
        (int(tp), int(pp), int(dp), int(ep))
        for tp, pp, dp, ep in zip(*(shared[n] for n in ("tp", "pp", "dp", "ep")), strict=True)
    }
    assert {(8, 1, 1, 1), (8, 1, 1, 2), (8, 1, 1, 4), (8, 1, 1, 8)} <= rows


def test_a_shared_cache_holds_more_and_its_copies_bound_it():
    """Kimi K2 on 8 H200: vLLM logged 8 times the tokens with decode context parallelism 8 (the
    latent is replicated over tp).
    """
    request = make_request(
        "deepseek-ai/DeepSeek-V3",
        "h200-sxm",
        workload={"max_context": 16_384},
        options={"context_parallel": True, "nodes": "all"},
    )
    table = plan(request)
    c = table.columns
    tokens = {
        int(c["cp"][row]): float(c["kv_cache_tokens"][row])
        for row in range(len(table))
        if c["tp"][row] == 8 and c["ep"][row] == 1
    }
    assert set(tokens) == {1, 2, 4, 8}
    for few, many in pairwise(sorted(tokens)):
        assert tokens[many] == pytest.approx(2 * tokens[few], rel=0.01)
    grouped, row = plan_candidate(
        make_request(candidate={"engine": "vllm", "tp": 8, "pp": 1, "dp": 1, "cp": 2})
    )
    assert grouped.reasons(row) == ["tp 8 puts each of 8 KV heads on 1 rank, not divisible by cp 2"]


def test_loads_and_limits_of_a_step_are_combined_with_legal_splits():
    plain, table = (
        plan(make_request()),
        plan(make_request(options={"loads": [8, 256], "max_batched_tokens": [2048, 4096]})),
    )
    c = table.columns
    legal = int((~np.isnan(plain.columns["total_bytes"])).sum())
    assert len(table) == len(plain) - legal + legal * 3 * 2
    assert set(c["load"][c["feasible"]].tolist()) == {8, 64, 256}
    view = table.to_json(1)["candidates"][0]
    assert view["load"] == c["load"][table.order[0]]


def test_goodput_is_the_best_throughput_within_the_limits():
    """More in flight serves more tokens, until the limit on time per token."""
    loads = [1, 4, 16, 64, 256, 1024]
    parts = {
        "objective": {"optimize": "throughput", "limits": {"tpot_ms": 25}},
        "options": {"loads": loads},
    }
    table = plan(make_request(workload={"concurrency": 1}, **parts))
    best = table.at(int(table.order[0]))
    assert 1 < best[0].cases.load[best[1]] < 1024
    assert table.columns["tpot_s"][table.order].max() <= 0.025


def test_the_least_hardware_for_a_rate():
    """Twice the rate takes more devices, and each answer serves what arrives."""
    gpus = []
    for rate in (2.0, 8.0, 32.0):
        workload = {"mode": "open", "concurrency": None, "request_rate": rate}
        table = plan(
            make_request(
                nodes=4,
                workload=workload,
                objective={"optimize": "gpus", "limits": {"tpot_ms": 50}},
            )
        )
        row = int(table.order[0])
        gpus.append(int(table.columns["gpus"][row]))
        assert table.columns["output_tokens_per_s"][row] == pytest.approx(rate * 256, rel=1e-6)
    assert gpus == sorted(gpus)
    assert gpus[0] < gpus[-1]


def test_devices_are_compared_side_by_side():
    other = {"device": "mi300x", "per_node": 8}
    table = plan(make_request(options={"hardware": [other]}, objective={"optimize": "cost"}))
    frame = table.to_frame()
    assert set(frame.device) == {"h100-sxm", "mi300x"}
    best = frame[frame["rank"] == 1].iloc[0]
    feasible = frame[frame.feasible]
    assert best.usd_per_million_output_tokens == pytest.approx(
        feasible.usd_per_million_output_tokens.min(), rel=1e-3
    )
    row = int(table.order[0])
    alone, at = plan_candidate(table.request_of(row))
    assert alone.problem.cluster.device.name == best.device
    assert alone.columns["tpot_s"][at] == table.columns["tpot_s"][row]


def test_an_unknown_device_beside_is_named_where_it_stands():
    with pytest.raises(InputError) as caught:
        plan(make_request(options={"hardware": [{"device": "mi300x"}, {"device": "nope"}]}))
    assert caught.value.field == "options.hardware.1.device"


def test_a_recipe_is_of_the_device_and_load_that_won():
    options = {"hardware": [{"device": "mi300x", "per_node": 8}], "loads": [8], "engines": ["vllm"]}
    request = make_request(options=options, objective={"optimize": "gpus"})
    recipe = make_recipe(request)
    assert recipe.device.name == "mi300x"
    assert "hardware" not in recipe.request["options"] or not recipe.request["options"]["hardware"]


def test_weights_lie_between_their_goals():
    def best(**objective):
        table = plan(make_request(nodes=2, objective=objective))
        row = int(table.order[0])
        return float(table.columns["tpot_s"][row]), float(
            table.columns["usd_per_million_output_tokens"][row]
        )

    fast, cheap, both = best(optimize="tpot"), best(optimize="cost"), best(orientation="balanced")
    assert fast[0] <= both[0] <= cheap[0]
    assert cheap[1] <= both[1] <= fast[1]
    assert best(weights={"tpot": 1, "cost": 1}) == both
    with pytest.raises(InputError, match="not both"):
        make_request(objective={"weights": {"tpot": 1}, "orientation": "latency"})


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"usd_per_million_output_tokens": 0.01}, "limit-usd-tokens"),
        ({"joules_per_token": 0.001}, "limit-energy"),
        ({"watts": 10}, "limit-watts"),
        ({"output_tokens_per_s_at_least": 1e9}, "limit-throughput"),
    ],
)
def test_each_limit_refuses_and_says_what_would_do(limits, code):
    table = plan(make_request(objective={"limits": limits}))
    assert not len(table.order)
    assert any(rule == code and broken.any() for rule, broken in table.blocks[0].rules())
    change = table.to_json()["nearest"]["changes"][0]["set"]
    name = next(iter(limits))
    relaxed = plan(make_request(objective={"limits": {name: change[f"objective.limits.{name}"]}}))
    assert len(relaxed.order)


points = st.lists(st.tuples(*[st.integers(0, 6)] * 3, st.booleans()), min_size=1, max_size=40)


@settings(deadline=None)
@given(points)
def test_a_front_of_three_columns(rows):
    columns = [np.array([row[k] for row in rows], dtype=float) for k in range(3)]
    among = np.array([row[3] for row in rows])
    front = pareto_front(*columns, among=among)
    values = np.stack(columns, axis=1)
    for i in range(len(rows)):
        beaten = any(
            among[j] and (values[j] <= values[i]).all() and (values[j] < values[i]).any()
            for j in range(len(rows))
        )
        twin = any(front[j] and (values[j] == values[i]).all() for j in range(len(rows)))
        assert front[i] == (among[i] and not beaten and (front[i] or not twin))
        if among[i] and not beaten:
            assert twin


def test_a_front_of_chosen_columns():
    table = plan(make_request())
    assert table.front_of("ttft_s", "tpot_s", "usd_per_million_output_tokens")[table.order].any()
    with pytest.raises(InputError, match="two or three columns"):
        table.front_of("tpot_s", "colour")


def test_sensitivity_names_what_flips_the_decision():
    table = plan(make_request(objective={"optimize": "cost", "limits": {"tpot_ms": 20}}, nodes=2))
    changes = flips(table)
    assert {"concurrency × 2", "input tokens +50%", "output tokens -50%"} <= {
        change.what for change in changes
    }
    for change in changes:
        request = table.request
        for field, value in change.fields.items():
            part, name = field.split(".")
            request = request.model_copy(
                update={part: getattr(request, part).model_copy(update={name: value})}
            )
        after = plan(request)
        assert change.candidate == (
            after.candidate(int(after.order[0])) if len(after.order) else None
        )


def test_a_tie_goes_to_the_simplest_and_is_counted():
    options = {"max_batched_tokens": [2048, 4096, 8192]}
    table = plan(
        make_request(
            "Qwen/Qwen3-8B",
            workload={"concurrency": 1},
            objective={"optimize": "gpus"},
            options=options,
        )
    )
    best = table.candidate(int(table.order[0]))
    assert best["tp"] == best["pp"] == best["dp"] == 1
    assert table.to_json(1)["counts"]["tied_with_best"] == table.tied == 2


def test_wasteful_pipelines_are_named_but_can_be_asked_for():
    table = plan(make_request(per_node=8, nodes=6))
    c = table.columns
    row = next(row for row in range(len(table)) if c["tp"][row] == 1 and c["pp"][row] == 45)
    assert (
        "45 stages hold up to 2 of 80 layers each, as 40 would; the other 5 add nothing"
        in table.reasons(row)[0]
    )
    stated, at = plan_candidate(
        make_request(per_node=8, nodes=6, candidate={"engine": "vllm", "tp": 1, "pp": 45, "dp": 1})
    )
    assert not any("stages" in reason for reason in stated.reasons(at))


def test_pools_are_searched_beside_plain_splits():
    request = make_request(
        options={"disaggregated": True},
        workload={"input_tokens": 4000, "concurrency": 32},
        objective={"optimize": "tpot"},
    )
    table = plan(request)
    pools = [row for row in map(int, table.order) if "prefill" in table.candidate(row)]
    assert pools
    assert all(table.columns["gpus"][row] <= 8 for row in pools)
    alone, at = plan_candidate(table.request_of(pools[0]))
    assert alone.columns["tpot_s"][at] == table.columns["tpot_s"][pools[0]]
    splits = {
        str(
            {
                k: v
                for k, v in table.candidate(row).items()
                if k in ("tp", "pp", "replicas", "prefill")
            }
        )
        for row in pools
    }
    assert len(splits) == len(pools)
    with pytest.raises(InputError, match="static batch"):
        plan(
            make_request(
                options={"disaggregated": True},
                workload={"mode": "static", "concurrency": None, "batch": 4},
            )
        )


@pytest.mark.parametrize(
    "options", [{"loads": [1, 64, 2000]}, {"disaggregated": True, "engines": ["vllm"]}]
)
def test_rows_written_together_are_those_written_alone(options):
    table = plan(make_request(MIXED[1], nodes=2, options=options))
    rows = np.random.default_rng(7).choice(len(table), 60, replace=False)
    assert table.candidates(rows) == [table.candidate(int(row)) for row in rows]
    assert table.estimates(rows) == [table.estimate(int(row)) for row in rows]
    assert table.sentences(rows) == [table.reasons(int(row)) for row in rows]
