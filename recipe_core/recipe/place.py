"""Differences between the places where one recipe is started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from recipe_core.base.documented import DescribedModel
from recipe_core.base.documents import parse_json
from recipe_core.base.errors import InputError
from recipe_core.base.problems import first_problem
from recipe_core.base.texts import a_name
from recipe_core.recipe.variants import Variant

DnsLabel = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
Word = Annotated[
    str, BeforeValidator(a_name), Field(pattern=r"^[\w.:/@%+=,][\w.:/@%+=,-]*$", max_length=512)
]
Address = Annotated[
    str, BeforeValidator(a_name), Field(pattern=r"^[A-Za-z0-9:][A-Za-z0-9:._-]*$", max_length=253)
]
GresType = Annotated[
    str, BeforeValidator(a_name), Field(pattern=r"^[A-Za-z0-9][\w.-]*$", max_length=64)
]
Resource = Annotated[
    str,
    BeforeValidator(a_name),
    Field(pattern=r"^(none|[a-z0-9][a-z0-9.-]*/[A-Za-z0-9][\w.-]*)$", max_length=253),
]
Networks = Annotated[
    str,
    BeforeValidator(a_name),
    Field(pattern=r"^[a-z0-9][a-z0-9./-]*(,[a-z0-9][a-z0-9./-]*)*$", max_length=512),
]
CommunicationVariable = Annotated[
    str,
    BeforeValidator(a_name),
    Field(
        pattern=r"^(NCCL|RCCL|HCCL|UCX|GLOO|TP|FI|NVSHMEM|ROCSHMEM|MORI|DEEP_EP)_[A-Z0-9_]+$",
        max_length=128,
    ),
]
Features = Annotated[
    str, BeforeValidator(a_name), Field(pattern=r"^[\w.(\[][\w.&|,*()\[\]-]*$", max_length=256)
]
Counter = Annotated[
    str,
    BeforeValidator(a_name),
    Field(
        pattern=r'^[a-zA-Z_:][\w:]*(\{[a-zA-Z_]\w*(=|!=|=~|!~)"[^"\\{}$<>]*"'
        r'(,\s?[a-zA-Z_]\w*(=|!=|=~|!~)"[^"\\{}$<>]*")*\})?$',
        max_length=512,
    ),
]
Bucket = Annotated[
    str,
    BeforeValidator(a_name),
    Field(
        pattern=r"^(s3|gs|r2|cos|oci|nebius|azure)://[a-z0-9][\w.-]*(/[\w.-]+)*$", max_length=512
    ),
]
Port = Annotated[int, Field(ge=1, le=65535)]


def _unstated(value: object) -> bool:
    return not value


# Parameters that came after the first version: left out where unstated, so that the digests of
# recipes without them hold.
JOINED = Field(exclude_if=_unstated)

Rate = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


class Parameters(DescribedModel):
    """The parameters of a place, filled in when a bundle is built or launched.

    Everything has a default or may be left open.
    """

    target: Annotated[DnsLabel | None, JOINED] = None
    """Target that the bundle is for, by the name of its folder in ``targets/``: ``slurm``. The
    bundle's README then says how that is started and what happens there when something breaks;
    left out, that of the bundle's launcher, and which targets it can be run on."""

    model: Word | None = None
    """Folder on the nodes that holds the model, or an id of the hub; left out, the recipe's
    model."""

    host: Address = "127.0.0.1"
    """Address that servers listen on when the bundle's launcher starts them; 0.0.0.0 for all."""

    port: Port = 8000
    """First port; several processes take the ones after it."""

    image: Word | None = None
    """Container image in place of the engine's, with a tag that does not move or a digest."""

    namespace: DnsLabel = "default"
    """Kubernetes namespace in which objects are made."""

    model_cache: Word | None = None
    """Where weights are kept: a folder on the host, or on Kubernetes the name of a
    PersistentVolumeClaim."""

    cache_gib: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    """Size of the claim for weights, in GiB; left out, the checkpoint's with room to spare."""

    storage_class: DnsLabel | None = None
    """Storage class of claims on Kubernetes; left out, the cluster's default."""

    shared_storage_class: Annotated[DnsLabel | None, JOINED] = None
    """Storage class of claims that pods on several nodes mount (ReadWriteMany), of files rather
    than blocks; left out, ``storage_class``."""

    rdma_resource: Annotated[Resource | None, JOINED] = None
    """Resource that pods on several nodes ask for to reach InfiniBand or RoCE; left out, the
    network's usual one (``rdma/ib``); ``none`` asks for none, and they talk over TCP."""

    rdma_count: Annotated[Annotated[int, Field(ge=1, le=1024)] | None, JOINED] = None
    """How many of ``rdma_resource`` a pod asks for; left out, one, or one a device under EFA."""

    host_network: Annotated[bool, JOINED] = False
    """Whether pods on several nodes use their hosts' network."""

    networks: Annotated[Networks | None, JOINED] = None
    """Networks of Multus that pods on several nodes are attached to, with commas between them:
    ``rdma-0,rdma-1``."""

    gke_network: Annotated[Literal["tcpx", "tcpxo", "rdma"] | None, JOINED] = None
    """How pods on several nodes of Google Kubernetes Engine reach each other's devices:
    GPUDirect-TCPX (a3-highgpu-8g), -TCPXO (a3-megagpu-8g) or RDMA (a3-ultragpu-8g, a4-highgpu-8g),
    with the daemon, annotations, libraries and variables that each needs; ``networks`` then names
    GKE's networks in the order of the interfaces, left out Google's own names (``vpc1`` to
    ``vpc8``, ``rdma-0`` to ``rdma-7``). Left out, none of them."""

    storage_mb_per_s: Annotated[Rate | None, JOINED] = None
    """Rate at which weights come to a node, in 10^6 bytes per second: of the link to the hub, or of
    the storage where ``model`` is a folder. Time limits of starts are longer the slower it is; left
    out, 100 from a hub and 250 from a folder."""

    token_secret: DnsLabel | None = None
    """Name of the Kubernetes Secret whose key ``token`` holds the hub's token; the token itself is
    never part of a bundle."""

    api_key_secret: Annotated[DnsLabel | None, JOINED] = None
    """Name of the secret with the API key that callers of the servers have to send: the Kubernetes
    Secret whose key ``api-key`` holds it; elsewhere the engine's variable does
    (``VLLM_API_KEY``, ``SGLANG_API_KEY``). Where it is set nothing starts without a key; left out,
    servers answer whoever reaches them. The key itself is never part of a bundle."""

    gateway_namespace: Annotated[DnsLabel | None, JOINED] = None
    """Kubernetes namespace of the gateway or ingress that passes requests to the pods; left out,
    only pods of their own namespace and of ``monitoring_namespace`` reach them."""

    communication: Annotated[dict[CommunicationVariable, Word], JOINED] = {}
    """Variables of NCCL, RCCL, UCX and the like that the place needs, as JSON:
    ``{"NCCL_IB_HCA": "mlx5", "NCCL_SOCKET_IFNAME": "eth0"}``."""

    priority_class: Annotated[DnsLabel | None, JOINED] = None
    """Priority class of the pods; left out, the cluster's default."""

    writable_root: Annotated[bool, JOINED] = False
    """Whether containers on Kubernetes may write to their own root file system; otherwise they
    write to their home, ``/tmp``, shared memory and what is mounted only."""

    node_selector: dict[Word, Word] = {}
    """Labels that Kubernetes nodes must have, as JSON: ``{"pool": "gpu"}``."""

    queue: Word | None = None
    """Queue of Kueue or Volcano, or the QOS of Slurm."""

    partition: Word | None = None
    """Partition of Slurm; left out, the cluster's default."""

    gpu_type: Annotated[GresType | None, JOINED] = None
    """Type of the devices as Slurm's cluster names it (``sinfo -o %G`` lists them); left out, the
    device's usual name; ``any`` asks for none."""

    constraint: Annotated[Features | None, JOINED] = None
    """Features that nodes of Slurm must have: ``h100&ib``; left out, none."""

    account: Word | None = None
    """Account of Slurm; left out, the user's default."""

    time_limit_minutes: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    """Time limit of a Slurm job, in minutes; left out, the partition's."""

    cloud: Word | None = None
    """Cloud that SkyPilot uses; left out, the cheapest."""

    bucket: Annotated[Bucket | None, JOINED] = None
    """Bucket in which SkyPilot keeps a training run, ``s3://NAME/FOLDER`` or ``gs://NAME``: where a
    machine is lost, the run goes on from its newest checkpoint there; left out, it begins anew."""

    region: Word | None = None
    """Region of ``cloud`` that SkyPilot uses; left out, the cheapest."""

    min_replicas: Annotated[int, Field(ge=0, le=4096)] = 1
    """Fewest copies of the whole deployment under autoscaling; left out where the request has
    ``options.scaling``."""

    max_replicas: Annotated[int, Field(ge=1, le=4096)] = 1
    """Most copies of the whole deployment; more than the fewest offers autoscaling. Left out where
    the request has ``options.scaling``."""

    device_groups: tuple[Annotated[int, Field(ge=0, le=65534)], ...] = (44, 109)
    """Numbers of the host's groups that may open AMD devices (video and render; as on Ubuntu
    22.04), for containers that do not run as root."""

    prometheus: Word = "http://prometheus-operated.monitoring.svc:9090"
    """Address at which autoscaling asks Prometheus for metrics."""

    gateway_metric: Annotated[Counter | None, JOINED] = None
    """Prometheus counter of the requests that arrive at the gateway before the servers, with its
    labels: ``nginx_ingress_controller_requests{ingress="llm"}``. Scaling by the rate of requests
    needs it, and so does waking the first replica."""

    monitoring_namespace: DnsLabel = "monitoring"
    """Kubernetes namespace from which metrics are scraped."""

    @field_validator("image")
    @classmethod
    def _never_moves(cls, value: str | None) -> str | None:
        name = (value or "x:1").split("/")[-1]
        if name.endswith(":latest") or not {":", "@"} & set(name):
            remedy = "name a release, by a tag other than latest or by a digest"
            raise ValueError(f"{value} moves: {remedy}")
        return value

    @property
    def shared_class(self) -> str | None:
        return self.shared_storage_class or self.storage_class

    @model_validator(mode="after")
    def _bounds(self) -> Parameters:
        if self.min_replicas > self.max_replicas:
            bounds = f"min_replicas ({self.min_replicas}) is more than max_replicas"
            raise ValueError(f"{bounds} ({self.max_replicas})")
        return self


