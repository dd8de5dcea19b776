"""Expected accuracy of a compressed model, with the published figures nearest to the question.

The model, its numbers and its measured errors are in docs/method/compression.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recipe_core.accuracy.checkpoints import MeasuredCompression, with_own_figure
from recipe_core.accuracy.effects import (
    Belief,
    Known,
    missing_figures,
    nearest_figures,
    posterior_belief,
    publication_scope,
)
from recipe_core.accuracy.names import NamedBenchmark, named_benchmark, named_model, naming_words
from recipe_core.accuracy.published import Retained
from recipe_core.accuracy.question import USUAL_B, Question, build_question
from recipe_core.accuracy.technique import technique as technique_named
from recipe_core.base.errors import InputError, RecipeError, unknown
from recipe_core.base.problems import first_problem

# Characters of a name that is looked at.
LONGEST = 200


def estimate_retained(
    model: str,
    technique: str,
    *,
    method: str = "",
    benchmark: str = "",
    parameters_b: float | None = None,
    nearest: int = 5,
) -> Retained:
    """Expected accuracy of a compressed model over that of its base.

    Args:
        model: any name; size and generation are read from it where no table knows it.
        technique: a name of ``techniques()``.
        method: the algorithm ("GPTQ", "AWQ"); left out, what is usual of the technique.
        benchmark: a benchmark, or a kind of benchmarks ("math"); left out, the mean over accuracy
            tasks.
        parameters_b: billions of parameters; goes before what is known of the model.
        nearest: how many published figures are shown.

    Returns:
        Value and 80 % band, 1: nothing lost. ``is_known`` is false where nothing is published of
        the nature of the benchmark, or too little of the technique: of what is removed from one
        model alone, and of a cache below 4 bits for a kind that was not measured at so few.

    Raises:
        InputError: for a technique that has no name here, a name that is too long, or a size that
            is no positive number.
    """
    _check_question_names(parameters_b, model=model, method=method, benchmark=benchmark)
    model_asked = named_model(model, parameters_b)
    benchmarks = _benchmarks_named(benchmark)
    if not benchmarks:
        technique_named(technique)
        text = f"Nothing is published about {benchmark!r}, which is no share of right answers."
        return Retained(math.nan, math.nan, math.nan, text, is_known=False)
    questions = [
        build_question(model_asked, technique, method.strip(), task) for task in benchmarks
    ]
    if questions[0].of.kind == "lossless":
        shown = nearest_figures(questions[0], nearest)
        text = "lossless by construction: what is drawn is the same"
        return Retained(1.0, 1.0, 1.0, text, shown)
    if (missing := next(filter(None, map(missing_figures, questions)), None)) is not None:
        shown = nearest_figures(questions[0], nearest)
        return Retained(math.nan, math.nan, math.nan, f"Unknown: {missing}.", shown, is_known=False)
    beliefs = [posterior_belief(question) for question in questions]
    value, low, high = (
        math.fsum(parts) / len(beliefs)
        for parts in zip(
            *((belief.value, belief.low, belief.high) for belief in beliefs), strict=True
        )
    )
    shown = nearest_figures(questions[0], nearest)
    return Retained(value, low, high, _expectation_basis(questions, beliefs), shown)


def combine_retained(parts: Sequence[Retained]) -> Retained:
    """Two techniques together (weights and KV cache): what each retains is multiplied.

    That losses are independent is assumed; bands are combined as independent ones in logarithms.
    The published figures of all parts are shown in turn.

    Raises:
        InputError: for no parts.
    """
    if not parts:
        raise InputError("nothing to combine.", field="technique", hint="Name one technique.")
    if len(parts) == 1 or not all(part.is_known for part in parts):
        return next((part for part in parts if not part.is_known), parts[0])
    value = math.prod(part.value for part in parts)
    below = math.hypot(*(math.log(part.value / part.low) for part in parts))
    above = math.hypot(*(math.log(part.high / part.value) for part in parts))
    basis = f"{len(parts)} techniques, what each retains multiplied: "
    longest = max(len(part.nearest) for part in parts)
    in_turn = [part.nearest[n] for n in range(longest) for part in parts if n < len(part.nearest)]
    return Retained(
        value,
        value * math.exp(-below),
        value * math.exp(above),
        basis + " × ".join(f"{part.value:.3f} ({part.basis})" for part in parts),
        tuple(in_turn[:longest]),
    )


def _check_question_names(parameters_b: float | None, **names: str) -> None:
    for field, name in names.items():
        if len(name) > LONGEST:
            raise InputError(
                f"{name[:40]!r}… has {len(name)} characters, more than {LONGEST}.",
                field=field,
                hint="Give the name alone.",
            )
    if parameters_b is not None and not 0 < parameters_b < math.inf:
        raise InputError(
            f"{parameters_b} is not a number of billions of parameters.",
            field="parameters_b",
            hint="Give a positive number, or leave it out.",
        )


def _benchmarks_named(name: str) -> list[NamedBenchmark]:
    """The benchmark of a name; those of the mean for none; nothing for another nature."""
    names = [name] if name.strip() else naming_words().mean_over
    return [benchmark for benchmark in map(named_benchmark, names) if benchmark is not None]


def _expectation_basis(questions: Sequence[Question], beliefs: Sequence[Belief]) -> str:
    """Say what the expectation rests on, in one sentence."""
    question, size = questions[0], questions[0].model.parameters_b
    of = "the mean over accuracy tasks" if len(questions) > 1 else question.benchmark.name
    figures = beliefs[0].of_technique
    parts = [f"fit to published figures, {figures} of {question.of.title}"]
    if question.method and not beliefs[0].of_method:
        parts.append(f"none by {question.method}")
    if len(questions) == 1 and beliefs[0].exact:
        count = beliefs[0].exact
        parts.append(f"and {count} of this very combination")
    elif publication_scope(question) is Known.SERIES:
        parts.append("none of this model")
    elif publication_scope(question) is Known.NOTHING:
        parts.append("none of this model or its series")
    if len(questions) == 1 and not question.benchmark.published and not question.benchmark.of_kind:
        parts.append(f"the benchmark taken for {question.benchmark.kind}")
    usual = f"an assumed {USUAL_B:g} B" if size is None else f"{size:.3g} B"
    return f"{of}, {usual} parameters: {', '.join(parts)}"


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
    problem = first_problem(error)
    if problem.kind == "extra_forbidden":
        message, hint = unknown("field", problem.field, list(Line.model_fields))
        return InputError(message, field=problem.field, hint=hint)
    hint_or_none = "Add it." if problem.kind == "missing" else None
    return InputError(f"{problem.text}.", field=problem.field, hint=hint_or_none)


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
