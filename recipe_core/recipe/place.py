"""What differs between the places where one recipe is started."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

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
            raise ValueError(
                f"{value} moves: name a release, by a tag other than latest or by a digest"
            )
        return value

    @model_validator(mode="after")
    def _bounds(self) -> Parameters:
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas ({self.min_replicas}) is more than max_replicas ({self.max_replicas})"
            )
        return self
