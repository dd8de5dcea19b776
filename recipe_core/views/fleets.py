"""A placed fleet for people: its tables and its text (``templates/fleets.j2``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipe_core.base.units import (
    chance_text,
    long_duration,
    percent_text,
    significant,
    trimmed,
    usd,
)
from recipe_core.engines.frameworks import framework
from recipe_core.engines.spec import engine, engine_names
from recipe_core.fleets.answer import ALL_DAY, ByPeriod, Charge, FleetAnswer, Placement, PoolUse
from recipe_core.fleets.moves import Moves, Step
from recipe_core.fleets.what_if import compare_answers
from recipe_core.request.metrics import column_metric
from recipe_core.views.columns import UNKNOWN, Column, terminal
from recipe_core.views.texts import Phrases

PHRASES = Phrases("fleets")
RENTED = ("on-demand", "spot")
"""Terms of machines that are there while they are paid."""


@dataclass(frozen=True, slots=True)
class PlacedRow:
    """A placement with its model or job, as a row of a table; None where nothing runs."""

    name: str
    placement: Placement | None
    load: str
    probability: float | None


def placed_rows(answer: FleetAnswer) -> list[PlacedRow]:
    """Return every placement by model, then jobs; one without any has a row of its own."""
    rows: list[PlacedRow] = []
    for model in answer.models:
        unit = "/s" if model.mode == "open" else " users"
        load = f"{significant(max(model.load.values(), default=0.0))}{unit}"
        rows += [
            PlacedRow(model.name, placed, load, model.probability)
            for placed in model.placements or (None,)
        ]
    for job in answer.jobs:
        time = f"{significant(job.hours)} h" if job.placements else UNKNOWN
        rows += [PlacedRow(job.name, placed, time, None) for placed in job.placements or (None,)]
    return rows


def by_period_text(values: Mapping[str, int] | ByPeriod) -> str:
    """One number where all periods have the same, else each with its period's name."""
    texts = {name: trimmed(float(value)) for name, value in values.items()}
    if set(texts) == {ALL_DAY} or len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return ", ".join(f"{text} {name}" for name, text in texts.items())


def layout_text(placed: Placement) -> str:
    """A layout with its engine, and the slice that it runs on."""
    part = f" on {placed.slice}" if placed.slice else ""
    asleep = ", sleeps" if placed.shared else ""
    serves = placed.engine in engine_names()
    title = (engine if serves else framework)(placed.engine).title
    return f"{placed.layout}{part}, {title}{asleep}"


def _milliseconds(name: str) -> Any:
    def read(row: PlacedRow) -> float | None:
        value = row.placement.figures.get(name) if row.placement else None
        return value * 1e3 if value else None

    return read


PLACEMENTS: tuple[Column[PlacedRow], ...] = (
    Column("Model", "name", align="left", help="Models, then jobs"),
    Column("Load", "load", help="Of a model in its busiest period; of a job how long a run takes"),
    Column("Pool", "placement.pool", align="left"),
    Column("Layout", lambda row: row.placement and layout_text(row.placement), align="left"),
    Column("Replicas", lambda row: row.placement and by_period_text(row.placement.replicas)),
    Column(
        "Share",
        "placement.weight",
        percent_text,
        help="Of the model's requests, in the busiest period: the weight that a router gives it",
    ),
    Column("TTFT (ms)", _milliseconds("ttft_s"), significant, help=column_metric("ttft_s").help),
    Column("TPOT (ms)", _milliseconds("tpot_s"), significant, help=column_metric("tpot_s").help),
    Column("Per hour", "placement.usd_per_hour", usd, help="Mean over the hours of a day"),
    Column(
        "Sure",
        "probability",
        chance_text,
        help="Probability that all limits of the model hold, everywhere it runs",
    ),
)
POOLS: tuple[Column[PoolUse], ...] = (
    Column("Pool", "name", align="left"),
    Column("Device", "device", align="left"),
    Column("Term", "term", align="left"),
    Column("Devices", "devices"),
    Column("Used", "used", by_period_text),
    Column("Paid", "paid", by_period_text),
    Column("Reserve", lambda pool: pool.reserved or None),
    Column("Cut", lambda pool: cuts_text(pool) or None, align="left"),
    Column("Device-hour", "usd_per_device_hour", usd),
    Column("Per hour", "usd_per_hour", usd),
)
CHARGES: tuple[Column[Charge], ...] = (
    Column("Team", lambda charge: charge.team or ("–" if charge.models else "idle"), align="left"),
    Column("Project", "project", align="left"),
    Column("Cost centre", "cost_centre", align="left"),
    Column("Devices", "devices", significant),
    Column("Per hour", "usd_per_hour", usd),
    Column("Per month", "usd_per_month", usd),
    Column("Models", lambda charge: ", ".join(charge.models), align="left"),
)


STEPS: tuple[Column[Step], ...] = (
    Column(
        "Turn", "wave", help="Those of one turn may run at once; the next waits for all of them"
    ),
    Column("Move", "text", align="left"),
    Column("Takes", "seconds", long_duration, help="Until the replicas of a start serve"),
)


def cuts_text(pool: PoolUse) -> str:
    """The ways in which devices of a pool are cut: ``2 × (3g.40gb + 4 × 1g.10gb)``."""
    texts = []
    for cut in pool.cuts:
        parts = [name if n == 1 else f"{n} × {name}" for name, n in cut.counts.items()]
        texts.append(f"{cut.devices} × ({' + '.join(parts)})")
    return "; ".join(texts)


def fleet_text(answer: FleetAnswer) -> str:
    """The answer as text: what it costs, who runs where, pools, charges, and what to know."""
    tables = {
        "placements": terminal(placed_rows(answer), PLACEMENTS),
        "pools": terminal(answer.pools, POOLS),
        "charges": terminal(answer.charges, CHARGES),
    }
    return PHRASES.text("whole", answer, tables)


def served_sentence(answer: FleetAnswer) -> str:
    """Say whether all is served, on how many devices, or how much is not."""
    devices = sum(use.used.get(answer.busiest_period, 0.0) for use in answer.pools)
    return PHRASES.sentence("served", answer, devices)


def unmet_lines(answer: FleetAnswer) -> list[str]:
    """Say what is not served or not run, and why: a line each, then the conflict's sentence."""
    return [*PHRASES.lines("lacking", answer)]


def answered_text(answer: FleetAnswer, moves: Moves | None, changed: FleetAnswer | None) -> str:
    """The answer as text, with the steps from today to it, and what tried changes change."""
    texts = [fleet_text(answer)]
    if moves is not None:
        texts.append(PHRASES.text("moves", moves))
    if changed is not None:
        differences = PHRASES.text("differences", compare_answers(answer, changed))
        texts += [f"what if: {differences}", fleet_text(changed)]
    return "\n".join(texts)
