"""A recipe as one HTML file with its charts: it opens offline and requests nothing.

``sections`` holds what it says, as data, with a chapter per registered view; ``html`` puts that
into the template, which escapes every text.
"""

from recipe_core.views.charts.views import Chart, Table
from recipe_core.views.report.html import html_report
from recipe_core.views.report.sections import Section, sections

__all__ = ["Chart", "Section", "Table", "html_report", "sections"]
