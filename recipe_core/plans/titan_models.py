"""Models that torchtitan ships: ``training/titan_models.yaml``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.resources import PACKAGE
from recipe_core.models.spec import (
    Attention,
    GroupedAttention,
    LatentAttention,
    LinearAttention,
    ModelSpec,
    MoeMlp,
)

TITAN_MODELS = DataFile(PACKAGE / "engines" / "training" / "titan_models.yaml", "engines")
# Differences that a sentence names.
_SHOWN = 4


class TitanModel(BaseModel):
    """A flavour of a model that torchtitan ships, by what tells it from others (``shape``).

    A width that a flavour does not have is not in it.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    module: str
    flavor: str

    @property
    def shape(self) -> Mapping[str, Any]:
        return self.model_extra or {}

    @property
    def title(self) -> str:
        """``qwen3 8B``."""
        return f"{self.module} {self.flavor}"

    def differences(self, shape: Mapping[str, Any]) -> Iterator[str]:
        """Say where a model's shape is another; a config need not state all of ``fields``.

        ``heads 32, not 64``.
        """
        facts = titan_facts()
        for name in facts.compared:
            theirs, ours = self.shape.get(name), shape.get(name)
            if theirs != ours and not (name in (*facts.fields, "rope_theta") and ours is None):
                yield f"{name} {_value_text(theirs)}, not {_value_text(ours)}"


class _Facts(DataRow):
    schema_version: Literal[1]
    version: str
    source: str
    families: dict[str, tuple[str, ...]]
    compared: tuple[str, ...]
    attributes: dict[str, dict[str, str]]
    fields: dict[str, str]
    scores: dict[str, str]
    stored: dict[str, str]
    models: tuple[TitanModel, ...]

    @model_validator(mode="after")
    def _compares_all(self) -> _Facts:
        if extra := sorted({name for row in self.models for name in row.shape} - {*self.compared}):
            raise ValueError(f"{extra[0]!r} of a model is not in compared")
        return self


@cache
def titan_facts() -> _Facts:
    """The file ``titan_models.yaml``."""
    return TITAN_MODELS.read_as(_Facts)


def shipped_configuration(model: ModelSpec) -> TitanModel | None:
    """The flavour that a model is; None where torchtitan ships none that is equal to it."""
    shape = titan_shape(model)
    equal = (flavour for flavour in _titan_family(model) if not any(flavour.differences(shape)))
    return next(equal, None)


def reads_checkpoint(model: ModelSpec) -> bool:
    """Return whether a flavour starts from a checkpoint's weights in their stored format.

    Of stored formats beside 16 bits, some modules read that of their own first release.
    """
    flavour = shipped_configuration(model)
    if flavour is None or model.quantization is None:
        return True
    return model.quantization.dtype == titan_facts().stored.get(flavour.module)


def unlike_shipped(model: ModelSpec) -> str:
    """Say what keeps a model from being one that torchtitan ships, as the end of a sentence."""
    family = _titan_family(model)
    if not family:
        modules = ", ".join(titan_facts().families)
        return f"which it does not ship (it ships {modules})"
    shape = titan_shape(model)
    differing = [(flavour, [*flavour.differences(shape)]) for flavour in family]
    # The closest has the fewest differences; of several, the one nearest in width.
    best, differences = min(
        differing, key=lambda entry: (len(entry[1]), abs(entry[0].shape["hidden"] - model.hidden))
    )
    rest = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    shown = ", ".join(differences[:_SHOWN])
    return f"which it does not ship: {best.title}, the closest, has {shown}{rest}"


def _titan_family(model: ModelSpec) -> tuple[TitanModel, ...]:
    """Flavours of the modules that train models of the ``model_type`` of a config."""
    facts = titan_facts()
    types = {model.model_type, str(_text_config(model).get("model_type") or "")}
    modules = {name for name, family in facts.families.items() if types & set(family)}
    return tuple(flavour for flavour in facts.models if flavour.module in modules)


def _value_text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


# A model's shape in the registry's words


def titan_shape(model: ModelSpec) -> dict[str, Any]:
    """Return what tells flavours apart, of any model; widths that layers do not share as a list."""
    facts, config = titan_facts(), _text_config(model)
    mixers = [layer.attention for layer in model.layers]
    blocks = [layer.mlp for layer in model.layers]
    routed = [isinstance(block, MoeMlp) for block in blocks]
    dense = routed.index(True) if any(routed) else None
    values: dict[str, dict[Any, None]] = {}
    for part in dict.fromkeys([*mixers, *blocks]):
        for name, value in read_attributes(part, facts.attributes):
            if value is not None:
                values.setdefault(name, {})[value] = None
    router = {name: config.get(field) for name, field in facts.fields.items()}
    return {
        "layers": len(model.layers),
        "hidden": model.hidden,
        "vocabulary": model.vocabulary,
        "tied_embeddings": model.tied_embeddings,
        "vision": bool(model.towers or model.left_out or model.partial),
        "mixers": _repeating_letters("".join(map(_letter, mixers))),
        "dense_layers": dense if routed == sorted(routed) else "among others",
        **{name: next(iter(v)) if len(v) == 1 else [*v] for name, v in values.items()},
        **router,
        "router_score": router["router_score"] or facts.scores.get(str(config.get("model_type"))),
        **_rope_shape(config),
    }


def read_attributes(
    part: object, names: Mapping[str, Mapping[str, str]]
) -> Iterator[tuple[str, Any]]:
    """Attributes of a part of a model with the names that they have elsewhere, by its class."""
    kinds = (kind.__name__ for kind in type(part).__mro__)
    table = next((names[kind] for kind in kinds if kind in names), {})
    return ((name, getattr(part, attribute)) for attribute, name in table.items())


def _letter(mixer: Attention | None) -> str:
    if isinstance(mixer, LinearAttention):
        return "l"
    if isinstance(mixer, (GroupedAttention, LatentAttention)):
        return "w" if mixer.window else "f"
    return "?"


def _repeating_letters(letters: str) -> str:
    """The shortest start of a text that it repeats."""
    sizes = range(1, len(letters) + 1)
    return next(
        (letters[:n] for n in sizes if (letters[:n] * len(letters))[: len(letters)] == letters), ""
    )


def _text_config(model: ModelSpec) -> Mapping[str, Any]:
    text = model.config.get("text_config")
    return text if isinstance(text, Mapping) else model.config


def _rope_shape(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return how positions are turned: the base where it is stated, and the kind of scaling."""
    fields = config.get("rope_scaling") or config.get("rope_parameters")
    scaling = fields if isinstance(fields, Mapping) else {}
    kind = str(scaling.get("rope_type") or scaling.get("type") or "none")
    theta = scaling.get("rope_theta") or config.get("rope_theta")
    out: dict[str, Any] = {
        "rope_theta": None if theta is None else float(theta),
        "rope_scaling": "none" if kind in ("default", "mrope") else kind,
    }
    if out["rope_scaling"] != "none" and scaling.get("factor") is not None:
        out["rope_factor"] = float(scaling["factor"])
    return out
