"""Traces in every format that is read, and what is said of those that are not."""

from __future__ import annotations

import gzip
import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.base.errors import InputError
from recipe_core.traffic.formats.content import unpacked
from recipe_core.traffic.formats.mooncake import roots
from recipe_core.traffic.formats.names import time_column
from recipe_core.traffic.formats.registry import FORMATS
from recipe_core.traffic.rates import Rates
from recipe_core.traffic.read import read_load, read_trace
from recipe_core.traffic.trace import Trace
from tests.fixtures.sizes import examples

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:04.0781490,110,27
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:01+00:00,2399,6
"""
MOONCAKE = "\n".join(
    json.dumps({"timestamp": at, "input_length": n, "output_length": 500, "hash_ids": ids})
    for at, n, ids in ((3000, 1100, [0, 1, 2]), (0, 1000, [0, 1]), (3000, 600, [0, 9]))
)
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,Conversation log
"""
SPAN = {
    "name": "chat llama",
    "startTimeUnixNano": "1700000000500000000",
    "attributes": [
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "12"}},
        {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "34"}},
        {"key": "gen_ai.conversation.id", "value": {"stringValue": "a"}},
    ],
}
AGENT = SPAN | {
    "attributes": [
        *SPAN["attributes"],
        {"key": "gen_ai.operation.name", "value": {"stringValue": "invoke_agent"}},
    ]
}
OTLP = {"resourceSpans": [{"scopeSpans": [{"spans": [AGENT, SPAN, {"name": "db"}]}]}]}
FLAT_SPANS = [
    {
        "start_time": f"2024-05-01T10:00:0{n}.25Z",
        "attributes": {"gen_ai.usage.prompt_tokens": 5, "gen_ai.usage.completion_tokens": 7 + n},
        "status": {"status_code": "ERROR" if n == 2 else "OK"},
    }
    for n in range(3)
]
LITELLM = [
    {
        "startTime": 1700000000.0 + n,
        "status": "failure" if n == 1 else "success",
        "prompt_tokens": 20 + n,
        "completion_tokens": 4,
        "metadata": {"user_api_key": "x"},
    }
    for n in range(3)
]
ENVOY = [
    {"msg": "listening"},
    {
        "start_time": "2025-03-01T00:00:00.000Z",
        "response_code": 200,
        "body": {"usage": {"prompt_tokens": 9, "completion_tokens": 3}},
    },
    {
        "start_time": "2025-03-01T00:00:02.500Z",
        "response_code": "429",
        "body": {"usage": {"prompt_tokens": 9, "completion_tokens": 3}},
    },
    {
        "start_time": "2025-03-01T00:00:03.500Z",
        "response_code": 200,
        "body": {"usage": {"prompt_tokens": 10, "completion_tokens": 3}},
    },
]
VLLM = {"start_times": [10.5, 11.0], "input_lens": [100, 90], "output_lens": [7, 8]}
GUIDELLM = {
    "benchmarks": [
        {
            "requests": {
                "successful": [
                    {"request_start_time": 1.7e9 + 1, "prompt_tokens": 8, "output_tokens": 2}
                ],
                "errored": [{"request_start_time": 1.7e9, "prompt_tokens": 8}],
            }
        }
    ]
}


def lines(objects: list[Any]) -> str:
    return "\n".join(map(json.dumps, objects))


def read(text: str | bytes, **options: Any) -> Trace:
    return read_trace(text if isinstance(text, bytes) else text.encode(), "it", **options)


def problem(text: str | bytes) -> str:
    with pytest.raises(InputError) as error:
        read(text)
    assert error.value.field == "trace"
    assert error.value.hint
    return error.value.message


def test_azure_stamps_have_seven_digits() -> None:
    trace = read(AZURE)
    np.testing.assert_allclose(trace.arrival_s, [0, 0.052, 0.098189], atol=1e-9)
    assert trace.input_tokens.tolist() == [4808, 3180, 110]
    assert trace.began_s == pytest.approx(1700158623.97996)


def test_azure_of_2024_has_zones_and_whole_seconds() -> None:
    trace = read(AZURE_2024)
    np.testing.assert_allclose(trace.arrival_s, [0, 0.99007], atol=1e-9)
    assert trace.source == "it, Azure trace"


def test_mooncake_is_sorted_with_its_blocks() -> None:
    trace = read(MOONCAKE)
    assert trace.arrival_s.tolist() == [0, 3, 3]
    assert trace.blocks is not None
    assert trace.blocks.tokens == 512
    assert trace.blocks.ids.tolist() == [0, 1, 0, 1, 2, 0, 9]
    assert trace.blocks.starts.tolist() == [0, 2, 5, 7]


