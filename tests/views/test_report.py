"""A recipe, its files and other engines as tables, and the report: all of it, and nothing else."""

import json
from functools import cache
from html.parser import HTMLParser

import plotly.graph_objects as go
import pytest

from recipe_core.base.units import gib
from recipe_core.bundle import contents
from recipe_core.plans.plans import plan_splits
from recipe_core.recipe import make_recipe, recipe_request
from recipe_core.recipe.comparison import other_engines
from recipe_core.recipe.options import LAYERS
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.edit import change
from recipe_core.request.link import from_query
from recipe_core.request.split_key import split_name
from recipe_core.targets.by_hand import read_addresses
from recipe_core.views import overview
from recipe_core.views.charts.views import VIEWS
from recipe_core.views.columns import cell_texts
from recipe_core.views.estimates import figure_rows, memory_facts
from recipe_core.views.report import _chart_markup, html_report, report_sections
from tests.conftest import make_request
from tests.fixtures.recipes import bundle_for_request, recipe_for_request, recipe_of
from tests.fixtures.rows import table

QUERIES = table("report", "queries")
named = pytest.mark.parametrize("name", QUERIES)


class Seen(HTMLParser):
    """Elements with what they load, and the text outside scripts and styles."""

    def __init__(self, html):
        super().__init__()
        self.loads, self.tags, self.headings, self.text = [], [], [], ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        loaded = [str(value) for name, value in attrs if name in ("src", "href", "action")]
        self.loads += [value for value in loaded if not value.startswith("#")]

    def handle_data(self, data):
        if self.tags and self.tags[-1] == "h2" and data.strip():
            self.headings.append(data.strip())
        if self.tags and self.tags[-1] not in ("script", "style"):
            self.text += data


@cache
def report(name):
    request = request_of(name)
    bundle = bundle_for_request(request)
    return bundle, plan_splits(request), html_report(bundle, plan_splits(request))


def request_of(name):
    request, ignored = from_query(QUERIES[name])
    assert ignored == []
    return request


@named
def test_a_report_is_small_loads_nothing_and_has_all_of_the_recipe_and_every_view(name):
    bundle, splits, html = report(name)
    seen = Seen(html)
    assert seen.loads == []
    assert "iframe" not in seen.tags
    assert "default-src 'none'" in html
    assert len(html.encode()) < 6_000_000
    assert html.count('"showSendToCloud":false') + html.count('"showSendToCloud": false') >= 4
    said = [bundle.recipe.digest, "python launch.py up"]
    for row in figure_rows(bundle.recipe.kind, bundle.recipe.estimate):
        said += [row.label, row.value, row.low]
    said += [reason for reason in bundle.targets.values() if isinstance(reason, str)]
    for origin in overview.option_origins(bundle.recipe):
        said += [origin.name, origin.why]
    assert [text for text in said if text not in seen.text] == []
    chapters = report_sections(bundle, splits, (), read_addresses("", bundle.context.nodes))
    assert seen.headings == [section.title for section in chapters]
    drawn = [chart for section in chapters for chart in section.charts]
    assert len(drawn) >= table("report", "charts")[name]
    assert all(len(chart.figure.data) for chart in drawn)
    (lines,) = [section for section in chapters if section.title == "Arithmetic"]
    assert sum(len(rows.rows) for rows in lines.tables) >= 6
    titles = {view.title for view in VIEWS.values() if bundle.recipe.kind in view.kinds}
    reuses = bundle.recipe.kind == "training" or splits.problem.workload.prefix_reuse
    absent = set() if reuses else {"Cache"}
    if bundle.recipe.kind == "training" and bundle.recipe.candidate["pp"] == 1:
        absent |= {"Pipeline"}
    assert titles - set(seen.headings) == absent


def test_a_report_has_addresses_and_registered_charts_and_without_a_plan_leaves_charts_out(
    registered_chart,
):
    bundle, _, full = report("serving")
    chapters = report_sections(bundle, None, (), read_addresses("", bundle.context.nodes))
    (chapter,) = [section for section in chapters if section.title == registered_chart.title]
    (chart,) = chapter.charts
    assert chart.figure.data[0].y == (bundle.recipe.device.count,)
    alone = Seen(html_report(bundle, addresses=("10.0.0.1", "10.0.0.2")))
    assert chart.title in alone.text
    assert "Alternatives" in Seen(full).headings
    assert "Alternatives" not in alone.headings
    assert "--head 10.0.0.1,10.0.0.2" in alone.text
    assert "--master-addr 10.0.0.1" in alone.text


def test_text_of_a_request_is_never_markup(tiny_config):
    model = tiny_config | {"_name_or_path": "</script><script>alert(1)</script><img src=x>"}
    workload = {"input_tokens": 128, "output_tokens": 128, "concurrency": 4}
    request = make_request(model, per_node=1, workload=workload)
    html = html_report(bundle_for_request(request), plan_splits(request))
    seen = Seen(html)
    assert "img" not in seen.tags
    assert "alert(1)" in seen.text
    assert "<script>alert(1)" not in html
    points = go.Scatter(x=[1, 2], y=[3, 4], mode="markers", name="</script>")
    chart = str(_chart_markup(go.Figure(points), "c"))
    assert chart.count("</script>") == chart.count("<script")


