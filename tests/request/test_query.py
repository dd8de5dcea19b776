"""The codec between a request and a link: round trips, repairs, edits."""

from __future__ import annotations

import operator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.hardware.request import HardwareRequest
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.edit import change, value_of
from recipe_core.request.link import (
    DEFAULT,
    FIELDS,
    TRAINING,
    from_query,
    left_out,
    link_query,
    to_query,
)
from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import LOADS
from recipe_core.request.split_key import read_pins
from recipe_core.request.training_workload import Loading
from tests.fixtures.rows import over, table
from tests.fixtures.sizes import examples

numbers = st.floats(min_value=1e-6, max_value=1e9, allow_nan=False)
tokens = st.integers(1, 100_000)
counts = st.integers(1, 2000)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
configs = st.dictionaries(
    texts,
    st.one_of(st.integers(), st.booleans(), st.none(), texts, st.lists(st.integers(), max_size=3)),
    max_size=4,
)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


@st.composite
def workloads(draw: st.DrawFn) -> dict[str, Any]:
    if draw(st.booleans()) and draw(st.booleans()):
        lengths = {"sequence_length": draw(tokens), "global_batch": draw(counts)}
        loading = some(
            workers=st.integers(1, 1024), read_bytes_per_s=numbers, bytes_per_token=numbers
        )
        methods = st.sampled_from(["pretrain", "finetune", "lora", "qlora"])
        more = some(method=methods, tokens=numbers, loading=loading)
        return {"kind": "training", **lengths, **draw(more)}
    mode = draw(st.sampled_from(sorted(LOADS)))
    load = draw(numbers if mode == "open" else counts)
    lengths = {"input_tokens": draw(tokens), "output_tokens": draw(tokens)}
    drafts = {"tokens": st.integers(1, 16), "acceptance": st.floats(0, 0.99)}
    more = some(
        prefix_hit=st.floats(0, 0.99),
        max_context=st.just(sum(lengths.values()) + draw(tokens)),
        speculative=st.fixed_dictionaries(drafts),
    )
    return {"mode": mode, LOADS[mode]: load, **lengths, **draw(more)}


weights = st.sampled_from(["auto", "bf16", "fp8", "fp8-block", "int4", "nvfp4"])
caches = st.sampled_from(["auto", "bf16", "fp8"])
candidates = some(
    engine=st.sampled_from(["vllm", "transformers"]),
    weight_dtype=weights,
    kv_dtype=caches,
    max_batched_tokens=tokens,
    memory_fraction=st.floats(0.01, 1),
    eager=st.booleans(),
    **dict.fromkeys(("tp", "pp", "dp", "ep"), counts),
)
commitments = st.sampled_from([{}, {"commitment": "spot"}, {"commitment": "reserved"}])
commitments |= st.just({"commitment": "reserved", "term_months": 12})
prices = st.builds(lambda price, kind: {"usd_per_device_hour": price, **kind}, numbers, commitments)
cap = {"value": 500, "source": "sheet", "status": "measured", "note": 'a "cap" & more'}
ours = {"name": "ours", "based_on": "h100-sxm", "tdp_watts": cap}
places = st.fixed_dictionaries(
    {
        "device": st.sampled_from(["h100-sxm", "mi300x", "l40s", ours]),
        "per_node": st.integers(1, 8),  # what the smallest of their fabrics joins
        "nodes": counts,
    }
)
requests = st.fixed_dictionaries(
    {
        "model": st.one_of(st.just("Qwen/Qwen3-8B"), texts, configs),
        "hardware": st.builds(operator.or_, places, st.just({}) | prices),
        "workload": workloads(),
        "objective": some(
            optimize=st.sampled_from(["throughput", "cost", "ttft"]),
            limits=some(
                gpus=counts,
                percentile=st.integers(50, 99),
                **dict.fromkeys(("ttft_ms", "tpot_ms", "usd_per_hour"), numbers),
            ),
        ),
        "options": some(
            engines=st.lists(st.sampled_from(["vllm", "transformers"]), unique=True),
            weight_dtypes=st.lists(weights, min_size=1),
            kv_dtypes=st.lists(caches, min_size=1),
            nodes=st.sampled_from(["any", "all"]),
        ),
        "candidate": st.none() | candidates,
    }
)


@settings(deadline=None, max_examples=examples(150))
@given(requests)
def test_a_request_survives_its_link(value: dict[str, Any]) -> None:
    if value["workload"].get("kind") == "training":  # which has engines of its own
        value = value | {"options": value["options"] | {"engines": ["megatron"]}}
        value["candidate"] = value["candidate"] and value["candidate"] | {"engine": "deepspeed"}
    request = PlanRequest.parse(value)
    if request.candidate == CandidateRequest():  # it states nothing: the same as none
        request = request.model_copy(update={"candidate": None})
    query = to_query(request)
    assert all(isinstance(text, str) for text in query.values())
    assert set(query) <= {*FIELDS, "v"}
    assert from_query(query) == (request, [])