def test_bailian_has_seconds_small_blocks_and_chains_of_chats() -> None:
    rows = [(1, -1, 0.0, 40), (2, 1, 1.5, 60), (3, -1, 1.5, 10), (4, 2, 9.0, 90)]
    trace = read(
        lines(
            [
                {
                    "chat_id": chat,
                    "parent_chat_id": parent,
                    "timestamp": at,
                    "input_length": n,
                    "output_length": 5,
                    "hash_ids": list(range(-(-n // 16))),
                }
                for chat, parent, at, n in rows
            ]
        )
    )
    assert trace.span_s == 9
    assert trace.sessions is not None
    assert trace.sessions[[0, 1, 3]].tolist() == [trace.sessions[0]] * 3
    assert trace.sessions[2] != trace.sessions[0]
    assert trace.blocks is not None
    assert trace.blocks.tokens == 16


@given(st.lists(st.integers(-1, 30), max_size=30))
@settings(max_examples=examples(600), deadline=None)
def test_roots_of_chains_are_those_of_walking_up(parents: list[int]) -> None:
    parents = [p if p < n else -1 for n, p in enumerate(parents)]
    found = roots(np.arange(len(parents)), np.asarray(parents, dtype=np.int64))
    for n, root in enumerate(found):
        while parents[n] >= 0:
            n = parents[n]
        assert root == n


def test_burstgpt_counts_empty_answers_as_failures() -> None:
    trace = read(BURSTGPT)
    assert len(trace) == 2
    assert trace.failed == 1
    assert trace.span_s == 113


def test_otlp_takes_calls_and_leaves_agents() -> None:
    later = json.loads(json.dumps(OTLP).replace("00500000000", "02500000000"))
    trace = read(lines([OTLP, later]))
    assert trace.arrival_s.tolist() == [0, 2]
    assert trace.output_tokens.tolist() == [34, 34]
    assert trace.sessions is not None
    assert trace.sessions.tolist() == [0, 0]


def test_a_document_of_spans_may_have_many_lines() -> None:
    assert len(read(json.dumps(OTLP, indent=2))) == 1
    assert len(read(json.dumps(FLAT_SPANS, indent=2))) == 2


def test_spans_in_lines_know_their_status() -> None:
    trace = read(lines(FLAT_SPANS))
    assert trace.output_tokens.tolist() == [7, 8]
    assert trace.failed == 1
    assert trace.arrival_s.tolist() == [0, 1]


def test_gateway_logs_are_found_by_their_fields() -> None:
    flat, nested = read(lines(LITELLM)), read(lines(ENVOY))
    assert (len(flat), flat.failed, flat.span_s) == (2, 1, 2)
    assert (len(nested), nested.failed, nested.span_s) == (2, 1, 3.5)
    assert nested.input_tokens.tolist() == [9, 10]


def test_benchmarks_that_say_when_requests_began() -> None:
    assert read(json.dumps(VLLM)).arrival_s.tolist() == [0, 0.5]
    assert (len(read(json.dumps(GUIDELLM))), read(json.dumps(GUIDELLM)).failed) == (1, 1)


@pytest.mark.parametrize(
    ("head", "first", "second", "gap_s"),
    [
        ("time,prompt_tokens,completion_tokens", "3,8,9", "4.5,8,9", 1.5),
        ("arrival_ms,isl,osl", "3000,8,9", "4500,8,9", 1.5),
        ("Timestamp (us),Input Tokens,Output Tokens", "3000000,8,9", "4500000,8,9", 1.5),
        ("ts,input_tokens,output_tokens", "1700000000000,8,9", "1700000001500,8,9", 1.5),
        ("start_time\tinput_len\toutput_len", "1700000000\t8\t9", "1700000001.5\t8\t9", 1.5),
        ("created_at;tokens_in;tokens_out", "2024-01-01T00:00;8;9", "2024-01-01T01:00;8;9", 3600),
        ("date,inputTokens,outputTokens", "2024-01-01,8,9", "2024-01-02,8,9", 86_400),
    ],
)
def test_a_table_has_the_names_people_use(head: str, first: str, second: str, gap_s: float) -> None:
    trace = read(f"{head}\n{second}\n{first}\n")
    assert trace.span_s == pytest.approx(gap_s)
    assert trace.input_tokens.tolist() == [8, 8]


def test_a_table_with_sessions_hashes_and_statuses() -> None:
    trace = read(
        "t_s,input_tokens,output_tokens,session_id,hash_ids,status\n"
        "0,32,1,a,1 2,200\n1,48,1,b,[1;2;3],500\n2,40,1,a,1|2|4,200\n"
    )
    assert (len(trace), trace.failed) == (2, 1)
    assert trace.blocks is not None
    assert len(trace.blocks.ids) == 5
    assert trace.blocks.tokens == 16
    assert trace.sessions is not None
    assert trace.sessions.tolist() == [0, 0]


def test_parquet_is_a_table_too() -> None:
    stamps = pa.array([1_700_000_000_000, 1_700_000_000_250], pa.timestamp("ms"))
    table = pa.table({"timestamp": stamps, "isl": [5, 6], "osl": [7, 8], "hash_ids": [[1], [1]]})
    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file)
    trace = read(file.getvalue())
    assert trace.span_s == pytest.approx(0.25)
    assert trace.output_tokens.tolist() == [7, 8]


def test_a_stated_unit_counts() -> None:
    assert read("time,isl,osl\n0,1,1\n1000,1,1\n", unit="ms").span_s == 1
    with pytest.raises(InputError, match="unknown unit 'minutes'"):
        read("time,isl,osl\n0,1,1\n1000,1,1\n", unit="minutes")


@pytest.mark.parametrize("text", [AZURE, MOONCAKE, BURSTGPT, json.dumps(OTLP)])
def test_gzip_is_unpacked_in_all_its_members(text: str) -> None:
    half = text.encode()[: len(text) // 2], text.encode()[len(text) // 2 :]
    packed = b"".join(map(gzip.compress, half))
    assert len(read(packed)) == len(read(text))


def test_embeddings_have_no_answers() -> None:
    trace = read("time,isl,osl\n0,8,0\n1,9,0\n")
    assert (len(trace), trace.failed) == (2, 0)


RATES = "model,t_s,rate_rps,clients_active,cv\nb,0,5,3,2\na,0,1,3,2\na,600,0,0,0\na,1200,3,3,2\n"


def test_rates_have_windows_and_gaps_in_the_recording() -> None:
    rates = read_load(RATES.encode(), "x", model="a")
    assert isinstance(rates, Rates)
    assert rates.rates.tolist() == [1, 2, 3]
    assert rates.missing.tolist() == [False, True, False]
    assert (rates.interval_s, rates.burstiness) == (600, 2)


def test_rates_of_several_models_ask_which() -> None:
    with pytest.raises(InputError, match="several of model: a, b"):
        read_load(RATES.encode())
    with pytest.raises(InputError, match="unknown model 'c'"):
        read_load(RATES.encode(), model="c")
    assert "no single requests" in problem(RATES)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it is empty"),
        ("hello\nworld\n", "no trace that is known; it begins 'hello'"),
        (b"\x80\x04\x95", "a pickle"),
        (b"PK\x03\x04", "packed"),
        (gzip.compress(AZURE.encode())[:-20], "ends too early"),
        (b"\x1f\x8b\x08junkjunkjunk", "damaged"),
        (AZURE.replace(",3180,", ",many,"), "line 3: ContextTokens is 'many', not a number"),
        (AZURE.replace(",3180,", ",,"), "line 3: ContextTokens is empty"),
        (AZURE.replace(",3180,", ",-1,"), "line 3: ContextTokens is '-1'"),
        (AZURE.replace(",3180,", ",1.5,"), "line 3: ContextTokens is '1.5'"),
        (AZURE.replace("2023-11-16 18:17:04.03", "2023-13-16 18:17:04.03"), "line 3: TIMESTAMP"),
        (AZURE + "1,2\n", "is not a table"),
        (MOONCAKE.replace("1100", '"x"'), "line 1: input_length is 'x', not a number"),
        (MOONCAKE + "\n{", "line 4"),
        ("time,isl,osl\n", "no requests"),
        ("time,isl,osl\n0,0,0\n", "all 1 requests"),
        ("time,isl\n0,5\n", "no column of answer lengths"),
        ("time,isl,osl,osl\n0,5,5,5\n", "two columns 'osl'"),
        (lines([FLAT_SPANS[0] | {"start_time": "noon"}]), "line 1: the time is 'noon'"),
    ],
)
def test_what_is_wrong_is_named(text: str | bytes, says: str) -> None:
    assert says in problem(text)


def test_a_bomb_is_not_unpacked() -> None:
    bomb = gzip.compress(b"0" * 3_000_000)
    with pytest.raises(InputError, match="larger than 1 MiB"):
        unpacked(bomb, 1 << 20)


@pytest.mark.parametrize(
    "text",
    [
        '{"timestamp": 0, "input_length": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"a":' * 50_000 + "1" + "}" * 50_000,
        '{"timestamp": 1e999, "input_length": 1, "output_length": 1}',
        '{"startTime": ' + "9" * 5000 + ', "prompt_tokens": 1}',
        "time,isl,osl\n" + "9" * 400 + ",1,1\n",
        "time,isl,osl\nnan,1,1\n",
        '"' * 1001,
        "a,b\n" + "x" * 70_000,
    ],
)
def test_hostile_files_end_in_an_error(text: str) -> None:
    problem(text)


@given(st.binary(max_size=300))
@settings(max_examples=examples(2000), deadline=None)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        trace = read(data)
    except InputError:
        return
    assert len(trace) > 0


def test_names_of_times_and_their_units() -> None:
    assert time_column(["x", "Arrival Time (ms)"]) == ("Arrival Time (ms)", "ms")
    assert time_column(["time", "timestamp"]) == ("timestamp", None)
    assert time_column(["length"]) is None


def test_every_format_has_a_title() -> None:
    titles = [one.TITLE for one in FORMATS]
    assert len(set(titles)) == len(titles) == 7
