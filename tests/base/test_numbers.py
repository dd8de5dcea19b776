"""Numbers as people type them, and the ranges of a request's fields."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.base.errors import InputError
from recipe_core.base.numbers import Range, number_text, read_number, read_numbers
from recipe_core.request.link import FIELDS
from recipe_core.request.ranges import range_of
from tests.fixtures.sizes import examples

WHOLE = Range(whole=True, least=1, most=1 << 40)
ANY = Range()


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("1e9", 10**9),
        ("64k", 64_000),
        ("64 K", 64_000),
        ("64Ki", 65_536),
        ("10B", 10**10),
        ("0.5T", 5 * 10**11),
        ("1,000,000", 10**6),
        ("10 000", 10_000),
        ("10\u202f000", 10_000),
        ("1'000", 1_000),
        ("1_000", 1_000),
        (" 7 ", 7),
        ("1.5e3", 1_500),
        ("12.", 12),
        ("40 ms", 40),
        ("40MS", 40),
    ],
)
def test_what_is_understood(typed: str, value: int) -> None:
    number = read_number(typed, WHOLE, unit="ms")
    assert number == value
    assert isinstance(number, int)


@pytest.mark.parametrize(
    "typed",
    [
        "",
        ".",
        "many",
        "1,5",
        "1,00",
        "1 0000",
        "1,000 000",
        "nan",
        "inf",
        "0x10",
        "1e9k",
        "٣",
        "--1",
    ],
)
def test_what_is_no_number(typed: str) -> None:
    with pytest.raises(InputError, match="is not a number"):
        read_number(typed, ANY)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("0", "out of range"),
        ("-5", "out of range"),
        ("−5", "out of range"),
        ("1.5", "not a whole number"),
        ("1e999", "too large"),
        ("9" * 70, "not a number"),
    ],
)
def test_what_is_refused_names_value_and_range(typed: str, words: str) -> None:
    with pytest.raises(InputError) as refused:
        read_number(typed, WHOLE, field="workload.input_tokens", unit="tokens")
    said = str(refused.value)
    assert words in said
    assert typed[:40] in said
    assert "from 1 to 1,099,511,627,776, in tokens" in said
    assert len(said) < 300


def test_a_decimal_comma_is_explained() -> None:
    with pytest.raises(InputError, match="A decimal point is a dot"):
        read_number("0,5", ANY)


def test_dollars_stand_before_their_number() -> None:
    assert read_number("$1.25", ANY, unit="$") == 1.25
    with pytest.raises(InputError):
        read_number("$1.25", ANY, unit="ms")


def test_lists() -> None:
    assert read_numbers("16, 64;1k  2e3", WHOLE, most=4) == (16, 64, 1000, 2000)
    assert read_numbers(" ", WHOLE, most=4) == ()
    with pytest.raises(InputError, match="at most 4"):
        read_numbers("1 2 3 4 5", WHOLE, most=4)
    with pytest.raises(InputError, match="'x'"):
        read_numbers("16, x", WHOLE, most=4)


@settings(max_examples=examples(300))
@given(st.integers(0, 10**15) | st.floats(1e-9, 1e14))
def test_a_number_is_read_back_from_its_text(value: float) -> None:
    assert read_number(number_text(value), ANY) == pytest.approx(value, rel=1e-9)


@settings(max_examples=examples(300))
@given(st.text(max_size=30))
def test_no_text_breaks_the_reader(text: str) -> None:
    said = ""
    try:
        number = read_number(text, WHOLE, unit="ms")
    except InputError as error:
        said = str(error)
    assert "Type a whole number from 1" in said or number in WHOLE


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("workload.input_tokens", "a whole number from 1 to 1,073,741,824"),
        ("workload.prefix_hit", "a number from 0 to below 1"),
        ("workload.input_spread", "a number from 0 to 1"),
        ("workload.tokens", "a number above 0"),
        ("workload.lora_rank", "a whole number from 1 to 4,096"),
        ("objective.limits.gpus", "a whole number from 1 to 1,048,576"),
        ("objective.confidence", "a number from 0.5 to 0.99"),
        ("options.loads", "a number above 0"),
        ("options.hardware.0.nodes", "a whole number from 1 to 1,048,576"),
        ("hardware.term_months", "a whole number from 1 to 120"),
    ],
)
def test_ranges_come_from_the_schema(path: str, words: str) -> None:
    assert range_of(path).text == words


def test_every_field_of_a_link_has_a_range_or_none() -> None:
    for path in FIELDS:
        if not path.startswith("objective.weights."):
            assert range_of(path).text.startswith("a ")


def test_unknown_fields_have_no_range() -> None:
    with pytest.raises(LookupError):
        range_of("workload.colour")
