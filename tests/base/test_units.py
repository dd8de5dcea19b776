"""Numbers as people read them."""

from __future__ import annotations

import pytest

from recipe_core.base.units import alike, band, duration, prefixed, seconds, significant, usd


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


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "1.00"), (1.06, "1.06"), (9.7, "9.70"), (1234.5, "1,234")]
)
def test_trailing_zeros_stay(value: float, text: str) -> None:
    assert significant(value) == text
