"""The lines and rows that show the arithmetic: their numbers give their values."""

import ast
import operator
import re
from dataclasses import replace

import pytest
import yaml

from recipe_core.explain.arithmetic import arithmetic, training_arithmetic
from recipe_core.explain.serving_time import DECODING, REACHED, STARTING
from recipe_core.explain.training_time import STEP
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan, plan_candidate
from tests.calibration.test_own_runs import request as own_request
from tests.calibration.test_own_runs import taught, times_as_estimated
from tests.fixtures.paths import DATA
from tests.fixtures.rows import over

PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
UNITS = {"GiB": 2.0**30, "µs": 1e-6, "ms": 1e-3, "%": 0.01}
UNITS |= dict.fromkeys(("s", "J", "W", "h", "tok/s", "/s"), 1.0)
UNITS |= {p + u: n for p, n in PREFIXES.items() for u in ("B", "FLOP", "B/s", "FLOP/s")}
UNIT = "|".join(sorted(map(re.escape, UNITS), key=len, reverse=True))
NUMBER = re.compile(rf"(?<![\w.])(\d[\d,]*(?:\.\d+)?) ?({UNIT})?(?![A-Za-zµ])")
SIGNS = {"×": "*", "÷": "/", "^": "**"}
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
OPERATORS |= {ast.Div: operator.truediv, ast.Pow: operator.pow}


def value(text):
    """What an expression comes to, in SI, as a reader with a calculator gets it."""
    plain = NUMBER.sub(lambda m: repr(float(m[1].replace(",", "")) * UNITS[m[2] or "/s"]), text)
    for sign, python in SIGNS.items():
        plain = plain.replace(sign, python)

    def of(node):
        if isinstance(node, ast.BinOp):
            return float(OPERATORS[type(node.op)](of(node.left), of(node.right)))
        if isinstance(node, ast.UnaryOp):
            return -of(node.operand)
        assert isinstance(node, ast.Constant), text
        return float(node.value)

    return of(ast.parse(plain.strip(), mode="eval").body)


def holds(equation):
    """The value of ``expression = result``, which agree to the digits that are shown."""
    left, _, right = equation.rpartition(" = ")
    if left:
        assert value(left) == pytest.approx(value(right), rel=3e-3), equation
    return value(right)


def multiplied_out(row):
    """A row's equations hold, and lead from its work to its time."""
    for equation in (row.compute, row.moved):
        if equation:
            assert equation.rpartition(" = ")[2] in row.once, row
            holds(equation)
    once = holds(row.once)
    assert once == pytest.approx(row.once_s, rel=1e-3), row
    assert once * value(row.count) == pytest.approx(value(row.time), rel=2e-3), row
    assert row.once_s * row.number == pytest.approx(row.time_s, rel=1e-9), row


def line_holds(line, rel=2e-2):
    # a difference of two long times leaves fewer digits
    assert value(line.numbers) == pytest.approx(value(line.value), rel=rel), line


def lines(times):
    return {line.name: line for some in times.lines.values() for line in some}


def served(changes):
    return plan(change(DEFAULT, changes))


def parts_hold(times, title, parts):
    """Every line of a time gives its part, and together they are the whole."""
    for line in times.lines[title]:
        line_holds(line)
    some = [line for line in times.lines[title] if not line.name.startswith("Factor")]
    assert len(some) == len([seconds for seconds in parts.values() if seconds > 0])
    whole = sum(value(line.numbers) for line in some)
    assert whole == pytest.approx(sum(parts.values()), rel=3e-3), title


SPLITS = yaml.safe_load((DATA / "worked_splits.yaml").read_text())


def some_rows(board):
    """Splits of several kinds that run: the best, and the best with each degree."""
    order = [int(row) for row in board.order]
    pooled = [row for row in order if board.candidate(row).get("prefill")]
    rows = {*order[:1], *pooled[:1], *pooled[-1:]}
    for name in ("tp", "pp", "dp", "ep", "cp"):
        rows |= {*[row for row in order if board.degree(name)[row] > 1][:1]}
    return sorted(rows)


NAMES = ("Weights", "Cache of one request", "KV cache needed", "Total", "Usable", "Output")


