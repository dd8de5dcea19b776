"""Training through its doors: steps, runs that fail and shrink, refusals, plans."""

import numpy as np
import pytest

from recipe_core.physics.training.elastic import elastic_nodes, next_smaller
from recipe_core.physics.training.loss_chunks import decided
from recipe_core.physics.training.memory import memory
from recipe_core.physics.training.run import goodput, interval_s
from recipe_core.physics.training.schedule import bubble_micro_batches
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan, plan_candidate
from recipe_core.search.problem import resolve
from recipe_core.search.training_candidates import settings, shared_columns
from recipe_core.space.training import SCHEDULES, training_cases
from tests.fixtures.training import training_answer as answer
from tests.fixtures.training import training_columns, training_request
from tests.fixtures.training import training_values as values

SPLIT = {"engine": "megatron", "tp": 2, "pp": 4, "dp": 8, "zero_stage": 1, "micro_batch": 1}
SPLIT |= {"recompute": "none"}


def test_young_dalys_interval_loses_least() -> None:
    """sqrt(2 · write · MTBF); longer and shorter ones waste more."""
    write, mtbf = np.array([60.0]), np.array([36_000.0])
    best = interval_s(write, mtbf)
    assert best[0] == pytest.approx(np.sqrt(2 * 60 * 36_000))
    kept = [goodput(write, best * factor, mtbf, 600.0)[0] for factor in (0.25, 1.0, 4.0)]
    assert max(kept) == kept[1] > 0.9
    # 16,384 devices with the default MTBF: 419 interruptions in 54 days (arXiv:2407.21783)
    assert pytest.approx(419, rel=0.01) == 54 * 86400 / (1.824e8 / 16384)


def test_a_plan_ranks_by_throughput_has_a_front_and_chooses_what_is_left_open() -> None:
    view = plan(training_request(nodes=1, global_batch=64)).to_json(5)
    rates = [each["estimate"]["training"]["tokens_per_s"] for each in view["candidates"]]
    assert rates == sorted(rates, reverse=True)
    best = view["candidates"][0]
    again = answer(best["candidate"], nodes=1, global_batch=64)["training"]["step_s"]
    assert again == pytest.approx(best["estimate"]["training"]["step_s"])
    table = plan(training_request(nodes=1, sequence_length=4096, global_batch=64))
    front = np.flatnonzero(table.front_of("peak_memory_bytes", "tokens_per_s"))
    memory, rate = (table.columns[name] for name in ("peak_memory_bytes", "tokens_per_s"))
    assert len(front) > 2
    for i in front:
        assert not ((memory[table.order] < memory[i]) & (rate[table.order] > rate[i])).any()
    assert np.max(rate[front]) == np.max(rate[table.order])
    asked = training_request({"tp": 2, "recompute": "full"}, nodes=1, global_batch=64)
    table, row = plan_candidate(asked)
    chosen = table.candidate(row)
    assert (chosen["tp"], chosen["recompute"]) == (2, "full")
    assert table.feasible[row]


def test_the_fewest_devices_that_train_a_model_are_found_or_the_nearest_is_named() -> None:
    value = values(nodes=2, global_batch=64) | {"objective": {"optimize": "gpus"}}
    first = plan(PlanRequest.parse(value)).to_json(1)["candidates"][0]["candidate"]
    assert 1 < first["tp"] * first["pp"] * first["cp"] * first["dp"] <= 4
    # a 70B model on one node: not with AdamW's states on the devices, but on more nodes
    value = values(model="meta-llama/Llama-3.1-70B", sequence_length=4096, global_batch=64)
    value |= {"hardware": {"device": "a100-sxm-40gb"}, "options": {"nodes": "all"}}
    view = plan(PlanRequest.parse(value)).to_json(3)
    assert not view["candidates"]
    assert all("memory" in reason or "needs" in reason for reason in view["nearest"]["reasons"])
    nodes = [change["set"].get("hardware.nodes", 1) for change in view["nearest"]["changes"]]
    assert max(nodes) > 1


