"""The operations of the doors, one row each.

Routes of the JSON API with their bodies and jobs, and what tools of agents ask, follow from the
table. A new operation is a function of ``answers`` and a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

from fastapi import Query
from pydantic import BaseModel

from recipe_core.base.documents import MAX_DOCUMENT_BYTES, parse_json, to_json
from recipe_core.base.errors import InputError
from recipe_core.doors import answers, bodies, catalog
from recipe_core.doors.answers import Archive, WithFiles
from recipe_core.doors.catalog import Json

# Candidates that one answer lists at most.
MOST_LISTED = 10_000
# Of a body that may hold a trace.
MAX_TRACE_BYTES = 32 << 20
_SEND = "Send a JSON object, such as a PlanRequest, as application/json."


@dataclass(frozen=True, slots=True)
class Operation:
    """A question that every door passes on.

    Attributes:
        answer: a function of ``answers``, of a body, ``folders`` and options.
        summary: what the OpenAPI document says of it.
        body: the model of what is sent, for the OpenAPI document.
        query: types of the options that a route takes from its query, by name.
        job: what is read before it begins, of an operation that is begun and fetched.
        most_bytes: of a body.
    """

    answer: Callable[..., Json | Archive | WithFiles]
    summary: str
    body: type[BaseModel]
    query: Mapping[str, Any] = field(default_factory=dict)
    job: Callable[..., Json] | None = None
    most_bytes: int = MAX_DOCUMENT_BYTES

    @property
    def name(self) -> str:
        """That of its route and of its tool."""
        return self.answer.__name__.removeprefix("answer_")


OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation(
            answers.answer_plan,
            "Every layout, judged and ranked",
            bodies.PlanBody,
            {"top": Annotated[int | None, Query(ge=0, le=MOST_LISTED)]},
        ),
        Operation(
            answers.answer_estimate,
            "One layout: the request's candidate, or the best that matches it",
            bodies.PlanBody,
        ),
        Operation(
            answers.answer_size, "Which hardware, how many, at what cost, how sure", bodies.SizeBody
        ),
        Operation(
            answers.answer_compress,
            "What every technique of compression would do to a served model",
            bodies.PlanBody,
            {"techniques": Annotated[str | None, Query(max_length=2000)]},
        ),
        Operation(
            answers.answer_check,
            "Whether a layout or an engine's command can run, why not, and a better one",
            bodies.CheckBody,
        ),
        Operation(
            answers.answer_reconcile,
            "What other programs measured, beside the estimate",
            bodies.ReconcileBody,
        ),
        Operation(
            answers.answer_trace,
            "What a trace of requests shows: rates, lengths, reuse",
            bodies.TraceBody,
            most_bytes=MAX_TRACE_BYTES,
        ),
        Operation(
            answers.answer_fleet,
            "Many models on owned and rented machines, as a job: begins it and says where to look",
            bodies.FleetBody,
            job=answers.check_fleet,
        ),
        Operation(answers.answer_build, "The bundle as a zip", bodies.RecipeBody),
        Operation(
            answers.answer_recipe, "The recipe of a request, without its files", bodies.RecipeBody
        ),
        Operation(
            answers.answer_resolve,
            "Which variants of a recipe apply to other hardware, and what they set",
            bodies.ResolveBody,
        ),
        Operation(
            answers.answer_diff,
            "The differences between two recipes and between their estimates",
            bodies.DiffBody,
        ),
        Operation(
            answers.answer_convert,
            "An engine's command, or a published recipe, as a recipe",
            bodies.ConvertBody,
        ),
        Operation(
            answers.answer_simulate,
            "Policies of scaling over time, as a job: begins it and says where to look",
            bodies.SimulateBody,
            job=answers.check_simulation,
            most_bytes=MAX_TRACE_BYTES,
        ),
    )
}

# Catalogs: one entry by its name, or a list of names.
CATALOG: dict[str, Callable[[str | None], Json]] = {
    "models": catalog.models,
    "hardware": catalog.hardware,
    "offers": catalog.offers_for,
    "engines": catalog.engines,
    "schema": catalog.answer_schema,
}


class Reply(NamedTuple):
    """An answer as it is sent: its bytes, whether they can be read, a bundle's name.

    ``files``: the zip that the answer of a job has beside it.
    """

    data: bytes
    readable: bool = True
    bundle: str | None = None
    files: bytes | None = None


def answer_operation(operation: str, folders: bool, body: bytes, options: Mapping[str, Any]) -> Any:
    """Answer a body as it was sent, as plain values.

    Raises:
        RecipeError: as the operation does, and for a body that is not a JSON object.
    """
    row = OPERATIONS[operation]
    return row.answer(_read_body(body, row.most_bytes), folders, **options)


def reply(operation: str, folders: bool, body: bytes, options: Mapping[str, Any]) -> Reply:
    """Answer a body as it was sent, in bytes.

    Raises:
        RecipeError: as ``answer_operation``.
    """
    answer = answer_operation(operation, folders, body, options)
    if isinstance(answer, Archive):
        return Reply(answer.data, bundle=answer.name)
    if isinstance(answer, WithFiles):
        name, data = answer.archive
        return Reply(to_json(answer.answer, indent=None).encode(), bundle=name, files=data)
    # A verdict on a command that could not be read says so in its ``error``.
    return Reply(to_json(answer, indent=None).encode(), "error" not in answer)


def check_job(operation: str, folders: bool, body: bytes) -> None:
    """Read the body of a job as far as takes no time.

    Raises:
        RecipeError: for what cannot be read.
    """
    row = OPERATIONS[operation]
    if row.job is not None:
        row.job(_read_body(body, row.most_bytes), folders)


def _read_body(body: bytes, most_bytes: int) -> Json:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise InputError("the body is not UTF-8 text.", hint=_SEND) from None
    values = parse_json(text, "the body", limit=most_bytes)
    if not isinstance(values, dict):
        raise InputError("the body is not a JSON object.", hint=_SEND)
    return values
