"""A whole run: data, checkpoints, failures, elastic sizes, and what is offloaded or repeated."""

import pytest

from recipe_core.physics.training.elastic import elastic_nodes, next_smaller
from tests.fixtures.training import training_answer, training_columns

SPLIT = {"engine": "torchtitan", "tp": 1, "pp": 1, "dp": 64, "zero_stage": 3, "micro_batch": 1}
SPLIT |= {"recompute": "selective"}


def answer(candidate=None, **work):
    """The estimate of Llama 3.1 8B on 64 H100."""
    return training_answer(SPLIT | (candidate or {}), **work)


def step_s(answers):
    return [each["training"]["step_s"] for each in answers]


def test_steps_wait_for_slow_data_and_checkpoints_behind_training_stall_less() -> None:
    """64 replicas with one worker of 2,000 tokens/s each: 128,000 tokens/s bound the run."""
    slow = answer(loading={"workers": 1, "tokens_per_s_per_worker": 2000})
    assert slow["training"]["tokens_per_s"] == pytest.approx(128_000)
    assert any("data loading is the bottleneck" in note for note in slow["notes"])
    assert "data_loading" not in answer()["breakdown_s"]["step"]
    read = answer(loading={"read_bytes_per_s": 4e5, "bytes_per_token": 4})
    assert read["training"]["tokens_per_s"] == pytest.approx(1e5)
    assert read["run"]["data_bytes_per_s"] == pytest.approx(4e5)
    waits = answer(loading={"prefetch": 0})["breakdown_s"]["step"]["data_loading"]
    assert waits == pytest.approx(256 * 8192 / (64 * 2 * 2e6))
    plain, behind = answer()["run"], answer(checkpoints="asynchronous")["run"]
    assert behind["checkpoint_stall_s"] < 0.2 * plain["checkpoint_stall_s"]
    assert behind["checkpoint_s"] == plain["checkpoint_s"]
    assert behind["goodput"] > plain["goodput"]
    kept = answer(kept_checkpoints=5)["run"]["storage_bytes"]
    assert kept == pytest.approx(5 * plain["checkpoint_bytes"])
    for factor in (0.2, 5.0):
        stated_s = factor * plain["checkpoint_interval_s"]
        assert answer(checkpoint_interval_s=stated_s)["run"]["goodput"] < plain["goodput"]


def test_an_elastic_run_keeps_its_batch_even_and_spot_asks_how_long_it_is_kept() -> None:
    """256 sequences over 8 replicas a node: 8, 4, 2 or 1 nodes, and no others."""
    cases = training_columns(1, dp=64, global_batch=256, nodes=8)
    assert elastic_nodes(cases, 1, 0) == [1, 2, 4, 8]
    assert [next_smaller(cases, least)[0] for least in (1, 5)] == [4, 0]
    assert answer(min_nodes=2)["run"]["elastic_nodes"] == [2, 4, 8]
    # going on with fewer nodes beats waiting for a repair
    often = {"device_mtbf_hours": 500.0, "repair_s": 36_000.0}
    rigid, elastic, spare = (
        answer(**(often | more))["run"]["goodput"]
        for more in ({}, {"min_nodes": 1}, {"repair_s": 0.0})
    )
    assert rigid < elastic < spare
    # Nodes of 8 devices that are kept for 12 hours: one of 8 goes every 1.5 hours
    spot = {"hardware": {"commitment": "spot"}, "tokens": 1e10}
    usual, unsaid, said = (
        answer(**work) for work in ({"tokens": 1e10}, spot, spot | {"device_mtbf_hours": 8 * 12.0})
    )
    assert unsaid["run"]["goodput"] == usual["run"]["goodput"]
    assert unsaid["cost"]["usd"] < usual["cost"]["usd"]
    assert any("device_mtbf_hours" in note and "8 times" in note for note in unsaid["notes"])
    assert said["run"]["mtbf_s"] == pytest.approx(1.5 * 3600)
    assert said["run"]["goodput"] < unsaid["run"]["goodput"]
    assert said["cost"]["usd"] > unsaid["cost"]["usd"]
    assert not any("spot" in note for note in said["notes"])
    reserved = answer(hardware={"commitment": "reserved"})["notes"]
    assert any("whole term" in note for note in reserved)


def test_offload_frees_memory_and_recomputing_some_layers_lies_between_none_and_all() -> None:
    here, away, disks = (
        answer({"offload": name}) for name in ("none", "optimizer", "optimizer-nvme")
    )
    assert away["memory"]["optimizer_bytes"] == 0
    assert away["memory"]["host_bytes"] == pytest.approx(here["memory"]["optimizer_bytes"])
    times = step_s((here, away, disks))
    assert times == sorted(times)
    rows = [answer({"recompute": "full", "recompute_layers": layers}) for layers in (1, 16, 32)]
    assert step_s(rows) == sorted(step_s(rows))
    kept = [row["memory"]["activations_bytes"] for row in rows]
    assert kept == sorted(kept, reverse=True)
    assert rows[2]["memory"] == answer({"recompute": "full"})["memory"]


def test_gradients_that_wait_are_whole_and_narrow_ones_take_less() -> None:
    often, once = answer({"gradient_sync": "micro-batch"}), answer({"gradient_sync": "step"})
    wide, narrow, each, whole = (
        found["memory"]["gradients_bytes"]
        for found in (*(answer(gradient_dtype=name) for name in ("fp32", "bf16")), often, once)
    )
    assert whole == pytest.approx(64 * each)
    assert once["training"]["step_s"] <= often["training"]["step_s"]
    assert wide == pytest.approx(2 * narrow)
    # Megatron Core's distributed optimizer: 4 + 16/d with fp16 gradients
    split = {"engine": "megatron", "tp": 8, "dp": 8, "zero_stage": 1, "precision": "fp16"}
    memory = answer(split)["memory"]
    parts = ("parameters", "gradients", "optimizer", "master")
    kept = sum(memory[f"{part}_bytes"] for part in parts)
    assert kept == pytest.approx(8.03e9 / 8 * (4 + 16 / 8), rel=0.01)


def test_dpo_packed_documents_and_rings_cost_what_they_add() -> None:
    plain, dpo = answer(), answer(method="dpo")
    assert dpo["memory"]["reference_bytes"] == pytest.approx(2 * 8.03e9 / 64, rel=1e-3)
    assert 1.15 < dpo["training"]["step_s"] / plain["training"]["step_s"] < 1.35
    whole, packed, padded = (
        answer(**work)["training"]["tokens_per_s"]
        for work in ({}, {"document_tokens": 1024}, {"document_tokens": 1024, "packed": False})
    )
    assert packed > whole
    assert padded == pytest.approx(packed / 8)
    # torchtitan's rows of 2024-12: 8 ranks a sequence take more than attention's share of the work
    # says
    one, ring = (answer(split)["breakdown_s"]["step"] for split in ({}, {"dp": 8, "cp": 8}))
    assert ring["forward_context_parallel"] > 0
    assert ring["forward_attention"] > 1.1 * one["forward_attention"]
