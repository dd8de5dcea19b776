"""Memory of training against published facts: ZeRO's table, saved tensors, pipeline schedules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from recipe_core.base.units import GIB
from recipe_core.physics.training.activations import in_flight, layer_bytes
from recipe_core.physics.training.memory import Memory, memory
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import estimate_batch
from recipe_core.search.problem import resolve
from recipe_core.search.training_candidates import settings
from recipe_core.space.training import SCHEDULES, TrainingCases, TrainingSetting, training_cases

LLAMA_8B = "meta-llama/Llama-3.1-8B"
SHARED = {"sequence_length": 8192, "global_batch": 512, "per_node": 8, "nodes": 64}


def setting(engine: str = "torchtitan", model: Any = LLAMA_8B, **workload: Any) -> TrainingSetting:
    """A setting on 64 nodes of H100."""
    value = {"model": model, "hardware": {"device": "h100-sxm", "per_node": 8, "nodes": 64}}
    value |= {
        "workload": {"kind": "training", "sequence_length": 4096, "global_batch": 512} | workload,
        "candidate": {"engine": engine},
    }
    return settings(resolve(PlanRequest.parse(value)))[0]


def cases(n: int, **columns: Any) -> TrainingCases:
    """Cases of Llama's longest training sequences."""
    return training_cases(n, **(SHARED | columns))


def states(mem: Memory) -> np.ndarray:
    """Bytes of what is kept from step to step."""
    return np.asarray(
        sum(mem.parts[name][:, 0] for name in ("parameters", "gradients", "optimizer", "master"))
    )


@pytest.mark.parametrize(
    ("engine", "stage", "fixed", "divided"),
    [
        ("megatron", 0, 18, 0),
        ("megatron", 1, 6, 12),
        ("deepspeed", 1, 4, 12),
        ("deepspeed", 2, 2, 14),
        ("deepspeed", 3, 0, 16),
        ("torchtitan", 3, 0, 16),
        ("torchtitan", 0, 16, 0),
    ],
)
def test_states_are_those_of_zeros_table(engine: str, stage: int, fixed: int, divided: int) -> None:
    """Table 1 of ZeRO, and Megatron's distributed optimizer: 6 + 12/d bytes a parameter."""
    chosen = setting(engine)
    mem = memory(chosen, cases(1, dp=8, zero_stage=stage))
    assert states(mem)[0] == pytest.approx(
        chosen.model.parameters * (fixed + divided / 8), rel=1e-6
    )


def test_fsdp_from_8_to_128_devices_frees_16_bytes_a_parameter_and_shard() -> None:
    """torchtitan's published rows fall by 15.0 to 15.4 GiB; the states are 14.0 of it."""
    few, many = states(memory(setting(), cases(2, dp=np.array([8, 128]), zero_stage=3)))
    assert (few - many) / GIB == pytest.approx(14.0, abs=0.1)


@pytest.mark.parametrize(
    ("model", "devices", "sequences", "tokens", "measured_gib"),
    [
        (LLAMA_8B, 32, 2, 8192, 47.96),
        (LLAMA_8B, 64, 2, 8192, 46.97),
        ("Qwen/Qwen3-8B", 4, 16, 2048, 112.88),
        (LLAMA_8B, 4, 32, 2048, 179.94),
    ],
)
def test_torchtitans_published_rows(
    model: str, devices: int, sequences: int, tokens: int, measured_gib: float
) -> None:
    """Reserved memory of compiled models and losses with selective recomputation (torchtitan's
    benchmarks of 2025-06 and 2026-08).
    """
    shape = {
        "dp": devices,
        "zero_stage": 3,
        "recompute": 1,
        "micro_batch": sequences,
        "sequence_length": tokens,
    }
    assert float(
        memory(setting(model=model), cases(1, **shape)).peak_bytes[0]
    ) / GIB == pytest.approx(measured_gib, rel=0.09)


