"""The context in which commands are judged."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import Field, ValidationError

from recipe_core.base.data_files import DataRow
from recipe_core.base.errors import InputError, ModelError, RecipeError
from recipe_core.base.problems import first_problem
from recipe_core.base.types import Count, Share, Spread, Text, Tokens
from recipe_core.hardware.cluster import device_profile
from recipe_core.hardware.request import split_count
from recipe_core.models.catalog import load_model_spec
from recipe_core.models.spec import ModelSpec
from recipe_core.request.metrics import Goal


class Models:
    """Models by name, each looked up once."""

    def __init__(self, folders: bool) -> None:
        self.folders = folders
        self._known: dict[str, ModelSpec | RecipeError] = {}

    def named(self, name: str) -> ModelSpec:
        """The model of a name; raises what looking it up raised."""
        if name not in self._known:
            try:
                self._known[name] = load_model_spec(name, folders=self.folders)
            except RecipeError as error:
                self._known[name] = error
            except (OSError, RuntimeError, ValueError) as error:  # no path can have this name
                message = f"{name[:80]!r} is not a model: {error}."
                hint = "Give a catalog id or a folder."
                self._known[name] = ModelError(message, field="model", hint=hint)
        model = self._known[name]
        if isinstance(model, RecipeError):
            raise model
        return model


DEFAULT_INPUT, DEFAULT_OUTPUT, DEFAULT_CONCURRENCY = 1024, 256, 64
_RELEASE = re.compile(r"v?\d{1,4}\.\d{1,4}\.\d{1,4}([.a-z+-][\w.+-]{0,30})?")


class CommandContext(DataRow):
    """The context in which commands are judged: devices, load, goal.

    ``hardware``: a device, ``device:count``, or a whole profile; ``gpus`` in each of ``nodes``
    (default: the device's usual node, and as many nodes as the command needs). Lengths in tokens;
    those left out are 1,024 and 256, or shorter where the command's context is; spreads as in a
    request. ``model`` stands in for the one that a command names; ``acceptance``: the share of
    drafted tokens that is accepted.
    ``images`` in a prompt of a model that reads them, each of ``image_tokens`` (default: 1,024).
    ``engine_version``: the release of the engine that runs, where no image tells it.
    """

    hardware: Text | dict[str, Any]
    gpus: Count | None = None
    nodes: Count | None = None
    input_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    input_spread: Spread | None = None
    output_spread: Spread | None = None
    concurrency: Count = DEFAULT_CONCURRENCY
    optimize: Goal = "throughput"
    model: Text | None = None
    acceptance: Share | None = None
    images: Annotated[float, Field(gt=0, le=1000)] | None = None
    image_tokens: Tokens | None = None
    engine_version: Text | None = None

    @classmethod
    def of(cls, **values: Any) -> CommandContext:
        """From plain values; raises InputError naming the field that is wrong."""
        try:
            context = cls.model_validate({k: v for k, v in values.items() if v is not None})
        except ValidationError as error:
            problem, hint = first_problem(error), None
            message = f"{problem.message}."
            if problem.kind == "extra_forbidden":
                hint = f"Known here: {', '.join(cls.model_fields)}."
            elif problem.kind == "missing":
                message = "is missing: nothing says on which devices the engine runs."
                hint = "Name them: --hardware h100-sxm:8."
            raise InputError(message, field=problem.path[0], hint=hint) from None
        context._check_count()
        context._check_release()
        device_profile(context.device)
        return context

    def _check_count(self) -> None:
        if self.gpus not in (None, self.per_node):
            message = f"{self.hardware} contradicts gpus {self.gpus}."
            raise InputError(message, field="gpus", hint="State the count once.")

    def _check_release(self) -> None:
        if self.engine_version is not None and not _RELEASE.fullmatch(self.engine_version):
            message = f"{self.engine_version!r:.60} is not a release."
            raise InputError(message, field="engine_version", hint="For example 0.25.0.")

    @property
    def device(self) -> str | dict[str, Any]:
        return split_count(self.hardware)[0] if isinstance(self.hardware, str) else self.hardware

    @property
    def per_node(self) -> int | None:
        """Devices in a node, where the ground states them."""
        count = split_count(self.hardware)[1] if isinstance(self.hardware, str) else None
        return count or self.gpus
