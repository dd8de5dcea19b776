"""Tables and charts as files to take away."""

from __future__ import annotations

import re
from typing import Any

import plotly.graph_objects as go
import plotly.io

from recipe_core.request.schema import PlanRequest
from recipe_core.views.charts.style import LIGHT

# Formats in which a browser saves a chart.
PICTURES = ("png", "svg")

CSV, PARQUET, HTML = "text/csv", "application/vnd.apache.parquet", "text/html"

LONGEST_NAME = 80


def file_name(request: PlanRequest, subject: str) -> str:
    """A name for files about a request, without an ending: model, devices and ``subject``."""
    model = request.model if isinstance(request.model, str) else "model"
    hardware = request.hardware
    device = hardware.device if isinstance(hardware.device, str) else "own-device"
    words = f"{model.rstrip('/').rpartition('/')[2]}-{hardware.devices}x-{device}"
    slug = re.sub(r"[^a-z0-9.]+", "-", words.lower()).strip("-.")[:LONGEST_NAME]
    return f"{slug}-{subject}"


def picture_config(name: str, picture: str) -> dict[str, Any]:
    """Settings of plotly's buttons: the camera saves ``name``, in one of ``PICTURES``."""
    extension = picture if picture in PICTURES else PICTURES[0]
    return {
        "displaylogo": False,
        "showSendToCloud": False,
        "toImageButtonOptions": {"format": extension, "filename": name, "scale": 2},
    }


def chart_page(figure: go.Figure, name: str) -> bytes:
    """A chart as one HTML file that works without a network; about 5 MB, most of it plotly."""
    plain = go.Figure(figure)
    plain.update_layout(
        template="plotly_white", paper_bgcolor=LIGHT.paper, plot_bgcolor=LIGHT.paper
    )
    config = picture_config(name, PICTURES[0]) | {"responsive": True}
    text: str = plotly.io.to_html(plain, full_html=True, include_plotlyjs=True, config=config)
    return text.encode()