@settings(deadline=None, max_examples=examples(150))
@given(st.dictionaries(st.sampled_from([*FIELDS, "v", "pins", "utm_source"]), st.text(max_size=20)))
def test_any_link_opens(query: dict[str, str]) -> None:
    request, ignored = from_query(query)
    assert from_query(to_query(request)) == (request, [])
    kept = {name for name in query if name in FIELDS and value_of(request, name) is not None}
    assert len(ignored) <= len(query)
    assert all(
        any(line.startswith(name) for line in ignored)
        for name in query
        if name in FIELDS and name not in kept and name != "candidate"
    )


def test_only_what_differs_from_the_default_is_written() -> None:
    assert to_query(DEFAULT) == {"v": "1"}
    assert from_query({}) == (DEFAULT, [])
    for query in (
        {"hardware.device": "mi300x", "workload.mode": "open"},
        {"options.scaling.policy": "keda"},
    ):
        request = change(DEFAULT, query)
        assert to_query(request) == {"v": "1"} | query
        assert from_query(to_query(request)) == (request, [])
    request, ignored = from_query({"workload.kind": "training"})
    assert (request.workload, ignored) == (TRAINING, [])
    assert to_query(request) == {"v": "1", "workload.kind": "training"}


@over("query said", [*table("request", "links"), ({"model": "x" * 70_000}, "the limit is 65,536")])
def test_a_bad_parameter_is_dropped_and_named(query: dict[str, str], said: str) -> None:
    request, (ignored,) = from_query({**query, "hardware.nodes": "2"})
    assert request.hardware.nodes == 2  # the rest is kept
    assert said in ignored
    assert ignored.startswith(tuple(query))


def test_several_bad_parameters_and_pins_are_all_named() -> None:
    query = {"hardware.device": "abacus", "workload.input_tokens": "-1"}
    query |= {"objective.limits.tpot_ms": "nan"}
    request, ignored = from_query(query)
    assert request == DEFAULT
    assert sorted(line.split("=")[0] for line in ignored) == sorted(query)
    good = [f"vllm.bf16.bf16.tp{n}.pp1.dp1.ep1" for n in range(1, 7)]
    pins, ignored = read_pins(",".join([good[0], "tp8", *good]), 4)
    assert pins == good[:4]
    assert len(ignored) == 2
    assert link_query(DEFAULT, pins)["pins"] == ",".join(pins)


def test_loading_clusters_loads_over_time_policies_and_starts_are_plain_values() -> None:
    request, ignored = from_query({"workload.kind": "training", "workload.loading.workers": "8"})
    assert not ignored
    assert request.workload == TRAINING.model_copy(update={"loading": Loading(workers=8)})
    assert to_query(request)["workload.loading.workers"] == "8"
    _, ignored = from_query({"workload.loading.workers": "8"})
    assert ignored == ["workload.loading.workers=8: workload.loading is not a known field."]
    periods = ({"from_hour": 8, "to_hour": 18, "replicas": 4},)
    request = change(
        DEFAULT,
        {
            "workload.over_time": {"shape": "azure_2024_code", "mean_rate": 5.0, "days": 2.0},
            "options.scaling": {"policy": "schedule", "max_replicas": 4, "periods": periods},
            "options.start": {"node": "ready", "compile_cache": True},
        },
    )
    query = to_query(request)
    assert query["workload.over_time.shape"] == "azure_2024_code"
    assert query["options.scaling.periods"] == '[{"from_hour":8,"to_hour":18,"replicas":4}]'
    assert query["options.start.compile_cache"] == "true"
    assert "workload.over_time.burstiness" not in query  # as usual
    assert from_query(query) == (request, [])
    beside = (HardwareRequest(device="mi300x", per_node=8, nodes=2),)
    request = change(DEFAULT, {"options.hardware": beside})
    assert from_query(to_query(request)) == (request, [])


def test_a_link_leaves_out_what_may_be_private_and_says_so() -> None:
    private = {
        "options.engine_options": {"tool_call_parser": "hermes"},
        "options.environment": {"NCCL_SOCKET_IFNAME": "eth1.private"},
    }
    request = change(DEFAULT, private)
    assert request.options.environment == private["options.environment"]
    assert to_query(request) == {"v": "1"}
    sentence = left_out(request) or ""
    assert "leaves out tool_call_parser, NCCL_SOCKET_IFNAME" in sentence
    assert "eth1" not in sentence
    assert left_out(DEFAULT) is None
    options = {"limit_mm_per_prompt.image": 2}  # whose names have dots
    request = change(DEFAULT, {"options.engine_options": options})
    assert change(request, {"hardware.nodes": 2}).options.engine_options == options
    assert change(request, {"options.engine_options": {}}).options.engine_options == {}


def test_a_week_of_rates_is_packed_and_a_bad_one_is_named() -> None:
    rates = tuple(float(n % 24) for n in range(168))
    request = change(DEFAULT, {"workload.over_time": {"rates": rates}})
    query = to_query(request)
    assert from_query(query) == (request, [])
    assert len(query["workload.over_time.rates"]) < 600
    kept, ignored = from_query({**query, "workload.over_time.days": "9999"})
    assert kept == request
    assert "workload.over_time.days" in ignored[0]