def test_every_option_has_its_flag_value_and_layer():
    built = recipe_of()
    rows = {row.name: row for row in overview.option_origins(built)}
    assert rows["--tensor-parallel-size"].value == str(built.candidate["tp"])
    assert rows["--tensor-parallel-size"].layer == "objective"
    assert len(rows) == len(built.candidate) + len(built.engine.options) + len(built.environment)
    assert set(overview.LAYER_TEXTS) == set(LAYERS)
    candidate = {"engine": "vllm", "tp": 8, "pp": 1, "dp": 1}
    origins = overview.option_origins(recipe_of(candidate=candidate))
    assert origins[0].layer == "user"  # what a person stated comes first
    order = [LAYERS.index(row.layer) for row in origins]
    assert order == sorted(order, reverse=True)


@named
def test_memory_adds_up_and_figures_have_a_basis(name):
    built = recipe_for_request(request_of(name))
    memory = memory_facts(built.estimate)
    beside = ("Total", "Cache capacity", "Prefill pool")
    parts = [float(memory[label].split()[0]) for label in memory if label not in beside]
    total = built.estimate["memory"]["total_bytes"]
    assert sum(parts) == pytest.approx(total / 2**30, abs=0.05 * len(parts))
    assert memory["Total"].startswith(gib(total))
    assert all(row.basis and row.value for row in figure_rows(built.kind, built.estimate))


def test_cost_per_token_has_the_range_of_output_and_fallbacks_and_pools_are_said():
    built = recipe_for_request(request_of("serving"))
    rows = {row.label: row for row in figure_rows(built.kind, built.estimate)}
    cost, output = rows["Cost per million output tokens"], rows["Throughput per GPU"]
    low, value, high = (float(text.lstrip("$")) for text in (cost.low, cost.value, cost.high))
    assert low < value < high
    least, most = (float(text.split()[0]) for text in (output.low, output.high))
    assert high / low == pytest.approx(most / least, rel=0.02)
    rows = cell_texts(built.fallbacks, overview.fallback_columns(built))
    changes = {(kind, change) for kind, _, _, change, _ in rows}
    assert {"Next best", "Fewer devices", "Other devices"} <= {kind for kind, _ in changes}
    assert all(figures for *_, figures in rows)
    assert ("Other formats", "weights in fp8") in changes
    assert any(kind == "Shorter context" and "tokens" in change for kind, change in changes)
    built = recipe_for_request(request_of("pools"))
    assert overview.recipe_facts(built)["Layout"] == "TP 4, prefill on TP 4"
    assert "Prefill pool" in memory_facts(built.estimate)
    pools = {"replicas": 2, "prefill": built.candidate["prefill"] | {"replicas": 3}}
    name = split_name(built.candidate | pools)
    assert name == "2 × TP 4, prefill on 3 × TP 4"
    assert overview.stated_split(CandidateRequest(tp=2)) == "TP 2"
    assert overview.stated_split(CandidateRequest(tp=2, pp=1, dp=4)) == "TP 2 × DP 4"


def test_the_same_split_elsewhere_is_estimated_or_refused_and_can_be_taken():
    request = make_request()
    built = recipe_for_request(request)
    engines = {other.name: other for other in other_engines(recipe_request(built), built.candidate)}
    assert "vllm" not in engines
    sglang = engines["sglang"]
    assert sglang.reasons == ()
    assert sglang.figures[0].value
    assert any("tensor parallel" in reason for reason in engines["transformers"].reasons)
    assert list(engines.values()) == sorted(engines.values(), key=lambda other: bool(other.reasons))
    changed = change(request, sglang.changes)
    assert changed.options.engines == ("vllm", "sglang")
    other = make_recipe(changed)
    assert other.engine.name == "sglang"
    for name in ("tp", "pp", "dp", "ep"):
        assert other.candidate[name] == built.candidate[name]
    assert other.estimate["serving"]["tpot_s"] > 0
    run, _ = from_query({"workload.kind": "training", "workload.tokens": "1e9"})
    run = change(run, {"workload.sequence_length": 1024})
    built = recipe_for_request(run)
    engines = {other.name: other for other in other_engines(recipe_request(built), built.candidate)}
    assert engines.keys() >= {"torch", "deepspeed", "accelerate", "megatron"}
    assert built.engine.name not in engines
    for name, other in engines.items():
        assert bool(other.reasons) != bool(other.figures)
        if not other.reasons:
            assert make_recipe(change(run, other.changes)).engine.name == name


def test_files_are_listed_searched_and_cut():
    files = bundle_for_request(make_request()).files
    every = contents.bundle_listing(files)
    assert [other.path for other in every[:2]] == ["README.md", "recipe.yaml"]
    assert {other.path for other in every} == set(files)
    assert every[0].size == len(files["README.md"])
    engines = [other.path for other in contents.bundle_listing(files, "SBATCH slurm")]
    assert "targets/slurm/job.sbatch" in engines
    assert len(engines) < len(files)
    assert contents.bundle_listing(files, "recipe zebrawood") == []
    cut = ("\ufffd" + "a" * (contents.PREVIEWED - 1), False)
    assert contents.preview_text(b"\xff" + b"a" * 70_000) == cut
    assert json.loads(contents.preview_text(files["launch.json"])[0])["schema_version"] == 1
