"""The chart of what caches find by their size."""

import numpy as np
import pytest

from recipe_core.present.charts.views import VIEWS, Chart, Focus, Note, Table
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan_candidate
from tests.physics.test_kv_tiers import LLAMA_8B, POINTS, lengths, request

BOTH = {
    "through": "lmcache",
    "host_gib_per_device": 50,
    "disk": {"tier": "nvme", "gib": 1000, "path": "/data/kv"},
    "remote": {"tier": "fsx-lustre", "gib": 9000, "url": "redis://cache:6379"},
}


def drawn(offload, points=POINTS):
    value = request(LLAMA_8B, lengths(8000, 256, 16, points), offload)
    plan, row = plan_candidate(PlanRequest.parse(value))
    return list(VIEWS["cache"].draw(Focus(plan, row)))


def test_the_view_marks_the_devices_and_every_tier_on_the_curve_or_says_what_is_missing():
    held, chart, table, *notes = drawn(BOTH)
    assert isinstance(chart, Chart)
    assert isinstance(table, Table)
    assert "Free for reuse" in held.head
    assert len(notes) == 3
    line, *marks = chart.figure.data
    assert [mark.name for mark in marks] == ["Devices", "Host memory", "Drives", "Remote store"]
    sizes = np.log(np.asarray(line.x, dtype=float))
    for mark in marks:
        assert np.interp(np.log(mark.x[0]), sizes, line.y) == pytest.approx(mark.y[0], abs=0.02)
    assert [row[0] for row in table.rows] == ["Host memory", "Drives", "Remote store"]
    held, note = drawn(None, ())
    assert held.rows[0][-1] == "0.0%, as stated"
    assert isinstance(note, Note)
    assert "workload.prefix_reuse" in note.text
