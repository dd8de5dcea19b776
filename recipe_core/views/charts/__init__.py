"""Plans as plotly figures; pages, report and notebooks share them.

Colours are set on every trace, so a figure looks the same under any template; text and grid are
left to the page's theme. A second channel (symbol, pattern, dash) always says what the colour says.
Importing the package registers the views of one split (``views``, ``split_views``).
"""

from recipe_core.views.charts import split_views

__all__ = ["split_views"]