@pytest.mark.parametrize(
    ("recompute", "sequences", "tokens", "measured_gib"),
    [(2, 1, 32768, 83.9), (1, 2, 8192, 77.0), (1, 2, 8192, 82.4)],
)
def test_a_loss_in_fp32_takes_three_times_as_much(
    recompute: int, sequences: int, tokens: int, measured_gib: float
) -> None:
    """Llama 3.1 8B on 8 devices before losses were compiled: full and selective recomputation
    (llama3_h100_202412_torchtitan.md).
    """
    chosen = setting()
    wide = chosen.framework.loss_bytes.model_copy(update={"value": 12.0})
    chosen = replace(chosen, framework=chosen.framework.model_copy(update={"loss_bytes": wide}))
    mem = memory(
        chosen,
        cases(
            1,
            dp=8,
            zero_stage=3,
            recompute=recompute,
            micro_batch=sequences,
            sequence_length=tokens,
        ),
    )
    assert states(mem)[0] / GIB == pytest.approx(14.96, abs=0.05)
    assert float(mem.peak_bytes[0]) / GIB == pytest.approx(measured_gib, rel=0.08)


def test_context_parallel_ranks_share_states_and_tokens() -> None:
    """The same tokens a device take the same memory, however they are cut."""
    peaks = memory(
        setting(),
        cases(
            4,
            cp=np.array([1, 2, 4, 8]),
            dp=np.array([8, 4, 2, 1]),
            micro_batch=np.array([1, 2, 4, 8]),
            zero_stage=3,
        ),
    )
    assert peaks.peak_bytes == pytest.approx(np.full(4, peaks.peak_bytes[0]))


def test_a_layer_keeps_what_saved_tensors_hooks_count() -> None:
    """8h + 4nd + 4kd + 4n + 8f bytes a token, 2f less if compiled, 8h more with unfused norms."""
    h, f, n, k = 4096, 14336, 32, 8
    fused, plain = setting("torchtitan"), setting("torch")
    one = cases(1)
    layer = fused.model.layers[0]
    expected = 8 * h + 4 * n * 128 + 4 * k * 128 + 4 * n + 8 * f
    assert layer_bytes(fused, one, layer)[0] == expected - 2 * f
    assert (
        layer_bytes(setting("deepspeed"), one, layer)[0]
        == layer_bytes(plain, one, layer)[0]
        == expected + 8 * h
    )


def test_eager_attention_keeps_scores() -> None:
    eager = setting(attention="eager")
    one = cases(1)
    more = layer_bytes(eager, one, eager.model.layers[0]) - layer_bytes(
        setting(), one, eager.model.layers[0]
    )
    assert more[0] == 5 * 32 * 8192


def test_without_sequence_parallelism_norms_stay_whole() -> None:
    chosen = setting()
    both = layer_bytes(
        chosen, cases(2, tp=8, sequence_parallel=np.array([1, 0])), chosen.model.layers[0]
    )
    assert both[1] - both[0] == 4 * 4096 * (
        1 - 1 / 8
    )  # DTensor keeps what products take in as it was gathered


@pytest.mark.parametrize(
    ("schedule", "chunks", "first", "last"),
    [
        ("1f1b", 1, 4, 1),
        ("interleaved", 2, 4 + 3 / 2, 2.5),
        ("gpipe", 1, 64, 64),
        ("zb-h1", 1, 4, 1),
        ("zb-v", 2, 4, 4),
    ],
)
def test_micro_batches_in_flight(schedule: str, chunks: int, first: float, last: float) -> None:
    """1F1B p - i; interleaved p (1 + (p - 1)/(p v)) in the first stage (Korthikanti et al.); GPipe
    all; ZB-V p everywhere.
    """
    held = in_flight(
        cases(1, pp=4, dp=8, virtual_stages=chunks, schedule=SCHEDULES.index(schedule))
    )
    assert held[0, 0] == pytest.approx(first)
    assert held[0, 3] == pytest.approx(last)


