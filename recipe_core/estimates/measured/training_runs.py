"""Measured training runs: the shipped ``published/training.csv``, or a table with its columns."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from recipe_core.base.types import Count, Degree, Positive, Text, Tokens
from recipe_core.estimates.measured.serving_runs import PUBLISHED, Label, read_table
from recipe_core.hardware.cluster import in_nodes
from recipe_core.request.training_workload import Attention

TRAINING_RUNS = PUBLISHED.with_name("training.csv")
KNOWN_RUNS = PUBLISHED.with_name("known_training.csv")
TRAINING_FIGURES = ("step_s", "tokens_per_s_per_gpu", "peak_memory_gib")
CANDIDATE = (
    "engine",
    "tp",
    "pp",
    "virtual_stages",
    "cp",
    "ep",
    "dp",
    "shard",
    "zero_stage",
    "sequence_parallel",
    "micro_batch",
    "precision",
    "schedule",
    "overlap_experts",
)
WORKLOAD = ("method", "lora_targets", "sequence_length", "global_batch", "attention", "fused_loss")
# Of the workload, where a source says so.
FORMATS = ("gradient_dtype", "state_dtype", "moment_dtype", "activation_dtype", "mtp_layers")
RECOMPUTATIONS = ("none", "selective", "full")
DIMENSIONS = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocabulary")


class TrainingRun(BaseModel):
    """One measured run, a row of a table; an empty cell is a field left out.

    The model is one of the ``catalog``, or its dimensions define it and ``model`` is only a name;
    ``gated``: three matrices per feed-forward block, else two; with ``experts`` each layer has so
    many blocks, of which ``experts_per_token`` compute a token (Mixtral's form).
    ``recompute_modules``: words between spaces. Without ``recompute`` the source
    does not say, and the least that fits is assumed. ``memory_of``: the memory that was read, of
    the ``fullest`` rank, of the ``first`` stage, or from the ``driver`` for the fullest, with what
    is outside the allocator.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", defer_build=True, str_strip_whitespace=True
    )

    id: Text
    model: Text
    catalog: Text | None = None
    layers: Degree | None = None
    hidden: Count | None = None
    heads: Degree | None = None
    kv_heads: Degree | None = None
    ffn: Count | None = None
    vocabulary: Count | None = None
    experts: Degree | None = None
    experts_per_token: Degree | None = None
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
    ep: Degree = 1
    dp: Degree = 1
    shard: Degree | None = None
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 0
    sequence_parallel: bool = True
    micro_batch: Count
    recompute: Literal["none", "selective", "full"] | None = None
    recompute_modules: Text | None = None
    schedule: Literal["1f1b", "interleaved", "zb-h1", "dualpipe"] | None = None
    overlap_experts: bool | None = None
    precision: Literal["bf16", "fp16", "fp8"] = "bf16"
    method: Literal["pretrain", "finetune", "lora", "qlora"] = "pretrain"
    lora_targets: Literal["attention", "mlp", "all"] = "all"
    gradient_dtype: Literal["fp32", "bf16"] | None = None
    state_dtype: Literal["bf16"] | None = None
    moment_dtype: Literal["bf16", "fp8"] | None = None
    activation_dtype: Literal["fp8"] | None = None
    mtp_layers: Degree | None = None
    attention: Attention = "flash"
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
        missing = [name for name in DIMENSIONS if getattr(self, name) is None]
        if missing and self.catalog is None:
            raise ValueError(f"fill {', '.join(missing)}, or catalog with an id of a known model")
        return self

    @property
    def _family(self) -> str:
        """The model_type whose form the dimensions have."""
        if self.experts:
            return "mixtral"
        return "llama" if self.gated else "nemotron"

    @property
    def title(self) -> str:
        """The model, its devices, its framework and its split."""
        split = f"tp {self.tp} × pp {self.pp} × cp {self.cp} × dp {self.dp}"
        devices = f"{self.nodes * self.per_node} × {self.device}"
        return f"{self.model} on {devices}, {self.engine}, {split}"

    @property
    def measured_step_s(self) -> float | None:
        """Seconds per step, measured or from tokens per second."""
        if self.step_s is not None or self.tokens_per_s_per_gpu is None:
            return self.step_s
        tokens = self.global_batch * self.sequence_length
        return tokens / (self.tokens_per_s_per_gpu * self.nodes * self.per_node)

    @property
    def recomputations(self) -> tuple[str, ...]:
        """The recomputation that is stated, else all, the least first."""
        return (self.recompute,) if self.recompute else RECOMPUTATIONS

    def request(self, recompute: str | None = None) -> dict[str, Any]:
        """The request for an estimate of this run, as plain values; of the least recomputation."""
        config = {
            "model_type": self._family,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.ffn,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.sequence_length,
            "tie_word_embeddings": self.tied,
        }
        if self.experts:
            config |= {
                "num_local_experts": self.experts,
                "num_experts_per_tok": self.experts_per_token,
            }
        candidate = {name: getattr(self, name) for name in CANDIDATE}
        if self.recompute_modules:
            candidate["recompute_modules"] = self.recompute_modules.split()
        workload = {name: getattr(self, name) for name in WORKLOAD}
        formats = {name: getattr(self, name) for name in FORMATS}
        workload |= {name: value for name, value in formats.items() if value}
        return {
            "model": self.catalog or config,
            "hardware": in_nodes(self.device, self.per_node, self.nodes),
            "workload": {"kind": "training", **workload},
            "candidate": {**candidate, "recompute": recompute or self.recomputations[0]},
        }


def read_training_runs(path: Path) -> list[TrainingRun]:
    """The runs of a CSV table; raises InputError as `read_table` does."""
    return read_table(path, TrainingRun)


@cache
def published_training_runs() -> tuple[TrainingRun, ...]:
    """The runs that this version ships, each with its source."""
    return tuple(read_training_runs(TRAINING_RUNS))


@cache
def known_training_runs() -> tuple[TrainingRun, ...]:
    """Runs that everybody knows, from papers; no constant is fitted to them."""
    return tuple(read_training_runs(KNOWN_RUNS))
