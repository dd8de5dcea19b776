"""An engine as data: what it can split, how it divides memory, batches and loses time.

One YAML file an engine under ``serving/``; package `launch` turns its options into a command.
Differences between engines live here, not in the physics.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.errors import InputError, look_up
from recipe_core.base.provenance import Quantity, Sourced
from recipe_core.base.types import Task
from recipe_core.engines.checks import check_engine_files, complete_engine
from recipe_core.engines.memory import KvWay, MemoryUse, Through, rules_then
from recipe_core.engines.options import OptionTable, option_table
from recipe_core.engines.release import (
    ApiKey,
    BatchLimits,
    Cited,
    ContainerImage,
    Floor,
    History,
    Install,
    Metrics,
    last_told,
    release_key,
)
from recipe_core.hardware.profile import Family, Runtime

FOLDER = Path(__file__).with_name("serving")
Whole = Annotated[int, Field(ge=1)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Dispatch(Cited):
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


class Exchange(Cited):
    """The exchange of tokens between ranks of data-parallel attention that share experts.

    ``ways``: "gather" (every rank gets all tokens, and sums are scattered back), "dispatch" (a
    token goes only to the ranks of its experts); the fastest is used. ``narrow``: weight formats of
    experts for which tokens are dispatched in fp8. ``overlap``: the share of its time that is
    hidden behind other work. ``between_nodes``: what decode pools dispatch with (`space.exchange`).
    """

    ways: Annotated[tuple[Literal["gather", "dispatch"], ...], Field(min_length=1)]
    narrow: tuple[str, ...] = ()
    overlap: Annotated[float, Field(ge=0, lt=1)] = 0.0
    between_nodes: Dispatch | None = None


class SplitSupport(DataRow):
    """The splits that the engine supports.

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

    ``even_experts``: whether every rank must hold as many experts as the others.

    ``whole_shared_experts``: whether ranks of data-parallel attention with tp hold shared experts
    whole, instead of cutting them.

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
    whole_shared_experts: bool = False
    even_experts: bool = False
    lookups_in_attention_dp: bool = True


class Overheads(Cited):
    """Time the engine itself takes, and how its scheduler groups prompts.

    ``step_s`` per step, ``sequence_s`` per running sequence of a step, ``layer_s`` per layer of a
    step. ``launch_s``: what the host needs to launch one kernel of a step with prompts, which no
    captured graph covers (such a step takes at least that long for all). ``expert_row_s``: per
    token and expert that it is routed to, in a layer on one rank, outside the products.
    ``request_s`` and ``input_token_s``: per request, before it is scheduled. Of no engine, and
    assumed: ``late_steps``, steps from a request's prompt to its first token at the client, while
    others decode (schedulers work ahead of what they send; fits are misled by launch scripts that
    send tokens in tens), and ``bunched``, the share of a closed loop's prompts that come all at
    once: clients of benchmarks start them together and send ten times as many as run at once
    (InferenceMAX).
    """

    step_s: NonNegative
    sequence_s: NonNegative
    layer_s: NonNegative
    launch_s: NonNegative = 0.0
    expert_row_s: NonNegative = 0.0
    request_s: NonNegative
    input_token_s: NonNegative
    late_steps: NonNegative = 0.5
    bunched: Annotated[float, Field(ge=0, le=1)] = 0.1


# What engines have kernels of their own for; an indexer scores tokens for sparse attention.
#
# ``expert_rows``: what the experts' time has that grows with the rows, their products and copies.
# ``host``: the engine's own time in a step (its ``overheads``), which hosts and captured graphs of
# a generation change; ``request``: that of a request before it is scheduled.
Kernel = Family | Literal["expert_rows", "indexer", "all_reduce", "host", "request"]


class KernelTimes(Cited):
    """Time of an engine's kernels over that of the device's profile, by operator and stored dtype.

    A profile is fitted to the kernels of several libraries; an engine has its own for a number
    format and a generation of devices. A missing dtype takes ``any``, a missing operator 1.
    """

    times: Mapping[Kernel, Mapping[str, Annotated[float, Field(gt=0)]]]


# Tokens that leave together; decode steps from one look for new requests to the next.
Interval = Literal["stream_interval", "scheduler_recv_interval"]


class UsualIntervals(Cited):
    """Intervals of published launches for throughput on devices of ``architectures``.

    For answers of ``output_tokens_at_least``, with ``requests_at_least`` in flight; of several that
    hold the one for most requests counts.
    """

    architectures: Annotated[tuple[str, ...], Field(min_length=1)]
    output_tokens_at_least: Whole = 1
    requests_at_least: Annotated[int, Field(ge=0)] = 0
    stream_interval: Whole = 1
    scheduler_recv_interval: Whole = 1


