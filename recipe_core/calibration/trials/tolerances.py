"""What two deployments may differ by, from ``tolerances.yaml``, and the verdict on a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from recipe_core.base.data_files import DataFile
from recipe_core.base.provenance import Sourced, Status
from recipe_core.calibration.trials.compare import Agreement, Distance
from recipe_core.recipe import Recipe

FILE = Path(__file__).with_name("tolerances.yaml")
EXACT = "exact"
Verdict = Literal["within", "outside", "not judged"]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Tolerance(_Data):
    """Bounds of one kind of pair: a least share of identical answers, most distances in nats."""

    share: Annotated[float, Field(ge=0, le=1)] | None = None
    mean_abs: NonNegative | None = None
    kl_mean: NonNegative | None = None
    source: str
    status: Status

    def to_json(self) -> dict[str, Any]:
        """Plain values, without bounds that do not bind."""
        return self.model_dump(mode="json", exclude_none=True)


class _File(Sourced):
    tolerances: Mapping[str, Tolerance]
    formats: Mapping[str, str]


@cache
def _tolerance_file() -> _File:
    return DataFile(FILE, "verify").read_as(_File)


def tolerance(kind: str) -> Tolerance:
    """The bounds of a kind of pair: ``exact``, or a class of number formats."""
    return _tolerance_file().tolerances[kind]


def coarsest_format_class(*recipes: Recipe) -> str:
    """The coarsest class of number formats that any of the recipes computes in."""
    file = _tolerance_file()
    order = list(file.tolerances)
    kinds = [
        file.formats.get(name, order[-1]) for recipe in recipes for name in stored_formats(recipe)
    ]
    return max(kinds, key=order.index)


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
    """Whether a comparison keeps its bounds, and a sentence for each that it breaks.

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
            broken.append(f"{alike.share:.1%} of answers are identical, not {bounds.share:.0%}")
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
