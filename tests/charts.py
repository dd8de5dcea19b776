"""A view that is registered while a test runs, as anybody would add one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import plotly.graph_objects as go
import pytest

from recipe_core.present.charts.views import VIEWS, Chart, Focus, Item, View, view


@pytest.fixture
def registered_chart(monkeypatch: pytest.MonkeyPatch) -> View:
    monkeypatch.setattr("recipe_core.present.charts.views.VIEWS", dict(VIEWS))

    @view("devices", "Device count")
    def devices(focus: Focus[Any]) -> Iterator[Item]:
        count = float(focus.plan.raw("gpus")[focus.row])
        figure = go.Figure(go.Bar(x=["devices"], y=[count]))
        yield Chart("devices", "Devices of a split", figure, "How many devices a split uses")

    from recipe_core.present.charts import views

    return views.VIEWS["devices"]
