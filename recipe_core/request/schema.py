"""The request for a plan: PlanRequest.

One object that the API takes, the URL encodes and the command line reads from a file. The string
under each field is its description everywhere (``recipe_core.base.documented``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, TypeAdapter, model_validator

from recipe_core.base.documented import DescribedModel, description_of
from recipe_core.base.errors import InputError
from recipe_core.base.types import KvDtype, Positive, Text, Tokens, WeightDtype
from recipe_core.hardware.request import HardwareRequest
from recipe_core.request.candidate import CandidateRequest, Window
from recipe_core.request.compression import Compression
from recipe_core.request.first_error import validate_plain
from recipe_core.request.metrics import timed_limits
from recipe_core.request.objective import GAIN_FROM_LOAD, Objective
from recipe_core.request.over_time import Dispatch, Simulated, Start
from recipe_core.request.scaling import Scaling
from recipe_core.request.serving_workload import KvOffload, ServingWorkload, Speculative
from recipe_core.request.supervision import Supervision
from recipe_core.request.training_workload import TrainingWorkload

Workload = Annotated[ServingWorkload | TrainingWorkload, Field(discriminator="kind")]


class Options(DescribedModel):
    """The choices that the search may vary; each is combined with every layout."""

    engines: tuple[Text, ...] = ()
    """Engines to judge, by name; none named: the preferred one of the device."""

    weight_dtypes: Annotated[tuple[WeightDtype, ...], Field(min_length=1)] = ("auto",)
    """Number formats of the weights to judge; ``auto`` is the checkpoint's own."""

    kv_dtypes: Annotated[tuple[KvDtype, ...], Field(min_length=1)] = ("auto",)
    """Number formats of the KV cache to judge; ``auto`` is the checkpoint's own."""

    nodes: Literal["any", "all"] = "any"
    """Layouts to judge: ``any`` number of devices, or only those that use ``all``."""

    hardware: Annotated[tuple[HardwareRequest, ...], Field(max_length=64)] = ()
    """Other clusters, judged side by side with the request's."""

    loads: Annotated[tuple[Positive, ...], Field(max_length=256)] = ()
    """Other loads besides the workload's, in the unit of its mode: users at once, requests in the
    batch or in the queue, or requests per second. Each is a row of the plan. To have the best load
    of every layout searched, leave ``workload.concurrency`` out instead."""

    max_batched_tokens: Annotated[tuple[Tokens, ...], Field(max_length=64)] = ()
    """Limits on the tokens of one engine step to judge; none given: the engine's default."""

    batch_windows_ms: Annotated[tuple[Window, ...], Field(max_length=16)] = ()
    """How long a request may wait for others before its batch begins, in milliseconds: windows to
    judge, with engines that form batches by one; none given: the engine's default."""

    speculative: Annotated[tuple[Speculative, ...], Field(max_length=16)] = ()
    """Drafts to judge besides the workload's own."""

    context_parallel: bool = False
    """Whether to judge layouts whose ranks share a cache that each would hold whole (CP), which
    helps where there are more ranks than KV heads."""

    disaggregated: bool = False
    """Whether to judge deployments with a prefill pool: prompts are computed on devices of their
    own, any layout in each pool, in as many copies as fit. Not for ``mode: static``."""

    engine_options: dict[Text, Any] = {}
    """The engine's own options by name, passed on when it is started (parsers of tools, LoRA
    adapters); what the candidate or the workload decides, and secrets, are refused. Serving
    only."""

    environment: dict[Text, str] = {}
    """Environment variables of the engine's processes, such as ``NCCL_SOCKET_IFNAME``; secrets are
    refused. Serving only."""

    supervision: Supervision = Supervision()
    """How what runs is kept running, on one machine and by the controllers of clusters; no plan
    depends on it."""

    scaling: Scaling | None = None
    """How many replicas run at which moment: what ``recipe simulate`` simulates, and what the
    bundle's autoscalers are told; no plan depends on it."""

    simulated: Simulated | None = None
    """What ``options.scaling`` came to over the load, for the bundle to repeat; no plan depends on
    it."""

    kv_offload: KvOffload | None = None
    """Memory and storage that hold the KV cache of past prompts when the devices have no room for
    it; left out, what is evicted from a device is computed again. What it finds depends on
    ``workload.prefix_reuse``. Serving only."""

    admit: Literal["limits", "engine"] = "limits"
    """How many requests an engine admits at once where ``objective.limits`` bounds a time: those
    for which the ``limits`` hold, so that more users wait in front of it and those inside keep
    their pace; or as many as the ``engine`` takes by itself. Without such a limit, and where
    ``candidate.max_num_seqs`` is stated, it changes nothing. Serving only."""

    start: Start = Start()
    """What a new replica finds when it starts; no plan depends on it."""

    dispatch: Dispatch = "least-loaded"
    """Whom a router gives a request over time: the replica with the fewest at once, or each in its
    turn (``round-robin``)."""

    compression: Compression | None = None
    """How the bundle makes a checkpoint in a format that the model's own does not have; with it a
    layout may be chosen whose weights no checkpoint holds. Serving only."""


