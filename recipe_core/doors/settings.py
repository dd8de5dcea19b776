"""The settings of a server: who may call it, and what a request may cost.

Every setting is an environment variable ``RECIPE_BUILDER_…``; ``recipe serve`` has options for
them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from recipe_core.base.budget import Budget
from recipe_core.base.errors import InputError
from recipe_core.base.problems import first_problem

PREFIX = "RECIPE_BUILDER_"
SHORTEST_TOKEN = 16


class ServerSettings(BaseModel):
    """The settings of one server."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    folders: bool = False
    """Whether requests may name models by a path on this machine; on loopback addresses only."""

    token: str | None = None
    """What callers prove themselves with; None asks for nothing."""

    no_auth: bool = False
    """Whether strangers on the network may call a server without a token."""

    hosts: tuple[str, ...] = ()
    """Names under which the server may be called, beside its addresses; ``*`` is any."""

    metrics: bool = False
    """Whether /_stcore/metrics answers."""

    workers: Annotated[int, Field(ge=0, le=256)] = max((os.cpu_count() or 2) - 1, 1)
    """Processes that calculate, beside one more for short questions alone; 0 calculates in the
    server's own, one request delaying others."""

    queue: Annotated[int, Field(ge=0, le=10_000)] = 64
    """Short questions, and as many long ones, that may wait for a worker; half of them of one
    caller."""

    wait_seconds: Annotated[float, Field(gt=0)] = 120.0
    """Seconds that a request may wait for a worker; a job that was begun waits longer."""

    sessions: Annotated[int, Field(ge=1, le=100_000)] = 256
    """Readers whose pages may be open at a time; half of them from one address."""

    candidates: Annotated[int, Field(ge=1)] = 300_000
    """Candidates that a plan may have; each takes half a kilobyte of the server while pages show
    it."""

    seconds: Annotated[float, Field(gt=0)] = 120.0
    """Seconds that a request may calculate."""

    memory_gib: Annotated[float, Field(gt=0)] = 2.0
    """GiB of memory that a request may use."""

    @field_validator("token")
    @classmethod
    def _long_enough(cls, token: str | None) -> str | None:
        if not token:
            return None
        if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
            raise ValueError(f"a token has at least {SHORTEST_TOKEN} printable ASCII characters")
        return token

    @field_validator("hosts", mode="before")
    @classmethod
    def _split(cls, hosts: object) -> object:
        return tuple(filter(None, hosts.split(","))) if isinstance(hosts, str) else hosts

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """The settings that the environment states.

        Raises:
            InputError: names the variable that is wrong.
        """
        environment = os.environ if environment is None else environment
        values = {
            name: environment[variable(name)]
            for name in cls.model_fields
            if environment.get(variable(name))
        }
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            problem = first_problem(error)  # without its value, which may be the token
            raise InputError(f"{problem.message}.", field=variable(problem.path[0])) from None

    @property
    def processes(self) -> int:
        """Worker processes at most: one of them is left to short questions."""
        return self.workers + 1 if self.workers else 0

    @property
    def cached_candidates(self) -> int:
        """Candidates of all plans that pages keep for the next look at them."""
        return 3 * self.candidates

    @property
    def budget(self) -> Budget:
        """Return what a request may calculate."""
        return Budget(self.candidates, self.seconds)

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that a request may use."""
        return int(self.memory_gib * 2**30)


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()
