"""The codec between a request and a link: round trips, repairs, edits, and packed texts."""

import base64
import hashlib
import json
import operator
import random
import string
import zlib
from contextlib import suppress
from urllib.parse import urlencode

from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.base.errors import InputError
from recipe_core.hardware.cluster import device_names, device_profile, device_values
from recipe_core.hardware.upload import profile_template, uploaded_profile
from recipe_core.models.catalog import catalog_entry, catalog_ids
from recipe_core.request import link, packed
from recipe_core.request.candidate import CandidateRequest
from recipe_core.request.edit import change, value_of
from recipe_core.request.link import DEFAULT, FIELDS, TRAINING, from_query, to_query
from recipe_core.request.packed import (
    MAX_TEXT,
    MAX_UNPACKED,
    is_packed,
    pack_values,
    shorter,
    unpack_values,
)
from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import LOADS
from recipe_core.request.split_key import read_pins
from recipe_core.request.training_workload import Loading
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.sizes import examples

numbers = st.floats(min_value=1e-6, max_value=1e9, allow_nan=False)
tokens = st.integers(1, 100_000)
counts = st.integers(1, 2000)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
names = texts.filter(bool)
leaves = st.one_of(st.integers(), st.booleans(), st.none(), texts)
configs = st.dictionaries(names, leaves | st.lists(st.integers(), max_size=3), max_size=4)


def some(**fields):
    return st.fixed_dictionaries({}, optional=fields)


def whole(**fields):
    return st.fixed_dictionaries(fields)


@st.composite
def workloads(draw):
    if draw(st.booleans()) and draw(st.booleans()):
        lengths = {"sequence_length": draw(tokens), "global_batch": draw(counts)}
        rates = dict.fromkeys(("read_bytes_per_s", "bytes_per_token"), numbers)
        loading = some(workers=st.integers(1, 1024), **rates)
        methods = st.sampled_from(["pretrain", "finetune", "lora", "qlora"])
        more = some(method=methods, tokens=numbers, loading=loading)
        return {"kind": "training", **lengths, **draw(more)}
    mode = draw(st.sampled_from(sorted(LOADS)))
    load = draw(numbers if mode == "open" else counts)
    lengths = {"input_tokens": draw(tokens), "output_tokens": draw(tokens)}
    longest = st.just(sum(lengths.values()) + draw(tokens))
    drafts = whole(tokens=st.integers(1, 16), acceptance=st.floats(0, 0.99))
    more = some(prefix_hit=st.floats(0, 0.99), max_context=longest, speculative=drafts)
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
places = whole(
    device=st.sampled_from(["h100-sxm", "mi300x", "l40s", ours]),
    per_node=st.integers(1, 8),  # what the smallest of their fabrics joins
    nodes=counts,
)
waits = st.integers(5, 100)
supervision = some(hang_s=waits, drain_s=waits, backoff_s=st.floats(1, 60), min_available=waits)
limits = dict.fromkeys(("ttft_ms", "tpot_ms", "usd_per_hour", "wall_hours", "usd"), numbers)
objectives = some(
    optimize=st.sampled_from(["throughput", "cost", "ttft"]),
    confidence=st.floats(0.5, 0.99),
    limits=some(gpus=counts, percentile=st.integers(50, 99), **limits),
)
options = some(
    engines=st.lists(st.sampled_from(["vllm", "transformers"]), unique=True),
    weight_dtypes=st.lists(weights, min_size=1),
    kv_dtypes=st.lists(caches, min_size=1),
    nodes=st.sampled_from(["any", "all"]),
    hardware=st.lists(places, max_size=2),
    supervision=supervision,
)
requests = whole(
    model=st.one_of(st.just("Qwen/Qwen3-8B"), names, configs),
    hardware=st.builds(operator.or_, places, st.just({}) | prices),
    workload=workloads(),
    objective=objectives,
    options=options,
    candidate=st.none() | candidates,
)


@settings(max_examples=examples(150))
@given(requests)
def test_a_request_survives_its_link(value):
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


@settings(max_examples=examples(150))
@given(st.dictionaries(st.sampled_from([*FIELDS, "v", "pins", "utm_source"]), st.text(max_size=20)))
def test_any_link_opens(query):
    request, ignored = from_query(query)
    assert from_query(to_query(request)) == (request, [])
    assert len(ignored) <= len(query)
    for name in query.keys() & {*FIELDS} - {"candidate"}:
        if value_of(request, name) is None:
            assert any(line.startswith(name) for line in ignored)


TRAINED = {"workload.kind": "training"}


