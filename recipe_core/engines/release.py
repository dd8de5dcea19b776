"""An engine's release as data: its containers, their host software, names of its metrics."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from recipe_core.base.provenance import Status


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class ContainerImage(_Data):
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


class Install(_Data):
    """The shell ``command`` that installs the engine's build for a runtime.

    ``architectures``: those it is for, where a runtime has several builds (empty: all).
    """

    command: str
    architectures: tuple[str, ...] = ()
    source: str
    status: Status
    note: str | None = None


class ApiKey(_Data):
    """How a server asks its callers for a key (``Authorization: Bearer KEY``).

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
    source: str
    status: Status
    note: str | None = None


class Floor(_Data):
    """The oldest host software that the engine runs on: NVIDIA's driver or AMD's ROCm release."""

    what: Literal["driver", "rocm"]
    version: Annotated[str, Field(pattern=r"^\d+(\.\d+)*$")]
    source: str
    status: Status


class Metrics(_Data):
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
    needs: dict[str, Any] = {}
    source: str
    note: str | None = None
