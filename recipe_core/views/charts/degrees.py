"""Splits by their degrees: the best of each tp × pp."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from recipe_core.base.units import significant
from recipe_core.plans.plan import Plan
from recipe_core.views.charts.style import palette


def heatmap(plan: Plan, measure: str, *, dark: bool = False) -> go.Figure:
    """The best of a measure at each tp × pp over all other degrees; a cross where none fits."""
    colours, quantity = palette(dark), plan.measures[measure]
    degree = {name: plan.degree(name) for name in ("tp", "pp")}
    best = _best_cells(plan, measure, degree)
    tps, pps = (
        sorted({int(value) for value in degree[name][plan.feasible | _powers_of_two(plan)]})
        for name in ("tp", "pp")
    )
    z = [[_value(plan, measure, best.get((tp, pp))) for tp in tps] for pp in pps]
    text = [["" if value is None else significant(value) for value in line] for line in z]
    about = [
        [_about(plan, measure, best.get((tp, pp)), degree, tp, pp) for tp in tps] for pp in pps
    ]
    figure = go.Figure(
        go.Heatmap(
            z=z,
            x=[f"tp {tp}" for tp in tps],
            y=[f"pp {pp}" for pp in pps],
            text=text,
            texttemplate="%{text}",
            customdata=about,
            hovertemplate="%{x}, %{y}<br>%{customdata}<extra></extra>",
            hoverongaps=True,
            colorscale="Cividis",
            reversescale=not quantity.more_is_better,
            xgap=2,
            ygap=2,
            colorbar={"title": {"text": quantity.unit}, "thickness": 12},
        )
    )
    empty = [(x, y) for y, line in enumerate(z) for x, value in enumerate(line) if value is None]
    figure.add_scatter(
        x=[f"tp {tps[x]}" for x, _ in empty],
        y=[f"pp {pps[y]}" for _, y in empty],
        mode="text",
        text=["✕"] * len(empty),
        textfont={"color": colours.muted},
        hoverinfo="skip",  # the cell below has the hover text
        showlegend=False,
    )
    figure.update_layout(height=130 + 40 * len(pps), margin={"l": 10, "r": 10, "t": 10, "b": 10})
    figure.update_xaxes(title=None, type="category", showgrid=False)
    figure.update_yaxes(title=None, type="category", autorange="reversed", showgrid=False)
    return figure


def _powers_of_two(plan: Plan) -> Any:
    """Rows whose degrees are powers of two: of the refused ones only these are worth a cell."""
    tp, pp = plan.degree("tp"), plan.degree("pp")
    return ((tp & (tp - 1)) == 0) & ((pp & (pp - 1)) == 0)


def _best_cells(plan: Plan, measure: str, degree: dict[str, Any]) -> dict[tuple[int, int], int]:
    """The row with the best value in each cell."""
    values = plan.raw(measure) * (-1 if plan.measures[measure].more_is_better else 1)
    rows = plan.order[np.isfinite(values[plan.order])]
    out: dict[tuple[int, int], int] = {}
    for row in rows[np.argsort(values[rows], kind="stable")]:
        out.setdefault((int(degree["tp"][row]), int(degree["pp"][row])), int(row))
    return out


def _value(plan: Plan, measure: str, row: int | None) -> float | None:
    return None if row is None else float(plan.values(measure, [row])[0])


def _about(
    plan: Plan, measure: str, row: int | None, degree: dict[str, Any], tp: int, pp: int
) -> str:
    if row is not None:
        return f"{plan.label(row)}<br>{plan.measures[measure].title} {plan.text(measure, row)}"
    refused = np.flatnonzero((degree["tp"] == tp) & (degree["pp"] == pp))
    return (
        plan.title(plan.codes(int(refused[0])))
        if len(refused)
        else "these devices allow no such split"
    )