@over("changes", SPLITS["serving"], share=2)
def test_serving_is_multiplied_out_to_its_figures(changes):
    board = served(changes)
    rows = some_rows(board)
    assert rows
    for row in rows:
        times, breakdown_s = arithmetic(board, row), board.estimate(row).breakdown_s
        for working in times.workings:
            assert working.rows
            for operator_row in working.rows:
                multiplied_out(operator_row)
        parts_hold(times, DECODING, breakdown_s.decode)
        parts_hold(times, STARTING, breakdown_s.prefill)
        for line in times.lines.get(REACHED, []):
            line_holds(line)
            assert value(line.value) < 1
        shown = lines(times)
        for line in (shown[name] for name in NAMES if name in shown):
            if "no layer" not in line.numbers and "blocks" not in line.numbers:
                line_holds(replace(line, numbers=line.numbers.replace(" of state", "")))


@pytest.mark.parametrize(
    ("mode", "load"), [("closed", 64), ("open", 2.0), ("static", 16), ("offline", 500)]
)
def test_what_own_runs_teach_is_a_factor_of_the_lines(mode, load):
    late = (row.model_copy(update={"ttft_ms": 900.0}) for row in times_as_estimated(1.3, 2))
    asked = PlanRequest.parse(own_request(mode, load))
    corrections = taught([*times_as_estimated(1.3, 4), *late])
    board, row = plan_candidate(asked, corrections=corrections)
    assert board.setting(row).correction is not None
    times, breakdown_s = arithmetic(board, row), board.estimate(row).breakdown_s
    parts_hold(times, DECODING, breakdown_s.decode)
    parts_hold(times, STARTING, breakdown_s.prefill)


def test_numbers_say_where_they_are_from_and_refused_splits_show_memory_alone():
    board = served(SPLITS["serving"][0])
    constants = {number.name: number for number in arithmetic(board, board.best_row).constants}
    products = constants["Matrix products, bf16"]
    assert products.status == "fitted"
    assert "aiconfigurator" in products.source
    assert constants["Elementwise kernels"].status == "prior (assumed)"
    assert constants["Memory bandwidth"].status == "datasheet"
    assert any("own time" in name and number.source for name, number in constants.items())
    assert all(number.source and number.value and number.status for number in constants.values())
    # a refused split shows its memory alone
    short = next(int(row) for row in board.refused_rows() if board.codes(int(row)) == {"memory"})
    times = arithmetic(board, short)
    assert list(times.lines) == ["Memory of the fullest device"]
    assert (len(times.workings), len(times.constants)) == (0, 0)
    board = served({})
    shown = lines(arithmetic(board, board.best_row))
    names = ("Cost per hour", "Output", "Cost per million output tokens")
    hourly, rate, million = (value(shown[name].value.lstrip("$")) for name in names)
    assert hourly / (3600 * rate) * 1e6 == pytest.approx(million, rel=0.01)


@over("changes", SPLITS["training"], share=2)
def test_training_is_multiplied_out_to_its_figures(changes):
    asked = {"workload.kind": "training", "hardware.nodes": 2, "workload.tokens": 1e9} | changes
    board = served(asked)
    order = [int(row) for row in board.order]
    rows = {order[0]}
    for name in ("tp", "pp", "ep", "cp", "zero_stage", "recompute", "virtual_stages"):
        least = 0 if name in ("zero_stage", "recompute") else 1
        rows |= {*[row for row in order if board.columns[name][row] > least][:1]}
    for row in sorted(rows):
        times = training_arithmetic(board, row)
        shown = lines(times)
        for working in times.workings:
            for operator_row in working.rows:
                multiplied_out(operator_row)
        parts_hold(times, STEP, board.estimate(row).breakdown_s.step)
        for name in ("Peak", "Tokens of a step", "Tokens per device", "MFU"):
            numbers = re.sub(r"(GiB) [a-z -]+?(?= \+|$)", r"\1", shown[name].numbers)
            line_holds(replace(shown[name], numbers=numbers))
        assert value(shown["Steps"].value) >= value(shown["Steps"].numbers)
        assert all(number.source and number.value and number.status for number in times.constants)
