"""An engine as data: what it can split, how it divides memory, batches and loses time.

One YAML file an engine under ``serving/``; package `launch` turns its options into a command.
Differences between engines live here, not in the physics.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from recipe_core.base.data_files import DataFile
from recipe_core.base.errors import InputError, unknown
from recipe_core.base.provenance import Quantity, Sourced, Status
from recipe_core.engines.checks import check_engine
from recipe_core.engines.options import OptionTable, option_table
from recipe_core.engines.release import ContainerImage, Floor, Metrics
from recipe_core.engines.wrapping import complete
from recipe_core.hardware.profile import Family, Runtime

FOLDER = Path(__file__).with_name("serving")
T = TypeVar("T")
Whole = Annotated[int, Field(ge=1)]
Release = Annotated[str, Field(pattern=r"^\d+\.\d+(\.\d+)?$", max_length=16)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def release_key(release: str) -> tuple[int, ...]:
    """A release as numbers that sort by age: 0.11 is 0.11.0, and newer than 0.9.2."""
    numbers = tuple(map(int, release.split(".")))
    return numbers + (0,) * (3 - len(numbers))


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Dispatch(_Data):
    """Low-latency dispatch of decode pools whose experts span nodes of a rack.

    ``runtimes``: where its kernels exist. ``sent``: by the weight format of experts, the format in
    which tokens leave; experts in others gather. ``hidden``: widths of a token that its kernels are
    compiled for. ``most_experts``: that a token picks. ``most_tokens``: of a rank in a step.
    """

    runtimes: tuple[Runtime, ...]
    sent: dict[str, str]
    hidden: tuple[int, ...]
    most_experts: Annotated[int, Field(gt=0)]
    most_tokens: Annotated[int, Field(gt=0)]
    source: str
    status: Status
    note: str | None = None


class Exchange(_Data):
    """How ranks of data-parallel attention that share experts exchange tokens.

    ``ways``: "gather" (every rank gets all tokens, and sums are scattered back), "dispatch" (a
    token goes only to the ranks of its experts); the fastest is used. ``narrow``: weight formats of
    experts for which tokens are dispatched in fp8. ``overlap``: the share of its time that is
    hidden behind other work. ``between_nodes``: what decode pools dispatch with (`space.exchange`).
    """

    ways: Annotated[tuple[Literal["gather", "dispatch"], ...], Field(min_length=1)]
    narrow: tuple[str, ...] = ()
    overlap: Annotated[float, Field(ge=0, lt=1)] = 0.0
    between_nodes: Dispatch | None = None
    source: str
    status: Status
    note: str | None = None


class SplitSupport(_Data):
    """Which splits the engine supports.

    ``experts``: "all-ranks" spreads experts over all of tp × dp or not at all; "divisors" over any
    divisor of it, cutting each expert over the rest. ``enforces_context``: whether requests longer
    than the model's context are refused. ``disaggregated``: prefill in a pool of its own;
    ``speculative``: speculative decoding; ``context``: ranks of tp may share a cache that each
    would hold. ``exchange``: None where experts are never shared.

    ``replicas``: which replicas (dp without shared experts) are separate servers: all ("servers"),
    those that do not fit into one node ("within-node"), or these and all of a mixture of experts
    ("dense-within-node"). ``over_nodes``: how the ranks of a server span nodes: not at all
    ("never"), evenly ("ranks"), or evenly with whole pipeline stages per node or whole nodes per
    stage ("stages"), or the same of replicas ("replicas").

    ``attention_dp``: whether data-parallel attention within a server combines with tp ("any"), does
    not ("whole"), or does not exist ("none"). ``drafts_in_pipeline``: speculative decoding with
    pp; ``lookups_in_attention_dp``: prompt-lookup drafts with data-parallel attention.
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
    """Bytes that the engine appends to every row of some fp8 matrices.

    Those whose rows are a multiple of ``multiple_bytes`` long.

    Only on ``runtimes``, for checkpoints in one of ``schemes`` (writer and what a scale covers,
    "fp8/tensor"), and never for experts.
    """

    runtimes: tuple[Runtime, ...]
    schemes: tuple[str, ...]
    multiple_bytes: Whole
    added_bytes: Whole
    source: str
    status: Status


