"""The lines and rows that show the arithmetic: their numbers give their values."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from recipe_core.explain.arithmetic import arithmetic, training_arithmetic
from recipe_core.explain.line import Line
from recipe_core.explain.operators import OperatorRow
from recipe_core.explain.serving_time import DECODING, REACHED, STARTING, Times
from recipe_core.explain.training_time import STEP
from recipe_core.request.edit import change
from recipe_core.request.link import DEFAULT
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plans import plan, plan_candidate
from recipe_core.search.serving_plan import ServingPlan
from recipe_core.search.training_plan import TrainingPlan
from tests.calibration.test_own_runs import request as own_request
from tests.calibration.test_own_runs import taught, times_as_estimated

PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
UNITS = {
    "GiB": 2.0**30,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "%": 0.01,
    "J": 1.0,
    "W": 1.0,
    "h": 1.0,
    "tok/s": 1.0,
    "/s": 1.0,
    **{
        prefix + unit: factor
        for prefix, factor in PREFIXES.items()
        for unit in ("B", "FLOP", "B/s", "FLOP/s")
    },
}
UNIT = "|".join(sorted(map(re.escape, UNITS), key=len, reverse=True))
NUMBER = re.compile(rf"(?<![\w.])(\d[\d,]*(?:\.\d+)?) ?({UNIT})?(?![A-Za-zµ])")
SIGNS = {"×": "*", "÷": "/", "^": "**"}
OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def value(text: str) -> float:
    """What an expression comes to, in SI, as a reader with a calculator gets it."""
    plain = NUMBER.sub(lambda m: repr(float(m[1].replace(",", "")) * UNITS[m[2] or "/s"]), text)
    for sign, python in SIGNS.items():
        plain = plain.replace(sign, python)

    def of(node: ast.expr) -> float:
        if isinstance(node, ast.BinOp):
            return float(OPERATORS[type(node.op)](of(node.left), of(node.right)))
        if isinstance(node, ast.UnaryOp):
            return -of(node.operand)
        assert isinstance(node, ast.Constant), text
        return float(node.value)

    return of(ast.parse(plain.strip(), mode="eval").body)


def holds(equation: str) -> float:
    """The value of ``expression = result``, which agree to the digits that are shown."""
    left, _, right = equation.rpartition(" = ")
    if left:
        assert value(left) == pytest.approx(value(right), rel=3e-3), equation
    return value(right)


def test_the_calculator_of_these_tests_calculates() -> None:
    assert value("2 × 3.330 µs + (4.661 µs^3.15 + 81.04 µs^3.15)^(1 ÷ 3.15)") == pytest.approx(
        2 * 3.33e-6 + (4.661e-6**3.15 + 81.04e-6**3.15) ** (1 / 3.15)
    )
    assert value("3.676 GFLOP ÷ (989.4 TFLOP/s × 0.797)") == pytest.approx(4.6616e-6, rel=1e-3)
    assert value("1,024 × 2 GiB") == 2.0**41
    with pytest.raises(AssertionError):
        holds("2 × 3.330 µs = 7.000 µs")


def multiplied_out(row: OperatorRow) -> None:
    """A row's equations hold, and lead from its work to its time."""
    for equation in (row.compute, row.moved):
        if equation:
            assert equation.rpartition(" = ")[2] in row.once, row
            holds(equation)
    once = holds(row.once)
    assert once == pytest.approx(row.once_s, rel=1e-3), row
    assert once * value(row.count) == pytest.approx(value(row.time), rel=2e-3), row
    assert row.once_s * row.number == pytest.approx(row.time_s, rel=1e-9), row


def lines(times: Times) -> dict[str, Line]:
    return {line.name: line for some in times.lines.values() for line in some}


def parts_hold(times: Times, title: str, parts: Mapping[str, float]) -> None:
    """Every line of a time gives its part, and together they are the whole."""
    some = [line for line in times.lines[title] if not line.name.startswith("Factor")]
    for line in times.lines[title]:
        # a difference of two long times leaves fewer digits
        assert value(line.numbers) == pytest.approx(value(line.value), rel=2e-2), line
    assert len(some) == len([seconds for seconds in parts.values() if seconds > 0])
    assert sum(value(line.numbers) for line in some) == pytest.approx(
        sum(parts.values()), rel=3e-3
    ), title