_ABOUT = "See docs/reference/recipe.md."
# Parameters that are mappings or lists, and JSON where they are given as text.
_STRUCTURED = tuple(
    name
    for name, field in Parameters.model_fields.items()
    if isinstance(field.default, Mapping | tuple)
)


def read_parameters(values: Mapping[str, Any]) -> Parameters:
    """Parameters by name; text becomes what a parameter takes, ``{"zone": "a"}`` (JSON) a mapping.

    Raises:
        InputError: naming the parameter that is unknown or wrong.
    """
    try:
        return Parameters.model_validate({k: _structured(k, value) for k, value in values.items()})
    except ValidationError as error:
        raise _first_problem(
            error, "parameters", f"Known: {', '.join(Parameters.model_fields)}."
        ) from None


def _structured(name: str, value: Any) -> Any:
    """The value of a parameter; raises InputError for a mapping or list that is not JSON."""
    if name not in _STRUCTURED or not isinstance(value, str):
        return value
    try:
        return parse_json(value, "the value")
    except InputError as error:
        raise InputError(error.message, field=f"parameters.{name}", hint=error.hint) from None


def parse_recipe_variants(value: Any) -> tuple[Variant, ...]:
    """Variants from a list; raises InputError naming the field that is unknown or wrong."""
    try:
        return TypeAdapter(tuple[Variant, ...]).validate_python(value)
    except ValidationError as error:
        raise _first_problem(error, "variants", _ABOUT) from None


def _first_problem(error: ValidationError, where: str, hint: str) -> InputError:
    problem = first_problem(error)
    field, text = ".".join([where, *problem.path]), problem.text
    if problem.kind == "string_pattern_mismatch":
        text = f"has characters that it may not have (got {problem.value!r:.80})"
    hint = hint if problem.kind == "extra_forbidden" else _ABOUT
    return InputError(f"{text}.", field=field, hint=hint)
