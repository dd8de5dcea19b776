"""Many questions about accuracy at once, as plain values: one line of a file each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recipe_core.accuracy.accuracy import LONGEST, estimate_retained
from recipe_core.accuracy.checkpoints import MeasuredCompression
from recipe_core.accuracy.own import with_own_figure
from recipe_core.base.errors import InputError, RecipeError, unknown

Name = Annotated[str, Field(max_length=LONGEST)]


class Line(BaseModel):
    """One question; null and left out are the same."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    model: Annotated[Name, Field(min_length=1)]
    technique: Annotated[Name, Field(min_length=1)]
    method: Name | None = None
    benchmark: Name | None = None
    parameters_b: float | None = None

    @classmethod
    def parse(cls, value: object) -> Line:
        """The line of plain values.

        Raises:
            InputError: naming the first field that is wrong.
        """
        if not isinstance(value, Mapping):
            raise InputError(
                f"a line is an object, not {type(value).__name__}.",
                field="line",
                hint='Write {"model": …, "technique": …, "method": …, "benchmark": …}.',
            )
        try:
            return cls.model_validate(dict(value))
        except ValidationError as error:
            raise _first_line_error(error) from None


def _first_line_error(error: ValidationError) -> InputError:
    first = error.errors(include_url=False)[0]
    field = ".".join(str(step) for step in first["loc"])
    if first["type"] == "extra_forbidden":
        message, hint = unknown("field", field, list(Line.model_fields))
        return InputError(message, field=field, hint=hint)
    if first["type"] == "missing":
        return InputError("is missing.", field=field, hint="Add it.")
    return InputError(f"{first['msg']} (it is {first['input']!r:.80}).", field=field)


def answer_lines(
    values: Iterable[object], own_runs: Sequence[MeasuredCompression] = ()
) -> list[dict[str, Any]]:
    """One answer a line, in order; a bad line answers its error in its place.

    A line that is an error already (it was no JSON) answers that. ``own``: measured checkpoints of
    one's own, which move what is expected of the same model and technique.
    """
    return [_answer_line(value, own_runs) for value in values]


def _answer_line(value: object, own_runs: Sequence[MeasuredCompression]) -> dict[str, Any]:
    try:
        if isinstance(value, RecipeError):
            raise value
        line = Line.parse(value)
        method, benchmark = line.method or "", line.benchmark or ""
        expected = estimate_retained(
            line.model,
            line.technique,
            method=method,
            benchmark=benchmark,
            parameters_b=line.parameters_b,
        )
        return with_own_figure(
            expected, own_runs, line.model, line.technique, method, benchmark=benchmark
        ).to_json()
    except RecipeError as error:
        return error.to_json()