REUSE = [{"cache_tokens": 1e5, "hit": 0.2}, {"cache_tokens": 1e7, "hit": 0.8}]
LMCACHE = {
    "through": "lmcache",
    "host_gib_per_device": 90,
    "disk": {"tier": "nvme", "gib": 4000},
}
SERVING: list[dict[str, Any]] = [
    {"model": "meta-llama/Llama-3.1-70B-Instruct"},
    {"model": "meta-llama/Llama-3.1-70B-Instruct", "candidate.engine": "sglang"},
    {"model": "openai/gpt-oss-120b", "candidate.engine": "tensorrt-llm"},
    {"model": "deepseek-ai/DeepSeek-V3", "hardware.nodes": 2},
    {"model": "deepseek-ai/DeepSeek-R1", "hardware.device": "mi300x"},
    {"model": "Qwen/Qwen3-Next-80B-A3B-Instruct"},
    {"model": "Qwen/Qwen3-32B", "hardware.device": "l40s", "workload.concurrency": 200},
    {"model": "Qwen/Qwen3-0.6B", "hardware.device": "cpu", "hardware.per_node": 1},
    {"model": "Qwen/Qwen3-8B", "hardware.device": "b200", "candidate.weight_dtype": "fp8"},
    {"model": "Qwen/Qwen3-8B", "candidate.engine": "transformers", "hardware.per_node": 1},
    {"workload.mode": "open", "workload.request_rate": 4.0, "workload.concurrency": None},
    {"workload.mode": "offline", "workload.requests": 2000, "workload.concurrency": None},
    {"workload.mode": "static", "workload.batch": 16, "workload.concurrency": None},
    {"workload.input_tokens": 20000, "workload.output_tokens": 1},
    {"workload.prefix_hit": 0.5, "workload.input_tokens": 30000},
    {"workload.prefix_reuse": REUSE, "options.kv_offload": {"host_gib_per_device": 50}},
    {"workload.prefix_reuse": REUSE, "options.kv_offload": LMCACHE},
    {
        "candidate.engine": "sglang",
        "workload.prefix_reuse": REUSE,
        "options.kv_offload": {"host_gib_per_device": 50},
    },
    {
        "model": "deepseek-ai/DeepSeek-V3",
        "hardware.device": "h200-sxm",
        "workload.speculative": {"tokens": 2, "acceptance": 0.7, "method": "mtp"},
    },
    {"model": "meta-llama/Llama-3.1-70B-Instruct", "options.disaggregated": True},
    {
        "model": "openai/gpt-oss-120b",
        "candidate.engine": "sglang",
        "candidate.stream_interval": 30,
        "candidate.scheduler_recv_interval": 30,
    },
]


def served(changes: dict[str, Any]) -> ServingPlan:
    board = plan(change(DEFAULT, changes))
    assert isinstance(board, ServingPlan)
    return board


def some_rows(board: ServingPlan) -> list[int]:
    """Splits of several kinds that run: the best, and the best with each degree."""
    order = [int(row) for row in board.order]
    kinds = {0: order[0]} if order else {}
    pooled = [row for row in order if board.candidate(row).get("prefill")]
    kinds |= {-1: pooled[0], -2: pooled[-1]} if pooled else {}
    for n, name in enumerate(("tp", "pp", "dp", "ep", "cp"), 1):
        deep = [row for row in order if board.degree(name)[row] > 1]
        kinds |= {n: deep[0]} if deep else {}
    return sorted(set(kinds.values()))


@pytest.mark.parametrize(
    "changes", SERVING, ids=lambda changes: " ".join(map(str, changes.values()))
)
def test_serving_is_multiplied_out_to_its_figures(changes: dict[str, Any]) -> None:
    board = served(changes)
    rows = some_rows(board)
    assert rows
    for row in rows:
        times, estimate = arithmetic(board, row), board.estimate(row)
        assert estimate.serving is not None
        assert estimate.breakdown_s is not None
        for working in times.workings:
            assert working.rows
            for operator_row in working.rows:
                multiplied_out(operator_row)
        parts_hold(times, DECODING, estimate.breakdown_s.decode)
        parts_hold(times, STARTING, estimate.breakdown_s.prefill)
        for line in times.lines.get(REACHED, []):
            assert value(line.numbers) == pytest.approx(value(line.value), rel=2e-2)
            assert value(line.value) < 1
        for name in (
            "Weights",
            "Cache of one request",
            "KV cache needed",
            "Total",
            "Usable",
            "Output",
        ):
            line = lines(times).get(name)
            if line is not None and "no layer" not in line.numbers and "blocks" not in line.numbers:
                numbers = line.numbers.replace(" of state", "")
                assert value(numbers) == pytest.approx(value(line.value), rel=2e-2), line


