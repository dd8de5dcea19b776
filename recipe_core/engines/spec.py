"""What an engine is, as data: its version, what it can split, how it divides memory, batches and loses time.

One YAML file an engine in ``serving/``; ``launch/serving/<name>.py`` says how its options become a command.
Differences between engines live here, not in the physics.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from recipe_core.base.data_files import DataFile
from recipe_core.base.errors import InputError, unknown
from recipe_core.base.provenance import Quantity, Sourced, Status
from recipe_core.engines.checks import check_engine
from recipe_core.engines.options import OptionTable, option_table
from recipe_core.engines.release import ContainerImage, Floor, Metrics
from recipe_core.engines.wrapping import complete
from recipe_core.hardware.profile import Runtime

FOLDER = Path(__file__).with_name("serving")
Whole = Annotated[int, Field(ge=1)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Exchange(_Data):
    """How ranks of data-parallel attention that share experts hand their tokens over.

    ``ways``: "gather" (every rank gets all tokens, and sums are scattered back), "dispatch" (a token goes only where its experts are); of
    several the quicker one is taken. ``narrow``: weight formats of experts for which dispatched tokens are turned into fp8 before they go.
    ``overlap``: the share of its time that is hidden behind other work.
    """

    ways: Annotated[tuple[Literal["gather", "dispatch"], ...], Field(min_length=1)]
    narrow: tuple[str, ...] = ()
    overlap: Annotated[float, Field(ge=0, lt=1)] = 0.0
    source: str
    status: Status
    note: str | None = None


class SplitSupport(_Data):
    """Which degrees the engine has.

    ``experts``: "all-ranks" spreads experts over all of tp × dp or not at all; "divisors" over any divisor of it, cutting each expert
    over the rest. ``enforces_context``: whether requests longer than the model's own context are refused. ``disaggregated``: whether
    prompts can be computed by a pool of their own, ``speculative``: whether drafts can be verified, ``context``: whether ranks of tp that
    would hold the same cache can share it. ``exchange``: None where experts are never shared.

    ``replicas``: which replicas (dp of experts that are not shared) are servers of their own: all of them ("servers"), those that do not
    fit a node together ("within-node"), or these and all of a mixture of experts ("dense-within-node"). ``over_nodes``: how the ranks of
    a server span nodes: not at all ("never"), evenly ("ranks"), and besides so that each node has whole pipeline stages or each stage
    whole nodes ("stages"), or the same of replicas ("replicas").

    ``attention_dp``: whether attention that is data-parallel within a server may be cut by tp besides ("any"), may not ("whole"), or is
    not to be had ("none"). ``drafts_in_pipeline``: whether drafts are verified by pipelined ranks, ``lookups_in_attention_dp``: whether
    those looked up in the prompt are where attention is data-parallel.
    """

    tensor: bool
    pipeline: bool
    experts: Literal["all-ranks", "divisors", "none"]
    data_parallel: Literal["engine", "processes"]
    enforces_context: bool = True
    disaggregated: bool = False
    speculative: bool = False
    context: bool = False
    exchange: Exchange | None = None
    replicas: Literal["servers", "within-node", "dense-within-node"] = "servers"
    over_nodes: Literal["never", "ranks", "stages", "replicas"] = "replicas"
    attention_dp: Literal["any", "whole", "none"] = "any"
    drafts_in_pipeline: bool = True
    lookups_in_attention_dp: bool = True


class RowPadding(_Data):
    """Bytes that the engine appends to every row of an fp8 matrix whose rows are a multiple of ``multiple_bytes`` long.

    On ``runtimes``, for checkpoints written in one of ``schemes`` (writer and what a scale covers, "fp8/tensor"); experts never are.
    """

    runtimes: tuple[Runtime, ...]
    schemes: tuple[str, ...]
    multiple_bytes: Whole
    added_bytes: Whole
    source: str
    status: Status


class ExpertTiles(_Data):
    """Multiples to which the expert kernel that the engine picks rounds up the widths of experts in ``dtype``.

    It picks by device: ``runtimes``, and ``architectures`` where they are named. ``intermediate`` is rounded for each rank's share.
    """

    dtype: str
    runtimes: tuple[Runtime, ...]
    architectures: tuple[str, ...] = ()
    hidden: Whole
    intermediate: Whole
    source: str
    status: Status
    note: str | None = None


class MemoryUse(_Data):
    """How the engine divides a device, and when it refuses to start.

    ``fraction`` of what a process can allocate (M), with weights W, workspace A and runtime N, leaves for the cache:

    * ``of-device``: M · fraction - W - A - N (vLLM's gpu_memory_utilization)
    * ``static``: M · fraction - W, while A and N live in the rest (SGLang's mem_fraction_static)
    * ``of-free``: (M - W - A - N) · fraction (TensorRT-LLM's free_gpu_memory_fraction)

    ``needs_longest``: it refuses to start unless one request of the longest context fits into the cache. ``reserves``: whether a request
    is admitted only once its whole length fits (TensorRT-LLM's guaranteed_no_evict), or while what it holds so far does.
    ``row_padding`` and ``expert_tiles``: where weights take more than the checkpoint's bytes; the first tiles that fit a device count.
    """

    fraction: Quantity
    pool: Literal["of-device", "static", "of-free"]
    needs_longest: bool
    reserves: bool = False
    context_single_bytes: Quantity
    context_parallel_bytes: Quantity
    sampler_bytes_per_logit: Quantity
    block_tokens: Whole
    row_padding: RowPadding | None = None
    expert_tiles: tuple[ExpertTiles, ...] = ()

    def tiles(self, dtype: str, runtime: Runtime, architecture: str) -> ExpertTiles | None:
        """How experts in ``dtype`` are rounded up on a device, None where they are not."""
        here = (t for t in self.expert_tiles if t.dtype == dtype and runtime in t.runtimes)
        return next(
            (t for t in here if not t.architectures or architecture in t.architectures), None
        )


class BatchLimits(_Data):
    """The engine's default batch limits on devices with at least ``memory_at_least_bytes``, but on none of ``not_on``."""

    memory_at_least_bytes: NonNegative
    not_on: tuple[str, ...] = ()
    max_batched_tokens: Whole
    max_num_seqs: Whole


class Overheads(_Data):
    """Time the engine itself takes, and how its scheduler groups prompts.

    ``step_s`` per step, ``sequence_s`` per running sequence of a step, ``layer_s`` per layer of a step. ``launch_s``: what the host needs
    to launch one layer of a step with prompts, which no captured graph covers (such a step takes at least that long). ``request_s`` and
    ``input_token_s``: per request, before it is scheduled. ``bunched``: the share of a closed loop's prompts that come all at once.
    """

    step_s: NonNegative
    sequence_s: NonNegative
    layer_s: NonNegative
    launch_s: NonNegative = 0.0
    request_s: NonNegative
    input_token_s: NonNegative
    bunched: Annotated[float, Field(ge=0, le=1)] = 0.1
    source: str
    status: Literal["measured", "fitted", "published", "assumed"]
    note: str | None = None


class Engine(Sourced):
    """An engine at one version.

    ``default_on``: runtimes for which it is taken where a request names none. ``wraps``: the engine that does the work inside this one,
    whose figures this file repeats; ``wrapped_version``: the one that its container holds, where it is another. ``table``: of whose
    options its own are, where that is not its name. ``launcher``: the module of ``launch/serving/``
    that starts it, where that is not of its name.

    ``images`` and ``floors`` are by runtime. ``metrics`` is None where the engine reports none.

    ``free_kv_dtypes``: cache formats that can be asked for whatever the activations are in; any other must be theirs.

    ``handoff_s``: what a request takes longer where a pool of its own computes its prompt, besides the transfer of its cache.

    ``mixes_prompts``: whether prompts ride on decode steps; otherwise they take steps of their own, while decoding waits.
    """

    name: str
    title: str
    version: str
    buildable: bool
    default_on: tuple[Runtime, ...] = ()
    wraps: str | None = None
    wrapped_version: str | None = None
    runtimes: tuple[Runtime, ...]
    program: str
    module: str
    table: str | None = None
    launcher: str | None = None
    install: str
    images: Mapping[Runtime, tuple[ContainerImage, ...]] = {}
    floors: Mapping[Runtime, Floor] = {}
    metrics: Metrics | None = None
    split: SplitSupport
    memory: MemoryUse
    batching: tuple[BatchLimits, ...]
    chunked_prefill: bool
    mixes_prompts: bool = True
    handoff_s: Quantity | None = None
    overheads: dict[Runtime, Overheads]
    online_weight_dtypes: tuple[str, ...]
    kv_dtypes: tuple[str, ...]
    free_kv_dtypes: tuple[str, ...]

    @property
    def options(self) -> OptionTable:
        """The options of this version."""
        return option_table(self.table or self.name, self.version)

    def batch_limits(self, memory_bytes: float, architecture: str) -> BatchLimits:
        """The default limits on a device of this size and architecture."""
        fitting = [
            b
            for b in self.batching
            if memory_bytes >= b.memory_at_least_bytes and architecture not in b.not_on
        ]
        return max(fitting, key=lambda b: b.memory_at_least_bytes)

    def overhead(self, runtime: Runtime) -> Overheads:
        """The engine's own time on a runtime; one that it does not run on (and that is refused) borrows another's figures."""
        return self.overheads.get(runtime) or next(iter(self.overheads.values()))

    def image(self, runtime: Runtime, architecture: str) -> ContainerImage | None:
        """The container for a device, None where no tag of this version is known."""
        here = self.images.get(runtime, ())
        return next(
            (
                image
                for image in here
                if not image.architectures or architecture in image.architectures
            ),
            None,
        )

    def argv(self, values: dict[str, Any]) -> list[str]:
        """Options by name as separate argv words, in the order given; raises InputError for one that this version does not have."""
        return self.options.argv(values)


@cache
def _files() -> dict[str, Path]:
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def engine_names() -> list[str]:
    """The engines there are, sorted."""
    return list(_files())


@cache
def engine(name: str) -> Engine:
    """An engine by name.

    Raises:
        InputError: naming close ones when there is none, or what is wrong with its files.
    """
    path = _files().get(name.casefold())
    if path is None:
        message, hint = unknown("engine", name, engine_names())
        raise InputError(message, field="candidate.engine", hint=hint)
    file = DataFile(path, "engines")
    spec = file.validated(complete(file), Engine)
    check_engine(spec, file)
    return spec


def default_engine(runtime: Runtime) -> Engine:
    """The engine taken when a request names none; where a runtime has none, the one that refuses it with the reason."""
    usual = engine("vllm")
    if runtime in usual.default_on:  # no file but its own is read
        return usual
    return next((e for e in map(engine, engine_names()) if runtime in e.default_on), usual)
