"""Plans as plotly figures; pages, report and notebooks share them.

Colours are set on every trace, so a figure looks the same under any template; text and grid are
left to the page's theme. A second channel (symbol, pattern, dash) always says what the colour says.
Importing the package registers the views of one split (``views``, ``closer_look``).
"""

from recipe_core.views.charts import closer_look
from recipe_core.views.charts.curves import load_curves, scaling_curve, swings, use_curves
from recipe_core.views.charts.degrees import heatmap
from recipe_core.views.charts.formats import accuracy_against, not_drawn, support_matrix
from recipe_core.views.charts.front import tradeoff
from recipe_core.views.charts.lines import parallel, passing
from recipe_core.views.charts.measured import (
    PREDICTED_BY,
    measured_against,
    parts_against,
    ratios_by_group,
)
from recipe_core.views.charts.memory import memory_bars, stage_bars
from recipe_core.views.charts.model import parts_bars
from recipe_core.views.charts.over_time import (
    first_tokens,
    load_and_capacity,
    money_so_far,
    replicas,
    within_limits,
)
from recipe_core.views.charts.over_time_load import hours_of_week, rates_over_time, start_phases
from recipe_core.views.charts.over_time_policies import cost_against_share, policy_costs
from recipe_core.views.charts.side import kept_points
from recipe_core.views.charts.size import (
    axes_of,
    confidence_curves,
    cost_against,
    cost_bars,
    limit_of,
)
from recipe_core.views.charts.size_later import growth_costs, owned_or_rented
from recipe_core.views.charts.style import palette
from recipe_core.views.charts.time import causes_bars, pipeline, waterfall
from recipe_core.views.charts.trace import gaps, hits_by_cache, lengths_density, requests_over_time

__all__ = [
    "PREDICTED_BY",
    "accuracy_against",
    "axes_of",
    "causes_bars",
    "closer_look",
    "confidence_curves",
    "cost_against",
    "cost_against_share",
    "cost_bars",
    "first_tokens",
    "gaps",
    "growth_costs",
    "heatmap",
    "hits_by_cache",
    "hours_of_week",
    "kept_points",
    "lengths_density",
    "limit_of",
    "load_and_capacity",
    "load_curves",
    "measured_against",
    "memory_bars",
    "money_so_far",
    "not_drawn",
    "owned_or_rented",
    "palette",
    "parallel",
    "parts_against",
    "parts_bars",
    "passing",
    "pipeline",
    "policy_costs",
    "rates_over_time",
    "ratios_by_group",
    "replicas",
    "requests_over_time",
    "scaling_curve",
    "stage_bars",
    "start_phases",
    "support_matrix",
    "swings",
    "tradeoff",
    "use_curves",
    "waterfall",
    "within_limits",
]
