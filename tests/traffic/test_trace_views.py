"""``recipe trace``, its text, and figures of a trace."""

import json
from pathlib import Path

import numpy as np
import pytest

from recipe_core.present import charts
from recipe_core.present.charts.trace import alt_text
from recipe_core.request.serving_workload import ServingWorkload
from recipe_core.traffic.describe import describe
from recipe_core.traffic.rates import Rates
from recipe_core.traffic.read import read_trace
from recipe_core.traffic.trace import Trace
from tests.fixtures.command_line import recipe

ROWS = [
    {"timestamp": 250 * n, "input_length": 600 + n % 400, "output_length": 5 + n % 7}
    | {"hash_ids": [0, 1 + n % 9]}
    for n in range(1, 900)
]
TEXT = "\n".join(map(json.dumps, ROWS))


def shown(*words: str, stdin: str = TEXT) -> str:
    return str(recipe("trace", *words, stdin=stdin).stdout)


def trace() -> Trace:
    return read_trace(TEXT.encode(), "made")


def test_json_and_text_have_what_the_contract_names(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(TEXT)
    answer = json.loads(shown(str(file), "--json"))
    assert answer["requests"] == len(ROWS)
    assert answer["rate_per_s"] == pytest.approx(answer["requests"] / answer["span_s"])
    for side in ("input_tokens", "output_tokens"):
        assert {"mean", "p50", "p90", "p99", "max"} <= set(answer[side])
    hits = answer["prefix_hit"]["by_cache_tokens"]
    assert list(map(int, hits)) == [512 << n for n in range(len(hits))]
    assert max(hits.values()) == pytest.approx(answer["prefix_hit"]["unlimited"])
    text = shown(str(file))
    assert "899 requests in 3.74 minutes: 4.00 per second" in text
    assert "blocks of 512 tokens, 10 different" in text
    assert "times are rounded" not in text


def test_a_workload_rates_and_shapes_are_shown() -> None:
    values = json.loads(shown("-", "--workload", "--shape", "azure-code", "--json"))
    workload = ServingWorkload(**values)
    assert workload.over_time.shape == "azure-code"
    assert workload.prefix_reuse
    rates = shown("-", stdin="t_s,rate_rps\n0,1\n600,3\n1200,2\n")
    assert "rates in 3 intervals of 10.0 minutes" in rates
    assert "2.00 requests per second, 1.00 to 3.00" in rates
    shapes, text = json.loads(shown("--shapes", "--json")), shown("--shapes")
    assert all(len(one["relative_rates"]) == 168 and one["source"] for one in shapes)
    assert all(one["name"] in text for one in shapes)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("trace",), "needs either a file or --shapes"),
        (("trace", "no-such-file"), "cannot read no-such-file"),
        (("trace", "README.md"), "no trace that is known"),
        (("trace", "-", "--json"), "is empty"),
    ],
)
def test_errors_say_what_to_do(words: tuple[str, ...], says: str) -> None:
    done = recipe(*words)
    assert done.returncode == 2
    assert says in done.stderr


def test_figures_show_the_trace() -> None:
    made = trace()
    rates = charts.requests_over_time(made).data[-1].y
    assert sum(rates) * 60 == pytest.approx(len(made))
    assert max(charts.requests_over_time(made).data[0].y) == 4
    density = charts.lengths_density(made).data[0]
    assert np.nansum(density.customdata) == pytest.approx(1)
    hits = charts.hits_by_cache(describe(made)["prefix_hit"])
    assert hits.data[0].y[-1] > 0.9
    assert alt_text(made).startswith("Requests per second over")


def test_gaps_stand_beside_a_poisson_process_and_little_is_drawn() -> None:
    for dark in (False, True):
        own, poisson = charts.gaps(trace(), dark=dark).data
        assert (np.diff(own.y) <= 0).all()
        assert (np.diff(poisson.y) < 0).all()
        assert own.name == "this trace"
    ones = np.ones(1, dtype=np.int64)
    single = Trace(np.zeros(1), ones, ones)
    assert len(charts.gaps(single).data) == 0
    assert len(charts.lengths_density(single).data) == 2
    assert len(charts.requests_over_time(single).data[-1].y) == 1
    rates = Rates(np.arange(1.0, 4), 600.0, np.zeros(3, dtype=np.bool_))
    assert charts.requests_over_time(rates).data[0].y.tolist() == [1, 2, 3]
