"""Fit the model of accuracy to the published figures: recipe_core/compression/accuracy.yaml.

    python scripts/fit_compression.py [--spreads]

Reads published.csv as it is shipped and writes ``effects.csv`` (one row an effect) and the bands in
``accuracy.yaml``. With --spreads it first finds the spread of each term by restricted maximum
likelihood (minutes); without, it takes those of the file.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from recipe_core.base.arrays import Float
from recipe_core.base.documents import to_yaml
from recipe_core.compression.band import scale_of
from recipe_core.compression.effects import EFFECTS, FILE, Fitted, group_of
from recipe_core.compression.fit import Fit, Noise, fitted
from recipe_core.compression.left_out import LeftOut, Prepared, left_out, posterior_variances
from recipe_core.compression.published import figures

HEAD = """\
# Numbers of the model of accuracy (docs/compression-accuracy.md): scripts/fit_compression.py.
# scatter: how figures scatter around their expectation (recipe_core/compression/fit.py, Noise).
# spreads: standard deviation of the effects of each term, in logarithms of the loss.
# bands: where 80 % of left-out losses lie, in units of their scatter; cells: sources × models.
"""
SHARE = 0.82
"""Of these figures that a band holds, for it to hold 80 % of those of other models."""
PASSES = 25
LEAST_SPREAD = 0.02
"""Spreads that come out smaller are 0: the term says nothing."""
CENTRES = np.arange(0.6, 1.3, 0.01)
NUISANCES = ("source × model",)
WEIGHT = 12.0
"""Cells at which a group's own band counts as much as that of all figures."""


def spreads_found(
    prepared: Prepared, spreads: dict[str, float], noise: Noise, assumed: set[str]
) -> tuple[dict[str, float], Noise]:
    """Spreads and latent scatter by fixed-point steps of restricted maximum likelihood.

    A spread grows by the square root of how much larger the sum of its squared effects is than the
    fit expects it to be.
    """
    terms = np.array([term for term, _ in prepared.levels.number])
    start = None
    noise = replace(noise, crowding=0.0)
    for _ in range(PASSES):
        variances = prepared.levels.spreads(spreads) ** 2
        steps = 6 if start is None else 1
        fit = fitted(prepared.data, prepared.entries, variances, noise, start=start, steps=steps)
        start = fit.f
        seen = np.zeros(len(terms))
        due = np.zeros(len(terms))
        for rows, level, value in prepared.entries.by_level():
            seen[level] = float(value @ fit.weights[rows]) ** 2
            due[level] = value @ fit.inverse[np.ix_(rows, rows)] @ value
        for term in set(spreads) - assumed:
            mine = terms == term
            growth = np.sqrt(seen[mine].sum() / due[mine].sum())
            spreads[term] = float(np.clip(spreads[term] * growth, 0.005, 3.0))
        growth = np.sqrt(fit.weights @ fit.weights / np.trace(fit.inverse))
        noise = replace(noise, latent=float(np.clip(noise.latent * growth, 0.08, 0.5)))
        print({term: round(value, 2) for term, value in spreads.items()}, flush=True)
    return {t: s if s >= LEAST_SPREAD else 0.0 for t, s in spreads.items()}, noise


def _quantile(values: Float, weights: Float, share: float) -> float:
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    return float(np.interp(share * total[-1], total - weights[order] / 2, values[order]))


def centres(prepared: Prepared, predicted: LeftOut) -> dict[str, float]:
    """The factors of left-out losses with the least mean absolute error of what is retained."""
    texts = np.array([question.benchmark.likelihood for question in prepared.asked])
    weights = 1 / np.sqrt(prepared.data.crowd)
    kept = np.exp(-prepared.data.loss)
    factors = {}
    for name, mine in (("tasks", ~texts), ("texts", texts)):
        off = [
            (weights[mine] * np.abs(np.exp(-factor * predicted.expected[mine]) - kept[mine])).sum()
            for factor in CENTRES
        ]
        factors[name] = round(float(CENTRES[np.argmin(off)]), 2)
    return factors


def bands(prepared: Prepared, predicted: LeftOut) -> dict[str, dict[str, Any]]:
    """Ends of the bands of each group, drawn towards those of all figures where cells are few."""
    scatter = np.array(
        [
            scale_of(question, loss, variance)
            for question, loss, variance in zip(
                prepared.asked, predicted.expected, predicted.variance, strict=True
            )
        ]
    )
    off = (prepared.data.loss - predicted.expected) / scatter
    groups = np.array([group_of(question) for question in prepared.asked])
    cells = np.array([f"{row.source}|{row.model}" for row in prepared.rows])
    weights = 1 / np.sqrt(prepared.data.crowd)
    tail = (1 - SHARE) / 2
    ends = {}
    whole = [_quantile(off, weights, share) for share in (tail, 1 - tail)]
    for group in sorted(set(groups)):
        mine = groups == group
        count = len(set(cells[mine]))
        own = [_quantile(off[mine], weights[mine], share) for share in (tail, 1 - tail)]
        low, high = (
            (count * a + WEIGHT * b) / (count + WEIGHT) for a, b in zip(own, whole, strict=True)
        )
        ends[str(group)] = {"low": round(low, 3), "high": round(high, 3), "cells": count}
    every = {"low": round(whole[0], 3), "high": round(whole[1], 3), "cells": len(set(cells))}
    return {"all": every} | ends


def write_effects(prepared: Prepared, fit: Fit, spreads: Mapping[str, float]) -> int:
    """One row an effect; those of where a figure was published are left out."""
    effects, variances = fit.effects(), posterior_variances(fit)
    uses = np.bincount(prepared.entries.level, minlength=len(effects))
    rows = [
        (term, level, f"{effects[n]:.3f}", f"{np.sqrt(variances[n]):.3f}", int(uses[n]))
        for (term, level), n in prepared.levels.number.items()
        if spreads.get(term, 0.0) > 0 and term not in NUISANCES
    ]
    with EFFECTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("term", "level", "effect", "spread", "figures"))
        writer.writerows(sorted(rows))
    return len(rows)


def main() -> None:
    document = FILE.read()
    numbers = Fitted.model_validate(document)
    noise, spreads = numbers.scatter.noise(), dict(numbers.spreads.by_term)
    prepared = Prepared.of(figures(), noise)
    if "--spreads" in sys.argv:
        assumed = set(numbers.spreads.assumed)
        spreads, found = spreads_found(prepared, spreads, noise, assumed)
        noise = replace(noise, latent=found.latent)
    variances = prepared.levels.spreads(spreads) ** 2
    fit = fitted(prepared.data, prepared.entries, variances, noise)
    count = write_effects(prepared, fit, spreads)
    predicted = left_out(prepared, spreads, noise, [row.model for row in prepared.rows])
    document["figures"] = len(prepared.rows)
    document["models"] = len({row.model for row in prepared.rows})
    document["scatter"]["latent"] = round(noise.latent, 3)
    document["spreads"]["by_term"] = {term: round(value, 3) for term, value in spreads.items()}
    factors = centres(prepared, predicted)
    document["centre"] |= factors
    texts = [question.benchmark.likelihood for question in prepared.asked]
    middle = np.where(texts, factors["texts"], factors["tasks"]) * predicted.expected
    predicted = replace(predicted, expected=middle)
    document["bands"]["by_group"] = bands(prepared, predicted)
    FILE.path.write_text(HEAD + to_yaml(document))
    print(f"{count} effects from {len(prepared.rows)} figures: {EFFECTS}")


if __name__ == "__main__":
    main()
