"""An engine's release as data: its containers, their host software, names of its metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, field_validator, model_validator

from recipe_core.base.data_files import DataRow
from recipe_core.base.provenance import Status

T = TypeVar("T")
Whole = Annotated[int, Field(ge=1)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Release = Annotated[str, Field(pattern=r"^\d+\.\d+(\.\d+)?$", max_length=16)]


def release_key(release: str) -> tuple[int, ...]:
    """A release as numbers that sort by age: 0.11 is 0.11.0, and newer than 0.9.2."""
    numbers = tuple(map(int, release.split(".")))
    return numbers + (0,) * (3 - len(numbers))


class Cited(DataRow):
    """A row that says where its numbers come from: a key of ``sources``, and how they were got."""

    source: str
    status: Status
    note: str | None = None


class BatchLimits(DataRow):
    """Default batch limits on devices with ``memory_at_least_bytes`` that are not in ``not_on``."""

    memory_at_least_bytes: NonNegative
    not_on: tuple[str, ...] = ()
    max_batched_tokens: Whole
    max_num_seqs: Whole


class WholePrompts(DataRow):
    """Prompts that run in one step, not in chunks, and the room that a step has for them.

    Where requests of at most ``longest_tokens`` are accepted (None: whatever their length), a step
    takes the longest of them, at least ``least_tokens``.
    """

    longest_tokens: Whole | None = None
    least_tokens: Whole


class Rules(Cited):
    """Memory rules of some releases, where they are not the pinned one's.

    What is left out is the same. ``fraction``: the default share of the device. ``context_bytes``:
    what was counted outside torch besides today's: the device's own context. ``parallel_bytes``,
    ``sampler_bytes_per_logit``, ``sampler_state_bytes_per_logit``: as in ``memory``. ``without``:
    rules of ``memory`` that there are not. ``overlaps_steps``: of its ``groups``.
    """

    fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    context_bytes: NonNegative | None = None
    parallel_bytes: NonNegative | None = None
    sampler_bytes_per_logit: NonNegative | None = None
    sampler_state_bytes_per_logit: NonNegative | None = None
    batching: tuple[BatchLimits, ...] | None = None
    whole_prompts: WholePrompts | None = None
    without: tuple[Literal["whole_blocks", "groups", "graphs"], ...] = ()
    overlaps_steps: bool | None = None


class Change(Rules):
    """Rules of releases before ``before``, against the next newer one the file tells of."""

    before: Release


class Later(Rules):
    """Rules of releases from ``since`` on, against the next older one the file tells of."""

    since: Release


class History(DataRow):
    """Memory rules of other releases, from ``oldest`` to ``newest`` (the pinned one if left out).

    ``changes`` are of earlier releases, newest first; ``later`` of newer ones, oldest first.
    """

    oldest: Release
    newest: Release | None = None
    changes: Annotated[tuple[Change, ...], Field(min_length=1)]
    later: tuple[Later, ...] = ()

    def rules_of_release(self, release: tuple[int, ...], pinned: tuple[int, ...]) -> list[Rules]:
        """Return the rules that differ from the pinned release's, the nearest to it first."""
        if release > pinned:
            return [rules for rules in self.later if release_key(rules.since) <= release]
        return [rules for rules in self.changes if release < release_key(rules.before)]

    @model_validator(mode="after")
    def _in_order(self) -> History:
        newer = [release_key(rules.since) for rules in self.later]
        if newer != sorted(set(newer)):
            raise ValueError("history.later are not oldest first, each release once")
        releases = [release_key(change.before) for change in self.changes]
        if releases != sorted(set(releases), reverse=True):
            raise ValueError("history.changes are not newest first, each release once")
        return self


def last_told(values: Iterable[T | None]) -> T | None:
    return next((value for value in reversed(list(values)) if value is not None), None)


class ContainerImage(DataRow):
    """A container with the engine at this version: an immutable tag, and its digest if known.

    ``architectures``: those it is for, where a runtime has several images (empty: all).
    """

    reference: Annotated[str, Field(pattern=r"^[\w./-]+:[\w][\w.-]*$")]
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    architectures: tuple[str, ...] = ()
    source: str
    note: str | None = None

    @property
    def pinned(self) -> str:
        """The reference that a container starts from: with its digest where that is known."""
        return f"{self.reference}@{self.digest}" if self.digest else self.reference

    @field_validator("reference")
    @classmethod
    def _never_moves(cls, value: str) -> str:
        if value.endswith(":latest"):
            raise ValueError("the tag latest moves; use a release tag")
        return value


class Install(Cited):
    """The shell ``command`` that installs the engine's build for a runtime.

    ``architectures``: those it is for, where a runtime has several builds (empty: all).
    """

    command: str
    architectures: tuple[str, ...] = ()


class ApiKey(Cited):
    """The way a server asks its callers for a key (``Authorization: Bearer KEY``).

    ``variable``: the environment variable that holds the key, wherever servers are started.
    ``option``: what the engine is told the key by, where it reads no variable itself.
    ``guard``: the option that takes an ASGI middleware, where the engine's own check leaves paths
    open that compute. ``router_option``: the same of the router before its pools; None where that
    asks nobody for a key. ``guards_metrics``: whether its figures need the key. ``logs``: whether
    the engine writes the key to its own log.
    """

    variable: Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*_KEY$|^API_KEY$")]
    option: Annotated[str, Field(pattern=r"^--[a-z-]+$")] | None = None
    guard: Annotated[str, Field(pattern=r"^--[a-z-]+$")] | None = None
    router_option: Annotated[str, Field(pattern=r"^--[a-z-]+$")] | None = None
    guards_metrics: bool = False
    logs: bool = False


class Floor(DataRow):
    """The oldest host software that the engine runs on: NVIDIA's driver or AMD's ROCm release."""

    what: Literal["driver", "rocm"]
    version: Annotated[str, Field(pattern=r"^\d+(\.\d+)*$")]
    source: str
    status: Status


class Metrics(DataRow):
    """Names of the Prometheus metrics at ``path``; None for those that an engine lacks.

    Histograms (``ttft``, ``tpot``: mean time per output token of a request, ``itl``: time between
    two tokens, ``queue_time``, ``latency``) are named without ``_bucket``; gauges are ``waiting``,
    ``running`` (requests) and ``kv_usage`` (0 to 1); counters are ``success`` and ``failure``,
    ``prompt_tokens`` and ``output_tokens``. ``needs``: options that turn them on.
    ``port``: where they are scraped, if not the port of the server. ``unit_s``: the unit of times,
    in seconds.
    """

    path: str = "/metrics"
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    unit_s: Annotated[float, Field(gt=0)] = 1.0
    ttft: str | None = None
    tpot: str | None = None
    itl: str | None = None
    queue_time: str | None = None
    latency: str | None = None
    waiting: str | None = None
    running: str | None = None
    kv_usage: str | None = None
    success: str | None = None
    failure: str | None = None
    prompt_tokens: str | None = None
    output_tokens: str | None = None
    needs: Mapping[str, Any] = {}
    source: str
    note: str | None = None
