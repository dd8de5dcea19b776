"""A whole run: data, checkpoints, failures, elastic sizes, and what is offloaded or repeated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from recipe_core.physics.training.elastic import elastic_nodes, next_smaller
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan, plan_candidate
from recipe_core.space.training import training_cases

SPLIT = {
    "engine": "torchtitan",
    "tp": 1,
    "pp": 1,
    "dp": 64,
    "zero_stage": 3,
    "micro_batch": 1,
    "recompute": "selective",
}
SHAPE = {"sequence_length": 8192, "per_node": 8, "nodes": 8}


def answer(
    candidate: dict[str, Any] | None = None, hardware: dict[str, Any] | None = None, **workload: Any
) -> dict[str, Any]:
    """The estimate of Llama 3.1 8B on 64 H100."""
    asked = {"kind": "training", "sequence_length": 8192, "global_batch": 256} | workload
    value = {
        "model": "meta-llama/Llama-3.1-8B",
        "hardware": {"device": "h100-sxm", "nodes": 8} | (hardware or {}),
        "workload": asked,
    }
    table, row = plan_candidate(PlanRequest.parse(value | {"candidate": SPLIT | (candidate or {})}))
    return table.estimate(row).to_json()


def test_a_step_waits_for_slow_loaders() -> None:
    """64 replicas with one worker of 2,000 tokens/s each: 128,000 tokens/s bound the run."""
    slow = answer(loading={"workers": 1, "tokens_per_s_per_worker": 2000})
    assert slow["training"]["tokens_per_s"] == pytest.approx(128_000)
    assert any("data loading is the bottleneck" in note for note in slow["notes"])
    assert "data_loading" not in answer()["breakdown_s"]["step"]


def test_storage_and_prefetch_bound_data_too() -> None:
    read = answer(loading={"read_bytes_per_s": 4e5, "bytes_per_token": 4})
    assert read["training"]["tokens_per_s"] == pytest.approx(1e5)
    assert read["run"]["data_bytes_per_s"] == pytest.approx(4e5)
    waits = answer(loading={"prefetch": 0})["breakdown_s"]["step"]["data_loading"]
    assert waits == pytest.approx(256 * 8192 / (64 * 2 * 2e6))


def test_checkpoints_behind_training_stall_less() -> None:
    plain, behind = answer(), answer(checkpoints="asynchronous")
    assert behind["run"]["checkpoint_stall_s"] < 0.2 * plain["run"]["checkpoint_stall_s"]
    assert behind["run"]["checkpoint_s"] == plain["run"]["checkpoint_s"]
    assert behind["run"]["goodput"] > plain["run"]["goodput"]
    assert answer(kept_checkpoints=5)["run"]["storage_bytes"] == pytest.approx(
        5 * plain["run"]["checkpoint_bytes"]
    )


def test_the_best_interval_is_better_than_a_stated_one() -> None:
    best = answer()["run"]
    for factor in (0.2, 5.0):
        assert (
            answer(checkpoint_interval_s=factor * best["checkpoint_interval_s"])["run"]["goodput"]
            < best["goodput"]
        )


def test_an_elastic_run_keeps_its_batch_even() -> None:
    """256 sequences over 8 replicas a node: 8, 4, 2 or 1 nodes, and no others."""
    cases = training_cases(1, dp=64, global_batch=256, **SHAPE)
    assert elastic_nodes(cases, 1, 0) == [1, 2, 4, 8]
    assert next_smaller(cases, 1)[0] == 4
    assert next_smaller(cases, 5)[0] == 0
    assert answer(min_nodes=2)["run"]["elastic_nodes"] == [2, 4, 8]


def test_going_on_with_fewer_nodes_beats_waiting_for_a_repair() -> None:
    often = {"device_mtbf_hours": 500.0, "repair_s": 36_000.0}
    rigid, elastic, spare = (
        answer(**(often | more))["run"]["goodput"]
        for more in ({}, {"min_nodes": 1}, {"repair_s": 0.0})
    )
    assert rigid < elastic < spare


def test_spot_capacity_asks_how_long_it_is_kept() -> None:
    """Nodes of 8 devices that are kept for 12 hours: one of 8 goes every 1.5 hours."""
    usual, spot = answer(tokens=1e10), answer(hardware={"commitment": "spot"}, tokens=1e10)
    assert spot["run"]["goodput"] == usual["run"]["goodput"]
    assert spot["cost"]["usd"] < usual["cost"]["usd"]
    assert any("device_mtbf_hours" in note and "8 times" in note for note in spot["notes"])
    said = answer(hardware={"commitment": "spot"}, tokens=1e10, device_mtbf_hours=8 * 12.0)
    assert said["run"]["mtbf_s"] == pytest.approx(1.5 * 3600)
    assert said["run"]["goodput"] < spot["run"]["goodput"]
    assert said["cost"]["usd"] > spot["cost"]["usd"]
    assert not any("spot" in note for note in said["notes"])
    assert any(
        "whole term" in note for note in answer(hardware={"commitment": "reserved"})["notes"]
    )


def test_offload_frees_the_optimizers_memory_and_costs_time() -> None:
    here, away, disks = (
        answer({"offload": name}) for name in ("none", "optimizer", "optimizer-nvme")
    )
    assert away["memory"]["optimizer_bytes"] == 0
    assert away["memory"]["host_bytes"] == pytest.approx(here["memory"]["optimizer_bytes"])
    times = [each["training"]["step_s"] for each in (here, away, disks)]
    assert times == sorted(times)


def test_a_host_has_to_hold_what_is_offloaded() -> None:
    value = {"model": "meta-llama/Llama-3.1-405B", "hardware": {"device": "h100-sxm"}}
    value |= {"workload": {"kind": "training", "sequence_length": 4096, "global_batch": 8}}
    split = {
        "engine": "megatron",
        "tp": 8,
        "pp": 1,
        "dp": 1,
        "micro_batch": 1,
        "offload": "optimizer",
    }
    table, row = plan_candidate(PlanRequest.parse(value | {"candidate": split}))
    assert any("host memory" in reason for reason in table.reasons(row))


def test_recomputing_some_layers_lies_between_none_and_all() -> None:
    rows = [answer({"recompute": "full", "recompute_layers": layers}) for layers in (1, 16, 32)]
    whole = answer({"recompute": "full"})
    assert [row["training"]["step_s"] for row in rows] == sorted(
        row["training"]["step_s"] for row in rows
    )
    kept = [row["memory"]["activations_bytes"] for row in rows]
    assert kept == sorted(kept, reverse=True)
    assert rows[2]["memory"] == whole["memory"]


def test_gradients_that_wait_for_the_step_are_whole_and_travel_once() -> None:
    often, once = answer({"gradient_sync": "micro-batch"}), answer({"gradient_sync": "step"})
    assert once["memory"]["gradients_bytes"] == pytest.approx(
        64 * often["memory"]["gradients_bytes"]
    )
    assert once["training"]["step_s"] <= often["training"]["step_s"]


def test_16_bit_gradients_halve_theirs() -> None:
    wide, narrow = (
        answer(gradient_dtype=name)["memory"]["gradients_bytes"] for name in ("fp32", "bf16")
    )
    assert wide == pytest.approx(2 * narrow)


def test_fp16_with_loss_scaling_keeps_20_bytes_a_parameter() -> None:
    """Megatron Core's distributed optimizer: 4 + 16/d with fp16 gradients."""
    split = {
        "engine": "megatron",
        "tp": 8,
        "dp": 8,
        "zero_stage": 1,
        "precision": "fp16",
        "micro_batch": 1,
    }
    memory = answer(split)["memory"]
    kept = sum(
        memory[f"{part}_bytes"] for part in ("parameters", "gradients", "optimizer", "master")
    )
    assert kept == pytest.approx(8.03e9 / 8 * (4 + 16 / 8), rel=0.01)


