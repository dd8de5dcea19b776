"""Requests to be served: lengths, arrivals, drafts, media."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from recipe_core.base.documented import DescribedModel
from recipe_core.base.errors import InputError
from recipe_core.base.texts import Name
from recipe_core.base.types import Count, Positive, Share, Spread, Task, Text, Tokens
from recipe_core.engines.memory import Through
from recipe_core.request.lengths import (
    APART,
    LONGEST,
    LengthShape,
    Traced,
    mean_length,
    relative_lengths,
)
from recipe_core.request.over_time import OverTime


class PrefixReuse(DescribedModel):
    """A size of a cache, and the share of prompt tokens that it would have held."""

    cache_tokens: Positive
    """Size of the cache, in tokens of all requests together."""

    hit: Annotated[float, Field(ge=0, lt=1)]
    """Share of prompt tokens found in it, 0 to below 1."""


def check_curve(points: Sequence[PrefixReuse]) -> None:
    """Hold points to what caches do: a larger one finds at least as much.

    Raises:
        ValueError: naming two points of which the larger cache finds less, or that are one size.
    """
    ordered = sorted(points, key=lambda point: (point.cache_tokens, point.hit))
    for less, more in pairwise(ordered):
        if more.cache_tokens == less.cache_tokens:
            raise ValueError(f"prefix_reuse names a cache of {more.cache_tokens:g} tokens twice")
        if more.hit < less.hit:
            raise ValueError(
                f"prefix_reuse falls from {less.hit:g} in {less.cache_tokens:g} tokens to "
                f"{more.hit:g} in {more.cache_tokens:g}; a larger cache finds at least as much"
            )


Gib = Annotated[float, Field(gt=0, le=1 << 30, allow_inf_nan=False)]


class KvStore(DescribedModel):
    """A store of KV blocks behind the host's memory."""

    tier: Text
    """Kind of storage, by the name of its tier (``hw_profiles/storage/``): its rates and latency
    are those of the store."""

    gib: Gib
    """Room for KV blocks, in GiB: of a server on a ``disk``, of all servers on a ``remote``."""

    path: Name | None = None
    """Folder of the store on the nodes; left out, ``/var/tmp/kv-cache``."""

    url: Name | None = None
    """Address of a ``remote`` store, as LMCache takes it (``redis://host:6379``); instead of
    ``path``."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.path is not None and self.url is not None:
            raise ValueError("takes path or url, not both")
        return self


class KvOffload(DescribedModel):
    """Tiers below the cache of the devices: what is evicted there is found again here."""

    through: Through | None = None
    """What moves the blocks: the engine itself (``native``), ``lmcache`` or SGLang's ``hicache``;
    left out, the first that the engine has."""

    host_gib: Gib | None = None
    """Host memory of one server (a replica), in GiB. Instead of ``host_gib_per_device``."""

    host_gib_per_device: Gib | None = None
    """Host memory of each device that a server uses, in GiB."""

    disk: KvStore | None = None
    """Drives of the node behind the host's memory; left out, none."""

    remote: KvStore | None = None
    """A store over the network that all servers share; left out, none."""

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if (self.host_gib is None) == (self.host_gib_per_device is None):
            raise ValueError("needs either host_gib or host_gib_per_device")
        if self.disk is not None and self.disk.url is not None:
            raise ValueError("disk is a folder of the node and takes path, not url")
        return self


class Speculative(DescribedModel):
    """Speculative decoding: tokens are drafted, then verified in one step."""

    tokens: Annotated[int, Field(ge=1, le=16)]
    """Tokens drafted per step."""

    acceptance: Share
    """Probability (0 to below 1) that a drafted token is accepted, given that those before it
    were."""

    method: Literal["mtp", "eagle", "ngram"] | None = None
    """How drafts are made: ``mtp`` by the model's own draft layers, ``eagle`` by one extra layer of
    the model's shape, ``ngram`` looked up in the prompt. Left out: ``mtp`` where the model has
    draft layers, else ``eagle``."""

    model: Name | None = None
    """Checkpoint of an ``eagle`` draft. An estimate does without; a launch needs it."""