def needs_load(workload: Workload) -> bool:
    """Return whether a closed loop does not say how many requests are in flight."""
    if not isinstance(workload, ServingWorkload) or workload.mode != "closed":
        return False
    return workload.concurrency is None


def no_search(objective: Objective, options: Options) -> str | None:
    """Say what to state so that a closed loop's load is known; None where it can be searched."""
    if all(getattr(objective.limits, name) is None for name in timed_limits()):
        return (
            "State workload.concurrency, or a limit on time such as objective.limits.tpot_ms, for "
            "which the largest load is searched."
        )
    if not GAIN_FROM_LOAD & set(objective.goals):
        return (
            "State workload.concurrency: the largest load is searched only where throughput, cost "
            "or energy counts."
        )
    if options.loads:
        return (
            "State workload.concurrency, or leave options.loads out: then the largest load is "
            "searched."
        )
    return None


class PlanRequest(DescribedModel):
    """Model, hardware, workload and objective: all that a plan, an estimate or a bundle needs."""

    model: Text | dict[str, Any]
    """Model: an id of the catalog or the hub (``owner/name``, ``owner/name@revision``), dimensions
    (``my-gpt [h=6144,L=44,heads=48,vocab=51200]``), a Hugging Face config.json itself, or a folder
    that holds one (not from strangers). A config may add its ``name``, and where its ``weights``
    are: an id of the hub, or an absolute path on the machine that runs it; left out, a launch asks
    for them."""

    hardware: HardwareRequest
    """The devices on offer, their links and their price."""

    workload: Workload
    """Requests to be served, or a run to be trained."""

    objective: Objective = Objective()
    """What counts most, and the limits that come before it."""

    options: Options = Options()
    """What the search may vary beyond the layout."""

    candidate: CandidateRequest | None = None
    """The layout to estimate, check or build; what it leaves out is chosen. A plan judges every
    layout, whatever stands here."""

    @model_validator(mode="after")
    def _load_is_known(self) -> Self:
        if needs_load(self.workload) and (hint := no_search(self.objective, self.options)):
            raise InputError("is missing.", field="workload.concurrency", hint=hint)
        return self

    @model_validator(mode="before")
    @classmethod
    def _kind_is_serving(cls, value: Any) -> Any:
        """A workload without ``kind`` is serving."""
        workload = value.get("workload") if isinstance(value, Mapping) else None
        if isinstance(workload, Mapping) and "kind" not in workload:
            return {**value, "workload": {"kind": "serving", **workload}}
        return value

    @classmethod
    def parse(cls, value: Any) -> PlanRequest:
        """The request in ``value``, plain values read from YAML, JSON or a link.

        Raises:
            InputError: naming the first wrong field and what it takes.
        """
        if isinstance(value, Mapping) and value.get("hardware") == "any":
            raise InputError(
                "is any, where one cluster is needed.",
                field="hardware",
                hint="Size it first (recipe size), or name a device.",
            )
        return validate_plain(value, cls)

    @property
    def is_training(self) -> bool:
        return isinstance(self.workload, TrainingWorkload)

    @property
    def load_searched(self) -> bool:
        return needs_load(self.workload)

    @property
    def loads_differ(self) -> bool:
        """Return whether splits may be under different loads: each has to say its own."""
        return self.load_searched or bool(self.options.loads)

    def to_json(self) -> dict[str, Any]:
        """Plain values with every default written out, so that a stored request keeps its meaning.

        Unset fields are left out.
        """
        out: dict[str, Any] = self.model_dump(mode="json", exclude_none=True)
        return out


def asks_for_any(value: Any) -> bool:
    """Return whether plain values are a request whose hardware is open (``request.size``)."""
    hardware = value.get("hardware") if isinstance(value, Mapping) else None
    return hardware == "any" or (isinstance(hardware, Mapping) and "any" in hardware)


def describe_field(path: str) -> str:
    """Say what a field of a request means, by its dotted name: ``objective.limits.tpot_ms``.

    Raises:
        LookupError: for a name that no request has.
    """
    return description_of(PlanRequest, path)


def json_schema() -> dict[str, Any]:
    return TypeAdapter(PlanRequest).json_schema()
