"""Two sets of answers to the same questions, in numbers: agreement and log-probability distance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Literal

from pydantic import Field

from recipe_core.base.data_files import DataFile, DataRow, DataTable
from recipe_core.base.errors import InputError
from recipe_core.base.provenance import Sourced, Status
from recipe_core.base.units import share_text
from recipe_core.calibration.trials.answers import Answer
from recipe_core.payload.launcher.bench import quantile
from recipe_core.recipe import Recipe

# Positions at which the share of answers that are still alike is stated.
SURVIVALS = (1, 4, 16, 64, 256)


@dataclass(frozen=True, slots=True)
class Agreement:
    """The agreement of answers, token by token.

    ``identical``: answers of the same tokens; ``share``: of all. ``first_divergence``: positions of
    the first token that differs, from 0, in the answers that differ (least, quartiles, most).
    ``alike_after``: by a number of tokens, the share of answers that are alike so far. ``unit``:
    tokens, or words where an engine does not tell its tokens.
    """

    prompts: int
    identical: int
    share: float
    first_divergence: Mapping[str, float] | None
    alike_after: Mapping[str, float]
    unit: str


@dataclass(frozen=True, slots=True)
class Distance:
    """The distance of log-probabilities (natural) of the same tokens after the same text.

    ``mean_abs`` and ``max_abs`` over ``tokens``. ``kl_mean`` and ``kl_max``, in nats, over the
    alternatives that both tell, with all other tokens taken together: by the data processing
    inequality a lower bound of the divergence over the whole vocabulary. None without alternatives.
    """

    tokens: int
    mean_abs: float
    max_abs: float
    kl_mean: float | None
    kl_max: float | None


def answer_agreement(first: Sequence[Answer], second: Sequence[Answer]) -> Agreement:
    """Return how alike two lists of answers are; an engine without tokens is compared word by word.

    Raises:
        InputError: for lists of different lengths, or without answers.
    """
    if len(first) != len(second) or not first:
        message = f"{len(first)} answers cannot be compared with {len(second)}."
        raise InputError(message, hint="Ask both the same questions.")
    exact = all(answer.exact for answer in (*first, *second))
    pairs = [
        (a.tokens, b.tokens) if exact else (_answer_words(a), _answer_words(b))
        for a, b in zip(first, second, strict=True)
    ]
    parted = [first_difference(a, b) for a, b in pairs]
    differing = [float(position) for position in parted if position is not None]
    longest = max(max(len(a), len(b)) for a, b in pairs)
    marks = [mark for mark in SURVIVALS if mark <= longest]
    return Agreement(
        prompts=len(pairs),
        identical=len(pairs) - len(differing),
        share=1 - len(differing) / len(pairs),
        first_divergence=_divergence_quartiles(differing),
        alike_after={
            str(mark): sum(p is None or p >= mark for p in parted) / len(parted) for mark in marks
        },
        unit="tokens" if exact else "words",
    )


def _answer_words(answer: Answer) -> tuple[str, ...]:
    return answer.tokens if not answer.exact else tuple(answer.text.split())


def first_difference(first: Sequence[str], second: Sequence[str]) -> int | None:
    """The position of the first difference, from 0; None where there is none."""
    for position, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return position
    return None if len(first) == len(second) else min(len(first), len(second))


def _divergence_quartiles(values: Sequence[float]) -> dict[str, float] | None:
    shares = {"least": 0.0, "p25": 0.25, "median": 0.5, "p75": 0.75, "most": 1.0}
    spread = {name: quantile(values, share) for name, share in shares.items()}
    return {name: value for name, value in spread.items() if value is not None} or None


def logprob_distance(first: Sequence[Answer], second: Sequence[Answer]) -> Distance | None:
    """The distance of log-probabilities up to where answers part; None where they are not told.

    At the token where two answers part, what came before is still the same: alternatives are
    compared there, too.
    """
    gaps: list[float] = []
    divergences: list[float] = []
    for a, b in zip(first, second, strict=False):
        parted = first_difference(a.tokens, b.tokens)
        alike = min(len(a.tokens), len(b.tokens)) if parted is None else parted
        pairs = zip(a.logprobs[:alike], b.logprobs[:alike], strict=False)
        gaps += [abs(p - q) for p, q in pairs if p is not None and q is not None]
        tops = zip(a.top[: alike + 1], b.top[: alike + 1], strict=False)
        divergences += [kl for p, q in tops if (kl := top_divergence(p, q)) is not None]
    if not gaps:
        return None
    return Distance(
        tokens=len(gaps),
        mean_abs=fmean(gaps),
        max_abs=max(gaps),
        kl_mean=fmean(divergences) if divergences else None,
        kl_max=max(divergences, default=None),
    )


def top_divergence(first: Mapping[str, float], second: Mapping[str, float]) -> float | None:
    """Kullback–Leibler divergence of ``right`` from ``left`` in nats, over shared alternatives.

    All other tokens are one more alternative, so it is never above the whole divergence.
    """
    shared = first.keys() & second.keys()
    if not shared:
        return None
    p = [math.exp(first[token]) for token in sorted(shared)]
    q = [math.exp(second[token]) for token in sorted(shared)]
    rests = [max(1 - sum(values), 0.0) for values in (p, q)]
    if min(rests) > 1e-9:  # below, what is left is the rounding of the sum
        p, q = [*p, rests[0]], [*q, rests[1]]
    total_p, total_q = sum(p), sum(q)
    terms = (
        a / total_p * math.log((a / total_p) / (b / total_q)) for a, b in zip(p, q, strict=True)
    )
    return max(sum(terms), 0.0)


FILE = Path(__file__).with_name("tolerances.yaml")
EXACT = "exact"
Verdict = Literal["within", "outside", "not judged"]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Tolerance(DataRow):
    """Bounds of one kind of pair: a least share of identical answers, most distances in nats."""

    share: Annotated[float, Field(ge=0, le=1)] | None = None
    mean_abs: NonNegative | None = None
    kl_mean: NonNegative | None = None
    source: str
    status: Status


class _File(Sourced):
    tolerances: Mapping[str, Tolerance]
    formats: Mapping[str, str]


_TABLE = DataTable[Tolerance](DataFile(FILE, "verify"), _File, "tolerances", "tolerance")


def tolerance(kind: str) -> Tolerance:
    """The bounds of a kind of pair: ``exact``, or a class of number formats."""
    return _TABLE.row(kind)


def coarsest_format_class(*recipes: Recipe) -> str:
    """The coarsest class of number formats that any of the recipes computes in."""
    order, classes = [*_TABLE.rows], _TABLE.document.formats
    names = [name for recipe in recipes for name in stored_formats(recipe)]
    return order[max(order.index(classes.get(name, order[-1])) for name in names)]


def stored_formats(recipe: Recipe) -> tuple[str, str]:
    """The number formats of a recipe's weights and cache, the checkpoint's own by name."""
    stored = recipe.model.weight_dtype
    weights, cache_format = (
        str(recipe.candidate.get(name) or "auto") for name in ("weight_dtype", "kv_dtype")
    )
    weights = stored if weights == "auto" else weights
    return weights, weights if cache_format == "auto" else cache_format


def judge_agreement(
    bounds: Tolerance, alike: Agreement, apart: Distance | None
) -> tuple[Verdict, list[str]]:
    """Return whether a comparison keeps its bounds, and a sentence for each that it breaks.

    Where log-probabilities are told they are what is judged, and the share of identical answers
    only between deployments that must be exact: after one near tie two long answers differ, however
    near the models are.
    """
    broken = []
    judged = False
    by_share = apart is None or bounds.mean_abs == 0
    if bounds.share is not None and by_share:
        judged = True
        if alike.share < bounds.share:
            alike_text, least_text = share_text(alike.share, 1), share_text(bounds.share)
            broken.append(f"{alike_text} of answers are identical, not {least_text}")
    for name, text in (("mean_abs", "log-probabilities differ"), ("kl_mean", "divergence is")):
        bound, value = getattr(bounds, name), getattr(apart, name, None)
        if bound is None or value is None:
            continue
        judged = True
        if value > bound:
            broken.append(f"{text} {value:.3g} nats in the mean, not at most {bound:.3g}")
    if not judged:
        return "not judged", []
    return ("outside" if broken else "within"), broken
