"""The Recipe, schema_version 1: what was decided, why, what it should do, and what pins it. ``recipe.yaml`` is this object."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from recipe_core.base.documents import to_json
from recipe_core.base.errors import BundleError
from recipe_core.recipe.expected import check_estimate
from recipe_core.recipe.lock import Lock
from recipe_core.recipe.measurements import Claim
from recipe_core.recipe.migrate import SCHEMA_VERSION, migrate
from recipe_core.recipe.place import Parameters
from recipe_core.recipe.provenance import Layer
from recipe_core.recipe.variants import Variant

Kind = Literal["serving", "training"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelFacts(_Part):
    """The model as it was counted; ``digest`` identifies the architecture, ``config`` is kept of models outside the catalog."""

    id: str
    digest: str
    parameters: int
    active_parameters: int
    weight_dtype: str
    max_context: int
    config: dict[str, Any] | None = None


class EngineFacts(_Part):
    """The engine at its pinned version, and every option it is started with."""

    name: str
    title: str
    version: str
    options: dict[str, Any]


class DeviceFacts(_Part):
    """The device the recipe was computed for and how many of them it uses, in nodes of ``per_node``."""

    name: str
    title: str
    vendor: str
    runtime: str
    architecture: str
    names: tuple[str, ...]
    memory_bytes: int
    count: int
    per_node: int | None = None


class Fallback(_Part):
    """What to do where the recipe cannot run: ``changes`` to its request (dotted fields), and the ``candidate`` that is best then."""

    kind: Literal["other-split", "fewer-gpus", "other-precision", "lower-context", "other-device"]
    changes: dict[str, Any]
    device: str
    gpus: int
    candidate: dict[str, Any]
    figures: dict[str, float | None] = {}


class Recipe(_Part):
    """Everything a bundle is made from.

    ``environment``: variables that all processes share. ``provenance``: the layer that set a field of the candidate, an option or a
    variable, by its dotted name (``options.max_num_seqs``). ``max_context`` and, in the estimate, serving figures are a serving recipe's;
    a training recipe has a step and a run.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Kind
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")]
    built_by: str
    request: dict[str, Any]
    model: ModelFacts
    device: DeviceFacts
    engine: EngineFacts
    environment: dict[str, str] = {}
    candidate: dict[str, Any]
    provenance: dict[str, Layer] = {}
    max_context: int | None = None
    estimate: dict[str, Any]
    fallbacks: tuple[Fallback, ...] = ()
    variants: tuple[Variant, ...] = ()
    parameters: Parameters = Parameters()
    claims: tuple[Claim, ...] = ()
    notes: tuple[str, ...] = ()
    lock: Annotated[Lock | None, Field(description="None in recipes of older forms.")] = None

    @model_validator(mode="after")
    def _estimate_has_figures(self) -> Self:
        check_estimate(self.kind, self.estimate)
        return self

    @property
    def digest(self) -> str:
        """Hash of the recipe's content; the lock is left out, which holds it."""
        return content_digest(self.model_dump(mode="json"))

    def locked(self) -> Recipe:
        """The recipe with its lock brought up to its content."""
        return (
            self.model_copy(
                update={"lock": self.lock.model_copy(update={"recipe_digest": self.digest})}
            )
            if self.lock
            else self
        )

    @classmethod
    def parse(cls, value: Any) -> Recipe:
        """A recipe from plain values, of this schema version or an older one; raises BundleError naming what is wrong."""
        migrated, _ = migrate(value)
        try:
            return cls.model_validate(migrated)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(step) for step in first["loc"])
            said = (
                "is not a known field"
                if first["type"] == "extra_forbidden"
                else first["msg"].removeprefix("Value error, ")
            )
            where = where or "estimate"
            raise BundleError(
                f"recipe.yaml: {where}: {said}.", hint="Build the bundle again."
            ) from None


def content_digest(values: dict[str, Any]) -> str:
    """SHA-256 over a recipe's plain values without its lock."""
    content = {name: value for name, value in values.items() if name != "lock"}
    return hashlib.sha256(to_json(content, indent=None).encode()).hexdigest()
