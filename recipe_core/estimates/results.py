"""Estimates of both kinds, for schemas and types; a search loads those of its own kind alone."""

from __future__ import annotations

from recipe_core.estimates.prediction import Prediction
from recipe_core.estimates.serving.results import ServingEstimate
from recipe_core.estimates.training.results import TrainingEstimate

# What a split would do: figures with their bands as attributes, and as JSON.
Estimate = ServingEstimate | TrainingEstimate

__all__ = ["Estimate", "Prediction", "ServingEstimate", "TrainingEstimate"]
