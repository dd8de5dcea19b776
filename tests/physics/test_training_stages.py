"""Which layers a stage holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from recipe_core.physics.training.memory import memory
from recipe_core.physics.training.schedule import step_parts
from recipe_core.physics.training.stages import stage_layers
from recipe_core.request.schema import PlanRequest
from recipe_core.search.problem import resolve
from recipe_core.search.training_candidates import settings
from recipe_core.space.training import TrainingSetting, training_cases

SHARED = {"sequence_length": 4096, "global_batch": 256, "per_node": 8, "nodes": 64}


def setting(engine: str, vocabulary: int = 131072, **more: Any) -> TrainingSetting:
    """The 8B model of nanotron's published runs, and the same with a small vocabulary."""
    model = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "intermediate_size": 14336,
    }
    model |= {"num_key_value_heads": 32, "vocab_size": vocabulary, "max_position_embeddings": 4096}
    workload = {"kind": "training", "sequence_length": 4096, "global_batch": 256} | more
    value = {
        "model": model,
        "hardware": {"device": "h100-sxm", "nodes": 64},
        "workload": workload,
        "candidate": {"engine": engine},
    }
    return settings(resolve(PlanRequest.parse(value)))[0]


@pytest.mark.parametrize(("pp", "first", "last"), [(2, 18, 14), (4, 9, 6), (32, 2, 0)])
def test_a_stage_ends_with_the_layer_that_passes_its_share(pp: int, first: int, last: int) -> None:
    """The head is worth 2.2 layers, so a stage of p has 34.2/p layers' work and ends with the first
    layer beyond.
    """
    count, _, _ = stage_layers(setting("nanotron"), training_cases(1, pp=pp, **SHARED))
    assert (count[0, 0], count[0, pp - 1], count[0].sum()) == (first, last, 32)


@pytest.mark.parametrize(
    ("engine", "vocabulary", "chunks"),
    [
        ("torchtitan", 131072, 1),
        ("megatron", 131072, 1),
        ("nanotron", 32000, 1),
        ("nanotron", 131072, 2),
    ],
)
def test_stages_are_even_without_a_heavy_head_and_in_chunks(
    engine: str, vocabulary: int, chunks: int
) -> None:
    count, first, last = stage_layers(
        setting(engine, vocabulary), training_cases(1, pp=4, virtual_stages=chunks, **SHARED)
    )
    assert (count[0] == 8).all()
    assert first[0].tolist() == [1, 0, 0, 0]
    assert last[0].tolist() == [0, 0, 0, 1]


def test_embedding_and_loss_count_as_layers_where_chunks_come_out_even_so() -> None:
    """126 layers and both ends are 128: 16 stages of 8 chunks, as Llama 3 405B was trained
    (arXiv:2407.21783, section 3.3.2).
    """
    llama = settings(
        resolve(
            PlanRequest.parse(
                {
                    "model": "meta-llama/Llama-3.1-405B",
                    "hardware": {"device": "h100-sxm", "nodes": 1024},
                    "workload": {"kind": "training", "sequence_length": 8192, "global_batch": 2048},
                    "candidate": {"engine": "megatron"},
                }
            )
        )
    )[0]
    count, _, _ = stage_layers(
        llama, training_cases(1, pp=16, virtual_stages=8, **(SHARED | {"nodes": 1024}))
    )
    assert count[0].tolist() == [7, *[8] * 14, 7]


def test_a_case_does_not_change_those_beside_it() -> None:
    both, _, _ = stage_layers(setting("nanotron"), training_cases(2, pp=np.array([2, 8]), **SHARED))
    assert both[0, :2].tolist() == [18, 14]
    assert np.isnan(both[0, 2:]).all()
    assert both[1].sum() == 32


@pytest.mark.parametrize("engine", ["torchtitan", "megatron", "nanotron"])
@pytest.mark.parametrize("method", ["pretrain", "lora"])
def test_pipelines_of_several_lengths_are_estimated_as_each_alone(engine: str, method: str) -> None:
    """Rows of stages end in NaN past the last one, in every part."""
    chosen, lengths = setting(engine, method=method), [8, 1, 32, 8]
    several = training_cases(
        4, pp=np.array(lengths), dp=2, zero_stage=np.array([0, 3, 3, 2]), **SHARED
    )
    together, seconds = memory(chosen, several), step_parts(chosen, several)
    for i, pp in enumerate(lengths):
        one = several.take([i])
        alone = memory(chosen, one)
        for name, part in alone.parts.items():
            assert together.parts[name][i, :pp].tolist() == part[0].tolist()
            assert np.isnan(together.parts[name][i, pp:]).all()
        assert together.peak_bytes[i] == alone.peak_bytes[0] == together.by_stage[i, :pp].max()
        assert {name: part[i] for name, part in seconds.items()} == {
            name: part[0] for name, part in step_parts(chosen, one).items()
        }
