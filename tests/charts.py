"""A view that is registered while a test runs, as anybody would add one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import plotly.graph_objects as go
import pytest

from recipe_core.present.charts import views
from recipe_core.present.charts.views import Chart, Focus, Item, View


def register(monkeypatch: pytest.MonkeyPatch) -> View:
    monkeypatch.setattr(views, "VIEWS", dict(views.VIEWS))

    @views.view("devices", "Device count")
    def devices(focus: Focus[Any]) -> Iterator[Item]:
        count = float(focus.plan.raw("gpus")[focus.row])
        figure = go.Figure(go.Bar(x=["devices"], y=[count]))
        yield Chart("devices", "Devices of a split", figure, "How many devices a split uses")

    return views.VIEWS["devices"]
