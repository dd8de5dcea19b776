"""What every target is given: how the deployment is started, on what, and what the environment calls things."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from recipe_core.engines.deployment import Launch

DnsLabel = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
Word = Annotated[str, Field(pattern=r"^[\w.:/@%+=,-]+$", max_length=512)]
Port = Annotated[int, Field(ge=1, le=65535)]


class Parameters(BaseModel):
    """What differs between environments, filled when a bundle is built or launched; everything has a default or may be left open.

    ``model``: a folder on the nodes, or a hub id in place of the recipe's. ``image``: a container image in place of the engine's.
    ``model_cache``: where weights are kept: a folder on the host, or on Kubernetes the name of a PersistentVolumeClaim. ``token_secret``:
    the name of a Kubernetes Secret whose key ``token`` holds the hub token; the token itself is never part of a bundle. ``queue``: of
    Kueue, Volcano or Slurm's QOS. ``min_replicas`` and ``max_replicas``: bounds of autoscaling, in copies of the whole deployment.
    ``device_groups``: numbers of the host's groups that may open AMD's devices (of video and render on Ubuntu 22.04), for containers that
    do not run as root. ``prometheus``: the address at which autoscaling asks for metrics. ``monitoring_namespace``: from where it scrapes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Word | None = None
    host: Word = "127.0.0.1"
    port: Port = 8000
    image: Word | None = None
    namespace: DnsLabel = "default"
    model_cache: Word | None = None
    cache_gib: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    storage_class: DnsLabel | None = None
    token_secret: DnsLabel | None = None
    node_selector: dict[Word, Word] = {}
    queue: Word | None = None
    partition: Word | None = None
    account: Word | None = None
    time_limit_minutes: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    cloud: Word | None = None
    region: Word | None = None
    min_replicas: Annotated[int, Field(ge=0, le=4096)] = 1
    max_replicas: Annotated[int, Field(ge=1, le=4096)] = 1
    device_groups: tuple[Annotated[int, Field(ge=0, le=65534)], ...] = (44, 109)
    prometheus: Word = "http://prometheus-operated.monitoring.svc:9090"
    monitoring_namespace: DnsLabel = "monitoring"

    @field_validator("image")
    @classmethod
    def _never_moves(cls, value: str | None) -> str | None:
        name = (value or "x:1").split("/")[-1]
        if name.endswith(":latest") or not {":", "@"} & set(name):
            raise ValueError(f"{value} moves: name a release, by a tag other than latest or by a digest")
        return value

    @model_validator(mode="after")
    def _bounds(self) -> Parameters:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas ({self.min_replicas}) is more than max_replicas ({self.max_replicas})")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A container image: ``reference`` with a tag that is never ``latest``, and its ``digest`` where that is known."""

    reference: str
    digest: str | None = None

    @property
    def pinned(self) -> str:
        """What a manifest names: by digest when there is one."""
        return f"{self.reference}@{self.digest}" if self.digest else self.reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A recipe as targets see it.

    ``name`` is a DNS label. ``devices_per_node`` of ``device`` (a profile's name, or that of the shipped device as which a profile of
    one's own is known) are used in each of ``launch.nodes`` nodes, of ``vendor`` (nvidia, amd, intel, cpu) and ``runtime`` (cuda, rocm,
    cpu). ``image`` is None where no container is known. ``weights_bytes``: of the whole checkpoint. ``estimate`` and ``limits`` are the
    recipe's (for thresholds). ``workload`` is the request's. ``files``: what processes read from the bundle besides ``launch.files`` (a
    trainer's program), by path. ``install``: the shell words that install the engine where there is no container.
    """

    name: str
    kind: Literal["serving", "training"]
    engine: str
    engine_version: str
    launch: Launch
    parameters: Parameters
    model: str
    device: str
    vendor: str
    runtime: str
    architecture: str
    devices_per_node: int
    device_memory_bytes: int
    host_memory_bytes: int | None
    image: Image | None
    weights_bytes: int
    estimate: dict[str, Any]
    workload: dict[str, Any]
    limits: dict[str, Any]
    files: dict[str, str] = field(default_factory=dict)
    install: tuple[str, ...] = ()

    @property
    def nodes(self) -> int:
        """Nodes of one copy of the deployment."""
        return self.launch.nodes

    @property
    def model_source(self) -> str:
        """What engines load: a folder on the nodes or a hub id."""
        return self.parameters.model or self.model

    @property
    def model_is_folder(self) -> bool:
        """Whether the model is a folder on the nodes rather than a hub id."""
        return self.model_source.startswith(("/", "./", "../", "~"))

    @property
    def mounted(self) -> dict[str, str]:
        """Every file of the bundle that processes read, by path."""
        return self.launch.files | self.files
