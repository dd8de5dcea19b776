"""The Recipe, schema_version 1: what was decided, why, what it should do, and what pins it.

``recipe.yaml`` is this object.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from recipe_core.base.documented import DescribedModel
from recipe_core.base.documents import to_json
from recipe_core.base.errors import BundleError
from recipe_core.base.problems import first_problem
from recipe_core.recipe.figures import Claim, check_estimate
from recipe_core.recipe.lock import Lock
from recipe_core.recipe.options import Layer
from recipe_core.recipe.place import Parameters
from recipe_core.recipe.variants import Variant
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.describe import model_short_name

SCHEMA_VERSION: Final[Literal[1]] = 1


def recipe_schema_version(value: Any) -> int:
    """The schema version of a recipe's plain values.

    The form before ``kind`` existed counts as 0, though it said 1.

    Raises:
        BundleError: when it is not a recipe, or newer than this version reads.
    """
    version = value.get("schema_version") if isinstance(value, Mapping) else None
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise BundleError(
            f"recipe.yaml: schema_version: {version!r} is not a version of a recipe.",
            hint="Build the bundle again with `recipe build`.",
        )
    if version > SCHEMA_VERSION:
        raise BundleError(
            f"recipe.yaml has schema_version {version}; this version reads up to {SCHEMA_VERSION}.",
            hint="Use the version of Recipe Builder that wrote it, or a newer one.",
        )
    return version if "kind" in value else 0


def migrate(value: Any) -> tuple[dict[str, Any], list[str]]:
    """The values in the present form, and a sentence for each step that changed them."""
    version = recipe_schema_version(value)
    migrated, notes = dict(value), []
    for step in range(version, SCHEMA_VERSION):
        change, note = _STEPS[step]
        migrated = change(migrated)
        notes.append(note)
    return migrated, notes


def _add_kind(value: dict[str, Any]) -> dict[str, Any]:
    """Other splits become fallbacks of that kind."""
    device, splits = value.get("device"), value.pop("alternatives", ())
    name = device.get("name") if isinstance(device, Mapping) else None
    if isinstance(splits, list | tuple):  # anything else the schema refuses by name
        splits = [_other_split(split, name) for split in splits]
    return {**value, "fallbacks": splits, "kind": "serving"}


def _other_split(value: Any, device: Any) -> Any:
    if not isinstance(value, Mapping):
        return value  # refused by the schema, which names it
    figures = {name: value[name] for name in ("output_tokens_per_s", "tpot_s") if name in value}
    rest = {name: item for name, item in value.items() if name not in figures}
    return rest | {"kind": "other-split", "changes": {}, "device": device, "figures": figures}


_STEPS: dict[int, tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    0: (
        _add_kind,
        "recipe.yaml predates recipe kinds: it is read as a serving recipe, without a lock.",
    ),
}


# Targets add words to a name, and a DNS label has at most 63 characters.
DNS_LABEL_CHARACTERS = 40


def recipe_name(model: str, device: str, candidate: Mapping[str, Any]) -> str:
    """Model, device, degrees above one, engine."""
    degrees = [
        f"{name}{candidate[name]}"
        for name in ("tp", "pp", "cp", "dp", "ep")
        if candidate.get(name, 1) > 1
    ]
    split = "-".join(degrees) or "single"
    return f"{model_short_name(model).lower()}-{device}-{split}-{candidate['engine']}"


def dns_label(name: str) -> str:
    """A name as a DNS label; of one that is cut short a hash keeps it apart from others."""
    label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "recipe"
    if len(label) <= DNS_LABEL_CHARACTERS:
        return label
    mark = hashlib.sha256(name.encode()).hexdigest()[:6]
    return f"{label[: DNS_LABEL_CHARACTERS - 7].rstrip('-')}-{mark}"


Kind = Literal["serving", "training"]

# Fields of a split, by the kind of recipe, without which nobody can show or start it.
_STATED = {
    "serving": ("engine", "tp", "pp", "dp", "ep", "cp", "weight_dtype", "kv_dtype"),
    "training": (
        *("engine", "tp", "pp", "dp", "ep", "cp"),
        *("virtual_stages", "zero_stage", "micro_batch", "recompute", "precision"),
    ),
}


def _check_split(split: dict[str, Any]) -> dict[str, Any]:
    """A split as it is, each field of which has the type of the request's ``candidate``."""
    try:
        CandidateRequest.model_validate_json(to_json(split, indent=None), strict=True)
    except ValidationError as error:
        problem = first_problem(error)
        raise ValueError(f"{problem.field}: {problem.message}") from None
    return split


# Plain values, so that fields keep their order, and those left out stay so.
Split = Annotated[dict[str, Any], AfterValidator(_check_split)]


def _check_changes(changes: dict[str, Any]) -> dict[str, Any]:
    """Changes as they are: another cluster, and lengths and loads as whole numbers."""
    for field, value in changes.items():
        is_count = isinstance(value, int) and not isinstance(value, bool) and value > 0
        if not (isinstance(value, dict) if field == "hardware" else is_count):
            kind = "a mapping" if field == "hardware" else "a whole number above 0"
            raise ValueError(f"{field}: {value!r:.40} is not {kind}")
    return changes


class ModelFacts(DescribedModel):
    """The model as it was counted."""

    id: str
    """Id of the model on the hub, or the folder that held it."""

    digest: str
    """Hash of the architecture: models with the same one are the same to an estimate."""

    parameters: int
    """Parameters of the whole model."""

    active_parameters: int
    """Parameters that one token uses; fewer than all in an MoE model."""

    weight_dtype: str
    """Number format in which the checkpoint stores its matrices."""

    max_context: int
    """Longest context of the model, in tokens."""

    config: dict[str, Any] | None = None
    """The model's config.json; left out for models of the catalog, which has it."""


