"""Frozen bases in four bits, and optimizer states by format: bytes, time, and what is gathered."""

import numpy as np
import pytest

from oracle.training import fsdp_traffic
from recipe_core.estimates.columns.training import RECOMPUTE
from recipe_core.estimates.training.frozen_base import dequantize_s, frozen_base_bytes
from recipe_core.estimates.training.memory import training_memory
from recipe_core.estimates.training.optimizer_states import optimizer_state_bytes, update_bytes
from recipe_core.estimates.training.schedule import training_step_parts
from recipe_core.estimates.training.stages import parameters_by_stage
from recipe_core.plans.problem import resolve_problem
from recipe_core.plans.training_settings import training_settings
from tests.fixtures.rows import over, table
from tests.fixtures.training import training_answer as answer
from tests.fixtures.training import training_columns as cases
from tests.fixtures.training import training_request
from tests.fixtures.training import training_setting as setting

QLORA = {"method": "qlora"}
ONE = {"engine": "trl", "tp": 1, "pp": 1, "dp": 1, "micro_batch": 1, "zero_stage": 0}
ONE |= {"recompute": "full"}
SHORT = {"sequence_length": 256, "global_batch": 8, "tokens": 1e7}


@over("model engine device picoseconds", table("frozen_bases", "passes"))
def test_a_pass_over_a_base_takes_what_was_published(model, engine, device, picoseconds):
    asked = training_request({"engine": engine}, 1, model, {"device": device}, **QLORA)
    chosen = training_settings(resolve_problem(asked))[0]
    layer = chosen.model.layers[0]
    weights = sum(item.numel for item in layer.tensors(chosen.model.hidden) if item.matrices)
    seconds = dequantize_s(chosen, cases(1), layer)[0]
    assert 1e12 * seconds / weights == pytest.approx(picoseconds, rel=0.1)


def test_every_pass_of_every_micro_batch_turns_the_weights_anew():
    splits = cases(3, recompute=np.array([0, 2, 2]), global_batch=np.array([4, 4, 8]))
    parts = training_step_parts(setting("trl", **QLORA), splits)
    plain = training_step_parts(setting("trl", method="lora"), splits)
    one_pass = parts["forward_dequantize"]
    assert not plain["forward_dequantize"].any()
    assert parts["backward_dequantize"] == pytest.approx(one_pass)
    assert 2 * one_pass[:2] == pytest.approx(one_pass[[2, 2]])
    repeated = parts["recompute"] - plain["recompute"]
    assert repeated == pytest.approx(one_pass * (splits.recompute == RECOMPUTE.index("full")))


def test_four_bits_are_gathered_and_scales_stay_whole_on_every_device():
    splits = cases(1, dp=8, zero_stage=3)
    lora, qlora = (setting("trl", method=method) for method in ("lora", "qlora"))
    rank, m = parameters_by_stage(qlora, splits), float(splits.micro_batches[0])
    layers, tables, adapters = (
        float(part[0, 0]) for part in (rank.dense, rank.vocabulary, rank.adapters)
    )
    narrow, wide = (float(fsdp_traffic(work, splits)["shard"][0, 0]) for work in (qlora, lora))
    assert wide - narrow == pytest.approx(2 * m * 1.5 * layers)  # half a byte of a weight, not 2
    stored = training_memory(qlora, splits).parts["parameters"][0, 0]
    divided = (0.5 * layers + 2 * tables + 4 * adapters) / 8
    assert stored == pytest.approx(divided + 0.0159 * layers)
    assert frozen_base_bytes(qlora) == pytest.approx(0.5159 * layers + 2 * tables, rel=1e-3)
    # weights in buffers (GPTQ) are not divided at all
    gptq = setting("trl", "Qwen/Qwen1.5-7B-Chat-GPTQ-Int4", **QLORA)
    sizes = [
        training_memory(gptq, cases(1, dp=dp, zero_stage=3)).parts["parameters"][0, 0]
        for dp in (2, 8)
    ]
    whole = 0.5195 * float(parameters_by_stage(gptq, splits).dense[0, 0])
    assert whole < sizes[1] < sizes[0] < 1.4 * whole


def test_a_small_card_is_slower_with_four_bits_in_time_energy_and_cost():
    card = {"device": "l40s", "per_node": 1, "usd_per_device_hour": 1.0}
    lora, qlora = (
        answer(ONE, 1, hardware=card, method=method, **SHORT) for method in ("lora", "qlora")
    )
    slower = qlora["training"]["step_s"] / lora["training"]["step_s"]
    assert 1.3 < slower < 2
    for part, name in (("energy", "joules_per_token"), ("cost", "usd")):
        assert qlora[part][name] / lora[part][name] == pytest.approx(slower, rel=0.05)


@over("engine optimizer states kept moved", table("frozen_bases", "optimizers"))
def test_states_and_updates_follow_the_format_of_what_is_trained(
    engine, optimizer, states, kept, moved
):
    chosen = setting(engine, method="pretrain", optimizer=optimizer, state_dtype=states)
    assert optimizer_state_bytes(chosen) == pytest.approx(kept)
    assert update_bytes(chosen) == pytest.approx(moved)


def test_all_states_in_16_bits_take_8_bytes_a_parameter_and_fit_one_card():
    card = {"device": "a100-sxm-80gb", "per_node": 1}
    work = {"method": "finetune", "state_dtype": "bf16", "sequence_length": 2048}
    found = answer(ONE, 1, "meta-llama/Llama-3.1-8B", card, global_batch=4, **work)
    gib = {name: size / 2**30 for name, size in found["memory"].items() if name.endswith("bytes")}
    assert found["feasible"]
    assert gib["optimizer_bytes"] == pytest.approx(29.9, abs=0.05)
    assert gib["parameters_bytes"] == pytest.approx(14.96, abs=0.05)
    assert 62 < gib["total_bytes"] < 66


def test_paged_states_are_counted_on_the_device_and_a_note_says_so():
    kept = []
    for name in ("adamw-8bit", "paged-adamw-8bit"):
        found = answer(ONE, 1, method="lora", optimizer=name, **SHORT)
        kept.append((found["memory"]["optimizer_bytes"], "pages" in str(found["notes"])))
    assert kept == [(kept[0][0], False), (kept[0][0], True)]
