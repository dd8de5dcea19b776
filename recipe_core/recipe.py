"""What was decided: a request, the split chosen for it, what it is expected to do, and how the engine is told."""

from __future__ import annotations

import hashlib
import re
from dataclasses import fields
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from recipe_core import __version__
from recipe_core.advice import remedies
from recipe_core.candidates import served_context
from recipe_core.documents import to_json
from recipe_core.engines.deployment import Candidate, Deployment
from recipe_core.engines.launch import Launch, launch
from recipe_core.errors import BundleError, NoAnswer
from recipe_core.model.catalog import in_catalog
from recipe_core.plan import PlanTable, chosen_plan, plan
from recipe_core.request import PlanRequest

ALTERNATIVES = 3
DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8000


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
    """The engine at its pinned version and every option it is started with."""

    name: str
    title: str
    version: str
    options: dict[str, Any]


class DeviceFacts(_Part):
    """The device the recipe was computed for and how many of them it uses."""

    name: str
    title: str
    vendor: str
    runtime: str
    architecture: str
    names: tuple[str, ...]
    memory_bytes: int
    count: int


class Alternative(_Part):
    """A split that came after the chosen one."""

    candidate: dict[str, Any]
    output_tokens_per_s: float
    tpot_s: float
    gpus: int


class Recipe(_Part):
    """Everything a bundle is made from; ``recipe.yaml`` is this object."""

    schema_version: Literal[1] = 1
    name: str
    built_by: str
    request: dict[str, Any]
    model: ModelFacts
    device: DeviceFacts
    engine: EngineFacts
    candidate: dict[str, Any]
    max_context: int
    estimate: dict[str, Any]
    alternatives: tuple[Alternative, ...] = ()

    @property
    def digest(self) -> str:
        """Hash of the recipe's content."""
        return hashlib.sha256(to_json(self.model_dump(mode="json"), indent=None).encode()).hexdigest()

    @classmethod
    def parse(cls, value: Any) -> Recipe:
        """A recipe from plain values; raises BundleError when it is not one."""
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(step) for step in first["loc"])
            raise BundleError(f"recipe.yaml: {where}: {first['msg']}.", hint="Build the bundle again.") from None


def make_recipe(request: PlanRequest, *, folders: bool = True) -> Recipe:
    """The recipe of a request: its candidate, or the best split when it leaves that open.

    Raises:
        InputError: for a request that cannot be read.
        NoAnswer: when no split, or not the stated one, can run; the message has the reasons and the nearest change.
    """
    table, row = chosen_plan(request, folders=folders)
    if not table.columns["feasible"][row]:
        raise _refused(table, row)
    if len(table) > 1:  # the row alone: on its own hardware, under its own load
        request = table.asked(row)
        table, row = chosen_plan(request, folders=folders)
    deployment = deployment_of(table, row)
    started = launch(deployment)
    return Recipe(
        name=_name(table, row),
        built_by=f"recipe-builder {__version__}",
        request=request.to_json(),
        model=_model_facts(table),
        device=_device_facts(table, row),
        engine=_engine_facts(deployment, started),
        candidate=table.candidate(row),
        max_context=deployment.max_context,
        estimate=table.estimate(row),
        alternatives=_alternatives(request, table.candidate(row), folders=folders),
    )


def deployment_of(table: PlanTable, row: int) -> Deployment:
    """A row of a plan as an engine module takes it."""
    request = table.request
    drafts = (request.candidate.speculative if request.candidate else None, table.found.workload.speculative)
    return Deployment(
        setting=table.setting(row),
        candidate=Candidate(**{f.name: value for f in fields(Candidate) if (value := table.candidate(row).get(f.name)) is not None}),
        max_context=served_context(table.found.workload, table.found.model),
        cache_tokens=table.cache_tokens(row),
        served_name=short_name(table.found.model.name),
        engine_options=request.options.engine_options,
        environment=request.options.environment,
        draft_model=next((draft.model for draft in drafts if draft and draft.model), None),
    )


def short_name(model: str) -> str:
    """The last part of a model id or folder, as a name for files and requests."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", model.rstrip("/").split("/")[-1]).strip("-.") or "model"


def recipe_request(recipe: Recipe) -> PlanRequest:
    """The request with the chosen split, readable on any machine: a model folder is replaced by the config it held."""
    model = recipe.request["model"] if recipe.model.config is None else recipe.model.config | {"_name_or_path": recipe.model.id}
    return PlanRequest.parse(recipe.request | {"model": model, "candidate": recipe.candidate})


def relaunch(recipe: Recipe) -> Launch:
    """How a recipe is started."""
    table, row = chosen_plan(recipe_request(recipe))
    return launch(deployment_of(table, row))


def _refused(table: PlanTable, row: int) -> NoAnswer:
    which = "the stated split" if len(table) == 1 else f"none of {len(table)} splits"
    verb = "cannot run" if len(table) == 1 else "can run; the nearest"
    split = table.candidate(row)
    shown = f"tp {split['tp']} × pp {split['pp']} × dp {split['dp']}, {split['weight_dtype']} weights"
    return NoAnswer(f"{which} {verb} ({shown}): {'; '.join(table.reasons(row))}.", field="candidate", hint=advice(table))


def advice(table: PlanTable) -> str | None:
    """The changes after which something fits, as a sentence."""
    found = remedies(table)
    return f"It works with {'; or '.join(map(str, found))}." if found else None


def _name(table: PlanTable, row: int) -> str:
    split, model = table.candidate(row), short_name(table.found.model.name).lower()
    degrees = "-".join(f"{name}{split[name]}" for name in ("tp", "pp", "dp", "ep") if split[name] > 1) or "single"
    return f"{model}-{table.found.cluster.device.name}-{degrees}-{split['engine']}"


def _model_facts(table: PlanTable) -> ModelFacts:
    model = table.found.model
    return ModelFacts(
        id=model.name,
        digest=model.digest,
        parameters=model.parameters,
        active_parameters=model.active_parameters,
        weight_dtype=model.weight_dtype,
        max_context=model.max_context,
        config=None if in_catalog(model.name) else model.config,
    )


def _device_facts(table: PlanTable, row: int) -> DeviceFacts:
    device = table.found.cluster.device
    return DeviceFacts(
        name=device.name,
        title=device.title,
        vendor=device.vendor,
        runtime=device.runtime,
        architecture=device.architecture,
        names=device.aliases,
        memory_bytes=int(device.memory_bytes.value),
        count=int(table.columns["gpus"][row]),
    )


def _engine_facts(deployment: Deployment, started: Launch) -> EngineFacts:
    engine = deployment.setting.engine
    return EngineFacts(name=engine.name, title=engine.title, version=engine.version, options=started.options)


def _alternatives(request: PlanRequest, chosen: dict[str, Any], *, folders: bool) -> tuple[Alternative, ...]:
    """The best other splits of the same request."""
    table = plan(request, folders=folders)
    others = [int(row) for row in table.ranked[: ALTERNATIVES + 1] if table.candidate(int(row)) != chosen]
    c = table.columns
    return tuple(
        Alternative(
            candidate=table.candidate(row),
            output_tokens_per_s=float(c["output_tokens_per_s"][row]),
            tpot_s=float(c["tpot_s"][row]),
            gpus=int(c["gpus"][row]),
        )
        for row in others[:ALTERNATIVES]
    )