@pytest.mark.parametrize("mode", ["closed", "open", "offline", "static"])
def test_what_own_runs_teach_is_a_factor_of_the_lines(mode: str) -> None:
    measured = [
        *times_as_estimated(1.3, 4),
        *(row.model_copy(update={"ttft_ms": 900.0}) for row in times_as_estimated(1.3, 2)),
    ]
    load = {"closed": 64, "open": 2.0, "static": 16, "offline": 500}[mode]
    asked = PlanRequest.parse(own_request(mode, load))
    board, row = plan_candidate(asked, corrections=taught(measured))
    assert isinstance(board, ServingPlan)
    assert board.setting(row).correction is not None
    times, estimate = arithmetic(board, row), board.estimate(row)
    assert estimate.breakdown_s is not None
    parts_hold(times, DECODING, estimate.breakdown_s.decode)
    parts_hold(times, STARTING, estimate.breakdown_s.prefill)


def test_every_number_says_where_it_is_from() -> None:
    board = served({"model": "meta-llama/Llama-3.1-70B-Instruct"})
    constants = {one.name: one for one in arithmetic(board, int(board.order[0])).constants}
    products = constants["Matrix products, bf16"]
    assert products.status == "fitted"
    assert "aiconfigurator" in products.source
    assert constants["Elementwise kernels"].status == "prior (assumed)"
    assert constants["Memory bandwidth"].status == "datasheet"
    assert any("own time" in name and one.source for name, one in constants.items())
    assert all(one.source and one.value and one.status for one in constants.values())


def test_cost_and_energy_are_of_the_same_rate() -> None:
    board = served({})
    shown = lines(arithmetic(board, int(board.order[0])))
    hourly, rate = value(shown["Cost per hour"].value.lstrip("$")), value(shown["Output"].value)
    assert hourly / (3600 * rate) * 1e6 == pytest.approx(
        value(shown["Cost per million output tokens"].value.lstrip("$")), rel=0.01
    )


def test_a_refused_split_shows_its_memory_alone() -> None:
    board = served({"model": "meta-llama/Llama-3.1-70B-Instruct"})
    short = next(int(row) for row in board.refused_rows() if board.codes(int(row)) == {"memory"})
    times = arithmetic(board, short)
    assert list(times.lines) == ["Memory of the fullest device"]
    assert not times.workings
    assert not times.constants


TRAINING: list[dict[str, Any]] = [
    {},
    {"model": "meta-llama/Llama-3.1-70B-Instruct", "hardware.nodes": 8},
    {"model": "Qwen/Qwen3-30B-A3B", "hardware.nodes": 4, "candidate.engine": "megatron"},
    {"model": "deepseek-ai/DeepSeek-V2-Lite", "hardware.nodes": 4, "candidate.engine": "torch"},
    {"hardware.device": "mi300x", "candidate.engine": "deepspeed"},
    {"candidate.precision": "fp8"},
    {"workload.method": "lora", "hardware.device": "a100-80gb"},
    {"workload.sequence_length": 65536, "workload.global_batch": 64},
    {"candidate.offload": "optimizer", "candidate.engine": "deepspeed"},
]


@pytest.mark.parametrize(
    "changes", TRAINING, ids=lambda changes: " ".join(map(str, changes.values()))
)
def test_training_is_multiplied_out_to_its_figures(changes: dict[str, Any]) -> None:
    asked = {"workload.kind": "training", "hardware.nodes": 2, "workload.tokens": 1e9} | changes
    board = plan(change(DEFAULT, asked))
    assert isinstance(board, TrainingPlan)
    order = [int(row) for row in board.order]
    assert order
    columns = board.columns
    kinds = [order[0]]
    for name in ("tp", "pp", "ep", "cp", "zero_stage", "recompute", "virtual_stages"):
        least = 0 if name in ("zero_stage", "recompute") else 1
        kinds += [row for row in order if columns[name][row] > least][:1]
    for row in sorted(set(kinds)):
        times, estimate = training_arithmetic(board, row), board.estimate(row)
        assert estimate.breakdown_s is not None
        assert estimate.training is not None
        for working in times.workings:
            for operator_row in working.rows:
                multiplied_out(operator_row)
        parts_hold(times, STEP, estimate.breakdown_s.step)
        shown = lines(times)
        for name in ("Peak", "Tokens of a step", "Tokens per device", "MFU"):
            numbers = re.sub(r"(GiB) [a-z -]+?(?= \+|$)", r"\1", shown[name].numbers)
            assert value(numbers) == pytest.approx(value(shown[name].value), rel=2e-2), name
        assert value(shown["Steps"].value) >= value(shown["Steps"].numbers)
        assert all(one.source and one.value and one.status for one in times.constants)
