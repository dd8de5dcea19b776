"""Memory rules of an engine's other releases, as its file tells them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from recipe_core.base.provenance import Status

T = TypeVar("T")
Whole = Annotated[int, Field(ge=1)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Release = Annotated[str, Field(pattern=r"^\d+\.\d+(\.\d+)?$", max_length=16)]


def release_key(release: str) -> tuple[int, ...]:
    """A release as numbers that sort by age: 0.11 is 0.11.0, and newer than 0.9.2."""
    numbers = tuple(map(int, release.split(".")))
    return numbers + (0,) * (3 - len(numbers))


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


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


class Rules(_Data):
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
    source: str
    status: Status
    note: str | None = None


class Change(Rules):
    """What releases before ``before`` did otherwise than the next newer one the file tells of."""

    before: Release


class Later(Rules):
    """What releases from ``since`` on do otherwise than the next older one the file tells of."""

    since: Release


class History(_Data):
    """Memory rules of other releases, from ``oldest`` to ``newest`` (the pinned one if left out).

    ``changes`` are of earlier releases, newest first; ``later`` of newer ones, oldest first.
    """

    oldest: Release
    newest: Release | None = None
    changes: Annotated[tuple[Change, ...], Field(min_length=1)]
    later: tuple[Later, ...] = ()

    def rules_of_release(self, release: tuple[int, ...], pinned: tuple[int, ...]) -> list[Rules]:
        """What a release does otherwise than the pinned one, the nearest to that one first."""
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
