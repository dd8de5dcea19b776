"""The parameters as a form: what each is called, and which belong together."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

from recipe_core.base.documented import description_of
from recipe_core.launch.templates import read_templates
from recipe_core.recipe.place import Parameters
from recipe_core.targets import rdma
from recipe_core.targets.by_hand import TITLES_FILE
from recipe_core.targets.context import Context
from recipe_core.targets.slurm import gres_type


@dataclass(frozen=True, slots=True)
class FormField:
    """One parameter: its name and a title."""

    name: str
    title: str

    @property
    def help(self) -> str:
        return description_of(Parameters, self.name)


def every_field() -> list[FormField]:
    """Return all parameters, by group."""
    groups = read_templates(TITLES_FILE)["form"].values()
    return [FormField(*row) for fields in groups for row in fields.items()]


def form_groups(context: Context, targets: Collection[str]) -> dict[str, tuple[FormField, ...]]:
    """The parameters, by group, that any of the targets (by name) reads for this recipe.

    Which of them the bundle is for is not among them: that is asked before.
    """
    titles = read_templates(TITLES_FILE)
    groups = {"Everywhere"}
    if set(targets) - {*titles["no_kubernetes"]}:
        groups.add("Kubernetes")
    if set(targets) & {*titles["clusters"]}:
        groups.add("Slurm and clouds")
    unread = set(titles["serving_only"]) if context.kind == "training" else set()
    unread |= {"target", *(["device_groups"] if context.vendor != "amd" else [])}
    return {
        group: tuple(FormField(*row) for row in fields.items() if row[0] not in unread)
        for group, fields in titles["form"].items()
        if group in groups
    }


def parameter_default(name: str, context: Context) -> str:
    """Say what applies while a parameter is left open, as one would type it; empty: nothing."""
    if name == "model":
        return context.model
    if name == "image":
        return context.image.reference if context.image else ""
    if name == "gpu_type":
        return gres_type(context) or ""
    if name == "rdma_resource":
        return next(iter(rdma.rdma_resources(context, context.launch.processes)), "")
    value = getattr(Parameters(), name)
    if value in (None, {}):
        return ""
    return value if isinstance(value, str) else json.dumps(value)
