"""With which probability a server starts, what is judged by it, and how long a start takes."""

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from recipe_core.base.errors import InputError
from recipe_core.commands.verdict import judge_request
from recipe_core.engines.spec import engine, engine_names
from recipe_core.estimates.serving import starts
from recipe_core.estimates.serving.cold_start import cold_start, link_bytes_per_s
from recipe_core.estimates.serving.memory import serving_memory
from recipe_core.estimates.serving.start_numbers import engine_start, place_names, start_numbers
from recipe_core.hardware.cluster import device_profile
from recipe_core.launch.start import startup_rates
from recipe_core.models.catalog import catalog_model, load_model_spec
from recipe_core.models.spec import NO_TOWER
from recipe_core.plans.plan_json import doubt_text
from recipe_core.plans.plans import estimate_batch, plan_candidate, plan_splits
from recipe_core.plans.rank import front_of_columns
from recipe_core.plans.splits import row_state
from recipe_core.request.over_time import Start
from recipe_core.request.schema import PlanRequest
from recipe_core.scaling.fleet import Chance, Fleet, StartTime, start_log_spreads
from recipe_core.views.plan_words import against_best
from scripts.fit_cold_start import left_out_starts, published_starts
from scripts.start_bands import held_starts
from scripts.start_errors import by_convention
from scripts.start_prediction import cold_start_errors
from tests.fixtures.sizes import examples

LOAD = {"input_tokens": 1024, "output_tokens": 256, "concurrency": 64, "max_context": 196_608}
H100S = {"device": "h100-sxm", "per_node": 4}
MINIMAX = {"model": "MiniMaxAI/MiniMax-M2", "hardware": H100S, "workload": LOAD}
SPLIT = {"engine": "vllm", "tp": 4, "pp": 1, "dp": 1, "ep": 1, "memory_fraction": 0.86}
LLAMA = {"model": "meta-llama/Llama-3.3-70B-Instruct", "hardware": H100S | {"per_node": 2}}
LLAMA |= {"workload": LOAD | {"max_context": 24_576}}  # two H100 have room for about one request


def of(context=196_608, *, model=MINIMAX["model"], engine="vllm"):
    values = MINIMAX | {"model": model, "workload": LOAD | {"max_context": context}}
    return plan_candidate(PlanRequest.parse(values | {"candidate": SPLIT | {"engine": engine}}))[0]


def chances(table, contexts):
    block = table.blocks[0]
    cases = block.cases.take(np.zeros(len(contexts), dtype=np.int64))
    longest = contexts.astype(float)
    cases = replace(cases, max_context=longest, told_context=longest)
    held = serving_memory(block.setting, cases, np.ones(len(contexts)))
    return starts.serving_start_probability(block.setting, cases, held)


@settings(max_examples=examples(400), deadline=None)
@given(contexts=st.lists(st.integers(1_280, 1_000_000), min_size=2, max_size=20))
def test_a_longer_request_never_makes_a_start_more_likely(contexts):
    falling = chances(of(), np.array(sorted(contexts)))
    assert (np.diff(falling) <= 1e-12).all()
    assert ((falling >= 0) & (falling <= 1)).all()


