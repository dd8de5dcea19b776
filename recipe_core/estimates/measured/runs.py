"""Measured runs of serving and of training: the shipped tables, or those with their columns."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from recipe_core.base.documents import read_document, read_text
from recipe_core.base.errors import InputError, unknown
from recipe_core.base.problems import say_problem
from recipe_core.base.types import (
    Count,
    Degree,
    KvDtype,
    Positive,
    Spread,
    Text,
    Tokens,
    WeightDtype,
)
from recipe_core.hardware.cluster import in_nodes
from recipe_core.request.serving_workload import LOADS
from recipe_core.request.training_workload import Attention

PUBLISHED = Path(__file__).with_name("published") / "runs.csv"
SOURCES = PUBLISHED.with_name("sources.yaml")
MAX_TABLE_BYTES = 64 << 20
SHOWN = 8  # errors listed; a wrong column would fill the screen

SPLIT = ("nodes", "per_node", "tp", "pp", "dp", "ep")
LIMITS = ("max_num_seqs", "memory_fraction", "max_batched_tokens")
FIGURES = ("ttft_ms", "tpot_ms", "request_latency_ms", "output_tokens_per_s", "total_tokens_per_s")
Label = Annotated[str, Field(max_length=4096)]
Row = TypeVar("Row", bound=BaseModel)


class Run(BaseModel):
    """One measured run, a row of a table; an empty cell is a field left out.

    Throughput is of the whole deployment, latency the mean of a request. ``load`` is the
    concurrency (closed), the batch (static), the requests queued (offline) or those arriving per
    second (open). ``length_spread``: that of prompts and answers, 0 where all are as long; without
    it the source does not say. ``source`` says whose figures they are, ``version`` which engine
    really ran. ``scenario`` names runs that are scored apart from others of their mode, ``exclude``
    is a reason not to count a run in scores and fits.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", defer_build=True, str_strip_whitespace=True
    )

    id: Text
    model: Text
    device: Text
    nodes: Degree = 1
    per_node: Degree
    engine: Text
    tp: Degree = 1
    pp: Degree = 1
    dp: Degree = 1
    ep: Degree = 1
    weight_dtype: WeightDtype = "auto"
    kv_dtype: KvDtype = "auto"
    max_num_seqs: Count | None = None
    memory_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    max_batched_tokens: Count | None = None
    mode: Literal["closed", "open", "static", "offline"]
    scenario: Label = ""
    input_tokens: Tokens
    output_tokens: Tokens
    length_spread: Spread | None = None
    load: Positive
    ttft_ms: Positive | None = None
    tpot_ms: Positive | None = None
    request_latency_ms: Positive | None = None
    output_tokens_per_s: Positive | None = None
    total_tokens_per_s: Positive | None = None
    source: Label = ""
    version: Label = ""
    reference: Label = ""
    date: Label = ""
    exclude: Label = ""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if all(getattr(self, name) is None for name in FIGURES):
            raise ValueError(f"nothing was measured: fill one of {', '.join(FIGURES)}")
        if self.mode != "open" and not self.load.is_integer():
            raise ValueError(
                f"the load of mode {self.mode} must be a whole number of requests (got {self.load})"
            )
        return self

    @property
    def title(self) -> str:
        """The model, its devices and its engine."""
        return f"{self.model} on {self.nodes * self.per_node} × {self.device}, {self.engine}"

    def request(self) -> dict[str, Any]:
        """The request for an estimate of this run, as plain values."""
        load = self.load if self.mode == "open" else int(self.load)
        lengths: dict[str, float] = {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
        }
        if self.length_spread is not None and self.mode != "static":
            lengths |= dict.fromkeys(("input_spread", "output_spread"), self.length_spread)
        names = ["engine", "tp", "pp", "dp", "ep", "weight_dtype", "kv_dtype"]
        names += [name for name in LIMITS if getattr(self, name) is not None]
        return {
            "model": self.model,
            "hardware": in_nodes(self.device, self.per_node, self.nodes),
            "workload": {"mode": self.mode, LOADS[self.mode]: load, **lengths},
            "candidate": {name: getattr(self, name) for name in names},
        }


def read_runs(path: Path) -> list[Run]:
    """The serving runs of a CSV table; raises InputError as `read_table` does."""
    return read_table(path, Run)