class EngineFacts(DescribedModel):
    """The engine at its pinned version, and every option it is started with."""

    name: str
    """Name of the engine, or of the training framework."""

    title: str
    """What people call the engine."""

    version: str
    """Version that the recipe was made for and starts."""

    options: dict[str, Any]
    """Options that the engine is started with, by name, computed ones and the user's."""


class DeviceFacts(DescribedModel):
    """The device the recipe was computed for, and how many of them it uses."""

    name: str
    """Name of the device's profile."""

    title: str
    """What people call the device."""

    vendor: str
    """Who makes it: ``nvidia``, ``amd``, ``intel``, or ``cpu`` for a machine without
    accelerator."""

    runtime: str
    """What programs it: ``cuda``, ``rocm``, ``xpu``, ``metal``, ``cpu`` and others."""

    architecture: str
    """Architecture as compilers name it: ``sm_90``, ``gfx942``."""

    names: tuple[str, ...]
    """Names under which drivers report the device."""

    memory_bytes: int
    """Memory of one device as its driver reports it, in bytes."""

    count: int
    """Devices that the recipe uses."""

    per_node: int | None = None
    """Devices that it uses in each node; left out in recipes of older forms."""


class Fallback(DescribedModel):
    """The answer to a place where the recipe cannot run."""

    kind: Literal["other-split", "fewer-gpus", "other-precision", "lower-context", "other-device"]
    """What is different: the layout, the number of devices, a number format, the context or the
    device."""

    changes: Annotated[dict[str, Any], AfterValidator(_check_changes)]
    """Changes to the recipe's request, by dotted field."""

    device: str
    """Name of the device that the fallback runs on."""

    gpus: int
    """Devices that the fallback uses."""

    candidate: Split
    """Layout that is best after these changes, as the request's ``candidate``."""

    figures: dict[str, float | None] = {}
    """Headline figures of its estimate, by their names there; null where one is not known. Each
    name ends in its unit."""


class Recipe(DescribedModel):
    """Everything a bundle is made from."""

    schema_version: Literal[1] = SCHEMA_VERSION
    """Version of this schema; older documents are migrated, newer ones refused."""

    kind: Kind
    """What the recipe starts: serving or training."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")]
    """Name of the recipe: model, device, degrees above one, engine."""

    built_by: str
    """Program and version that made the recipe."""

    request: dict[str, Any]
    """Request that was asked, with every default written out."""

    model: ModelFacts
    """Model as it was counted."""

    device: DeviceFacts
    """Device that the recipe was computed for."""

    engine: EngineFacts
    """Engine, its version and every option."""

    environment: dict[str, str] = {}
    """Environment variables that all processes share."""

    candidate: Split
    """Layout that was decided, as the request's ``candidate`` with nothing left out."""

    provenance: dict[str, Layer] = {}
    """Layer that set each field of the candidate, option and variable, by dotted name
    (``options.max_num_seqs``); a later layer goes before an earlier one: base, model, architecture,
    device, objective, traffic, limits, user."""

    max_context: int | None = None
    """Longest request that the engine accepts, in tokens; null for training."""

    estimate: dict[str, Any]
    """What the layout should do: memory, times, cost, bands and their basis."""

    fallbacks: tuple[Fallback, ...] = ()
    """What to do where the recipe cannot run, from the smallest change of plans to the largest."""

    variants: tuple[Variant, ...] = ()
    """What is different on other machines."""

    parameters: Parameters = Parameters()
    """Values that depend on where the bundle is started."""

    claims: tuple[Claim, ...] = ()
    """What was measured with the recipe, and until when it counts."""

    notes: tuple[str, ...] = ()
    """What a reader should know, a sentence each."""

    lock: Lock | None = None
    """What pins the recipe: versions, digests, floors and seeds. Null in recipes of older forms."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        fallbacks = enumerate(self.fallbacks)
        splits = {
            f"fallbacks.{number}.candidate": fallback.candidate for number, fallback in fallbacks
        }
        for place, split in {"candidate": self.candidate, **splits}.items():
            if missing := [name for name in _STATED[self.kind] if split.get(name) is None]:
                raise ValueError(f"{place}: {missing[0]}: is missing")
        try:
            check_estimate(self.kind, self.estimate)
        except ValueError as error:
            raise ValueError(f"estimate: {error}") from None
        return self

    @property
    def digest(self) -> str:
        """Hash of the recipe's content; the lock is left out, which holds it."""
        return content_digest(self.model_dump(mode="json"))

    def locked(self) -> Recipe:
        """The recipe with its lock brought up to its content."""
        if not self.lock:
            return self
        lock = self.lock.model_copy(update={"recipe_digest": self.digest})
        return self.model_copy(update={"lock": lock})

    @classmethod
    def parse(cls, value: Any) -> Recipe:
        """A recipe from plain values, of this schema version or an older one.

        Raises:
            BundleError: naming what is wrong.
        """
        migrated, _ = migrate(value)
        try:
            return cls.model_validate(migrated)
        except ValidationError as error:
            problem = first_problem(error)
            where = ": ".join(filter(None, (problem.field, problem.message)))
            hint = "Build the bundle again."
            raise BundleError(f"recipe.yaml: {where}.", hint=hint) from None


def content_digest(values: dict[str, Any]) -> str:
    """SHA-256 over a recipe's plain values without its lock."""
    content = {name: value for name, value in values.items() if name != "lock"}
    return hashlib.sha256(to_json(content, indent=None).encode()).hexdigest()