def test_only_what_differs_from_the_default_is_written_in_plain_values():
    assert to_query(DEFAULT) == {"v": "1"}
    assert from_query({}) == (DEFAULT, [])
    for stated in table("query", "stated"):
        assert to_query(change(DEFAULT, stated)) == {"v": "1"} | stated
    for fields, written in table("query", "plain"):
        request = change(DEFAULT, fields)
        query = to_query(request)
        assert {name: query.get(name) for name in written} == written
        assert from_query(query) == (request, [])
    assert to_query(from_query(TRAINED)[0]) == {"v": "1", **TRAINED}
    loading = {"workload.loading.workers": "8"}
    for more, parts in (({}, {}), (loading, {"loading": Loading(workers=8)})):
        query = TRAINED | more
        request, ignored = from_query(query)
        assert (request.workload, ignored) == (TRAINING.model_copy(update=parts), [])
        assert query.items() <= to_query(request).items()
    _, ignored = from_query(loading)
    assert ignored == ["workload.loading.workers=8: workload.loading is not a known field."]


def test_shapes_of_lengths_pass_through_links_and_documents_with_their_means():
    trace = {"rates": [1.0], "lengths": [{"input_tokens": 10, "output_tokens": 4}]}
    trace["lengths"].append({"input_tokens": 30, "output_tokens": 8, "weight": 3})
    for lengths, tokens in (
        ({"input_lengths": {"shape": "lognormal", "cv": 1.5}}, {}),
        ({"output_lengths": {"quantiles": {"p50": 150, "p99": 2000}}}, {"output_tokens": 279}),
        ({"input_lengths": {"shape": "trace"}, "over_time": trace}, {"input_tokens": 25}),
    ):
        workload = {"mode": "closed", "concurrency": 8, **lengths}
        request = PlanRequest.parse({**DEFAULT.to_json(), "workload": workload})
        assert {name: getattr(request.workload, name) for name in tokens} == tokens
        assert from_query(to_query(request)) == (request, [])
        assert PlanRequest.parse(json.loads(json.dumps(request.to_json()))) == request


@over("query said", [*table("query", "links"), ({"model": "x" * 70_000}, "the limit is 65,536")])
def test_a_bad_parameter_is_dropped_and_named(query, said):
    request, (ignored,) = from_query({**query, "hardware.nodes": "2"})
    assert request.hardware.nodes == 2  # the rest is kept
    assert said in ignored
    assert ignored.startswith(tuple(query))


def test_bad_parameters_and_pins_are_named_rates_packed_and_what_may_be_private_left_out():
    query = {"hardware.device": "abacus", "workload.input_tokens": "-1"}
    query |= {"objective.limits.tpot_ms": "nan"}
    request, ignored = from_query(query)
    assert (request, sorted(line.split("=")[0] for line in ignored)) == (DEFAULT, sorted(query))
    good = [f"vllm.bf16.bf16.tp{n}.pp1.dp1.ep1" for n in range(1, 7)]
    pins, ignored = read_pins(",".join([good[0], "tp8", *good]), 4)
    assert (pins, len(ignored)) == (good[:4], 2)
    assert link.link_query(DEFAULT, pins)["pins"] == ",".join(pins)
    rates = tuple(float(n % 24) for n in range(168))
    request = change(DEFAULT, {"workload.over_time": {"rates": rates}})
    query = to_query(request)
    assert len(query["workload.over_time.rates"]) < 600
    assert from_query(query) == (request, [])
    kept, (ignored,) = from_query({**query, "workload.over_time.days": "9999"})
    assert (kept, "workload.over_time.days" in ignored) == (request, True)
    private = {
        "options.engine_options": {"tool_call_parser": "hermes"},
        "options.environment": {"NCCL_SOCKET_IFNAME": "eth1.private"},
        "options.kv_offload": {"through": "lmcache", "host_gib": 300},
    }
    request = change(DEFAULT, private)
    assert request.options.environment == private["options.environment"]
    assert to_query(request) == {"v": "1"}
    sentence = link.link_omissions(request) or ""
    assert "leaves out tool_call_parser, NCCL_SOCKET_IFNAME, kv_offload:" in sentence
    assert "eth1" not in sentence
    assert link.link_omissions(DEFAULT) is None
    made = {"technique": "int4_weight_only", "verify": {"text": "own.txt", "prompts": 9}}
    request = change(DEFAULT, {"options.compression": made})
    assert "compression.verify.text:" in (link.link_omissions(request) or "")
    (shared, ignored) = from_query(to_query(request))
    assert ignored == []
    shared_compression = shared.options.compression
    assert shared_compression is not None
    assert shared_compression.model_dump(exclude_defaults=True) == {
        "technique": "int4_weight_only",
        "verify": {"prompts": 9},
    }
    options = {"limit_mm_per_prompt.image": 2}  # whose names have dots
    request = change(DEFAULT, {"options.engine_options": options})
    assert change(request, {"hardware.nodes": 2}).options.engine_options == options
    assert change(request, {"options.engine_options": {}}).options.engine_options == {}