def test_interleaved_stages_hold_more_than_1f1b() -> None:
    """Measured by Primus: 16.26 GiB against 21.40."""
    chunks = np.array([1, 4])
    mem = memory(setting("deepspeed"), cases(2, pp=8, dp=8, virtual_stages=chunks, zero_stage=1))
    first = mem.parts["activations"][:, 0]
    assert 1.1 < first[1] / first[0] < 1.3


def test_the_last_stage_holds_the_logits() -> None:
    mem = memory(setting("megatron"), cases(1, pp=4, dp=8))
    assert mem.parts["loss"][0, 3] == 10 * 8192 * 128256
    assert not mem.parts["loss"][0, :3].any()
    assert np.nanargmax(mem.parts["activations"][0]) == 0


def test_a_fused_loss_and_less_state_save_memory() -> None:
    one = cases(1, dp=8, zero_stage=3)
    plain = memory(setting("deepspeed"), one)
    assert (
        memory(setting("deepspeed"), cases(1, dp=8, zero_stage=3, fused_loss=1)).parts["loss"][0, 0]
        == plain.parts["loss"][0, 0] / 8
    )
    sizes = [
        float(memory(setting(optimizer=name), one).parts["optimizer"][0, 0])
        for name in ("adafactor", "adamw-8bit", "sgd", "muon", "adamw")
    ]
    assert sizes == sorted(sizes)


def test_adapters_train_a_fraction() -> None:
    """Rank 16 beside every matrix of Llama 3.1 8B: 41.9 million parameters (the peft library prints
    41,943,040), beside those of attention 13,631,488.
    """
    one = cases(1)
    lora = memory(setting(method="lora"), one)
    assert lora.parts["optimizer"][0, 0] / 8 == 41_943_040
    fewer = memory(setting(method="lora", lora_targets="attention"), one)
    assert fewer.parts["optimizer"][0, 0] / 8 == 13_631_488
    assert (
        memory(setting(method="qlora"), one).parts["parameters"][0, 0]
        < 0.45 * lora.parts["parameters"][0, 0]
    )


def test_more_devices_never_take_more_memory_under_zero_3() -> None:
    sizes = np.array([2, 4, 8, 16, 64, 256])
    peaks = memory(setting(), cases(len(sizes), dp=sizes, zero_stage=3)).peak_bytes
    assert (np.diff(peaks) < 0).all()


def test_hybrid_shards_divide_by_the_group_only() -> None:
    mem = memory(setting(), cases(2, dp=64, shard=np.array([8, 64]), zero_stage=3))
    assert states(mem)[0] == pytest.approx(8 * states(mem)[1])


def test_recomputation_never_takes_more_memory() -> None:
    mem = memory(setting(), cases(3, dp=8, zero_stage=3, recompute=np.arange(3)))
    assert (np.diff(mem.peak_bytes) < 0).all()


def test_experts_are_divided_over_the_ranks_that_share_them() -> None:
    chosen = setting("megatron", "mistralai/Mixtral-8x7B-v0.1")
    mem = memory(chosen, cases(2, dp=8, ep=np.array([1, 8]), zero_stage=1))
    alone, shared = mem.parts["parameters"][:, 0]
    assert shared < 0.2 * alone


def test_a_stage_with_the_head_alone_recomputes_nothing():
    """Gemma's vocabulary is so large that nanotron's last stages get no layers."""
    request = {
        "model": "google/gemma-3-270m-it",
        "hardware": {"device": "cpu", "per_node": 8, "nodes": 1},
        "workload": {
            "kind": "training",
            "method": "lora",
            "sequence_length": 640,
            "global_batch": 16,
        },
        "candidate": {"engine": "nanotron", "tp": 1, "pp": 4, "dp": 1, "micro_batch": 2},
    }
    kept, redone = estimate_batch(
        request | {"candidate": request["candidate"] | {"recompute": how}}
        for how in ("none", "full")
    )
    for answer in (kept, redone):
        assert [stage["activations_bytes"] for stage in answer["memory"]["stages"]][2:] == [0, 0]
    assert redone["memory"]["total_bytes"] <= kept["memory"]["total_bytes"]
