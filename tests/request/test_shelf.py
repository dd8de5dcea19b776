"""What is kept side by side: names, limits, and links that restore all of it or say what not."""

from urllib.parse import urlencode

from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.hardware.cluster import device
from recipe_core.hardware.upload import template, uploaded_profile
from recipe_core.request.edit import change, select_split
from recipe_core.request.link import DEFAULT
from recipe_core.request.packed import pack
from recipe_core.request.shelf import (
    MAX_KEPT,
    MAX_NAME,
    Kept,
    holds,
    keep,
    renamed,
    shelf_of,
    shelf_query,
    without,
)
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import table
from tests.fixtures.sizes import examples

TP8 = "vllm.bf16.bf16.tp8.pp1.dp1.ep1"
TP4 = "vllm.fp8.bf16.tp4.pp1.dp2.ep1"
TRAINED = "torchtitan.bf16.tp2.pp1.v1.cp1.ep1.dp4.z1.mb2.full"


def split_of(key, **fields):
    request = change(DEFAULT, fields)
    return change(request, select_split(request, key))


SERVED = split_of(TP8, model="meta-llama/Llama-3.1-70B-Instruct")
ON_MI300X = split_of(
    TP4, **{"hardware.device": "mi300x", "workload.concurrency": 128, "objective.optimize": "cost"}
)
RUN = split_of(TRAINED, **{"workload.kind": "training"})
FEW = keep(keep(keep((), SERVED), ON_MI300X), RUN)


def test_a_name_says_what_tells_a_choice_from_others():
    other_format = split_of(TP4.replace("fp8", "bf16"), **{"hardware.device": "mi300x"})
    other_load = change(ON_MI300X, {"workload.concurrency": 8})
    assert [kept.name for kept in keep(keep(FEW, other_format), other_load)] == [
        "Llama-3.1-70B-Instruct · H100 SXM5 · tp 8",
        "Llama-3.1-8B-Instruct · MI300X · tp 4 · dp 2",
        "Llama-3.1-8B-Instruct · H100 SXM5 · dp 4 · tp 2 · zero 1 · mb 2",
        "Llama-3.1-8B-Instruct · MI300X · tp 4 · dp 2 · bf16",
        "Llama-3.1-8B-Instruct · MI300X · tp 4 · dp 2 · fp8",
    ]


def test_what_is_kept_already_is_not_kept_twice_and_more_than_may_be_is_refused():
    assert keep(FEW, SERVED, "again") == FEW
    assert holds(FEW, RUN)
    shelf = ()
    for load in range(1, MAX_KEPT + 1):
        shelf = keep(shelf, change(SERVED, {"workload.concurrency": load}), "same name")
    assert len({kept.name for kept in shelf}) == MAX_KEPT
    assert "the most that may be" in str(refusal(keep, shelf, SERVED))
    assert "whole split" in str(refusal(keep, (), DEFAULT))
    assert keep(without(shelf, 2), SERVED)[-1].request == SERVED


def test_a_choice_is_renamed_in_its_place_and_some_names_are_not_allowed():
    shelf = renamed(FEW, 1, "  ours,\tcheap ")
    assert [kept.name for kept in shelf] == [FEW[0].name, "ours, cheap", FEW[2].name]
    assert renamed(shelf, 1, "ours, cheap") == shelf
    rows = [("x" * (MAX_NAME + 1), "not 81"), (FEW[1].name, "name of another choice")]
    for name, said in (*table("shelf", "bad_names"), *rows):
        assert said in str(refusal(renamed, FEW, 0, name))


names = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=MAX_NAME)
requests = st.builds(
    lambda base, load: change(base, {"workload.concurrency": load}),
    st.sampled_from([SERVED, ON_MI300X]),
    st.integers(1, 5000),
) | st.just(RUN)


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(st.tuples(names, requests), max_size=MAX_KEPT))
def test_what_is_kept_survives_its_link(choices):
    shelf = ()
    for name, request in choices:
        shelf = keep(shelf, request, name[:70])
    assert shelf_of(shelf_query(shelf)) == (shelf, [])


def test_a_link_with_all_that_may_be_kept_stays_short():
    shelf = FEW
    for load in range(MAX_KEPT - len(FEW)):
        shelf = keep(shelf, change(SERVED, {"workload.concurrency": 2**load}), f"load {load}")
    assert len(urlencode(shelf_query(shelf))) < 1500
    own = {"hardware.device": uploaded_profile(template(device("h100-sxm")).encode(), "mine.yaml")}
    ours = tuple(Kept(str(n), change(kept.request, own)) for n, kept in enumerate(shelf))
    assert len(urlencode(shelf_query(ours))) < 4000
    assert shelf_of(shelf_query(ours)) == (ours, [])


FIELDS = FEW[0].query
NO_NAME = "kept 1: is not a name with the fields"
UNREAD = [
    *(([choice], NO_NAME) for choice in table("shelf", "no_choice")),
    *(([["a", FIELDS | more]], said) for more, said in table("shelf", "unread")),
    ([["x" * 5000, FIELDS]], "kept 1: a name has 1 to 80"),
    ([["a", {}]], "does not state a whole split"),
    ([["a", {**FIELDS, "hardware.device": pack([0])[:-4]}]], "cut off or changed"),
]


def test_what_cannot_be_read_of_a_link_or_is_too_much_is_left_out_and_said():
    """A choice with one bad field would be another choice under the same name."""
    for values, said in UNREAD:
        shelf, (ignored,) = shelf_of({"kept": pack([*values, ["good", FIELDS]])})
        assert [kept.name for kept in shelf] == ["good"]
        assert said in ignored
    no_list = pack({})
    for text in ("a", "~1.AAAA", "~7.AAAA", "[]", "~1." + "A" * 70_000, no_list):
        shelf, (ignored,) = shelf_of({"kept": text})
        assert (shelf, ignored[:4]) == ((), "kept")
        assert ("is not a list" in ignored) == (text == no_list)
    many = [[str(n), {**FIELDS, "workload.concurrency": str(n)}] for n in range(1, 2000)]
    shelf, ignored = shelf_of({"kept": pack(many)})
    assert len(shelf) == MAX_KEPT
    assert ignored == [f"kept: {len(many):,} choices are kept; the first {MAX_KEPT} are read."]
