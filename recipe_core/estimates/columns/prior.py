"""The prior belief in the scales of estimated times, before own runs: see `corrections`."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from recipe_core.base.arrays import Float
from recipe_core.base.data_files import DataRow

# Scopes by their field of ``Shares``.
WIDE_TO_NARROW = ("device", "version", "model", "deployment", "load")

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]


class Shares(DataRow):
    """The shares of a scale's variance (of its logarithm); they add up to 1."""

    device: Share
    version: Share
    model: Share
    deployment: Share
    load: Share
    noise: Positive


class ScalePrior(DataRow):
    """The prior belief in one scale.

    ``spread`` is the standard deviation of its logarithm. The common effect of alike loads fades to
    e to the power of minus ``fades`` with each doubling of the load of a replica or of the answer,
    of minus ``prompt_fades`` with each doubling of the prompt.
    """

    spread: Positive
    fades: Positive
    prompt_fades: Positive
    shares: Shares

    def alike(self, apart: Float) -> Float:
        """The common effect of loads that are apart by doublings of load, prompt and answer."""
        fades = np.array([self.fades, self.prompt_fades, self.fades])
        return np.asarray(np.exp(-np.abs(apart) @ fades))

    def common(self, scopes: Scopes) -> Float:
        """Correlation of cases with runs that share ``scopes``: cases × runs."""
        shares = np.array([getattr(self.shares, name) for name in WIDE_TO_NARROW[:-1]])
        same = np.tensordot(shares, scopes.same, axes=1)
        return np.asarray(same + self.shares.load * scopes.of_model * self.alike(scopes.apart))


class Scopes(NamedTuple):
    """The scopes that cases share with runs: ``WIDE_TO_NARROW`` but loads × cases × runs, 0 or 1.

    ``of_model``: whether load and lengths count, and how many doublings they are ``apart``.
    """

    same: Float
    of_model: Float
    apart: Float


class Prior(DataRow):
    """The belief in both scales; ``cap``: standard deviations beyond which a figure is cut."""

    schema_version: int
    source: str
    steps: ScalePrior
    prompts: ScalePrior
    cap: Positive

    @property
    def scales(self) -> tuple[ScalePrior, ScalePrior]:
        return self.steps, self.prompts

    def shares_of(self, scope: str) -> tuple[float, float]:
        """The shares of a scope in the variance of each scale."""
        return getattr(self.steps.shares, scope), getattr(self.prompts.shares, scope)