def test_a_loss_is_made_in_pieces_beside_rows_that_fit() -> None:
    """Columns with and without a pipeline: only what did not fit is computed again."""
    asked = resolve(training_request({"engine": "torchtitan"}, 1))
    columns = {"pp": np.array([1, 2, 1]), "dp": np.array([8, 4, 8]), "recompute": 2}
    columns |= {"micro_batch": np.array([16, 1, 1]), "zero_stage": 3}
    setting = settings(asked)[0]
    cases = training_cases(3, **columns, **shared_columns(asked, asked.cluster))
    cases, mem = decided(setting, cases)
    assert cases.fused_loss.tolist() == [1, 0, 0]
    again = memory(setting, cases)
    assert np.array_equal(mem.peak_bytes, again.peak_bytes)
    assert np.array_equal(mem.by_stage, again.by_stage, equal_nan=True)


def test_parts_make_the_step_and_the_run() -> None:
    got = answer(SPLIT, tokens=1e12)
    step, run, memory = got["training"], got["run"], got["memory"]
    assert got["feasible"]
    assert len(step["memory_by_stage_bytes"]) == 4
    assert step["peak_memory_bytes"] == memory["total_bytes"]
    stage = memory["stages"][memory["fullest_stage"]]
    assert sum(stage.values()) == pytest.approx(memory["total_bytes"])
    # 6 · 7.5 G (without the lookup) and causal attention, 6 · 32 · 4,096 · 8,192
    per_token = step["flops_per_s_per_gpu"] / step["tokens_per_s_per_gpu"]
    flops = 6 * (8.030e9 - 128256 * 4096) + 6 * 32 * 4096 * 8192
    assert per_token == pytest.approx(flops, rel=1e-3)
    assert step["mfu"] == pytest.approx(step["flops_per_s_per_gpu"] / 989.4e12, rel=1e-3)
    assert run["steps"] == np.ceil(1e12 / (256 * 8192))
    assert run["wall_s"] == pytest.approx(run["steps"] * step["step_s"] / run["goodput"])
    assert got["cost"]["usd"] == pytest.approx(got["cost"]["usd_per_hour"] * run["wall_s"] / 3600)
    assert run["checkpoint_bytes"] == pytest.approx(14 * 8.03e9, rel=1e-3)
    assert answer(SPLIT)["run"]["wall_s"] is None


def test_bubbles_are_those_of_the_schedules() -> None:
    """(p - 1)/v micro-batches (Narayanan et al.); none for ZB-V."""
    sizes = {"sequence_length": 4096, "global_batch": 64, "nodes": 1, "pp": 8}
    for schedule, chunks, expected in (
        ("1f1b", 1, 7),
        ("interleaved", 4, 7 / 4),
        ("gpipe", 1, 7),
        ("zb-v", 2, 0),
    ):
        scheduled = {"virtual_stages": chunks, "schedule": SCHEDULES.index(schedule)}
        found = bubble_micro_batches(training_columns(1, **sizes, **scheduled))[0]
        assert found == pytest.approx(expected)


def test_a_batch_is_kept_where_nodes_fail_and_fp16_gradients_count() -> None:
    """256 sequences over 8 replicas a node: 8, 4, 2 or 1 nodes, and no others."""
    cases = training_columns(1, dp=64, global_batch=256, nodes=8)
    assert elastic_nodes(cases, 1, 0) == [1, 2, 4, 8]
    assert [next_smaller(cases, least)[0] for least in (1, 5)] == [4, 0]
    # Megatron Core's distributed optimizer: 4 + 16/d with fp16 gradients
    memory = answer(SPLIT | {"tp": 8, "pp": 1, "precision": "fp16"})["memory"]
    parts = ("parameters", "gradients", "optimizer", "master")
    states = sum(memory[f"{part}_bytes"] for part in parts)
    assert states == pytest.approx(8.03e9 / 8 * (4 + 16 / 8), rel=0.01)
