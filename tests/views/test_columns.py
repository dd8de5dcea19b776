"""One list of columns as a terminal, a page and a report read it."""

from recipe_core.views.columns import (
    UNKNOWN,
    Column,
    _fold,
    cell_texts,
    column_frame,
    known_columns,
    styled,
    terminal,
)

COLUMNS = [
    Column("rank", lambda row: row[0]),
    Column("split", lambda row: row[1], align="left"),
    Column("output (tok/s)", lambda row: row[2], "{:,.0f}".format, mark=lambda row: row[3]),
]
ROWS = [(1, "TP 8 × PP 1", 3733.4, "†"), (12, "TP 1", None, "†")]


def test_a_table_that_fits_is_as_the_library_draws_it_and_another_is_folded():
    for rows in (ROWS, ROWS[:1], []):
        fits = terminal(rows, COLUMNS, width=100)
        assert fits == _fold(COLUMNS, cell_texts(rows, COLUMNS), 100)
    lines = terminal(ROWS, COLUMNS, width=20).splitlines()
    assert max(map(len, lines)) <= 20
    assert len(lines) > len(ROWS) + 5


def test_every_place_reads_the_same_values_texts_and_marks():
    assert cell_texts(ROWS, COLUMNS) == [["1", "TP 8 × PP 1", "3,733†"], ["12", "TP 1", UNKNOWN]]
    assert column_frame(ROWS, COLUMNS)["output (tok/s)"][0] == 3733.4
    shown = styled(ROWS, COLUMNS).to_html()
    assert "3,733†" in shown
    assert UNKNOWN in shown
    assert known_columns(ROWS[1:], COLUMNS) == COLUMNS[:2]
