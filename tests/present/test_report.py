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
from tests.fixtures.recipes import bundle_for_request

POOLS = {
    f"candidate.{name}": value
    for name, value in {
        "engine": "vllm",
        "tp": "4",
        "pp": "1",
        "dp": "1",
        "prefill.tp": "4",
    }.items()
}
QUERIES: dict[str, dict[str, str]] = {
    "serving": {"model": "meta-llama/Llama-3.1-405B-Instruct", "hardware.nodes": "2"},
    "pools": {"model": "meta-llama/Llama-3.1-70B-Instruct", **POOLS},
    "training": {"workload.kind": "training", "workload.tokens": "1e9", "hardware.nodes": "2"},
}
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
def test_a_report_loads_nothing_and_is_small(name: str) -> None:
    _, html = report(name)
    seen = read(html)
    assert seen.loads == []
    assert "iframe" not in seen.tags
    assert "default-src 'none'" in html
    assert len(html.encode()) < MOST_BYTES
    assert html.count('"showSendToCloud":false') + html.count('"showSendToCloud": false') >= 4


@pytest.mark.parametrize("name", QUERIES)
def test_a_report_says_what_the_recipe_says(name: str) -> None:
    bundle, html = report(name)
    text = read(html).text
    for row in overview.expected(bundle.recipe):
        assert row.label in text
        assert row.value in text
        assert row.low in text
    assert bundle.recipe.digest in text
    assert "python launch.py up" in text
    assert all(reason in text for reason in bundle.targets.values() if isinstance(reason, str))
    assert all(
        origin.name in text and origin.why in text for origin in overview.origins(bundle.recipe)
    )


@pytest.mark.parametrize(("name", "charts"), [("serving", 9), ("pools", 7), ("training", 4)])
def test_every_section_has_its_charts_and_the_arithmetic(name: str, charts: int) -> None:
    bundle, html = report(name)
    chapters = sections(
        bundle, plan(request_of(name)), (), read_addresses("", bundle.context.nodes)
    )
    titles = [section.title for section in chapters]
    assert [title for title in read(html).headings if title] == titles
    drawn = [chart for section in chapters for chart in section.charts]
    assert len(drawn) >= charts
    assert all(len(chart.figure.data) for chart in drawn)
    (lines,) = [section for section in chapters if section.title == "Arithmetic"]
    assert sum(len(table.rows) for table in lines.tables) >= 6


@pytest.mark.parametrize("name", QUERIES)
def test_every_registered_view_is_a_chapter(name: str) -> None:
    bundle, html = report(name)
    titles = [view.title for view in VIEWS.values() if bundle.recipe.kind in view.kinds]
    absent = {"Degrees"}  # it compares splits and is read by pointing
    if bundle.recipe.kind == "training":
        absent |= {"Pipeline"} if bundle.recipe.candidate["pp"] == 1 else set()
    assert set(titles) - set(read(html).headings) == absent


def test_a_registered_chart_is_a_chapter_of_the_report(registered_chart: View) -> None:
    bundle, _ = report("serving")
    chapters = sections(bundle, None, (), read_addresses("", bundle.context.nodes))
    (chapter,) = [section for section in chapters if section.title == registered_chart.title]
    (chart,) = chapter.charts
    assert chart.figure.data[0].y == (bundle.recipe.device.count,)
    assert chart.title in read(html_report(bundle)).text


def test_text_of_a_request_is_never_markup(tiny_config: dict[str, Any]) -> None:
    name = "</script><script>alert(1)</script><img src=x>"
    request = PlanRequest.parse(
        {
            "model": tiny_config | {"_name_or_path": name},
            "hardware": {"device": "h100-sxm", "per_node": 1},
            "workload": {"input_tokens": 128, "output_tokens": 128, "concurrency": 4},
        }
    )
    html = html_report(bundle_for_request(request), plan(request))
    seen = read(html)
    assert "img" not in seen.tags
    assert "alert(1)" in seen.text
    assert "<script>alert(1)" not in html


def test_a_report_without_a_plan_leaves_its_charts_out() -> None:
    bundle, full = report("serving")
    alone = html_report(bundle)
    assert "Alternatives" in read(full).headings
    assert "Alternatives" not in read(alone).headings


def test_the_nodes_addresses_are_in_the_commands() -> None:
    bundle, _ = report("serving")
    text = read(html_report(bundle, addresses=("10.0.0.1", "10.0.0.2"))).text
    assert "--head 10.0.0.1,10.0.0.2" in text
    assert "--master-addr 10.0.0.1" in text


def test_no_name_ends_the_script() -> None:
    html = str(
        _chart(go.Figure(go.Scatter(x=[1, 2], y=[3, 4], mode="markers", name="</script>")), "c")
    )
    assert html.count("</script>") == html.count("<script")
