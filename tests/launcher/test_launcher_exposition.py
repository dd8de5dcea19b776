"""The text format, and each engine's own names in it (``tests/data/engine_metrics.yaml``)."""

from __future__ import annotations

import math

import pytest
import yaml

from recipe_core.launcher.exposition import MAX_CHARS, Figures, Sample, engine_figures, parse
from tests.fixtures.paths import DATA

ENGINES = yaml.safe_load((DATA / "engine_metrics.yaml").read_text())


def test_lines_become_samples():
    text = r"""
# HELP http_requests_total The total number of HTTP requests.
# TYPE http_requests_total counter
http_requests_total{method="post",code="200"} 1027 1395066363000
http_requests_total{method="post", code="400",} 3
msdos_file_access_time_seconds{path="C:\\DIR\\FILE.TXT",error="Cannot find \"FILE\"\n{x}"} 1.5e9
metric_without_timestamp_and_labels 12.47
weird{problem="division by zero"} +Inf -3982045
not_a_number NaN
foo_bucket{le="0.1"} 8 # {trace_id="KOO5S4vxi0o"} 0.067
# EOF
"""
    samples = parse(text)
    assert samples["http_requests_total"] == [
        Sample("http_requests_total", {"method": "post", "code": "200"}, 1027.0),
        Sample("http_requests_total", {"method": "post", "code": "400"}, 3.0),
    ]
    (odd,) = samples["msdos_file_access_time_seconds"]
    assert odd.labels == {"path": r"C:\DIR\FILE.TXT", "error": 'Cannot find "FILE"\n{x}'}
    assert samples["metric_without_timestamp_and_labels"][0].value == 12.47
    assert samples["weird"][0].value == math.inf
    assert math.isnan(samples["not_a_number"][0].value)
    assert samples["foo_bucket"] == [Sample("foo_bucket", {"le": "0.1"}, 8.0)]


@pytest.mark.parametrize(
    "text",
    ["", "<html>502 Bad Gateway</html>", "a{b 1", 'a{b="c} 1', "a", "1 2", "a one", '{"a": 1}'],
)
def test_what_is_no_sample_is_left_out(text):
    assert parse(text) == {}
    assert engine_figures(text) == Figures()
    assert not engine_figures(text).published


def test_odd_text_takes_no_time():
    """A parser that is quadratic in it would not come to an end."""
    for text in (
        'a{b="' + "\\" * 200_000,
        "a{" + 'b="c",' * 50_000,
        "a{" * 200_000,
        "x " * 200_000,
    ):
        parse(text)
    assert parse("a" * MAX_CHARS + "\nb 1\n") == {}


def test_each_engines_figures():
    for engine in ENGINES.values():
        assert engine_figures(engine["text"]) == Figures(*engine["figures"])
    later = ENGINES["tensorrt-llm"]["text"] + 'trtllm_generation_tokens_total{model_name="m"} 70\n'
    figures = engine_figures(later + "num_requests_running 3\n")
    assert (figures.generation_tokens, figures.running) == (70, 3)


def test_other_names_of_vllm():
    # Speculation makes steps of several tokens.
    figures = engine_figures(
        ENGINES["vllm"]["text"] + 'vllm:spec_decode_num_drafts_total{engine="0"} 40\n'
    )
    assert (figures.tpot_sum_s, figures.tpot_count) == (0.05, 2)
    older = 'vllm:gpu_cache_usage_perc{model_name="m"} 0.1\n'
    older += "vllm:time_per_output_token_seconds_sum 3\n"
    older += "vllm:time_per_output_token_seconds_count 100"
    figures = engine_figures(older)
    assert (figures.cache_usage, figures.tpot_sum_s, figures.tpot_count) == (0.1, 3, 100)
    no_number = 'vllm:num_requests_running{engine="0"} NaN\nvllm:num_requests_running{engine="1"} 2'
    assert engine_figures(no_number).running == 2