class Intervals(Cited):
    """Work that the engine does every so many steps only; 1, every step, is each default.

    ``options``: those it has. ``first_token_waits``: whether the first token too is held until
    ``stream_interval`` tokens are there, or leaves at once. ``throughput``: what a launch for
    throughput is given where the request states nothing. ``rank_wait_steps``: how many steps a
    prompt waits at most, while all decode, until every rank of data-parallel attention has one.
    """

    options: Annotated[tuple[Interval, ...], Field(min_length=1)]
    first_token_waits: bool
    rank_wait_steps: NonNegative = 0.0
    throughput: tuple[UsualIntervals, ...] = ()

    def usual(
        self, architecture: str, output_tokens: float, requests: float
    ) -> UsualIntervals | None:
        """Return what launches for throughput set for such answers and load; None for nothing."""
        fitting = [
            usual
            for usual in self.throughput
            if architecture in usual.architectures
            and output_tokens >= usual.output_tokens_at_least
            and requests >= usual.requests_at_least
        ]
        return max(fitting, key=lambda usual: usual.requests_at_least, default=None)

    def chosen_on(self, architecture: str) -> bool:
        """Return whether an objective may choose them: then 1 is no default and has to be said."""
        return any(architecture in usual.architectures for usual in self.throughput)


class Batcher(Cited):
    """A server that waits to fill a batch (dynamic batching).

    ``window_ms``: how long a request waits for others at most, where nothing is stated; while all
    instances are busy it waits anyway. ``most_window_ms``: the longest that may be stated.
    ``instances``: copies of the model on a device that take batches in turn; ``copies_weights``:
    whether each holds its own weights. ``pads``: whether all texts of a batch are as long as its
    longest.
    """

    window_ms: NonNegative = 0.0
    most_window_ms: NonNegative = 1000.0
    instances: Whole = 1
    most_instances: Whole = 8
    copies_weights: bool
    pads: bool


