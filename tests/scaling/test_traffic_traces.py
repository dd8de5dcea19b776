"""Traces in every format that is read, what is said of others, ``recipe trace`` and its figures."""

import gzip
import io
import json
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.base.errors import InputError
from recipe_core.request.serving_workload import ServingWorkload
from recipe_core.scaling.traces.describe import describe_trace
from recipe_core.scaling.traces.formats import content
from recipe_core.scaling.traces.formats.content import unpack_trace_file
from recipe_core.scaling.traces.formats.table import chain_roots, time_column
from recipe_core.scaling.traces.read import FORMATS, read_load, read_trace
from recipe_core.scaling.traces.trace import Rates, Trace
from recipe_core.views.charts.over_time import (
    alt_text,
    arrival_gaps,
    hits_by_cache,
    lengths_density,
    requests_over_time,
)
from tests.fixtures.catalogues import table
from tests.fixtures.command_line import recipe
from tests.fixtures.paths import DATA
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over
from tests.fixtures.sizes import examples

SAMPLES = {path.stem: path.read_text() for path in sorted((DATA / "traces").iterdir())}
AZURE, MOONCAKE, OTLP = (SAMPLES[name] for name in ("azure_2023", "mooncake", "otlp"))


def read(text, **options):
    return read_trace(text if isinstance(text, bytes) else text.encode(), "it", **options)


def problem(text):
    error = refusal(read, text)
    assert error.field == "trace"
    assert error.hint
    return error.message


def counts(trace):
    """Requests, failed ones, seconds."""
    return len(trace), trace.failed, trace.span_s


def test_azure_stamps_have_seven_digits_and_since_2024_zones_and_whole_seconds():
    trace, later = read(AZURE), read(SAMPLES["azure_2024"])
    np.testing.assert_allclose(trace.arrival_s, [0, 0.052, 0.098189], atol=1e-9)
    assert trace.input_tokens.tolist() == [4808, 3180, 110]
    assert trace.began_s == pytest.approx(1700158623.97996)
    np.testing.assert_allclose(later.arrival_s, [0, 0.99007], atol=1e-9)
    assert later.source == "it, Azure trace"


def test_mooncake_is_sorted_with_blocks_and_bailian_has_chains_of_chats():
    trace = read(MOONCAKE)
    assert trace.arrival_s.tolist() == [0, 3, 3]
    assert trace.blocks.tokens == 512
    assert trace.blocks.ids.tolist() == [0, 1, 0, 1, 2, 0, 9]
    assert trace.blocks.starts.tolist() == [0, 2, 5, 7]
    trace = read(SAMPLES["bailian"])
    assert trace.span_s == 9
    first, *others = trace.sessions.tolist()
    assert [session == first for session in others] == [True, False, True]
    assert trace.blocks.tokens == 16


@given(st.lists(st.integers(-1, 30), max_size=30))
@settings(max_examples=examples(600), deadline=None)
def test_roots_of_chains_are_those_of_walking_up(parents):
    parents = [p if p < n else -1 for n, p in enumerate(parents)]
    found = chain_roots(np.arange(len(parents)), np.asarray(parents, dtype=np.int64))
    for n, root in enumerate(found):
        while parents[n] >= 0:
            n = parents[n]
        assert root == n


def test_logs_spans_and_benchmarks_count_their_failures():
    expected = table("traces.yaml", "counts")
    assert {name: [*counts(read(SAMPLES[name]))] for name in expected} == expected
    assert read(SAMPLES["spans"]).output_tokens.tolist() == [7, 8]
    assert read(SAMPLES["envoy"]).input_tokens.tolist() == [9, 10]
    assert read(SAMPLES["vllm_bench"]).arrival_s.tolist() == [0, 0.5]
    embeddings = read("time,isl,osl\n0,8,0\n1,9,0\n")  # have no answers
    assert counts(embeddings) == (2, 0, 1)


def test_otlp_takes_calls_and_leaves_agents_in_lines_and_documents():
    trace = read(OTLP + OTLP.replace("00500000000", "02500000000"))
    assert trace.arrival_s.tolist() == [0, 2]
    assert trace.output_tokens.tolist() == [34, 34]
    assert trace.sessions.tolist() == [0, 0]
    spans = [json.loads(line) for line in SAMPLES["spans"].splitlines()]
    documents = (json.dumps(whole, indent=2) for whole in (json.loads(OTLP), spans))
    assert list(map(len, map(read, documents))) == [1, 2]