def test_the_scale_of_the_error_is_a_share_of_memory_and_bounds_part_three_verdicts():
    """More where an engine has no logs, or a tower is left out."""
    logged, other = (of(engine=name).blocks[0].detail(0)[0] for name in ("vllm", "sglang"))
    setting, held = logged.setting, logged.memory
    scale = float(starts.start_scale_bytes(setting, held)[0])
    alone = starts.start_errors().share * float(held.usable_bytes[0])
    assert alone < scale < 1.1 * alone
    # Student's t with two degrees of freedom has a fifth of its runs beyond 1.886 scales
    beyond = replace(held, start_bytes=held.usable_bytes + 1.8856 * scale)
    assert float(starts.memory_probability(setting, beyond)[0]) == pytest.approx(0.1, abs=0.001)
    share, unlogged = (
        starts.start_scale_bytes(found.setting, found.memory)[0] / found.memory.usable_bytes[0]
        for found in (logged, other)
    )
    assert unlogged > 1.3 * share
    note = f"The vision tower {NO_TOWER}"
    partial = replace(setting, model=replace(setting.model, notes=(note,)))
    assert (partial.model.partial, setting.model.partial) == (True, False)
    assert starts.start_scale_bytes(partial, held)[0] > scale
    low, high = starts.start_errors().bounds
    probability = np.array([0.0, low - 1e-9, low, 0.5, high - 1e-9, high, 1.0, np.nan])
    assert starts.cannot_start(probability).tolist() == [True, True, *[False] * 6]
    assert (
        starts.is_serving_uncertain(probability).tolist() == [False] * 2 + [True] * 3 + [False] * 3
    )
    values = starts.start_errors().model_dump()
    for wrong in ({"bounds": (0.9, 0.1)}, {"bounds": (0.0, 0.9)}, {"sure": 0.5}):
        with pytest.raises(ValidationError, match="bounds must rise"):
            starts.StartErrors.model_validate(values | wrong)


def test_the_longest_context_is_the_last_that_starts_and_what_just_suffices_as_likely_as_not():
    close = of(int(of().blocks[0].detail(0)[0].memory.max_context[0]))
    assert float(close.columns["start_probability"][0]) == pytest.approx(0.5, abs=0.01)
    assert row_state(close, 0) == "uncertain"
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


def test_rows_that_may_not_start_say_why_and_are_on_no_front():
    table = plan_splits(PlanRequest.parse(LLAMA))
    assert {row_state(table, row) for row in table.order} == {"uncertain"}
    view = table.to_json(top=2)
    assert view["counts"]["uncertain"] == len(table.order)
    first = view["candidates"][0]
    assert 0.1 <= first["start_probability"] < 0.9
    assert "starts with a probability of" in first["doubt"]
    assert first["estimate"]["feasible"]
    assert f"{first['doubt']}." in first["estimate"]["notes"]
    # what does start is found although rows are ranked
    assert {"workload.max_context"} in [set(change.fields) for change in table.changes()]
    table = plan_splits(PlanRequest.parse(LLAMA | {"hardware": H100S | {"per_node": 8}}))
    assert table.uncertain.any()
    assert table.holds.any()
    assert not front_of_columns(table)[table.uncertain].any()
    assert not table.uncertain[table.best_row]
    doubtful = int(np.flatnonzero(table.uncertain)[0])
    assert against_best(table, doubtful).startswith("It may not start")
    assert set(table.to_frame().state[table.uncertain & table.feasible]) == {"uncertain"}


def test_a_request_is_judged_in_three_ways():
    holds = {"workload": LOAD | {"max_context": 16_384}}
    hopeless = {"hardware": {"device": "a100-sxm-80gb", "per_node": 4}}
    hopeless |= {"candidate": SPLIT | {"memory_fraction": 0.8}}
    uncertain = MINIMAX | {"candidate": SPLIT}
    answers = [
        judge_request(PlanRequest.parse(uncertain | changes)) for changes in (holds, {}, hopeless)
    ]
    verdicts = [(answer["verdict"], answer["ok"]) for answer in answers]
    assert verdicts == [("holds", True), ("uncertain", None), ("cannot run", False)]
    assert "starts with a probability of" in answers[1]["reasons"][0]
    [answer] = estimate_batch([uncertain])
    chance = float(of().columns["start_probability"][0])
    assert answer["memory"]["start_probability"] == pytest.approx(chance)
    assert answer["memory"]["start_bytes"] > answer["memory"]["usable_bytes"]


