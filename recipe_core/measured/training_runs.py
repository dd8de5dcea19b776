"""Measured training runs as a table: the shipped ``published/training.csv``, or a table of one's own with the same columns."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from recipe_core.base.types import Count, Degree, Positive, Text, Tokens
from recipe_core.measured.serving_runs import PUBLISHED, Label, read_table

TRAINING_RUNS = PUBLISHED.with_name("training.csv")
TRAINING_FIGURES = ("step_s", "tokens_per_s_per_gpu", "peak_memory_gib")
DIMENSIONS = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocabulary")


class TrainingRun(BaseModel):
    """One measured run of a dense decoder; its fields are the columns of a table, and empty cells are fields left out.

    The model is given by its dimensions, ``model`` is only its name; ``gated``: three matrices a
    feed-forward block, else two. ``recompute`` left out: the source does not say, and none is
    assumed. ``memory_of``: which memory was read, the ``fullest`` rank's, that of the ``first``
    stage, or what the ``driver`` shows of the fullest, with what is outside the allocator.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    id: Text
    model: Text
    layers: Degree
    hidden: Count
    heads: Degree
    kv_heads: Degree
    ffn: Count
    vocabulary: Count
    gated: bool = True
    tied: bool = False
    device: Text
    nodes: Degree = 1
    per_node: Degree
    engine: Text
    tp: Degree = 1
    pp: Degree = 1
    virtual_stages: Degree = 1
    cp: Degree = 1
    dp: Degree = 1
    shard: Degree | None = None
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 0
    sequence_parallel: bool = True
    micro_batch: Count
    recompute: Literal["none", "selective", "full"] | None = None
    precision: Literal["bf16", "fp16", "fp8"] = "bf16"
    fused_loss: bool = False
    sequence_length: Tokens
    global_batch: Count
    step_s: Positive | None = None
    tokens_per_s_per_gpu: Positive | None = None
    peak_memory_gib: Positive | None = None
    memory_of: Literal["fullest", "first", "driver"] = "fullest"
    source: Label = ""
    version: Label = ""
    reference: Label = ""

    @model_validator(mode="after")
    def _was_measured(self) -> Self:
        if all(getattr(self, name) is None for name in TRAINING_FIGURES):
            raise ValueError(f"nothing was measured: fill one of {', '.join(TRAINING_FIGURES)}")
        return self

    @property
    def title(self) -> str:
        """What ran where, in a few words."""
        split = f"tp {self.tp} × pp {self.pp} × cp {self.cp} × dp {self.dp}"
        return (
            f"{self.model} on {self.nodes * self.per_node} × {self.device}, {self.engine}, {split}"
        )

    @property
    def measured_step_s(self) -> float | None:
        """Seconds of a step, from whichever figure of time there is."""
        if self.step_s is not None or self.tokens_per_s_per_gpu is None:
            return self.step_s
        return (
            self.global_batch
            * self.sequence_length
            / (self.tokens_per_s_per_gpu * self.nodes * self.per_node)
        )

    def request(self) -> dict[str, Any]:
        """The plain values of the request that asks for this run's estimate."""
        config = {
            "model_type": "llama" if self.gated else "nemotron",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.ffn,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.sequence_length,
            "tie_word_embeddings": self.tied,
        }
        names = (
            "engine",
            "tp",
            "pp",
            "virtual_stages",
            "cp",
            "dp",
            "shard",
            "zero_stage",
            "sequence_parallel",
            "micro_batch",
            "precision",
        )
        workload = {
            name: getattr(self, name) for name in ("sequence_length", "global_batch", "fused_loss")
        }
        return {
            "model": config,
            "hardware": {"device": self.device, "per_node": self.per_node, "nodes": self.nodes},
            "workload": {"kind": "training"} | workload,
            "candidate": {name: getattr(self, name) for name in names}
            | {"recompute": self.recompute or "none"},
        }


def read_training_runs(path: Path) -> list[TrainingRun]:
    """The runs of a CSV table; raises InputError as `read_table` does."""
    return read_table(path, TrainingRun)


@cache
def published_training_runs() -> tuple[TrainingRun, ...]:
    """The runs that this version ships, each with its source."""
    return tuple(read_training_runs(TRAINING_RUNS))