def test_dpo_keeps_and_asks_a_second_model() -> None:
    plain, dpo = answer(), answer(method="dpo")
    assert dpo["memory"]["reference_bytes"] == pytest.approx(2 * 8.03e9 / 64, rel=1e-3)
    assert 1.15 < dpo["training"]["step_s"] / plain["training"]["step_s"] < 1.35


def test_packed_documents_attend_to_themselves_and_padding_trains_nothing() -> None:
    whole, packed = answer(), answer(document_tokens=1024)
    padded = answer(document_tokens=1024, packed=False)
    assert packed["training"]["tokens_per_s"] > whole["training"]["tokens_per_s"]
    assert padded["training"]["tokens_per_s"] == pytest.approx(
        packed["training"]["tokens_per_s"] / 8
    )


def test_a_ring_costs_attention_something() -> None:
    """torchtitan's rows of 2024-12: 8 ranks a sequence take more than attention's share of the work
    says.
    """
    one, ring = answer({"dp": 64}), answer({"dp": 8, "cp": 8})
    assert ring["breakdown_s"]["step"]["forward_context_parallel"] > 0
    attention = [each["breakdown_s"]["step"]["forward_attention"] for each in (one, ring)]
    assert attention[1] > 1.1 * attention[0]


def test_nothing_fits_says_what_would() -> None:
    """A 70B model on one node: not with AdamW's states on the devices, but on more nodes."""
    value = {
        "model": "meta-llama/Llama-3.1-70B",
        "hardware": {"device": "a100-sxm-40gb"},
        "options": {"nodes": "all"},
    }
    table = plan(
        PlanRequest.parse(
            value | {"workload": {"kind": "training", "sequence_length": 4096, "global_batch": 64}}
        )
    )
    view = table.to_json(3)
    assert not view["candidates"]
    assert all("memory" in reason or "needs" in reason for reason in view["nearest"]["reasons"])
    nodes = [change["set"].get("hardware.nodes", 1) for change in view["nearest"]["changes"]]
    assert max(nodes) > 1


def test_no_row_of_the_front_is_beaten_in_both() -> None:
    value = {"model": "meta-llama/Llama-3.1-8B", "hardware": {"device": "h100-sxm"}}
    table = plan(
        PlanRequest.parse(
            value | {"workload": {"kind": "training", "sequence_length": 4096, "global_batch": 64}}
        )
    )
    front = np.flatnonzero(table.front_of("peak_memory_bytes", "tokens_per_s"))
    memory, rate = (table.columns[name] for name in ("peak_memory_bytes", "tokens_per_s"))
    assert len(front) > 2
    for i in front:
        better = (memory[table.order] < memory[i]) & (rate[table.order] > rate[i])
        assert not better.any()
    assert np.max(rate[front]) == np.max(rate[table.order])
