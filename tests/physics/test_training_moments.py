"""FSDP's peak among the moments of a step, and what a step exchanges; `test_trace_training` holds
both against real models.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from recipe_core.physics.training.collectives import fsdp_traffic
from recipe_core.physics.training.memory import memory
from recipe_core.space.training import SCHEDULES
from tests.physics.test_training_memory import cases, setting

TABLE = 128256 * 4096
FSDP = {"dp": 8, "zero_stage": 3, "global_batch": 8, "sequence_length": 4096}


def part(name: str, engine: str = "torchtitan", stage: int = 0, **columns: Any) -> float:
    """Bytes of one part of one case."""
    return float(memory(setting(engine), cases(1, **(FSDP | columns))).parts[name][0, stage])


def test_one_micro_batch_has_no_gradients_when_the_loss_is_fullest() -> None:
    parameters = setting().model.parameters
    assert part("loss", "torch") == 12 * 4096 * 128256
    assert part("gradients", "torch") == 0
    assert part("gradients", "torch", global_batch=16) == pytest.approx(4 * parameters / 8)


def test_short_sequences_are_fullest_when_the_embeddings_gradient_is_scattered() -> None:
    """The whole table in fp32 and its shard, and in 16 bits; no logits are left."""
    short = {"sequence_length": 512, "recompute": 2}
    assert part("loss", **short) == 0
    assert part("gathered", **short) == pytest.approx(4 * TABLE * (1 + 1 / 8))
    assert part("temporary", **short) == 2 * TABLE


def test_the_plain_optimizer_is_fullest_in_its_step() -> None:
    """torch's unfused AdamW makes a root of every second moment: 20 bytes a parameter."""
    alone = {
        "engine": "torch",
        "zero_stage": 0,
        "dp": 1,
        "global_batch": 1,
        "recompute": 2,
        "sequence_length": 128,
    }
    assert part("temporary", **alone) == pytest.approx(4 * setting().model.parameters, rel=1e-6)


def test_a_pipeline_keeps_gradients_whole() -> None:
    piped = part("gradients", stage=1, pp=4, global_batch=64)
    assert piped == pytest.approx(4 * setting().model.parameters / 4, rel=0.15)
    assert part("gradients", stage=1, pp=4, global_batch=64, dp=1, shard=1, zero_stage=0) == piped


def test_every_micro_batch_has_a_buffer_between_stages() -> None:
    """Two more for each further micro-batch, and one for the returning gradients."""
    held = [part("activations", stage=1, pp=4, global_batch=8 * m) for m in (8, 9)]
    assert held[1] - held[0] == 3 * 2 * 4096 * 4096


def test_gpipe_keeps_the_logits_of_all_micro_batches() -> None:
    """Each further one its log-softmax in fp32 and 16-bit logits; a compiled loss only logits."""
    pipeline = {"stage": 1, "pp": 2, "recompute": 2, "schedule": SCHEDULES.index("gpipe")}
    for engine, each in (("torch", 6), ("torchtitan", 2)):
        held = [part("loss", engine, global_batch=8 * m, **pipeline) for m in (4, 5)]
        assert held[1] - held[0] == each * 4096 * 128256


def test_resharded_parameters_are_gathered_twice_but_the_head() -> None:
    chosen = setting()
    again, stays = fsdp_traffic(chosen, cases(2, **(FSDP | {"zero_stage": np.array([3, 2])})))[
        "shard"
    ][:, 0]
    assert stays == pytest.approx((2 + 4) * chosen.model.parameters, rel=1e-6)
    assert again - stays == pytest.approx(2 * (chosen.model.parameters - TABLE), rel=1e-5)


def test_hybrid_shards_are_reduced_between_groups() -> None:
    chosen = setting()
    hybrid = fsdp_traffic(chosen, cases(1, **(FSDP | {"dp": 32, "shard": 8, "global_batch": 32})))[
        "replicate"
    ][0, 0]
    assert hybrid == pytest.approx(2 * 4 * chosen.model.parameters / 8)
    assert fsdp_traffic(chosen, cases(1, **FSDP))["replicate"][0, 0] == 0


@pytest.mark.parametrize(
    ("recompute", "sequence", "reductions"),
    [(0, 0, 4), (0, 1, 4), (1, 1, 5), (2, 0, 5), (2, 1, 5.5)],
)
def test_recomputation_repeats_a_part_of_tensor_parallel_traffic(
    recompute: int, sequence: int, reductions: float
) -> None:
    """A layer's reductions, each a gather and a scatter; embedding and head add two."""
    split = {
        "tp": 8,
        "dp": 1,
        "global_batch": 1,
        "recompute": recompute,
        "sequence_parallel": sequence,
    }
    sent = fsdp_traffic(setting(), cases(1, **(FSDP | split)))["tensor"][0, 0]
    assert sent == 2 * 2 * 4096 * 4096 * (32 * reductions + 2)