def test_a_config_that_states_blocks_refuses_and_a_format_by_name_does_not():
    assert load_model_spec("acme/MiniMax-M2-FP8", folders=False).quantization.by_name
    split = SPLIT | {"tp": 8, "engine": "sglang"}  # vLLM 0.32 cuts blocks of experts finer
    values = MINIMAX | {"model": "acme/MiniMax-M2-FP8", "candidate": split}
    values["hardware"] = {"device": "h200-sxm", "per_node": 8}
    table, row = plan_candidate(PlanRequest.parse(values))
    assert row_state(table, row) == "uncertain"  # 1536 / 8 = 192 is no multiple of 128
    assert "only the checkpoint's config.json says" in doubt_text(table, row)
    assert "within the error" not in doubt_text(table, row)
    name = "Qwen/Qwen3-235B-A22B-FP8"
    stated, named = catalog_model(name), by_convention(name)
    assert [spec.quantization.by_name for spec in (stated, named)] == [False, True]
    assert named.quantization.block == stated.quantization.block == 128
    assert named.digest != stated.digest
    block = of(32_768, model=name, engine="sglang").blocks[0]
    cases = replace(block.cases, tp=np.array([8]), per_node=np.array([8]))
    by_name = replace(block.setting, model=named)
    stated, named = (
        [rule.code for rule in block.physics.rules(setting, cases) if rule.broken[0]]
        for setting in (block.setting, by_name)
    )
    assert ("block" in stated, named) == (True, [])
    held = serving_memory(by_name, cases, np.ones(1))
    chance = starts.serving_start_probability(by_name, cases, held)
    assert starts.is_serving_uncertain(chance)[0]
    assert chance[0] < starts.memory_probability(by_name, held)[0]


def start(of=None, name="vllm", gb=140.0, devices=4, chip="h100-sxm", **more):
    place = {"devices": devices, "device": device_profile(chip)}
    asked = of or Start(node="ready")
    return cold_start(asked, engine=name, weights_bytes=gb * 1e9, **place, **more)


def phases(*args, **more):
    return {part.name: part.seconds for part in start(*args, **more).phases}


@pytest.mark.nightly
def test_starts_of_sources_that_were_not_used_and_their_bands():
    """Numbers and bands by all other sources, held against those of each."""
    found = left_out_starts(published_starts())
    held = np.array(held_starts(found))
    phase = np.array([left.run.phase for left in found])
    error = np.array([abs(np.expm1(-left.off)) for left in found])
    assert np.median(error[phase == "total"]) <= 0.25
    assert np.median(error[phase == "weights"]) <= 0.45
    source = np.array([left.run.source for left in found])
    for name, least in (("total", 0.65), ("weights", 0.7), ("", 0.75)):
        of = (phase == name) | (not name)
        assert held[of].mean() >= least
        cells = [held[of & (source == one)].mean() for one in set(source[of])]
        assert np.mean(cells) >= least


def test_a_late_start_is_later_than_an_early_one_is_early():
    answer = start()
    assert answer.high_s / answer.seconds > 1.5 * answer.seconds / answer.low_s
    early, late = start_log_spreads(StartTime(answer.seconds, answer.low_s, answer.high_s))
    assert early < late
    fleet = Fleet(None, StartTime(answer.seconds, answer.low_s, answer.high_s), 1, None, {})
    chance = Chance(3)
    drawn = np.array([chance.draw(number, fleet).start_s for number in range(4000)])
    ends = np.quantile(drawn, (0.1, 0.5, 0.9))
    assert ends == pytest.approx([answer.low_s, answer.seconds, answer.high_s], rel=0.08)


def test_unknown_drives_warm_caches_and_few_graphs():
    """A drive of unknown speed is slower and less sure than one that is named."""
    unknown, named, warm = (
        start(Start(node="ready", weights=place)) for place in ("disk", "nvme", "tmpfs")
    )
    assert unknown.seconds > named.seconds > warm.seconds
    assert unknown == start(Start(node="ready"))
    width = [
        part.high_s / part.low_s
        for answer in (unknown, named)
        for part in answer.phases
        if part.name == "weights"
    ]
    assert width[0] > width[1]
    # from the page cache the host's copies bound the engine's loader, the link a parallel one
    cached = Start(node="ready", weights="tmpfs")
    copied = phases(cached, gb=64, devices=1)["weights"]
    assert 64e9 / copied < start_numbers().copy_bytes_per_s.value
    linked = phases(cached.model_copy(update={"loader": "instanttensor"}), gb=64, devices=1)
    assert 64e9 / linked["weights"] < link_bytes_per_s(device_profile("h100-sxm"))
    assert phases(graphs=0.25)["graphs"] == pytest.approx(phases()["graphs"] / 4)


