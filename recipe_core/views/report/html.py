"""A report's sections as one HTML file.

The template escapes every text; a policy in the file forbids the browser every request.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import plotly.graph_objects as go
import plotly.io
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from recipe_core.bundle.write import Bundle
from recipe_core.plans.plan import Plan
from recipe_core.targets.by_hand import read_addresses
from recipe_core.views.charts.style import LIGHT
from recipe_core.views.report.sections import sections, title

_CONFIG = {"showSendToCloud": False, "displaylogo": False, "responsive": True}
_FONT = {"family": "system-ui, sans-serif", "size": 13, "color": LIGHT.ink}


@cache
def _template() -> Template:
    """Undefined names are errors, and everything that is not marked as safe is escaped."""
    loader = FileSystemLoader(Path(__file__).parent)
    return Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template("report.html.j2")


def html_report(
    bundle: Bundle,
    plan: Plan | None = None,
    *,
    pins: Sequence[str] = (),
    addresses: Sequence[str] = (),
) -> str:
    """The report of a bundle.

    ``plan``: the one its split was chosen from; without it the charts of all splits are left out.
    ``pins``: keys of splits to compare. ``addresses``: of the nodes; left out, placeholders.
    """
    chapters = sections(bundle, plan, pins, addresses or read_addresses("", bundle.context.nodes))
    return _template().render(
        title=title(bundle),
        name=bundle.recipe.name,
        sections=chapters,
        plotly=Markup(get_plotlyjs()),  # noqa: S704 - the library
        chart=_chart,
    )


def _chart(figure: go.Figure, place: str) -> Markup:
    """A figure as a place in the page and the script that draws it.

    Plotly writes its JSON so that no text can end the script.
    """
    plain = go.Figure(figure)
    plain.update_layout(
        template="plotly_white", font=_FONT, paper_bgcolor=LIGHT.paper, plot_bgcolor=LIGHT.paper
    )
    return Markup(  # noqa: S704
        plotly.io.to_html(
            plain,
            full_html=False,
            include_plotlyjs=False,
            config=_CONFIG,
            div_id=place,
            default_width="100%",
        )
    )
