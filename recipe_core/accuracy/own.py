"""Measured figures of one's own before published ones: what a technique retains here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from recipe_core.accuracy.checkpoints import MeasuredCompression, own_figure
from recipe_core.accuracy.retained import Published, Retained

OF_TEXT = "perplexity of the bundled text"
OF_OWN_TEXT = "perplexity of a text of one's own"
# The kind of benchmark that a measurement answers itself.
PERPLEXITY = "perplexity"
SOURCE = "measured here"
# Spread of a perplexity's ratio between texts, as a share of what is lost: two texts agree within
# about half of the loss. An assumption; docs/method/compression.md says so.
_SPREAD = 0.5
# Half of the band where hardly anything is lost.
_LEAST = 0.002


def with_own_figure(
    expected: Retained,
    runs: Iterable[MeasuredCompression],
    model: str | Sequence[str],
    technique: str,
    method: str = "",
    *,
    benchmark: str = "",
) -> Retained:
    """An expectation moved by a measurement on this very model; unchanged without one.

    What was measured is perplexity, which falls at least as far as accuracy where little is lost
    (docs/method/compression.md): it is a floor of accuracy, not its value. So the expectation is
    raised to it where it was lower, its lower end comes as near as the measurement's band, and the
    measured figure stands first among the nearest. Where nothing was known, the measurement is the
    answer, as it is to a question about perplexity (``benchmark``). ``model``: its name, or all its
    names.
    """
    run = own_figure(runs, model, technique, method)
    if run is None:
        return expected
    half = max(_LEAST, _SPREAD * abs(1 - run.retained))
    low, high = run.retained - half, run.retained + half
    figure = Published(
        model=run.model,
        technique=run.technique,
        method=run.method,
        benchmark=OF_OWN_TEXT if run.text else OF_TEXT,
        base_value=1.0,
        value=run.retained,
        retained=run.retained,
        noise=half,
        source=SOURCE,
        date=run.date.isoformat(),
    )
    basis = (
        f"{SOURCE} on {run.date}: {run.retained:.2%} of the perplexity retained on "
        f"{run.tokens:,} tokens"
    )
    nearest = (figure, *expected.nearest)
    if benchmark.strip().casefold() == PERPLEXITY:
        return Retained(run.retained, low, high, basis, nearest)
    if not expected.known or math.isnan(expected.value):
        return Retained(run.retained, low, high, f"{basis}, which is all that is known", nearest)
    value = max(expected.value, run.retained)
    return replace(
        expected,
        value=value,
        low=min(max(expected.low, low), value),
        high=max(expected.high, value),
        basis=f"{basis}, a floor of accuracy; {expected.basis}",
        nearest=nearest,
    )
