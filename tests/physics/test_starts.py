"""With which probability a server starts, and the verdict that follows from it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from recipe_core.model.catalog import by_convention, catalog_model, load_model
from recipe_core.model.spec import NO_TOWER
from recipe_core.physics.serving import starts
from recipe_core.physics.serving.memory import memory
from recipe_core.request.schema import PlanRequest
from recipe_core.search.plan import Plan
from recipe_core.search.plans import estimate_batch, plan, plan_candidate
from recipe_core.search.verdict import check_request
from tests.fixtures.sizes import examples

LOAD = {"input_tokens": 1024, "output_tokens": 256, "concurrency": 64, "max_context": 196_608}
H100S = {"device": "h100-sxm", "per_node": 4}
MINIMAX = {"model": "MiniMaxAI/MiniMax-M2", "hardware": H100S, "workload": LOAD}
SPLIT = {"engine": "vllm", "tp": 4, "pp": 1, "dp": 1, "ep": 1, "memory_fraction": 0.86}
LLAMA = {"model": "meta-llama/Llama-3.3-70B-Instruct", "hardware": H100S | {"per_node": 2}}
LLAMA |= {"workload": LOAD | {"max_context": 24_576}}
"""Two H100 have room for about one request of this length."""


def of(context: int = 196_608, *, model: str = MINIMAX["model"], engine: str = "vllm") -> Plan:
    values = MINIMAX | {"model": model, "workload": LOAD | {"max_context": context}}
    return plan_candidate(PlanRequest.parse(values | {"candidate": SPLIT | {"engine": engine}}))[0]


def chances(table: Plan, contexts: np.ndarray) -> np.ndarray:
    block = table.blocks[0]
    cases = block.cases.take(np.zeros(len(contexts), dtype=np.int64))
    cases = replace(cases, max_context=contexts.astype(float))
    held = memory(block.setting, cases, np.ones(len(contexts)))
    return starts.start_probability(block.setting, cases, held)


def test_memory_that_just_suffices_is_as_likely_as_not() -> None:
    """The context at which the estimate says that memory just suffices."""
    close = of(int(of().blocks[0].detail(0)[0].memory.context_limit[0]))
    assert float(close.columns["start_probability"][0]) == pytest.approx(0.5, abs=0.01)
    assert close.state(0) == "uncertain"


@settings(max_examples=examples(400), deadline=None)
@given(contexts=st.lists(st.integers(1_280, 1_000_000), min_size=2, max_size=20))
def test_a_longer_request_never_makes_a_start_more_likely(contexts: list[int]) -> None:
    falling = chances(of(), np.array(sorted(contexts)))
    assert (np.diff(falling) <= 1e-12).all()
    assert ((falling >= 0) & (falling <= 1)).all()


def test_the_scale_of_the_error_is_a_share_of_memory_and_bounds_part_three_verdicts() -> None:
    """More where an engine has no logs, or a tower is left out."""
    logged, other = (of(engine=name).blocks[0].detail(0)[0] for name in ("vllm", "sglang"))
    setting, held = logged.setting, logged.memory
    scale = float(starts.start_scale_bytes(setting, held)[0])
    alone = starts.start_errors().share * float(held.usable_bytes[0])
    assert alone < scale < 1.1 * alone
    # Student's t with two degrees of freedom has a fifth of its runs beyond 1.886 scales
    beyond = replace(held, start_bytes=held.usable_bytes + 1.8856 * scale)
    assert float(starts.memory_probability(setting, beyond)[0]) == pytest.approx(0.1, abs=0.001)
    shares = [
        float(
            starts.start_scale_bytes(found.setting, found.memory)[0] / found.memory.usable_bytes[0]
        )
        for found in (logged, other)
    ]
    assert shares[1] > 1.3 * shares[0]
    note = f"The vision tower {NO_TOWER}"
    partial = replace(setting, model=replace(setting.model, notes=(note,)))
    assert (partial.model.partial, setting.model.partial) == (True, False)
    assert starts.start_scale_bytes(partial, held)[0] > scale
    low, high = starts.start_errors().bounds
    probability = np.array([0.0, low - 1e-9, low, 0.5, high - 1e-9, high, 1.0, np.nan])
    assert starts.cannot_start(probability).tolist() == [True, True, *[False] * 6]
    assert starts.is_uncertain(probability).tolist() == [False] * 2 + [True] * 3 + [False] * 3
    values = starts.start_errors().model_dump()
    for wrong in ({"bounds": (0.9, 0.1)}, {"bounds": (0.0, 0.9)}, {"sure": 0.5}):
        with pytest.raises(ValidationError, match="bounds must rise"):
            starts.StartErrors.model_validate(values | wrong)


def test_the_longest_context_is_the_last_that_starts() -> None:
    block = of().blocks[0]
    case, sure = block.cases.take(np.array([0])), starts.start_errors().sure
    longest = starts.longest_context(block.setting, case, 1_280, sure)
    assert longest % int(case.block_tokens[0]) == 0
    one_more = np.array([longest, longest + int(case.block_tokens[0])])
    assert (chances(of(), one_more) >= sure).tolist() == [True, False]
    assert starts.longest_context(block.setting, case, 1_280, 0.5) > longest
    large = of(model="moonshotai/Kimi-K2-Instruct").blocks[0]  # its weights alone are too large
    assert starts.longest_context(large.setting, large.cases, 1_280, 0.5) is None
    assert not starts.starts_with(large.setting, large.cases, 0.01)[0]


def test_rows_that_may_not_start_come_last_say_why_and_are_on_no_front() -> None:
    table = plan(PlanRequest.parse(LLAMA))
    assert {table.state(row) for row in table.order} == {"uncertain"}
    view = table.to_json(top=2)
    assert view["counts"]["uncertain"] == len(table.order)
    first = view["candidates"][0]
    assert 0.1 <= first["start_probability"] < 0.9
    assert "starts with a probability of" in first["doubt"]
    assert first["estimate"]["feasible"]
    assert f"{first['doubt']}." in first["estimate"]["notes"]
    # what does start is found although rows are ranked
    assert {"workload.max_context"} in [set(change.fields) for change in table.changes()]
    table = plan(PlanRequest.parse(LLAMA | {"hardware": H100S | {"per_node": 8}}))
    assert table.uncertain.any()
    assert table.holds.any()
    assert not table.frontier[table.uncertain].any()
    states = [table.state(row) for row in table.order]
    assert "uncertain" not in states[: states.index("uncertain")]
    assert not table.uncertain[table.best_row]
    doubtful = int(np.flatnonzero(table.uncertain)[0])
    assert table.against_best(doubtful).startswith("It may not start")
    assert set(table.to_frame().state[table.uncertain & table.feasible]) == {"uncertain"}


def test_a_request_is_judged_in_three_ways() -> None:
    holds = {"workload": LOAD | {"max_context": 16_384}}
    hopeless = {"hardware": {"device": "a100-sxm-80gb", "per_node": 4}}
    hopeless |= {"candidate": SPLIT | {"memory_fraction": 0.8}}
    uncertain = MINIMAX | {"candidate": SPLIT}
    answers = [
        check_request(PlanRequest.parse(uncertain | changes)) for changes in (holds, {}, hopeless)
    ]
    verdicts = [(answer["verdict"], answer["ok"]) for answer in answers]
    assert verdicts == [("holds", True), ("uncertain", None), ("cannot run", False)]
    assert "starts with a probability of" in answers[1]["reasons"][0]
    [answer] = estimate_batch([uncertain])
    chance = float(of().columns["start_probability"][0])
    assert answer["memory"]["start_probability"] == pytest.approx(chance)
    assert answer["memory"]["start_bytes"] > answer["memory"]["usable_bytes"]


def test_a_config_that_states_blocks_refuses_and_a_format_by_name_does_not() -> None:
    assert load_model("acme/MiniMax-M2-FP8", folders=False).quantization.by_name
    values = MINIMAX | {"model": "acme/MiniMax-M2-FP8", "candidate": SPLIT | {"tp": 8}}
    values["hardware"] = {"device": "h200-sxm", "per_node": 8}
    table, row = plan_candidate(PlanRequest.parse(values))
    assert table.state(row) == "uncertain"  # 1536 / 8 = 192 is no multiple of 128
    assert "only the checkpoint's config.json says" in table.doubt(row)
    assert "within the error" not in table.doubt(row)
    name = "Qwen/Qwen3-235B-A22B-FP8"
    stated, named = catalog_model(name), by_convention(name)
    assert [spec.quantization.by_name for spec in (stated, named)] == [False, True]
    assert named.quantization.block == stated.quantization.block == 128
    assert named.digest != stated.digest
    block = of(32_768, model=name).blocks[0]
    # 1536 / 8 = 192 is no multiple of 128
    cases = replace(block.cases, tp=np.array([8]), per_node=np.array([8]))
    by_name = replace(block.setting, model=named)
    by_config, by_convention_ = (
        [rule.code for rule in block.physics.rules(setting, cases) if rule.broken[0]]
        for setting in (block.setting, by_name)
    )
    assert "block" in by_config
    assert by_convention_ == []
    held = memory(by_name, cases, np.ones(1))
    chance = starts.start_probability(by_name, cases, held)
    assert starts.is_uncertain(chance)[0]
    assert chance[0] < starts.memory_probability(by_name, held)[0]
