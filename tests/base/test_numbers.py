"""Numbers as people type them, and the ranges of a request's fields."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.base.errors import InputError
from recipe_core.base.numbers import Range, number_text, read_number, read_numbers
from recipe_core.request.link import FIELDS
from recipe_core.request.ranges import range_of
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.sizes import examples

WHOLE = Range(whole=True, least=1, most=1 << 40)
ANY = Range()


@over("typed, value", table("numbers", "what_is_understood"))
def test_what_is_understood(typed, value):
    number = read_number(typed, WHOLE, unit="ms")
    assert number == value
    assert isinstance(number, int)


def test_what_is_no_number():
    words = ("", ".", "many", "1,5", "1,00", "1 0000", "1,000 000", "nan", "inf", "0x10", "1e9k")
    for typed in (*words, "٣", "--1"):
        assert "is not a number" in str(refusal(read_number, typed, ANY))
    assert "A decimal point is a dot" in str(refusal(read_number, "0,5", ANY))
    # dollars stand before their number
    assert read_number("$1.25", ANY, unit="$") == 1.25
    refusal(read_number, "$1.25", ANY, unit="ms")
    # lists
    assert read_numbers("16, 64;1k  2e3", WHOLE, most=4) == (16, 64, 1000, 2000)
    assert read_numbers(" ", WHOLE, most=4) == ()
    assert "at most 4" in str(refusal(read_numbers, "1 2 3 4 5", WHOLE, most=4))
    assert "'x'" in str(refusal(read_numbers, "16, x", WHOLE, most=4))


def test_what_is_refused_names_value_and_range():
    for typed, words in (
        ("0", "out of range"),
        ("-5", "out of range"),
        ("−5", "out of range"),
        ("1.5", "not a whole number"),
        ("1e999", "too large"),
        ("9" * 70, "not a number"),
    ):
        error = refusal(read_number, typed, WHOLE, field="workload.input_tokens", unit="tokens")
        assert (error.field, len(str(error)) < 300) == ("workload.input_tokens", True)
        for part in (words, typed[:40], "from 1 to 1,099,511,627,776, in tokens"):
            assert part in str(error)


@settings(max_examples=examples(300))
@given(st.integers(0, 10**15) | st.floats(1e-9, 1e14))
def test_a_number_is_read_back_from_its_text(value):
    assert read_number(number_text(value), ANY) == pytest.approx(value, rel=1e-9)


@settings(max_examples=examples(300))
@given(st.text(max_size=30))
def test_no_text_breaks_the_reader(text):
    said = ""
    try:
        number = read_number(text, WHOLE, unit="ms")
    except InputError as error:
        said = str(error)
    assert "Type a whole number from 1" in said or number in WHOLE


@over("path, words", table("numbers", "ranges_come_from_the_schema"))
def test_ranges_come_from_the_schema(path, words):
    assert range_of(path).text == words


def test_every_field_of_a_link_has_a_range_and_unknown_fields_have_none():
    for path in FIELDS:
        if not path.startswith("objective.weights."):
            assert range_of(path).text.startswith("a ")
    with pytest.raises(LookupError):
        range_of("workload.colour")