class MediaItems(DescribedModel):
    """Images, or pieces of sound, in every prompt besides its text."""

    per_request: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Items in a prompt, on average."""

    tokens: Annotated[int, Field(ge=1, le=1 << 20)] = 1024
    """Tokens of the prompt that an item becomes."""


# Fields of a workload that put images or sound into prompts, and what the model must read.
MEDIA: dict[str, Literal["image", "audio"]] = {"images": "image", "audio": "audio"}

# Tasks of which a result is pooled from a prompt: nothing is decoded.
POOLED: tuple[Task, ...] = ("embed", "score")

# What has a length.
SIDES = ("input", "output")

# Modes in which users wait for answers.
WAITED_FOR = ("closed", "open")

# How many times the mean request the longest one of users who wait is, where nothing is stated, and
# its least tokens; lengths are rounded up to steps.
TAIL, LEAST_LONGEST, CONTEXT_STEP = 4, 8192, 1024

# The field of a workload that says the load, by its mode.
LOADS = {"closed": "concurrency", "open": "request_rate", "static": "batch", "offline": "requests"}


def whole_steps(tokens: int) -> int:
    """Tokens rounded up to whole steps of a context."""
    return math.ceil(tokens / CONTEXT_STEP) * CONTEXT_STEP


class ServingWorkload(DescribedModel):
    """Requests to be served: how long they are and how they arrive."""

    kind: Literal["serving"] = "serving"
    """Kind of workload: ``serving``, also where it is left out, or ``training``."""

    task: Task | None = None
    """What a request asks for: ``generate`` a text, ``embed`` a text as a vector, or ``score`` a
    text or a pair of them (rerankers). A vector or a score comes with the prompt: there are no
    output tokens. Left out, what the model is made for."""

    mode: Literal["closed", "open", "static", "offline"] = "closed"
    """How requests arrive: ``closed`` is ``concurrency`` users at once, ``open`` sends
    ``request_rate`` per second, ``static`` runs one ``batch`` of exact lengths, ``offline`` queues
    ``requests`` at once. Each takes its own load field and refuses the others."""

    input_tokens: Tokens = 1024
    """Mean length of a prompt, in tokens; of its text, where it also holds images or sound."""

    output_tokens: Tokens = 256
    """Mean length of an answer, in tokens; 1 where ``task`` is ``embed`` or ``score``."""

    input_spread: Spread | None = None
    """Spread of prompt lengths as a share of the mean: 0.2 draws them uniformly from 0.8 to 1.2 of
    it, 0 makes them exact. It shapes percentiles and the longest request. Left out, percentiles
    are simulated with 0.1. In ``mode: closed``, 0 of both prompts and answers lets all requests
    start and end in waves, which the means count too. Not for ``mode: static``."""

    output_spread: Spread | None = None
    """Spread of answer lengths as a share of the mean, as ``input_spread`` for prompts."""

    input_lengths: LengthShape | None = None
    """Shape of prompt lengths around their mean, instead of ``input_spread``: means, caches and
    percentiles count it. ``max_context`` cuts longer requests. Not for ``mode: static``."""

    output_lengths: LengthShape | None = None
    """Shape of answer lengths around their mean, as ``input_lengths`` for prompts. In ``mode:
    offline`` the time until the longest answers are done is counted: so a benchmark that sends all
    its requests at once is told."""

    concurrency: Count | None = None
    """Users at once, each of whom sends a request when the last is answered; needed by
    ``mode: closed``, and only there. May be left out where ``objective.limits`` bounds a time
    (``ttft_ms``, ``tpot_ms``, ``request_latency_ms``) and throughput, cost or energy counts: then
    every layout is judged at its best load within the limits."""

    request_rate: Positive | None = None
    """Arrivals in requests per second; needed by ``mode: open``, and only there."""

    batch: Count | None = None
    """Requests in the batch; needed by ``mode: static``, and only there."""

    requests: Annotated[int, Field(ge=1, le=10**12)] | None = None
    """Requests queued at the start; needed by ``mode: offline``, and only there. What all of them
    take and cost is in the answer; ``objective.limits`` bounds it by ``wall_hours`` and ``usd``."""

    max_context: Tokens | None = None
    """Longest request that the engine must accept, prompt and answer together, in tokens: it is
    told so, and has to hold one such request; times and cost follow the mean lengths. Left out,
    where texts are generated for users who wait (``mode: closed`` and ``open``), four times the
    mean request and at least 8,192, as real traffic has a tail; else the workload's longest
    request. Either is rounded up to a multiple of 1,024 as far as the model's context allows."""

    prefix_hit: Share = 0.0
    """Share of a prompt's tokens found in the prefix cache, 0 to below 1."""

    prefix_reuse: Annotated[tuple[PrefixReuse, ...], Field(max_length=256)] = ()
    """What share would be found in caches of several sizes, as a trace shows it; every layout then
    has the share of its own cache. Instead of ``prefix_hit``."""

    prefix_affinity: bool = False
    """Whether requests that share a prefix reach the same replica (a gateway that routes by prefix,
    or sessions that stick), so that the caches of replicas add up; for ``prefix_reuse``."""

    over_time: OverTime | None = None
    """How the load changes over hours, weeks and months, for ``recipe simulate``; a plan is made
    for one load and does not depend on it."""

    speculative: Speculative | None = None
    """Speculative decoding; left out, tokens are decoded one at a time."""

    images: MediaItems | None = None
    """Images in every prompt, for models that read them: their tokens come on top of
    ``input_tokens``, and encoding them delays the first token. Left out, prompts are text."""

    audio: MediaItems | None = None
    """Sound in every prompt, as ``images``."""

    modalities: tuple[Literal["image", "audio"], ...] | None = None
    """What the engine reads besides text (``image`` includes video): the towers of the rest are not
    loaded, with ``[]`` none is. Left out, all that the model has."""

    @model_validator(mode="before")
    @classmethod
    def _one_result(cls, value: Any) -> Any:
        """A vector or a score counts as one token of output."""
        if isinstance(value, Mapping) and value.get("task") in POOLED:
            return {"output_tokens": 1, **value}
        return value

    @model_validator(mode="after")
    def _lengths_have_means(self) -> Self:
        """Lengths in tokens say their mean where that is left out."""
        for side in SIDES:
            shape = getattr(self, f"{side}_lengths")
            if shape is None:
                continue
            self._check_lengths(side, shape)
            mean, tokens = mean_length(shape, self._traced(side)), getattr(self, f"{side}_tokens")
            if mean is None:
                continue
            if f"{side}_tokens" not in self.model_fields_set:
                object.__setattr__(self, f"{side}_tokens", max(round(mean), 1))
            elif not 1 / APART <= tokens / mean <= APART:
                raise ValueError(
                    f"{side}_tokens {tokens} is not the mean of {side}_lengths, {mean:,.0f}; leave "
                    "it out, or correct one of them"
                )
        return self

    def _check_lengths(self, side: str, shape: LengthShape) -> None:
        field = f"{side}_lengths"
        if getattr(self, f"{side}_spread") is not None:
            raise ValueError(f"{field} replaces {side}_spread; leave one of them out")
        if self.mode == "static":
            raise ValueError(f"mode static has exact lengths; leave {field} out or change the mode")
        if self.pooled:
            raise ValueError(f"task {self.task} takes input_spread, not {field}")
        if shape.shape == "trace" and not self._traced(side):
            raise ValueError(f"{field} of shape trace needs over_time.lengths, as a trace has them")

    def _traced(self, side: str) -> Traced:
        """Lengths of a trace, in tokens, and their weights."""
        points = () if self.over_time is None else self.over_time.lengths
        return tuple((getattr(point, f"{side}_tokens"), point.weight) for point in points)

    def relative_lengths(self, side: str) -> tuple[float, ...]:
        """Lengths of ``input`` or ``output`` over their mean, ascending; empty without a shape."""
        shape: LengthShape | None = getattr(self, f"{side}_lengths")
        return () if shape is None else relative_lengths(shape, self._traced(side))

    @model_validator(mode="after")
    def _task_has_no_answer(self) -> Self:
        if not self.pooled:
            return self
        answer_fields = {
            "output_tokens": self.output_tokens != 1,
            "output_spread": bool(self.output_spread),
            "speculative": self.speculative is not None,
        }
        extra = ", ".join(name for name, is_stated in answer_fields.items() if is_stated)
        if extra:
            raise ValueError(f"task {self.task} has no output tokens; leave {extra} out")
        return self

    @model_validator(mode="after")
    def _load_fits_mode(self) -> Self:
        needed = LOADS[self.mode]
        if getattr(self, needed) is None and self.mode != "closed":  # a closed loop's is searched
            raise ValueError(f"mode {self.mode} needs {needed}")
        loads = sorted(set(LOADS.values()) - {needed})
        extra = ", ".join(name for name in loads if getattr(self, name) is not None)
        if extra:
            remedy = "leave it out or change the mode"
            raise ValueError(f"mode {self.mode} takes {needed}, not {extra}; {remedy}")
        if self.mode == "static" and (self.input_spread or self.output_spread):
            remedy = "leave input_spread and output_spread out or change the mode"
            raise ValueError(f"mode static has exact lengths; {remedy}")
        return self

    @model_validator(mode="after")
    def _one_reuse(self) -> Self:
        if self.prefix_reuse and self.prefix_hit:
            raise InputError(
                f"is given beside prefix_hit {self.prefix_hit:g}, which it replaces.",
                field="workload.prefix_reuse",
                hint="Leave one of them out.",
            )
        if self.prefix_affinity and not self.prefix_reuse:
            raise ValueError(
                "prefix_affinity needs prefix_reuse: what caches of several sizes hold"
            )
        check_curve(self.prefix_reuse)
        return self

    @model_validator(mode="after")
    def _context_holds_requests(self) -> Self:
        if self.max_context is not None and self.max_context < self.longest_tokens:
            spread = " at their longest" if self.input_spread or self.output_spread else ""
            media = " + images and audio" if self.media_tokens else ""
            needed = f"input_tokens + output_tokens{media} = {self.longest_tokens}{spread}"
            raise ValueError(f"max_context {self.max_context} is shorter than {needed}")
        return self

    @property
    def pooled(self) -> bool:
        """Return whether requests end with their prompt: ``task`` is ``embed`` or ``score``."""
        return self.task in POOLED

    def as_task(self, task: Task) -> ServingWorkload:
        """The same requests for another task; a vector or a score has no output tokens."""
        if task not in POOLED:
            return self.model_copy(update={"task": task})
        none = {"output_tokens": 1, "output_spread": None, "speculative": None}
        return self.model_copy(update={"task": task, **none})

    @property
    def media_tokens(self) -> int:
        """Tokens of a prompt's images and sound, on average, rounded up."""
        items = (part for part in (self.images, self.audio) if part is not None)
        return math.ceil(sum(part.per_request * part.tokens for part in items))

    @property
    def prompt_tokens(self) -> int:
        """Mean length of a whole prompt: its text, images and sound."""
        return self.input_tokens + self.media_tokens

    @property
    def exact(self) -> bool:
        """Return whether all requests of users who come again are stated to be equally long."""
        return self.mode == "closed" and all(
            ((shape := getattr(self, f"{side}_lengths")) is not None and shape.shape == "fixed")
            or getattr(self, f"{side}_spread") == 0
            for side in SIDES
        )

    @property
    def longest_tokens(self) -> int:
        """Tokens of the longest request that the stated lengths and spreads allow.

        Of a shape that has no end 99.9 % of lengths count, and what ``max_context`` leaves of them.
        """
        longest, shortest = self.media_tokens, self.media_tokens
        for side in SIDES:
            mean = 0 if self.pooled and side == "output" else getattr(self, f"{side}_tokens")
            relative = self.relative_lengths(side)
            spread = getattr(self, f"{side}_spread") or 0.0
            tail = max(relative[int(LONGEST * len(relative))], 1.0) if relative else 1 + spread
            longest += round(mean * tail)
            shortest += mean if relative else round(mean * tail)
        if self.max_context is not None and shortest < longest:
            return max(min(longest, self.max_context), shortest)
        return longest

    @property
    def usual_longest(self) -> int:
        """Tokens of the longest request of such traffic, where ``max_context`` is not stated.

        What users send has a tail that no mean shows, and an engine refuses what is longer than
        it was told.
        """
        longest = self.longest_tokens
        if self.mode in WAITED_FOR and not self.pooled:
            longest = max(longest, LEAST_LONGEST, TAIL * (self.prompt_tokens + self.output_tokens))
        return whole_steps(longest)