class ExpertTiles(_Data):
    """Multiples to which an expert kernel rounds up the widths of experts in ``dtype``.

    For devices of ``runtimes`` and ``architectures`` (empty: all). ``intermediate`` is rounded for
    each rank's share.
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

    ``fraction`` of what a process can allocate (M), with weights W, workspace A and runtime N,
    leaves for the cache:

    * ``of-device``: M · fraction - W - A - N (vLLM's gpu_memory_utilization)
    * ``static``: M · fraction - W, while A and N live in the rest (SGLang's mem_fraction_static)
    * ``of-free``: (M - W - A - N) · fraction (TensorRT-LLM's free_gpu_memory_fraction)

    ``needs_longest``: it refuses to start unless a request of the longest context fits into the
    cache. ``reserves``: whether a request is admitted only if its whole length fits (TensorRT-LLM's
    guaranteed_no_evict), or if its tokens so far do. ``row_padding`` and ``expert_tiles``: where
    weights take more than the checkpoint's bytes; the first tiles for a device count.
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

    def with_values(self, **values: float) -> MemoryUse:
        """The same with other values of some quantities."""
        return self.model_copy(
            update={
                name: getattr(self, name).model_copy(update={"value": value})
                for name, value in values.items()
            }
        )

    def tiles(self, dtype: str, runtime: Runtime, architecture: str) -> ExpertTiles | None:
        """How experts in ``dtype`` are rounded up on a device; None where they are not."""
        for tiles in self.expert_tiles:
            if tiles.dtype != dtype or runtime not in tiles.runtimes:
                continue
            if not tiles.architectures or architecture in tiles.architectures:
                return tiles
        return None


class BatchLimits(_Data):
    """Default batch limits on devices with ``memory_at_least_bytes`` that are not in ``not_on``."""

    memory_at_least_bytes: NonNegative
    not_on: tuple[str, ...] = ()
    max_batched_tokens: Whole
    max_num_seqs: Whole


class WholePrompts(_Data):
    """Prompts that run in one step, not in chunks, and the room that a step has for them.

    Where requests of at most ``longest_tokens`` are accepted (None: whatever their length), a step
    takes the longest of them, at least ``least_tokens``.
    """

    longest_tokens: Whole | None = None
    least_tokens: Whole


class Change(_Data):
    """What releases before ``before`` did otherwise than the next newer one the file tells of.

    What is left out was the same. ``fraction``: the default share of the device.
    ``context_bytes``: what was counted outside torch besides today's: the device's own context.
    """

    before: Release
    fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    context_bytes: NonNegative | None = None
    batching: tuple[BatchLimits, ...] | None = None
    whole_prompts: WholePrompts | None = None
    source: str
    status: Status
    note: str | None = None


class History(_Data):
    """Memory rules of earlier releases, back to ``oldest``; ``changes`` are newest first."""

    oldest: Release
    changes: Annotated[tuple[Change, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _newest_first(self) -> History:
        releases = [release_key(change.before) for change in self.changes]
        if releases != sorted(set(releases), reverse=True):
            raise ValueError("history.changes are not newest first, each release once")
        return self


class Overheads(_Data):
    """Time the engine itself takes, and how its scheduler groups prompts.

    ``step_s`` per step, ``sequence_s`` per running sequence of a step, ``layer_s`` per layer of a
    step. ``launch_s``: what the host needs to launch one kernel of a step with prompts, which no
    captured graph covers (such a step takes at least that long for all). ``expert_row_s``: per
    token and expert that it is routed to, in a layer on one rank, outside the products.
    ``request_s`` and
    ``input_token_s``: per request, before it is scheduled. ``late_steps``: steps from a request's
    prompt to its first token at the client, while others decode (schedulers work a step or more
    ahead of what they send). ``bunched``: the share of a closed loop's prompts that come all at
    once.
    """

    step_s: NonNegative
    sequence_s: NonNegative
    layer_s: NonNegative
    launch_s: NonNegative = 0.0
    expert_row_s: NonNegative = 0.0
    request_s: NonNegative
    input_token_s: NonNegative
    late_steps: NonNegative = 0.0
    bunched: Annotated[float, Field(ge=0, le=1)] = 0.1
    source: str
    status: Literal["measured", "fitted", "published", "assumed"]
    note: str | None = None


Kernel = Family | Literal["expert_rows", "indexer", "all_reduce", "host", "request"]
"""What engines have kernels of their own for; an indexer scores tokens for sparse attention.

