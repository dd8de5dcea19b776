"""An existing command, or a recipe that others published, as a Recipe, and what is lost in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from recipe_core.base.errors import InputError
from recipe_core.base.texts import PLACEHOLDER
from recipe_core.commands.arguments import is_open
from recipe_core.commands.context import CommandContext
from recipe_core.commands.images import image_tag
from recipe_core.commands.judge import prepare_command, read_command
from recipe_core.commands.verdict import Case
from recipe_core.engines.grammar import LIMITS
from recipe_core.launch.process import Launch
from recipe_core.plans.serving_columns import describe_serving_cases
from recipe_core.recipe.build import Additions, make_recipe
from recipe_core.recipe.decision import decide
from recipe_core.recipe.options import passing_on, shared_environment
from recipe_core.recipe.place import read_parameters
from recipe_core.recipe.published import Published
from recipe_core.recipe.schema import Recipe
from recipe_core.recipe.secrets import is_secret
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.schema import PlanRequest

# Options that are parameters of a recipe.
_PLACED = ("host", "port")
# Options that a recipe sets from its model.
_NAMED = ("served_model_name", "model", "model_path")
_ENGINE_VARIABLES = re.compile(
    r"(VLLM|SGLANG|SGL|TRTLLM|TLLM|NCCL|RCCL|UCX|GLOO|HIP|HSA|ROCM|CUDA|TORCH|PYTORCH|TRITON"
    r"|FLASHINFER|AITER|DG|OMP|NVIDIA|GPU|SAFETENSORS)_\w+"
)
_SET_AT_LAUNCH = re.compile(r"\w+_VISIBLE_DEVICES")
_KEPT_OUT = "a secret: set it where the recipe starts"


@dataclass(frozen=True, slots=True)
class Lost:
    """Something that the original says and the recipe does not, and why."""

    subject: str
    why: str

    def to_json(self) -> dict[str, str]:
        """``{"what", "why"}``."""
        return {"what": self.subject, "why": self.why}


@dataclass(frozen=True, slots=True)
class Conversion:
    """The recipe, the options that it took over besides the layout, and what was lost."""

    recipe: Recipe
    carried: tuple[str, ...]
    lost: tuple[Lost, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe.model_dump(mode="json"),
            "carried": list(self.carried),
            "lost": [lost.to_json() for lost in self.lost],
        }


def convert_to_recipe(
    source: str | list[str] | Published, context: CommandContext, *, folders: bool = True
) -> Conversion:
    """A recipe that starts the same server on ``context``.

    Raises:
        InputError: when it starts no known engine, or its model or a value is unknown.
        NoAnswer: when its split cannot run on that hardware.
    """
    published = source if isinstance(source, Published) else Published(command=source)
    if published.nodes and context.nodes is None:
        context = context.model_copy(update={"nodes": published.nodes})
    if published.model and context.model is None:
        context = context.model_copy(update={"model": published.model})
    case = read_command(published.command, context)
    for finding in case.findings:
        if finding.level == "error" and finding.code not in ("unknown", "stray"):
            hint = "Correct it first; `recipe check` lists everything that is wrong."
            raise InputError(str(finding), field="command", hint=hint)
    ready = prepare_command(case, folders=folders)
    exact = len(ready.cases) == 1
    split = (
        describe_serving_cases(ready.setting, ready.cases, np.array([0]))[0]
        if exact
        else case.candidate
    )
    request = _request_of_split(ready.problem.request, split)
    computed = decide(request, folders=folders).started()
    options, placed, lost = _carried_options(case, computed)
    environment, lost_variables = _carried_variables(case, published, computed)
    image, lost_images = _carried_image(case, published, split.get("engine_version"))
    if image is not None:
        placed["image"] = image
    additions = Additions(parameters=read_parameters(placed))
    recipe = make_recipe(passing_on(request, options, environment), additions, folders=folders)
    outside = (Lost(part, "outside of one server") for part in published.unread)
    return Conversion(
        recipe,
        carried=(*map(_option_flag, options), *environment),
        lost=(
            *_unread_parts(case),
            *lost,
            *lost_variables,
            *lost_images,
            *_changed_options(case, recipe),
            *outside,
        ),
    )


def _request_of_split(request: PlanRequest, candidate: Mapping[str, Any]) -> PlanRequest:
    """The request for exactly that split; the workload says how it drafts, and knows the draft.

    A recipe starts the pinned release, whichever the command runs.
    """
    besides = ("speculative", "engine_version")
    split = {name: value for name, value in candidate.items() if name not in besides}
    return request.model_copy(update={"candidate": CandidateRequest.model_validate(split)})


def _option_flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _unread_parts(case: Case) -> Iterator[Lost]:
    """Words of no option, values left open, and what no estimate covers."""
    if case.arguments.unread:
        spec = case.spec
        words = " ".join(case.arguments.unread)
        yield Lost(words, f"not an option of {spec.title} {spec.version}")
    for name, text in case.arguments.open.items():
        yield Lost(f"{_option_flag(name)} {text}", "left open")
    for finding in case.findings:
        if finding.code in ("unmodelled", "several", "others"):
            yield Lost(finding.message, "not in the estimate")


def _carried_options(
    case: Case, computed: Launch
) -> tuple[dict[str, Any], dict[str, Any], list[Lost]]:
    """Options to pass on, parameters of the place, and what is lost.

    ``computed`` is what the split alone is started with.
    """
    grammar = case.grammar
    # Stated by the model, the candidate, the load, or the place of a process.
    split = {name for name, meaning in grammar.means.items() if meaning not in LIMITS}
    settled = {*_NAMED, *split, *grammar.placed, *computed.options}
    options: dict[str, Any] = {}
    placed: dict[str, Any] = {}
    lost: list[Lost] = []
    for name, value in case.arguments.values.items():
        if name in _PLACED:
            # A launch writes these as placeholders (``${host}``), which the launcher fills.
            if isinstance(value, str) and is_open(value):
                lost.append(Lost(f"{_option_flag(name)} {value}", "left open"))
            else:
                placed[name] = value
        elif grammar.rank and name == grammar.rank[0]:
            options[grammar.rank[1]] = True
        elif name in settled:
            continue
        elif is_secret(f"options.{name}", value):
            lost.append(Lost(_option_flag(name), _KEPT_OUT))
        else:
            options[name] = value
    return options, placed, lost


def _carried_variables(
    case: Case, published: Published, computed: Launch
) -> tuple[dict[str, str], list[Lost]]:
    """Variables to pass on beyond those that the split sets, and those that are lost."""
    shared = shared_environment(computed)
    environment: dict[str, str] = {}
    lost: list[Lost] = []
    for name, value in {**case.launch.env, **published.env}.items():
        if shared.get(name) == value or PLACEHOLDER.search(value):
            continue  # a launch sets it, and fills in addresses
        why = _not_passed_on(name, value)
        if why is None:
            environment[name] = value
        else:
            lost.append(Lost(f"{name} in the environment", why))
    return environment, lost


def _not_passed_on(name: str, value: str) -> str | None:
    if is_secret(f"environment.{name}", value):
        return _KEPT_OUT
    if _SET_AT_LAUNCH.fullmatch(name):
        return "set when the recipe starts"
    return None if _ENGINE_VARIABLES.fullmatch(name) else "the engine does not read it"


def _carried_image(
    case: Case, published: Published, release: str | None
) -> tuple[str | None, list[Lost]]:
    """The image to start from, unless it is left open, its tag moves, or it is of another release.

    ``release``: the one that the split was estimated for, where it is not the pinned one.
    """
    image = published.image or case.launch.image
    if image is None:
        return None, []
    if is_open(image):
        return None, [Lost(image, "left open; the recipe uses the engine's pinned image")]
    if release is not None:
        why = f"it holds {release}; the recipe uses the engine's pinned image"
        return None, [Lost(image, why)]
    if image_tag(image) in (None, "latest"):
        why = "it changes without notice; the recipe uses the engine's pinned image"
        return None, [Lost(image, why)]
    return image, []


def _changed_options(case: Case, recipe: Recipe) -> Iterator[Lost]:
    """Options of the original that the recipe sets to something else."""
    means = case.grammar.means
    for name, value in case.arguments.values.items():
        if name in _PLACED or means.get(name) == "model":
            continue
        now = recipe.engine.options.get(name)
        original = value[0] if isinstance(value, list) and len(value) == 1 else value
        if now is not None and str(now) != str(original):
            yield Lost(f"{_option_flag(name)} {original}", f"is {now} in the recipe")