def test_shipped_numbers_hold_the_published_starts():
    score = cold_start_errors(published_starts(), "total")
    assert score.median <= 0.25
    assert 0.7 <= score.covered <= 0.95
    assert cold_start_errors(published_starts(), "engine init").median <= 0.35
    # ai-dynamo/snapshot, Qwen 2.5 72B: 97.8 s on a B200, weights on NFS, empty caches
    answer = start(Start(node="ready", weights="superpod-good"), "vllm", 145.4, 1, "b200-sxm")
    assert answer.low_s < 97.8 < answer.high_s
    # vLLM's sleep mode, level 1: 61.1 GB in 2.87 s and 236 GB on four A100 in 5.41 s
    for gb, devices, seconds in ((61.1, 1, 2.87), (236, 4, 5.41)):
        asleep = Start(node="ready", wake="sleep-1")
        answer = start(asleep, "vllm", gb, devices, "a100-sxm-80gb")
        assert answer.low_s / 1.2 < seconds < answer.high_s * 1.2


def test_phases_and_savings_add_up_and_bands_hold_them():
    answer = start(Start())
    assert sum(part.seconds for part in answer.phases) == pytest.approx(answer.seconds)
    assert answer.low_s < answer.seconds < answer.high_s
    assert all(part.low_s <= part.seconds <= part.high_s for part in answer.phases)
    names = [part.name for part in answer.phases]
    assert names.index("node") < names.index("image") < names.index("weights")
    assert set(names) - set(phases()) == {"node", "device plugin", "image", "download"}
    for saving in answer.savings:
        field, value = saving.change.split(": ")
        if field in ("weights", "loader", "wake"):
            difference = answer.seconds - start(Start(**{field: value})).seconds
            assert saving.seconds_saved == pytest.approx(difference)


def test_faster_places_more_devices_fewer_weights_eager_mode_and_caches_start_sooner():
    for places in (("ebs-gp3", "nvme"), ("nvme", "tmpfs"), ("hub", "s3")):
        slow, fast = (Start(node="ready", weights=name, loader="streamer") for name in places)
        assert start(fast).seconds < start(slow).seconds
    assert start(gb=10).seconds < start(gb=100).seconds < start(gb=1000).seconds
    assert phases(devices=8)["weights"] < phases(devices=1)["weights"]
    assert {"hub", "tmpfs", "peer", "nvme", "ebs-gp3"} <= set(place_names())
    with pytest.raises(InputError, match="nvme"):
        start(Start(node="ready", weights="nvm"))
    with pytest.raises(InputError, match="weights_bytes"):
        start(gb=-1)
    assert not {"compilation", "graphs"} & set(phases(eager=True))
    cached = phases(Start(node="ready", compile_cache=True), weight_dtype="fp8")
    assert "kernels" not in cached
    assert "kernels" in phases(weight_dtype="fp8")
    process = next(part for part in start(name="tensorrt-llm").phases if part.name == "process")
    assert process.basis.startswith("assumed")
    assert start_numbers().engines["vllm"].status == "measured"


@pytest.mark.parametrize("gb", [1, 16, 140, 700])
def test_a_start_is_given_more_time_than_it_takes(gb):
    """Above the far end of its band; network file systems count where engines read in streams."""
    rates, late = startup_rates(), []
    for name in engine_names():
        module = (engine(name).wraps or engine(name).launcher or name).replace("-", "_")
        base_s = import_module(f"recipe_core.launch.serving.{module}").STARTUP_TIMEOUT_S
        for place in ("hub", "disk", *(["efs"] if engine_start(name).prefetches else [])):
            answer = start(Start(node="ready", weights=place), name=name, gb=gb, devices=8)
            limit = base_s + gb * 1e9 / rates.read_bytes_per_s.value
            limit += gb * 1e9 / rates.fetch_bytes_per_s.value if place == "hub" else 0
            late += [] if answer.high_s <= limit else [(name, place, answer)]
    assert late == []
