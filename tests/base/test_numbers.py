"""Numbers as people type and read them, ranges of a request's fields, and tables as text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_core.base.columns import _folded, aligned
from recipe_core.base.errors import InputError
from recipe_core.base.numbers import Range, number_text, read_number, read_numbers
from recipe_core.base.units import alike, band, duration, prefixed, seconds, significant, usd
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
    assert (number, type(number)) == (value, int)


def test_what_is_no_number_or_out_of_range_is_refused_by_value_and_range():
    for typed in table("numbers", "what_is_no_number"):
        assert "is not a number" in str(refusal(read_number, typed, ANY))
    assert "A decimal point is a dot" in str(refusal(read_number, "0,5", ANY))
    assert read_number("$1.25", ANY, unit="$") == 1.25  # dollars stand before their number
    refusal(read_number, "$1.25", ANY, unit="ms")
    assert read_numbers("16, 64;1k  2e3", WHOLE, most=4) == (16, 64, 1000, 2000)
    assert read_numbers(" ", WHOLE, most=4) == ()
    assert "at most 4" in str(refusal(read_numbers, "1 2 3 4 5", WHOLE, most=4))
    assert "'x'" in str(refusal(read_numbers, "16, x", WHOLE, most=4))
    for typed, words in (*table("numbers", "refused"), ("9" * 70, "not a number")):
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


def test_ranges_come_from_the_schema_and_every_field_of_a_link_has_one():
    said = table("numbers", "ranges_come_from_the_schema")
    assert [(path, range_of(path).text) for path, _ in said] == list(map(tuple, said))
    for path in FIELDS:
        if not path.startswith("objective.weights."):
            assert range_of(path).text.startswith("a ")
    with pytest.raises(LookupError):
        range_of("workload.colour")


def test_numbers_are_written_as_people_read_them():
    assert alike([0.0217, 0.00176, 0.0000457], 0.0235) == ["21.7 ms", "1.8 ms", "<0.1 ms"]
    assert alike([1.25, 0.004, 0.0], 1.254) == ["1.25 s", "<0.01 s", "0.00 s"]
    assert alike([0.4, 0.0004], 0.435) == ["400 ms", "<1 ms"]
    # amounts of work have prefixes
    assert prefixed(3.676e9, "FLOP", 4) == "3.676 GFLOP"
    assert prefixed(450e9, "B/s") == "450 GB/s"
    assert seconds(88.59e-6, 4) == "88.59 µs"
    assert seconds(2.421) == "2.42 s"
    assert seconds(0.0) == "0 s"
    # a band has one unit and is rounded alike
    assert band((0.0247, 0.0685), duration) == "24.7 – 68.5 ms"
    assert band((0.95, 1.2), duration) == "0.95 – 1.20 s"
    assert band((0.0247, 0.105), duration) == "25 – 105 ms"
    assert band((1.0, 12.5), usd) == "$1.00 – $12.5"
    # trailing zeros stay
    assert [significant(n) for n in (1.0, 1.06, 9.7, 1234.5)] == ["1.00", "1.06", "9.70", "1,234"]


NAMES = ("rank", "split", "tok/s")


def test_a_table_that_fits_is_as_the_library_draws_it_and_another_is_folded():
    rows = [["1", "tp 8 × pp 1", "3,733"], ["12", "tp 1", ""]]
    for some in (rows, rows[:1], []):
        fits = aligned(NAMES, some, left=("split",), width=100)
        assert fits == _folded(NAMES, some, ("split",), 100)
    lines = aligned(NAMES, rows, left=("split",), width=20).splitlines()
    assert max(map(len, lines)) <= 20
    assert len(lines) > len(rows) + 4
