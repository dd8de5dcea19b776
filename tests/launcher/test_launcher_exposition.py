"""The text format, and each engine's own names in it.

Names and labels are those of vLLM 0.32 (a real server's /metrics), SGLang's collector
(python/sglang/srt/observability), TensorRT-LLM's metrics/collector.py, TGI's router and
llama.cpp's tools/server/README.md; the values are made up.
"""

from __future__ import annotations

import math
import time

import pytest

from recipe_core.launcher.exposition import MAX_CHARS, Figures, Sample, engine_figures, parse


def test_lines_become_samples() -> None:
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
def test_what_is_no_sample_is_left_out(text: str) -> None:
    assert parse(text) == {}
    assert engine_figures(text) == Figures()
    assert not engine_figures(text).published


def test_odd_text_takes_no_time() -> None:
    began = time.process_time()
    for text in (
        'a{b="' + "\\" * 200_000,
        "a{" + 'b="c",' * 50_000,
        "a{" * 200_000,
        "x " * 200_000,
    ):
        parse(text)
    assert time.process_time() - began < 5
    assert parse("a" * MAX_CHARS + "\nb 1\n") == {}


VLLM = """
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
vllm:prompt_tokens_total{engine="0",model_name="m"} 400.0
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.79e+09
vllm:generation_tokens_total{engine="0",model_name="m"} 100.0
vllm:generation_tokens_total{engine="1",model_name="m"} 60.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 4.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 4.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 0.8
vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 96.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 1.92
vllm:request_time_per_output_token_seconds_count{engine="0",model_name="m"} 2.0
vllm:request_time_per_output_token_seconds_sum{engine="0",model_name="m"} 0.05
"""


def test_vllm_over_its_replicas() -> None:
    assert engine_figures(VLLM) == Figures(160, 400, 5, 1, 0.5, 1.92, 96, 0.8, 4)


def test_speculation_makes_steps_of_several_tokens() -> None:
    figures = engine_figures(VLLM + 'vllm:spec_decode_num_drafts_total{engine="0"} 40\n')
    assert (figures.tpot_sum_s, figures.tpot_count) == (0.05, 2)


def test_older_names_of_vllm() -> None:
    text = 'vllm:gpu_cache_usage_perc{model_name="m"} 0.1\n'
    text += "vllm:time_per_output_token_seconds_sum 3\nvllm:time_per_output_token_seconds_count 100"
    figures = engine_figures(text)
    assert (figures.cache_usage, figures.tpot_sum_s, figures.tpot_count) == (0.1, 3, 100)


def test_sglang_counts_each_scheduler_once() -> None:
    ranks = 'engine_type="unified",model_name="m",pp_rank="{}",tp_rank="{}",dp_rank="{}"'
    lines = []
    for pp, tp, dp in ((0, 0, 0), (0, 1, 0), (1, 0, 0), (0, 2, 1), (0, 3, 1)):
        labels = ranks.format(pp, tp, dp)
        lines += [
            f'sglang:num_running_reqs{{{labels},priority=""}} 4',
            f'sglang:num_running_reqs{{{labels},priority="1"}} 3',
            f"sglang:num_queue_reqs{{{labels}}} 1",
            f"sglang:token_usage{{{labels}}} 0.{5 + dp}",
        ]
    lines += [
        'sglang:generation_tokens_total{model_name="m"} 1000.0',
        'sglang:prompt_tokens_total{model_name="m"} 5000.0',
        'sglang:inter_token_latency_seconds_sum{model_name="m"} 9.5',
        'sglang:inter_token_latency_seconds_count{model_name="m"} 950',
        'sglang:time_to_first_token_seconds_sum{model_name="m"} 6.0',
        'sglang:time_to_first_token_seconds_count{model_name="m"} 50',
    ]
    assert engine_figures("\n".join(lines)) == Figures(1000, 5000, 8, 2, 0.6, 9.5, 950, 6, 50)


def test_tensorrt_llm() -> None:
    text = """
trtllm_request_success_total{engine_type="undefined",finished_reason="length",model_name="m"} 2.0
trtllm_time_to_first_token_seconds_sum{engine_type="undefined",model_name="m"} 0.5
trtllm_time_to_first_token_seconds_count{engine_type="undefined",model_name="m"} 2.0
trtllm_time_per_output_token_seconds_sum{engine_type="undefined",model_name="m"} 0.02
trtllm_time_per_output_token_seconds_count{engine_type="undefined",model_name="m"} 2.0
trtllm_kv_cache_utilization{engine_type="undefined",model_name="m"} 0.125
"""
    # Version 1.2 publishes neither tokens nor requests in flight.
    assert engine_figures(text) == Figures(None, None, None, None, 0.125, 0.02, 2, 0.5, 2)
    later = 'trtllm_generation_tokens_total{model_name="m"} 70\nnum_requests_running 3\n'
    figures = engine_figures(text + later)
    assert (figures.generation_tokens, figures.running) == (70, 3)


def test_tgi() -> None:
    text = """
tgi_batch_current_size 2
tgi_queue_size 5
tgi_request_generated_tokens_bucket{le="+Inf"} 10
tgi_request_generated_tokens_sum 640
tgi_request_input_length_sum 1280
tgi_request_mean_time_per_token_duration_sum 0.3
tgi_request_mean_time_per_token_duration_count 10
"""
    assert engine_figures(text) == Figures(640, 1280, 2, 5, None, 0.3, 10, None, None)


def test_llama_cpp_has_no_histograms() -> None:
    text = """
llamacpp:prompt_tokens_total 900
llamacpp:tokens_predicted_total 1000
llamacpp:tokens_predicted_seconds_total 10
llamacpp:requests_processing 1
llamacpp:requests_deferred 2
"""
    assert engine_figures(text) == Figures(1000, 900, 1, 2, None, 10, 1000, None, None)


def test_values_that_are_no_numbers_do_not_count() -> None:
    text = 'vllm:num_requests_running{engine="0"} NaN\nvllm:num_requests_running{engine="1"} 2\n'
    assert engine_figures(text).running == 2