values = st.recursive(
    leaves | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**30), 10**30),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=30,
)


def stream(data, version="1", dictionary=packed._DICTIONARY):
    """A packed text of any bytes."""
    press = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, 9, zdict=dictionary)
    out = press.compress(data) + press.flush()
    return f"~{version}.{base64.urlsafe_b64encode(out).decode().rstrip('=')}"


@settings(max_examples=examples(300))
@given(values, st.data())
def test_what_is_packed_comes_back_unless_it_was_cut_or_changed(value, data):
    text = pack_values(value)
    assert is_packed(text)
    assert urlencode({"a": text}) == f"a={text}"  # no letter needs an escape
    assert unpack_values(text) == value
    place = data.draw(st.integers(len("~1."), len(text) - 1))
    assert "cut off or changed" in str(refusal(unpack_values, text[:place]))
    letter = data.draw(st.sampled_from(string.ascii_letters + string.digits + "-_"))
    with suppress(InputError):  # the last letter has bits that no byte holds
        assert unpack_values(text[:place] + letter + text[place + 1 :]) == value


@settings(max_examples=examples(300))
@given(st.text(max_size=80) | st.binary(max_size=200).map(stream))
def test_any_text_is_read_or_refused(text):
    try:
        value = unpack_values(text)
    except InputError:
        return
    assert unpack_values(pack_values(value)) == value


def test_no_stream_becomes_more_than_may_be_and_what_is_no_packed_text_is_said():
    bomb = stream(b"0" * (80 << 20))
    assert len(bomb) > MAX_TEXT  # so large a bomb is not even looked at
    assert "characters; the limit is" in str(refusal(unpack_values, bomb))
    largest = stream(b'"' + b"0" * (30 << 20) + b'"')
    assert len(largest) < MAX_TEXT
    assert f"more than {MAX_UNPACKED:,} bytes" in str(refusal(unpack_values, largest))
    assert unpack_values(stream(b'"' + b"0" * (MAX_UNPACKED - 2) + b'"'))
    cut = [stream(b"[1]", dictionary=b"another dictionary"), stream(b"[1]") + "AAAA"]
    rows = [*table("query", "not_packed"), *((text, "cut off or changed") for text in cut)]
    for text, said in rows:
        if isinstance(text, dict):
            text = stream(**text | {"data": text["data"].encode("latin-1")})
        assert said in str(refusal(unpack_values, text)), text


def test_the_dictionary_of_a_version_never_changes_and_short_values_stay_legible():
    """Links of this version could no longer be read: another dictionary is another version."""
    digest = hashlib.sha256(packed._DICTIONARY).hexdigest()
    assert (packed.VERSION, digest[:16]) == (1, "98a913296f8427fb")
    old = "~1.ePmQfAf8i45WggS5BTDEq7HFBUgC3asmQM2xAB8TEjE"
    assert unpack_values(old) == [["Qwen3-8B", {"model": "Qwen/Qwen3-8B", "candidate.tp": "4"}]]
    small = {"model_type": "llama", "hidden_size": 64}
    assert json.loads(shorter(small)) == small
    assert is_packed(shorter(device_values(device_profile("h100-sxm"))))
    scrambled = random.Random(0).randbytes(600).hex()
    assert len(shorter(scrambled)) <= len(scrambled) + 2
    # A model of such a name, though nobody has one, would still be the same in a link.
    request = change(DEFAULT, {"model": "~1.odd"})
    assert from_query(to_query(request)) == (request, [])
    said = ["model: the model was cut off or changed on the way."]
    assert from_query({"model": "~1.odd"}) == (DEFAULT, said)


def test_a_link_with_a_profile_of_ones_own_or_a_config_of_a_known_model_stays_short():
    profiles = [
        uploaded_profile(profile_template(device_profile(n)).encode(), "mine.yaml")
        for n in device_names()
    ]
    configs = [{"_name_or_path": "ours", **catalog_entry(n).config} for n in catalog_ids()]
    changed = [{"hardware.device": profile} for profile in profiles]
    for changes in [*changed, *({"model": config} for config in configs)]:
        request = change(DEFAULT, changes)
        query = to_query(request)
        assert len(urlencode(query)) < 4000, changes
        assert from_query(query) == (request, [])
