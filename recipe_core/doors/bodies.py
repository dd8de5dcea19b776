"""Bodies of the JSON API, sent and answered, as models for the OpenAPI document.

What is sent is read by the same functions as anywhere else, whose errors name field and fix.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, RootModel

from recipe_core.base.documented import DescribedModel
from recipe_core.base.types import Text
from recipe_core.commands.context import CommandContext
from recipe_core.doors.jobs import Status
from recipe_core.fleets.request import FleetRequest
from recipe_core.fleets.what_if import FleetChanges
from recipe_core.recipe import Recipe
from recipe_core.recipe.place import Parameters
from recipe_core.request.scaling import Policy
from recipe_core.request.schema import PlanRequest
from recipe_core.request.size import SizeRequest


class CommandBody(CommandContext):
    """An engine's command, with what it is to run on and under."""

    command: str | list[str]
    """The command line, or its words; it is never run."""


class FileBody(CommandContext):
    """A deployment file, and what its engines run on and under where it does not say."""

    hardware: Text | dict[str, Any] | None = None  # type: ignore[assignment]  # the file may say

    file: Annotated[str, Field(max_length=1 << 20)]
    """The content of a Compose file, a manifest of Kubernetes, a script …; nothing of it is run."""

    name: Text = "file.yaml"
    """The name of the file, whose ending tells scripts from documents."""


class CheckBody(RootModel[PlanRequest | CommandBody | FileBody]):
    """A request, a command, or a deployment file."""


class WithOwnRuns(DescribedModel):
    """A request, and measured runs of your own that correct its estimates."""

    request: PlanRequest
    """What is asked."""

    measured: list[dict[str, Any]]
    """Runs, as objects with the columns of a table of measured runs (docs/method/own-runs.md)."""


class ReconcileBody(DescribedModel):
    """A request, and what other programs measured of it."""

    request: PlanRequest
    """What ran."""

    texts: Annotated[list[str], Field(min_length=1, max_length=16)]
    """Contents of files: results of benchmarks, start-up logs, metrics of an engine."""


class PlanBody(RootModel[PlanRequest | WithOwnRuns]):
    """A request, or a request with measured runs of your own."""


class SizeBody(RootModel[SizeRequest | WithOwnRuns]):
    """A buyer's request, or one with measured runs of your own."""


class TraceBody(DescribedModel):
    """A trace of requests: a file's name and its text."""

    name: Annotated[str, Field(max_length=4096)] = ""
    """Name of the file, for people."""

    text: Annotated[str, Field(min_length=1)]
    """Content of the file: CSV or JSON lines (docs/guide/scale.md)."""


class FleetBody(DescribedModel):
    """A fleet, and what is tried with it."""

    fleet: FleetRequest
    """Models and machines, as in a fleet.yaml."""

    inventories: Annotated[tuple[TraceBody, ...], Field(max_length=16)] = ()
    """Machines as kubectl, sinfo, SkyPilot, Kueue, OpenCost or a CSV list them; they are merged."""

    what_if: FleetChanges | None = None
    """Changes that are tried; the answer says what they change."""

    month: Annotated[float, Field(ge=0, le=600)] = 0.0
    """Months of growth ahead of today for which it is placed."""

    seconds: Annotated[float, Field(gt=0, le=600)] = 60.0
    """Seconds after which the best so far is the answer."""

    measured: list[dict[str, Any]] = []
    """Runs of your own that correct the estimates, as for a plan (docs/method/own-runs.md)."""

    files: bool = False
    """Whether the job has files as well: bundles, and what joins them (``links.files``, a zip)."""


class SimulateBody(DescribedModel):
    """A request, and what it is to be simulated with."""

    request: PlanRequest
    """Model, hardware, limits, and the load over time, unless a trace is given."""

    trace: TraceBody | None = None
    """The load, as a trace of requests; in place of ``workload.over_time``."""

    policies: Annotated[tuple[Policy, ...], Field(max_length=10)] | None = None
    """Policies to compare; left out, that of ``options.scaling``, or all."""

    days: Annotated[float, Field(gt=0, le=366)] | None = None
    """Time that is simulated, in days; left out, that of the load."""


class WithAdditions(DescribedModel):
    """A request, and what its recipe has beside the decision."""

    request: PlanRequest
    """What is to be decided."""

    parameters: Parameters = Parameters()
    """Name, address and place of the deployment."""

    options: dict[str, Any] = {}
    """Options of the engine, by name."""

    environment: dict[str, str] = {}
    """Variables of the engine's environment."""

    variants: list[dict[str, Any]] = []
    """What is set on other hardware, as in a recipe."""


class RecipeBody(RootModel[PlanRequest | Recipe | WithAdditions]):
    """A request, a recipe, or a request with additions."""


class ResolveBody(DescribedModel):
    """A recipe, and the hardware that it is to be resolved for."""

    recipe: RecipeBody
    """A recipe, or a request."""

    hardware: str
    """A device, or device:count."""


class DiffBody(DescribedModel):
    """Two recipes to compare."""

    before: RecipeBody
    """A recipe, or a request."""

    after: RecipeBody
    """A recipe, or a request."""


class ConvertCommand(CommandBody):
    """An engine's command that is to become a recipe."""


class ConvertDocument(BaseModel):
    """A published recipe that is to become one of this project's."""

    document: dict[str, Any]
    """The published recipe."""

    hardware: str | dict[str, Any] | None = None
    """A device, or device:count; by default what the document names."""

    choice: str | None = None
    """Which configuration, for a document with several."""


class ConvertBody(RootModel[ConvertCommand | ConvertDocument]):
    """A command or a published recipe."""


class Problem(DescribedModel):
    """A problem, and the fix."""

    code: str
    """The kind of error."""

    field: str | None
    """Where in the request it is, with dots."""

    message: str
    """What is wrong with which value."""

    hint: str | None
    """What to do."""


class ErrorAnswer(DescribedModel):
    """The body of every answer that is an error."""

    error: Problem
    """The error."""


class JobProgress(DescribedModel):
    """The progress of a calculation; no steps before it has begun."""

    done: int
    """Steps that are done."""

    steps: int
    """Steps in all."""

    stage: str = ""
    """What goes on once they are done: ``placing: gap 2.1 %, 3 s``."""


class JobProblem(Problem):
    """The reason that a calculation failed, and the fix."""


class JobLinks(DescribedModel):
    """The links to go on from here."""

    self: str
    """Path of the job, for GET and DELETE."""

    files: str | None = None
    """Path of the zip of its files, for GET, once they are there."""


class JobAnswer(DescribedModel):
    """A calculation: how far it is, and what came of it."""

    job: str
    """Its id, which only its owner knows."""

    status: Status
    """Whether it waits (``queued``), runs, or has ended: ``done``, ``failed``, ``cancelled``."""

    progress: JobProgress
    """How far it is."""

    links: JobLinks
    """Where to go from here."""

    error: JobProblem | None
    """Why it failed; null where it did not."""

    result: dict[str, Any] | None = None
    """The document of schema ``simulate``, when it is done."""
