"""Plans as plotly figures; pages, report and notebooks share them.

Colours are set on every trace, so a figure looks the same under any template; text and grid are
left to the page's theme. A second channel (symbol, pattern, dash) always says what the colour says.
Importing the package registers the views of one split (``views``, ``split_views``).
"""

from recipe_core.views.charts import split_views
from recipe_core.views.charts.formats import accuracy_against, hidden_count, support_matrix
from recipe_core.views.charts.front import tradeoff
from recipe_core.views.charts.measured import (
    PREDICTED_BY,
    measured_against,
    parts_against,
    ratios_by_group,
)
from recipe_core.views.charts.over_time import (
    first_tokens,
    hours_of_week,
    load_and_capacity,
    money_so_far,
    rates_over_time,
    replicas_over_time,
    within_limits,
)
from recipe_core.views.charts.parts import parameter_bars
from recipe_core.views.charts.policies import cost_against_share, policy_costs, start_phases
from recipe_core.views.charts.side import choice_points
from recipe_core.views.charts.size import (
    axes_of,
    confidence_curves,
    cost_against,
    cost_bars,
    growth_costs,
    limit_of,
    owned_or_rented,
)
from recipe_core.views.charts.trace import (
    arrival_gaps,
    hits_by_cache,
    lengths_density,
    requests_over_time,
)

__all__ = [
    "PREDICTED_BY",
    "accuracy_against",
    "arrival_gaps",
    "axes_of",
    "choice_points",
    "confidence_curves",
    "cost_against",
    "cost_against_share",
    "cost_bars",
    "first_tokens",
    "growth_costs",
    "hidden_count",
    "hits_by_cache",
    "hours_of_week",
    "lengths_density",
    "limit_of",
    "load_and_capacity",
    "measured_against",
    "money_so_far",
    "owned_or_rented",
    "parameter_bars",
    "parts_against",
    "policy_costs",
    "rates_over_time",
    "ratios_by_group",
    "replicas_over_time",
    "requests_over_time",
    "split_views",
    "start_phases",
    "support_matrix",
    "tradeoff",
    "within_limits",
]