``expert_rows``: what the experts' time has that grows with the rows, their products and copies.
``host``: the engine's own time in a step (its ``overheads``), which hosts and captured graphs of a
generation change; ``request``: that of a request before it is scheduled.
"""


class KernelTimes(_Data):
    """Time of an engine's kernels over that of the device's profile, by operator and stored dtype.

    A profile is fitted to the kernels of several libraries; an engine has its own for a number
    format and a generation of devices. A missing dtype takes ``any``, a missing operator 1.
    """

    times: Mapping[Kernel, Mapping[str, Annotated[float, Field(gt=0)]]]
    source: str
    status: Literal["measured", "fitted", "published", "assumed"]
    note: str | None = None


Interval = Literal["stream_interval", "scheduler_recv_interval"]
"""Tokens that leave together; decode steps from one look for new requests to the next."""


class UsualIntervals(_Data):
    """What published launches for throughput set on devices of ``architectures``.

    For answers of ``output_tokens_at_least``, with ``requests_at_least`` in flight; of several that
    hold the one for most requests counts.
    """

    architectures: Annotated[tuple[str, ...], Field(min_length=1)]
    output_tokens_at_least: Whole = 1
    requests_at_least: Annotated[int, Field(ge=0)] = 0
    stream_interval: Whole = 1
    scheduler_recv_interval: Whole = 1
    source: str
    status: Status
    note: str | None = None


class Intervals(_Data):
    """What the engine does every so many steps only; 1, every step, is the default of each.

    ``options``: those it has. ``first_token_waits``: whether the first token too is held until
    ``stream_interval`` tokens are there, or leaves at once. ``throughput``: what a launch for
    throughput is given where the request states nothing.
    """

    options: Annotated[tuple[Interval, ...], Field(min_length=1)]
    first_token_waits: bool
    throughput: tuple[UsualIntervals, ...] = ()
    source: str
    status: Status
    note: str | None = None

    def usual(
        self, architecture: str, output_tokens: float, requests: float
    ) -> UsualIntervals | None:
        """What launches for throughput set for such answers and load; None for nothing."""
        fitting = [
            usual
            for usual in self.throughput
            if architecture in usual.architectures
            and output_tokens >= usual.output_tokens_at_least
            and requests >= usual.requests_at_least
        ]
        return max(fitting, key=lambda usual: usual.requests_at_least, default=None)

    def chosen_on(self, architecture: str) -> bool:
        """Whether an objective may choose them there: then 1 is no default and has to be said."""
        return any(architecture in usual.architectures for usual in self.throughput)


def _last(values: Iterable[T | None]) -> T | None:
    """The last of the values that are given; None where none is."""
    return next((value for value in reversed(list(values)) if value is not None), None)


class Engine(Sourced):
    """An engine at one version.

    ``default_on``: runtimes of which it is the default. ``wraps``: the engine that does the work
    inside this one, with the same numbers; ``wrapped_version``: its version in the container, where
    it differs. ``table``: the engine whose options it has, where that is not its name;
    ``launcher``: the module of ``launch/serving/`` that starts it, where that is not of its name.

    ``images`` and ``floors`` are by runtime. ``metrics`` is None where the engine reports none.

    ``free_kv_dtypes``: cache formats for any activations; any other must be the activations' own.

    ``handoff_s``: what disaggregated prefill adds to a request, besides the transfer of its cache.

    ``mixes_prompts``: whether prompts share steps with decoding; otherwise decoding waits for them.

    ``kernels``: by architecture of devices, where its kernels differ from the device's profile.
    ``intervals``: None where tokens leave, and requests are looked for, in every step.
    ``history``: memory rules of earlier releases. ``as_of``: the release whose rules these are,
    where that is not ``version``.
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
    intervals: Intervals | None = None
    handoff_s: Quantity | None = None
    overheads: dict[Runtime, Overheads]
    kernels: Mapping[str, KernelTimes] = {}
    online_weight_dtypes: tuple[str, ...]
    kv_dtypes: tuple[str, ...]
    free_kv_dtypes: tuple[str, ...]
    history: History | None = None
    as_of: str | None = None

    def at(self, release: str, longest_tokens: float) -> Engine:
        """The engine with the memory rules of an earlier release; itself at its own.

        ``longest_tokens``: the longest request that it is told to accept, which decides whether
        prompts run whole. What its steps cost in time, and its options, stay those of ``version``.

        Raises:
            InputError: for what is no release, or one whose rules the file does not tell.
        """
        asked = self._release(release)
        if self.history is None or asked == release_key(self.version):
            return self
        changes = [c for c in self.history.changes if asked < release_key(c.before)]
        fraction, whole = (
            _last(c.fraction for c in changes),
            _last(c.whole_prompts for c in changes),
        )
        batching = _last(c.batching for c in changes) or self.batching
        use, context = self.memory, _last(c.context_bytes for c in changes) or 0.0
        memory = use.with_values(
            fraction=fraction or use.fraction.value,
            context_single_bytes=use.context_single_bytes.value + context,
            context_parallel_bytes=use.context_parallel_bytes.value + context,
        )
        told: dict[str, Any] = {"as_of": release, "memory": memory, "batching": batching}
        if whole is not None and longest_tokens <= (whole.longest_tokens or longest_tokens):
            tokens = {"max_batched_tokens": max(int(longest_tokens), whole.least_tokens)}
            told["batching"] = tuple(limits.model_copy(update=tokens) for limits in batching)
            told |= {"chunked_prefill": False, "mixes_prompts": False}
        return self.model_copy(update=told)

    def _release(self, release: str) -> tuple[int, ...]:
        """A release as numbers; raises InputError where its rules are not known."""
        field, oldest = "candidate.engine_version", self.history and self.history.oldest
        known = f"{oldest} to {self.version}" if oldest else self.version
        hint = f"Use {known}, or leave it out."
        if not re.fullmatch(r"\d{1,4}\.\d{1,4}(\.\d{1,4})?", release):
            raise InputError(
                f"{release!r} is not a release such as 0.11.0.", field=field, hint=hint
            )
        asked = release_key(release)
        if not release_key(oldest or self.version) <= asked <= release_key(self.version):
            message = f"memory rules of {self.title} {release} are not known."
            raise InputError(message, field=field, hint=hint)
        return asked

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
        """The engine's own time on a runtime.

        A runtime that it does not support, and that is refused, gets another's.
        """
        return self.overheads.get(runtime) or next(iter(self.overheads.values()))

    def kernel_time(self, architecture: str, kernel: Kernel, stored_dtype: str = "any") -> float:
        """Time of one of its kernels over that of the device's profile; 1 where none is known."""
        if architecture not in self.kernels:
            return 1.0
        times = self.kernels[architecture].times.get(kernel, {})
        return times.get(stored_dtype, times.get("any", 1.0))

    def image(self, runtime: Runtime, architecture: str) -> ContainerImage | None:
        """The container for a device; None where no tag of this version is known."""
        for image in self.images.get(runtime, ()):
            if not image.architectures or architecture in image.architectures:
                return image
        return None

    def argv(self, values: dict[str, Any]) -> list[str]:
        """Options by name as separate argv words, in the order given.

        Raises:
            InputError: for one that this version does not have.
        """
        return self.options.argv(values)


@cache
def _files() -> dict[str, Path]:
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def engine_names() -> list[str]:
    """Names of the engines, sorted."""
    return list(_files())


@cache
def engine(name: str) -> Engine:
    """An engine by name; raises InputError for an unknown one, or a flaw in its files."""
    path = _files().get(name.casefold())
    if path is None:
        message, hint = unknown("engine", name, engine_names())
        raise InputError(message, field="candidate.engine", hint=hint)
    file = DataFile(path, "engines")
    spec = file.validated(complete(file), Engine)
    check_engine(spec, file)
    return spec


def default_engine(runtime: Runtime) -> Engine:
    """The engine for a request that names none; vLLM, which refuses, for other runtimes."""
    usual = engine("vllm")
    if runtime in usual.default_on:  # no file but its own is read
        return usual
    engines = map(engine, engine_names())
    return next((spec for spec in engines if runtime in spec.default_on), usual)