@over("head first second gap_s", table("traces.yaml", "tables"))
def test_a_table_has_the_names_people_use(head, first, second, gap_s):
    trace = read(f"{head}\n{second}\n{first}\n")
    assert trace.span_s == pytest.approx(gap_s)
    assert trace.input_tokens.tolist() == [8, 8]


def test_a_table_has_sessions_hashes_and_statuses_and_parquet_is_one():
    trace = read(
        "t_s,input_tokens,output_tokens,session_id,hash_ids,status\n"
        "0,32,1,a,1 2,200\n1,48,1,b,[1;2;3],500\n2,40,1,a,1|2|4,200\n"
    )
    assert counts(trace)[:2] == (2, 1)
    assert (len(trace.blocks.ids), trace.blocks.tokens) == (5, 16)
    assert trace.sessions.tolist() == [0, 0]
    stamps = pa.array([1_700_000_000_000, 1_700_000_000_250], pa.timestamp("ms"))
    columns = {"timestamp": stamps, "isl": [5, 6], "osl": [7, 8], "hash_ids": [[1], [1]]}
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    trace = read(file.getvalue())
    assert trace.span_s == pytest.approx(0.25)
    assert trace.output_tokens.tolist() == [7, 8]


def test_a_stated_unit_counts_and_every_format_has_a_title():
    table = "time,isl,osl\n0,1,1\n1000,1,1\n"
    assert read(table, unit="ms").span_s == 1
    with pytest.raises(InputError, match="unit 'minutes'"):
        read(table, unit="minutes")
    assert time_column(["x", "Arrival Time (ms)"]) == ("Arrival Time (ms)", "ms")
    assert time_column(["time", "timestamp"]) == ("timestamp", None)
    assert time_column(["length"]) is None
    titles = [one.title for one in FORMATS]
    assert len(set(titles)) == len(titles) == 7


