"""The report: everything in it, nothing from outside, no text as markup."""

from __future__ import annotations

from functools import cache
from html.parser import HTMLParser
from typing import Any

import plotly.graph_objects as go
import pytest

from recipe_core.bundle.write import Bundle
from recipe_core.present import overview
from recipe_core.present.charts.views import VIEWS, View
from recipe_core.present.report import html_report, sections
from recipe_core.present.report.html import _chart
from recipe_core.request.link import from_query
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan
from recipe_core.targets.by_hand import read_addresses
from tests.conftest import make_request
from tests.fixtures.recipes import bundle_for_request

POOLS = {"engine": "vllm", "tp": "4", "pp": "1", "dp": "1", "prefill.tp": "4"}
QUERIES: dict[str, dict[str, str]] = {
    "serving": {"model": "meta-llama/Llama-3.1-405B-Instruct", "hardware.nodes": "2"},
    "pools": {"model": "meta-llama/Llama-3.1-70B-Instruct"}
    | {f"candidate.{name}": value for name, value in POOLS.items()},
    "training": {"workload.kind": "training", "workload.tokens": "1e9", "hardware.nodes": "2"},
}
CHARTS = {"serving": 9, "pools": 7, "training": 4}
MOST_BYTES = 6_000_000


class Seen(HTMLParser):
    """Elements with what they load, and the text outside scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.headings: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [
            str(value)
            for name, value in attrs
            if name in ("src", "href", "action") and not str(value).startswith("#")
        ]

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "h2":
            self.headings.append(data.strip())
        if self.tags and self.tags[-1] not in ("script", "style"):
            self.text += data


def request_of(name: str) -> PlanRequest:
    request, ignored = from_query(QUERIES[name])
    assert ignored == []
    return request


@cache
def report(name: str) -> tuple[Bundle, str]:
    request = request_of(name)
    bundle = bundle_for_request(request)
    return bundle, html_report(bundle, plan(request))


def read(html: str) -> Seen:
    seen = Seen()
    seen.feed(html)
    return seen


@pytest.mark.parametrize("name", QUERIES)
def test_a_report_is_small_loads_nothing_and_says_what_the_recipe_says(name: str) -> None:
    bundle, html = report(name)
    seen = read(html)
    assert seen.loads == []
    assert "iframe" not in seen.tags
    assert "default-src 'none'" in html
    assert len(html.encode()) < MOST_BYTES
    assert html.count('"showSendToCloud":false') + html.count('"showSendToCloud": false') >= 4
    said = [bundle.recipe.digest, "python launch.py up"]
    for row in overview.expected(bundle.recipe):
        said += [row.label, row.value, row.low]
    said += [reason for reason in bundle.targets.values() if isinstance(reason, str)]
    for origin in overview.origins(bundle.recipe):
        said += [origin.name, origin.why]
    assert [text for text in said if text not in seen.text] == []


@pytest.mark.parametrize("name", QUERIES)
def test_every_section_and_every_view_is_a_chapter_with_its_charts(name: str) -> None:
    bundle, html = report(name)
    addresses = read_addresses("", bundle.context.nodes)
    chapters = sections(bundle, plan(request_of(name)), (), addresses)
    headings = [title for title in read(html).headings if title]
    assert headings == [section.title for section in chapters]
    drawn = [chart for section in chapters for chart in section.charts]
    assert len(drawn) >= CHARTS[name]
    assert all(len(chart.figure.data) for chart in drawn)
    (lines,) = [section for section in chapters if section.title == "Arithmetic"]
    assert sum(len(table.rows) for table in lines.tables) >= 6
    titles = {view.title for view in VIEWS.values() if bundle.recipe.kind in view.kinds}
    absent = {"Degrees"}  # it compares splits and is read by pointing
    if bundle.recipe.kind == "training" and bundle.recipe.candidate["pp"] == 1:
        absent |= {"Pipeline"}
    assert titles - set(headings) == absent


def test_a_registered_chart_is_a_chapter_of_the_report(registered_chart: View) -> None:
    bundle, _ = report("serving")
    chapters = sections(bundle, None, (), read_addresses("", bundle.context.nodes))
    (chapter,) = [section for section in chapters if section.title == registered_chart.title]
    (chart,) = chapter.charts
    assert chart.figure.data[0].y == (bundle.recipe.device.count,)
    assert chart.title in read(html_report(bundle)).text


def test_text_of_a_request_is_never_markup(tiny_config: dict[str, Any]) -> None:
    name = "</script><script>alert(1)</script><img src=x>"
    request = make_request(
        tiny_config | {"_name_or_path": name},
        per_node=1,
        workload={"input_tokens": 128, "output_tokens": 128, "concurrency": 4},
    )
    html = html_report(bundle_for_request(request), plan(request))
    seen = read(html)
    assert "img" not in seen.tags
    assert "alert(1)" in seen.text
    assert "<script>alert(1)" not in html
    points = go.Scatter(x=[1, 2], y=[3, 4], mode="markers", name="</script>")
    chart = str(_chart(go.Figure(points), "c"))
    assert chart.count("</script>") == chart.count("<script")


def test_a_report_without_a_plan_leaves_its_charts_out_and_has_addresses() -> None:
    bundle, full = report("serving")
    alone = read(html_report(bundle, addresses=("10.0.0.1", "10.0.0.2")))
    assert "Alternatives" in read(full).headings
    assert "Alternatives" not in alone.headings
    assert "--head 10.0.0.1,10.0.0.2" in alone.text
    assert "--master-addr 10.0.0.1" in alone.text
