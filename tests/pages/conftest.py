"""A chart that only a test registers."""

from __future__ import annotations

from tests.charts import registered_chart

__all__ = ["registered_chart"]