@pytest.mark.parametrize("text", [AZURE, MOONCAKE, SAMPLES["burstgpt"], OTLP])
def test_gzip_is_unpacked_in_all_its_members_but_no_bomb(text):
    half = text.encode()[: len(text) // 2], text.encode()[len(text) // 2 :]
    packed = b"".join(map(gzip.compress, half))
    assert len(read(packed)) == len(read(text))
    with pytest.raises(InputError, match="larger than 1 MiB"):
        unpack_trace_file(gzip.compress(b"0" * 3_000_000), 1 << 20)


def test_what_is_small_and_would_be_large_is_refused_by_what_comes_out(monkeypatch):
    short, empty = gzip.compress(b"time,isl,osl\n" + b"1,1,1\n" * 4_500_000), gzip.compress(b"")
    tracemalloc.start()
    assert "more than 16 times as many" in problem(short)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    monkeypatch.setattr(content, "MOST_LINES", 1_000_000)
    assert "more than 1,000,000 lines" in problem(short)
    assert "more than 1,000,000 lines" in problem(b"time,isl,osl\n" + b"1,1,1\n" * 1_000_001)
    assert "is empty" in problem((empty + bytes(1 << 15)) * 100)  # as some tools fill blocks
    assert "over 100,000 members" in problem(empty * 100_001)
    # a text of a megabyte that a table in Parquet says 20,000 times, and one that is damaged
    rows = pa.array(np.zeros(20_000, np.int32))
    stamps = pa.DictionaryArray.from_arrays(rows, pa.array(["2024-01-01" + " " * (1 << 20)]))
    file, usual = io.BytesIO(), pa.default_memory_pool().backend_name
    pq.write_table(pa.table({"time": stamps, "isl": rows, "osl": rows}), file, store_schema=False)
    assert "more than 192 MiB of memory" in problem(file.getvalue())
    assert pa.system_memory_pool().max_memory() < 200 << 20
    assert pa.default_memory_pool().backend_name == usual
    data = file.getvalue()
    assert "is damaged" in problem(data[:99] + bytes(1000) + data[1099:])


def test_rates_have_windows_and_gaps_in_the_recording_and_ask_of_which_model():
    text = "model,t_s,rate_rps,clients_active,cv\nb,0,5,3,2\na,0,1,3,2\na,600,0,0,0\na,1200,3,3,2\n"
    rates = read_load(text.encode(), "x", model="a")
    assert isinstance(rates, Rates)
    assert rates.rates.tolist() == [1, 2, 3]
    assert rates.missing.tolist() == [False, True, False]
    assert (rates.interval_s, rates.burstiness) == (600, 2)
    with pytest.raises(InputError, match="several of model: a, b"):
        read_load(text.encode())
    with pytest.raises(InputError, match="model 'c'"):
        read_load(text.encode(), model="c")
    assert "no single requests" in problem(text)


HOSTILE = (
    (b"\x80\x04\x95", "a pickle"),
    (b"PK\x03\x04", "packed"),
    (gzip.compress(AZURE.encode())[:-20], "ends too early"),
    (b"\x1f\x8b\x08junkjunkjunk", "damaged"),
    ('{"timestamp": 0, "input_length": ' + "[" * 100_000 + "]" * 100_000 + "}", ""),
    ('{"a":' * 50_000 + "1" + "}" * 50_000, ""),
    ('{"timestamp": 1e999, "input_length": 1, "output_length": 1}', ""),
    ('{"startTime": ' + "9" * 5000 + ', "prompt_tokens": 1}', ""),
    ("time,isl,osl\n" + "9" * 400 + ",1,1\n", ""),
    ("time,isl,osl\nnan,1,1\n", ""),
    ('"' * 1001, ""),
    ("a,b\n" + "x" * 70_000, ""),
)


@over("text says", [*HOSTILE, *table("traces.yaml", "wrong")])
def test_what_is_wrong_or_hostile_is_one_error(text, says):
    if isinstance(text, dict):
        [(sample, change)] = text.items()
        text = SAMPLES[sample].replace(*change)
    assert says in problem(text)


@given(st.binary(max_size=300))
@settings(max_examples=examples(2000), deadline=None)
def test_any_bytes_are_read_or_refused(data):
    try:
        trace = read(data)
    except InputError:
        return
    assert len(trace) > 0


ROWS = [
    {"timestamp": 250 * n, "input_length": 600 + n % 400, "output_length": 5 + n % 7}
    | {"hash_ids": [0, 1 + n % 9]}
    for n in range(1, 900)
]
TEXT = "\n".join(map(json.dumps, ROWS))


def shown(*words, stdin=TEXT):
    return str(recipe("trace", *words, stdin=stdin).stdout)


def test_rates_and_hits_of_a_file_are_shown(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text(TEXT)
    answer = json.loads(shown(str(file), "--json"))
    assert answer["rate_per_s"] == pytest.approx(len(ROWS) / answer["span_s"])
    hits = answer["prefix_hit"]["by_cache_tokens"]
    assert list(map(int, hits)) == [512 << n for n in range(len(hits))]
    assert max(hits.values()) == pytest.approx(answer["prefix_hit"]["unlimited"])
    text = shown(str(file))
    assert "Requests: 899 in 3.7 min" in text
    assert "blocks of 512 tokens, 10 different" in text
    assert "Times are rounded" not in text


def test_a_workload_and_shapes_are_shown():
    words = ("-", "--workload", "--shape", "azure-code", "--json")
    workload = ServingWorkload(**json.loads(shown(*words)))
    assert workload.over_time.shape == "azure-code"
    assert workload.prefix_reuse
    shapes, text = json.loads(shown("--shapes", "--json")), shown("--shapes")
    assert all(len(one["relative_rates"]) == 168 and one["source"] for one in shapes)
    assert all(one["name"] in text for one in shapes)


def test_figures_show_the_trace_gaps_beside_a_poisson_process_and_little():
    made = read(TEXT)
    rates = requests_over_time(made).data[-1].y
    assert sum(rates) * 60 == pytest.approx(len(made))
    assert max(requests_over_time(made).data[0].y) == 4
    density = lengths_density(made).data[0]
    assert np.nansum(density.customdata) == pytest.approx(1)
    hits = hits_by_cache(describe_trace(made)["prefix_hit"])
    assert hits.data[0].y[-1] > 0.9
    assert alt_text(made).startswith("Requests per second over")
    for dark in (False, True):
        own, poisson = arrival_gaps(made, dark=dark).data
        assert (np.diff(own.y) <= 0).all()
        assert (np.diff(poisson.y) < 0).all()
        assert own.name == "this trace"
    ones = np.ones(1, dtype=np.int64)
    single = Trace(np.zeros(1), ones, ones)
    assert len(arrival_gaps(single).data) == 0
    assert len(lengths_density(single).data) == 2
    assert len(requests_over_time(single).data[-1].y) == 1
    rates = Rates(np.arange(1.0, 4), 600.0, np.zeros(3, dtype=np.bool_))
    assert requests_over_time(rates).data[0].y.tolist() == [1, 2, 3]