def read_table(path: Path, kind: type[Row]) -> list[Row]:
    """The rows of a CSV table whose columns are the fields of ``kind``, ``id`` among them.

    Raises:
        InputError: for a file that cannot be read, missing or unknown columns, repeated ids, and
            wrong values; names the first lines and columns.
    """
    return parse_rows(read_text(path, field="table", limit=MAX_TABLE_BYTES), str(path), kind)


def parse_rows(text: str, path: str, kind: type[Row]) -> list[Row]:
    """The rows of a CSV table's text; ``path`` names it in errors, which are ``read_table``'s."""
    rows = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")))
    try:
        _check_columns(list(rows.fieldnames or []), kind)
        runs, wrong = _parsed_rows(rows, kind)
    except csv.Error as error:
        raise InputError(f"{path} is not CSV: {error}.", field="table") from None
    if wrong:
        more = [f"and {len(wrong) - SHOWN} more"] if len(wrong) > SHOWN else []
        message = "\n  ".join([f"{path} cannot be used:", *wrong[:SHOWN], *more])
        raise InputError(message, field="table")
    if not runs:
        hint = "Write one run per line below the names of the columns."
        raise InputError(f"{path} has no rows.", field="table", hint=hint)
    return runs


@cache
def published_runs() -> tuple[Run, ...]:
    """The runs that this version ships, each with its source."""
    return tuple(read_runs(PUBLISHED))


@cache
def listing_ids() -> frozenset[str]:
    """Sources that list example runs without the flags of their engines."""
    return frozenset(name for name, of in read_document(SOURCES).items() if of.get("listing"))


@cache
def sources_in_doubt() -> frozenset[str]:
    """Sources whose rows may name another layout than the one that ran."""
    sources = read_document(SOURCES)
    return frozenset(name for name, of in sources.items() if "layouts_in_doubt" in of)


def _check_columns(names: list[str], kind: type[BaseModel]) -> None:
    column_names = list(kind.model_fields)
    for name in names:
        if name not in column_names:
            message, hint = unknown("column", name, column_names)
            hint = f"{hint} Columns are separated by commas."
            raise InputError(message, field="table", hint=hint)
    repeated = [name for name, n in Counter(names).items() if n > 1]
    required = [name for name, field in kind.model_fields.items() if field.is_required()]
    lacking = [name for name in required if name not in names]
    message = f"columns are missing: {', '.join(lacking)}." if lacking else ""
    if repeated:
        message = f"duplicate column {repeated[0]!r}."
    if message:
        hint = f"Required: {', '.join(required)}, and at least one measured column."
        raise InputError(message, field="table", hint=hint)


def _parsed_rows(rows: csv.DictReader[str], kind: type[Row]) -> tuple[list[Row], list[str]]:
    """The runs, and a sentence on every error."""
    runs: list[Row] = []
    wrong: list[str] = []
    first: dict[str, int] = {}
    for row in rows:
        line = f"line {rows.line_num}"
        if None in row:
            wrong.append(f"{line}: more values than columns.")
            continue
        values = {name: value for name, value in row.items() if value and value.strip()}
        try:
            run = kind.model_validate(values)
        except ValidationError as error:
            problems = error.errors(include_url=False)
            wrong += [f"{line}{_column_problem_text(dict(problem))}" for problem in problems]
            continue
        name = str(row.get("id"))
        if name in first:
            wrong.append(f"{line}, column id: {name!r} is the id of line {first[name]} too.")
        first.setdefault(name, rows.line_num)
        runs.append(run)
    return runs, wrong


def _column_problem_text(problem: Mapping[str, Any]) -> str:
    columns = "".join(f", column {name}" for name in problem["loc"])
    if problem["type"] == "missing":
        return f"{columns}: is empty."
    value = f" (got {problem['input']!r:.80})" if columns else ""
    return f"{columns}: {say_problem(problem)}{value}."


def column_problem(error: ValidationError) -> tuple[str, str]:
    """The column of the first problem of a row ("" of the whole row), and what it is."""
    first = error.errors(include_url=False)[0]
    return ".".join(map(str, first["loc"])), say_problem(dict(first))


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
        split = f"TP {self.tp} × PP {self.pp} × CP {self.cp} × DP {self.dp}"
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
