"""A recipe as one HTML file with its charts: it opens without a network and asks nothing of any.

``sections`` says what it holds, as data; ``charts`` draws; ``html`` puts both into the template,
which escapes every text.
"""

from recipe_core.present.report.charts import Chart
from recipe_core.present.report.html import html_report
from recipe_core.present.report.sections import Section, Table, sections

__all__ = ["Chart", "Section", "Table", "html_report", "sections"]
