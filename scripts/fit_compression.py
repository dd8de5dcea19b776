"""Fit the model of accuracy to the published figures: recipe_core/accuracy/accuracy.yaml.

    python scripts/fit_compression.py [--spreads]

Reads published.csv as it is shipped and writes ``effects.csv`` (one row an effect) and the bands in
``accuracy.yaml``. With --spreads it first finds the spread of each term by restricted maximum
likelihood, from the same start each time (two minutes); without, it takes those of the file.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from fit.compression import (
    Fit,
    LeftOut,
    Losses,
    Prepared,
    count_bands,
    fit_effects,
    left_out_by_known,
    posterior_variances,
)

from recipe_core.accuracy.effects import EFFECTS, FILE, Fitted, Known, Scatter
from recipe_core.accuracy.effects import fitted_model as read
from recipe_core.accuracy.published import published_figures
from recipe_core.base.documents import to_yaml

HEAD = """\
# Numbers of the model of accuracy (docs/method/compression.md): scripts/fit_compression.py.
# scatter: how figures scatter around their expectation (``Scatter`` of ``accuracy/effects.py``).
# spreads: standard deviation of the effects of each term, in logarithms of the loss.
# bands: where 80 % of left-out losses lie, in units of their scatter (scale), by what is published
# of: the model, others of its series, or nothing of either; cells: sources × models.
"""
PASSES = 20
FIRST_SPREAD = 0.3
LEAST_SPREAD = 0.02
"""Spreads that come out smaller are 0: the term says nothing."""
CENTRES = np.arange(0.6, 1.3, 0.01)
NUISANCES = ("source × model",)


def spreads_found(
    prepared: Prepared, terms: Iterable[str], assumed: Mapping[str, float], noise: Scatter
) -> dict[str, float]:
    """Spreads by fixed-point steps of restricted maximum likelihood, but those that are assumed.

    A spread grows by the square root of how much larger the sum of its squared effects is than the
    fit expects it to be.
    """
    spreads = {term: assumed.get(term, FIRST_SPREAD) for term in terms}
    by_level = np.array([term for term, _ in prepared.levels.number])
    start = None
    noise = noise.model_copy(update={"crowding": 0.0})
    for _ in range(PASSES):
        variances = prepared.levels.spreads(spreads) ** 2
        steps = 6 if start is None else 1
        fit = fit_effects(
            prepared.data, prepared.entries, variances, noise, start=start, steps=steps
        )
        start = fit.f
        counts = np.zeros(len(by_level))
        due = np.zeros(len(by_level))
        for rows, level, value in prepared.entries.by_level():
            counts[level] = float(value @ fit.weights[rows]) ** 2
            due[level] = value @ fit.inverse[np.ix_(rows, rows)] @ value
        for term in set(spreads) - set(assumed):
            of_term = by_level == term
            growth = np.sqrt(counts[of_term].sum() / due[of_term].sum())
            spreads[term] = float(np.clip(spreads[term] * growth, 0.005, 3.0))
        print({term: round(value, 2) for term, value in spreads.items()}, flush=True)
    return {t: s if s >= LEAST_SPREAD else 0.0 for t, s in spreads.items()}


def centres(prepared: Prepared, predicted: LeftOut) -> dict[str, float]:
    """The factors of left-out losses with the least mean absolute error of what is retained."""
    texts = np.array([question.benchmark.likelihood for question in prepared.user_questions])
    weights = 1 / np.sqrt(prepared.data.crowd)
    retained = np.exp(-prepared.data.loss)
    factors = {}
    for name, of_kind in (("tasks", ~texts), ("texts", texts)):
        off = [
            (
                weights[of_kind]
                * np.abs(np.exp(-factor * predicted.expected[of_kind]) - retained[of_kind])
            ).sum()
            for factor in CENTRES
        ]
        factors[name] = round(float(CENTRES[np.argmin(off)]), 2)
    return factors


def loss_bands(prepared: Prepared, predicted: Mapping[Known, LeftOut]) -> dict[str, dict[str, Any]]:
    """Bands by what is known of the model, counted on figures that were left out so far."""
    return {
        str(kind): {
            group: band.model_dump()
            for group, band in count_bands(
                Losses.of(prepared, left_out),
                np.array([knowledge is kind for knowledge in left_out.scopes]),
            ).items()
        }
        for kind, left_out in predicted.items()
    }


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


def write_loss_numbers(document: dict[str, Any]) -> None:
    """The file, which is read again when it is next asked for."""
    FILE.path.write_text(HEAD + to_yaml(document))
    read.cache_clear()


def main() -> None:
    document = FILE.read()
    numbers = Fitted.model_validate(document)
    noise, spreads = numbers.scatter, dict(numbers.spreads.by_term)
    prepared = Prepared.of(published_figures(), noise)
    if "--spreads" in sys.argv:
        assumed = {term: spreads[term] for term in numbers.spreads.assumed}
        spreads = spreads_found(prepared, spreads, assumed, noise)
        spreads = {term: round(value, 3) for term, value in spreads.items()}
    variances = prepared.levels.spreads(spreads) ** 2
    fit = fit_effects(prepared.data, prepared.entries, variances, noise)
    count = write_effects(prepared, fit, spreads)
    predicted = left_out_by_known(prepared, spreads, noise)
    document["figures"] = len(prepared.rows)
    document["models"] = len({row.model for row in prepared.rows})
    document["spreads"]["by_term"] = spreads
    document["centre"] |= centres(prepared, predicted[Known.SERIES])
    # Bands lie around what is answered: the new centres are read from the file.
    write_loss_numbers(document)
    document["bands"]["by_known"] = loss_bands(prepared, predicted)
    write_loss_numbers(document)
    print(f"{count} effects from {len(prepared.rows)} figures: {EFFECTS}")


if __name__ == "__main__":
    main()