class Engine(Sourced):
    """An engine at one version.

    ``default_on``: runtimes of which it is the default. ``wraps``: the engine that does the work
    inside this one, with the same numbers; ``wrapped_version``: its version in the container, where
    it differs. ``table``: the engine whose options it has, where that is not its name;
    ``launcher``: the module of ``launch/serving/`` that starts it, where that is not of its name.

    ``api_key``: how it asks callers for a key; None where it asks nobody.

    ``install`` is the command for the first of ``runtimes``; ``installs`` has the others', where
    another build is theirs. ``images`` and ``floors`` are by runtime. ``metrics`` is None where the
    engine reports none.

    ``online_techniques``: which technique of ``compression/`` a format of ``online_weight_dtypes``
    is, where that is not the format's usual one.

    ``exports``: by runtime and format of a plan's weights, the precision in which a bundle exports
    the model for an engine that loads no checkpoint.

    ``free_kv_dtypes``: cache formats for any activations; any other must be the activations' own.

    ``handoff_s``: what disaggregated prefill adds to a request, besides the transfer of its cache.

    ``tasks``: what it serves (`Task`): text, vectors, scores.

    ``front_s``: seconds that the front end of a server works on a request for a vector or a score,
    one request after the other (None: requests never wait for it).

    ``mixes_prompts``: whether prompts share steps with decoding; otherwise decoding waits for them.
    ``widens``: runtimes on which its kernels multiply 16-bit values in fp32 where that is faster.

    ``kernels``: by architecture of devices, where its kernels differ from the device's profile.
    ``intervals``: None where tokens leave, and requests are looked for, in every step.
    ``batcher``: None where whoever waits is taken along at once.
    ``kv_offload``: the ways to move cached blocks off the devices, the usual first.
    ``history``: memory rules of other releases. ``as_of``: the release whose rules these are,
    where that is not ``version``; ``options_of``: that whose options are written, likewise.
    """

    name: str
    title: str
    version: str
    buildable: bool
    default_on: tuple[Runtime, ...] = ()
    wraps: str | None = None
    wrapped_version: str | None = None
    runtimes: tuple[Runtime, ...]
    tasks: tuple[Task, ...] = ("generate",)
    program: str
    module: str
    table: str | None = None
    launcher: str | None = None
    install: str
    installs: Mapping[Runtime, tuple[Install, ...]] = {}
    images: Mapping[Runtime, tuple[ContainerImage, ...]] = {}
    floors: Mapping[Runtime, Floor] = {}
    metrics: Metrics | None = None
    api_key: ApiKey | None = None
    split: SplitSupport
    memory: MemoryUse
    batching: tuple[BatchLimits, ...]
    chunked_prefill: bool
    mixes_prompts: bool = True
    widens: tuple[Runtime, ...] = ()
    front_s: Quantity | None = None
    intervals: Intervals | None = None
    batcher: Batcher | None = None
    handoff_s: Quantity | None = None
    kv_offload: Mapping[Through, KvWay] = {}
    overheads: dict[Runtime, Overheads]
    kernels: Mapping[str, KernelTimes] = {}
    online_weight_dtypes: tuple[str, ...]
    online_techniques: Mapping[str, str] = {}
    exports: Mapping[Runtime, Mapping[str, str]] = {}
    kv_dtypes: tuple[str, ...]
    free_kv_dtypes: tuple[str, ...]
    history: History | None = None
    as_of: str | None = None
    options_of: str | None = None

    def with_options_of(self, release: str) -> Engine:
        """The same, writing the options that a release has, of which there is a table."""
        if release == self.version:
            return self
        return self.model_copy(update={"options_of": release})

    def at(self, release: str, longest_tokens: float) -> Engine:
        """The engine with the memory rules of another release; itself at its own.

        ``longest_tokens``: the longest request that it is told to accept, which decides whether
        prompts run whole. What its steps cost in time, and its options, stay those of ``version``.

        Raises:
            InputError: for what is no release, or one whose rules the file does not tell.
        """
        numbers = self._release(release)
        if self.history is None or numbers == release_key(self.version):
            return self
        changes = self.history.rules_of_release(numbers, release_key(self.version))
        fraction = last_told(c.fraction for c in changes)
        whole_prompts = last_told(c.whole_prompts for c in changes)
        batching = last_told(c.batching for c in changes) or self.batching
        use, context = self.memory, last_told(c.context_bytes for c in changes) or 0.0
        parallel = last_told(c.parallel_bytes for c in changes)
        values = {
            "fraction": fraction,
            "context_single_bytes": use.context_single_bytes.value + context,
            "context_parallel_bytes": context
            + (use.context_parallel_bytes.value if parallel is None else parallel),
            "sampler_bytes_per_logit": last_told(c.sampler_bytes_per_logit for c in changes),
            "sampler_state_bytes_per_logit": last_told(
                c.sampler_state_bytes_per_logit for c in changes
            ),
        }
        memory = use.with_values(**{k: v for k, v in values.items() if v is not None})
        memory = memory.model_copy(update=rules_then(memory, changes))
        updates: dict[str, Any] = {"as_of": release, "memory": memory, "batching": batching}
        if whole_prompts is not None and longest_tokens <= (
            whole_prompts.longest_tokens or longest_tokens
        ):
            tokens = {"max_batched_tokens": max(int(longest_tokens), whole_prompts.least_tokens)}
            updates["batching"] = tuple(limits.model_copy(update=tokens) for limits in batching)
            updates |= {"chunked_prefill": False, "mixes_prompts": False}
        return self.model_copy(update=updates)

    def with_whole_encoders(self) -> Engine:
        """The engine when every rank holds encoders whole, for batches of its own: memory alone."""
        if self.memory.encoder is None:
            return self
        encoder = self.memory.encoder.model_copy(update={"sharded": False})
        return self.model_copy(
            update={"memory": self.memory.model_copy(update={"encoder": encoder})}
        )

    def without_graphs(self) -> Engine:
        """The engine when it captures no graphs (eager execution): of its memory alone."""
        return self.model_copy(update={"memory": self.memory.model_copy(update={"graphs": None})})

    def _release(self, release: str) -> tuple[int, ...]:
        """A release as numbers; raises InputError where its rules are not known."""
        field, oldest = "candidate.engine_version", self.history and self.history.oldest
        newest = (self.history and self.history.newest) or self.version
        release_range = f"{oldest} to {newest}" if oldest else self.version
        hint = f"Use {release_range}, or leave it out."
        if not re.fullmatch(r"\d{1,4}\.\d{1,4}(\.\d{1,4})?", release):
            raise InputError(
                f"{release!r} is not a release such as 0.11.0.", field=field, hint=hint
            )
        numbers = release_key(release)
        if not release_key(oldest or self.version) <= numbers <= release_key(newest):
            message = f"memory rules of {self.title} {release} are not known."
            raise InputError(message, field=field, hint=hint)
        return numbers

    @property
    def options(self) -> OptionTable:
        return option_table(self.table or self.name, self.options_of or self.version)

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

    def install_on(self, runtime: Runtime, architecture: str) -> str:
        """The shell command that installs this version's build for a device."""
        for install in self.installs.get(runtime, ()):
            if not install.architectures or architecture in install.architectures:
                return install.command
        return self.install

    def argv(self, values: dict[str, Any]) -> list[str]:
        """Options by name as separate argv words, in the order given.

        Raises:
            InputError: for one that this version does not have.
        """
        return self.options.argv(values)


@cache
def _engine_files() -> dict[str, Path]:
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def engine_names() -> list[str]:
    return list(_engine_files())


@cache
def engine(name: str) -> Engine:
    """An engine by name; raises InputError for an unknown one, or a flaw in its files."""
    path = look_up("engine", name.casefold(), _engine_files(), "candidate.engine")
    file = DataFile(path, "engines")
    spec = file.validated(complete_engine(file), Engine)
    check_engine_files(spec, file)
    return spec


def titles_on(runtime: Runtime) -> list[str]:
    return [spec.title for spec in map(engine, engine_names()) if runtime in spec.runtimes]


def default_engine(runtime: Runtime, task: Task = "generate") -> Engine:
    """The engine for a request that names none; vLLM, which refuses, for other runtimes.

    Where the default of the runtime does not serve the task, the first that does.
    """
    usual = engine("vllm")
    if runtime in usual.default_on and task in usual.tasks:  # no file but its own is read
        return usual
    engines = [engine(name) for name in engine_names()]
    preferred = [spec for spec in engines if runtime in spec.default_on]
    able = [spec for spec in (*preferred, *engines) if runtime in spec.runtimes]
    return next((spec for spec in able if task in spec.tasks), usual)
