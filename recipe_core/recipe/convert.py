"""An existing command, or a recipe that others published, as a Recipe; and what of it could not be carried over."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from recipe_core.base.errors import InputError
from recipe_core.base.secrets import is_secret
from recipe_core.commands.ground import Ground
from recipe_core.commands.judge import read_command, understood
from recipe_core.commands.launches import image_tag
from recipe_core.commands.verdict import Case
from recipe_core.engines.grammar import grammars
from recipe_core.engines.spec import engine
from recipe_core.launch.process import Launch as Started
from recipe_core.recipe.build import Additions, make_recipe
from recipe_core.recipe.decision import decide
from recipe_core.recipe.place import Parameters
from recipe_core.recipe.provenance import shared_environment
from recipe_core.recipe.published import Published
from recipe_core.recipe.schema import Recipe
from recipe_core.recipe.user_options import passing_on
from recipe_core.request.schema import CandidateRequest, PlanRequest
from recipe_core.search.serving_candidates import describe

_PLACED = ("host", "port")
"""Options that are parameters of a recipe."""
_NAMED = ("served_model_name", "model", "model_path")
"""Options that a recipe sets from its model."""
_ENGINE_VARIABLES = re.compile(
    r"(VLLM|SGLANG|SGL|TRTLLM|TLLM|NCCL|RCCL|UCX|GLOO|HIP|HSA|ROCM|CUDA|TORCH|PYTORCH|TRITON|FLASHINFER|AITER|DG|OMP|NVIDIA|GPU|SAFETENSORS)_\w+"
)
_SET_AT_LAUNCH = re.compile(r"\w+_VISIBLE_DEVICES")


@dataclass(frozen=True, slots=True)
class Lost:
    """Something that the original says and the recipe does not, and why."""

    what: str
    why: str

    def to_json(self) -> dict[str, str]:
        """``{"what", "why"}``."""
        return {"what": self.what, "why": self.why}


@dataclass(frozen=True, slots=True)
class Conversion:
    """The recipe, the options that it took over besides the split, and what was lost."""

    recipe: Recipe
    carried: tuple[str, ...]
    lost: tuple[Lost, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "recipe": self.recipe.model_dump(mode="json"),
            "carried": list(self.carried),
            "lost": [each.to_json() for each in self.lost],
        }


def convert(
    source: str | list[str] | Published, ground: Ground, *, folders: bool = True
) -> Conversion:
    """A recipe that starts the same server on ``ground``.

    Raises:
        InputError: when it starts no known engine, or its model or a value is unknown.
        NoAnswer: when its split cannot run on that hardware.
    """
    published = source if isinstance(source, Published) else Published(command=source)
    case = read_command(published.command)
    refused = [
        finding
        for finding in case.findings
        if finding.level == "error" and finding.code not in ("unknown", "stray")
    ]
    if refused:
        raise InputError(
            str(refused[0]),
            field="command",
            hint="Correct it first; `recipe check` says everything that is wrong.",
        )
    if published.nodes and ground.nodes is None:
        ground = ground.model_copy(update={"nodes": published.nodes})
    ready = understood(case, ground, folders=folders)
    request = _request(
        ready.found.request,
        describe(ready.setting, ready.own, np.array([0]))[0]
        if len(ready.own) == 1
        else ready.case.meant.candidate,
    )
    options, environment, parameters, lost = _sorted(
        case, published, decide(request, folders=folders).started()
    )
    recipe = make_recipe(
        passing_on(request, options, environment), Additions(parameters=parameters), folders=folders
    )
    changed = tuple(_changed(case, recipe))
    carried = (*(f"--{name.replace('_', '-')}" for name in options), *environment)
    return Conversion(
        recipe,
        carried,
        (*lost, *changed, *(Lost(each, "outside of one server") for each in published.left)),
    )


def _request(request: PlanRequest, candidate: Mapping[str, Any]) -> PlanRequest:
    """The request for exactly that split; how it drafts is the workload's, which knows the draft's checkpoint."""
    split = {name: value for name, value in candidate.items() if name != "speculative"}
    return request.model_copy(update={"candidate": CandidateRequest.model_validate(split)})


def _sorted(
    case: Case, published: Published, own: Started
) -> tuple[dict[str, Any], dict[str, str], Parameters, tuple[Lost, ...]]:
    """Options and variables to pass on, parameters, and what is lost; ``own`` is what the split alone is started with."""
    lost = (
        [Lost(" ".join(case.arguments.unread), f"{_title(case)} does not have it")]
        if case.arguments.unread
        else []
    )
    lost += [Lost(f"{name} {text}", "left open") for name, text in case.arguments.open.items()]
    lost += [
        Lost(f.message, "not in the estimate")
        for f in case.findings
        if f.code in ("unmodelled", "several", "others")
    ]
    grammar = grammars()[case.launch.engine]
    said = {
        *_NAMED,
        *grammar.means,
        *grammar.placed,
        *own.options,
    }  # by the model, the candidate, the load, the place of a process
    options, placed = {}, {}
    for name, value in case.arguments.values.items():
        if name in _PLACED:
            placed[name] = value
        elif grammar.rank and name == grammar.rank[0]:
            options[grammar.rank[1]] = True
        elif name in said:
            continue
        elif is_secret(f"options.{name}", value):
            lost.append(
                Lost(f"--{name.replace('_', '-')}", "a secret: give it when the recipe starts")
            )
        else:
            options[name] = value
    environment, alike = {}, shared_environment(own)
    for name, value in {**case.launch.env, **published.env}.items():
        why = _not_passed_on(name, value)
        if alike.get(name) == value:
            continue
        if why is None:
            environment[name] = value
        else:
            lost.append(Lost(f"{name} in the environment", why))
    image = published.image or case.launch.image
    if image is not None and image_tag(image) in (None, "latest"):
        lost.append(
            Lost(image, "an image that changes without notice; the engine's pinned one is taken")
        )
        image = None
    return (
        options,
        environment,
        Parameters.model_validate(placed | ({"image": image} if image else {})),
        tuple(lost),
    )


def _not_passed_on(name: str, value: str) -> str | None:
    if is_secret(f"environment.{name}", value):
        return "a secret: give it when the recipe starts"
    if _SET_AT_LAUNCH.fullmatch(name):
        return "set when the recipe starts"
    return None if _ENGINE_VARIABLES.fullmatch(name) else "says nothing to the engine"


def _title(case: Case) -> str:
    spec = engine(case.launch.engine)
    return f"{spec.title} {spec.version}"


def _changed(case: Case, recipe: Recipe) -> Iterator[Lost]:
    """Options of the original that the recipe sets to something else."""
    means = grammars()[case.launch.engine].means
    for name, value in case.arguments.values.items():
        now, said = (
            recipe.engine.options.get(name),
            value[0] if isinstance(value, list) and len(value) == 1 else value,
        )
        if (
            now is not None
            and name not in _PLACED
            and means.get(name) != "model"
            and str(now) != str(said)
        ):
            yield Lost(f"--{name.replace('_', '-')} {said}", f"is {now} in the recipe")
