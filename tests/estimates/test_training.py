"""Training: steps, runs and plans; memory and exchanges by published facts (models: test_trace)."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from oracle.training import fsdp_traffic
from recipe_core.base.units import GIB
from recipe_core.estimates.columns.training import SCHEDULES, training_cases
from recipe_core.estimates.training.activations import in_flight, layer_bytes
from recipe_core.estimates.training.memory import training_memory
from recipe_core.estimates.training.phases import decide_loss_chunks, elastic_nodes, next_smaller
from recipe_core.estimates.training.run import goodput, interval_s
from recipe_core.estimates.training.schedule import bubble_micro_batches, training_step_parts
from recipe_core.estimates.training.stages import stage_layer_counts
from recipe_core.plans.plans import plan_candidate, plan_splits
from recipe_core.plans.problem import resolve_problem
from recipe_core.plans.rank import front_of_columns
from recipe_core.plans.training_candidates import shared_columns
from recipe_core.plans.training_settings import training_settings
from recipe_core.request.schema import PlanRequest
from tests.fixtures.catalogues import table
from tests.fixtures.rows import over
from tests.fixtures.training import training_answer as answer
from tests.fixtures.training import training_columns as cases
from tests.fixtures.training import training_request
from tests.fixtures.training import training_setting as setting
from tests.fixtures.training import training_values as values

SPLIT = {"engine": "megatron", "tp": 2, "pp": 4, "dp": 8, "zero_stage": 1, "micro_batch": 1}
SPLIT |= {"recompute": "none"}


def test_young_dalys_interval_loses_least():
    """sqrt(2 · write · MTBF); longer and shorter ones waste more."""
    write, mtbf = np.array([60.0]), np.array([36_000.0])
    best = interval_s(write, mtbf)
    assert best[0] == pytest.approx(np.sqrt(2 * 60 * 36_000))
    kept = [goodput(write, best * factor, mtbf, 600.0)[0] for factor in (0.25, 1.0, 4.0)]
    assert max(kept) == kept[1] > 0.9
    # 16,384 devices with the default MTBF: 419 interruptions in 54 days (arXiv:2407.21783)
    assert pytest.approx(419, rel=0.01) == 54 * 86400 / (1.824e8 / 16384)


def test_a_plan_ranks_by_throughput_has_a_front_and_chooses_what_is_left_open():
    table = plan_splits(training_request(nodes=1, global_batch=64))
    view = table.to_json(5)["candidates"]
    rates = [each["estimate"]["training"]["tokens_per_s"] for each in view]
    assert rates == sorted(rates, reverse=True)
    front = np.flatnonzero(front_of_columns(table, "peak_memory_bytes", "tokens_per_s"))
    memory, rate = (table.columns[name] for name in ("peak_memory_bytes", "tokens_per_s"))
    assert len(front) > 2
    assert (np.diff(rate[front[np.argsort(memory[front])]]) > 0).all()
    assert np.max(rate[front]) == np.max(rate[table.certain])
    asked = training_request({"tp": 2, "recompute": "full"}, nodes=1, global_batch=64)
    table, row = plan_candidate(asked)
    chosen = table.candidate(row)
    assert (chosen["tp"], chosen["recompute"]) == (2, "full")
    assert table.feasible[row]


def test_the_fewest_devices_that_train_a_model_are_found_or_the_nearest_is_named():
    value = values(nodes=2, global_batch=64) | {"objective": {"optimize": "gpus"}}
    first = plan_splits(PlanRequest.parse(value)).to_json(1)["candidates"][0]["candidate"]
    assert 1 < first["tp"] * first["pp"] * first["cp"] * first["dp"] <= 4
    # a 70B model on one node: not with AdamW's states on the devices, but on more nodes
    value = values(model="meta-llama/Llama-3.1-70B", sequence_length=4096, global_batch=64)
    value |= {"hardware": {"device": "a100-sxm-40gb"}, "options": {"nodes": "all"}}
    view = plan_splits(PlanRequest.parse(value)).to_json(3)
    assert not view["candidates"]
    assert all("memory" in reason or "needs" in reason for reason in view["nearest"]["reasons"])
    nodes = [change["set"].get("hardware.nodes", 1) for change in view["nearest"]["changes"]]
    assert max(nodes) > 1


def test_a_loss_is_made_in_pieces_beside_rows_that_fit():
    """Columns with and without a pipeline: only what did not fit is computed again."""
    asked = resolve_problem(training_request({"engine": "torchtitan"}, 1))
    columns = {"pp": np.array([1, 2, 1]), "dp": np.array([8, 4, 8]), "recompute": 2}
    columns |= {"micro_batch": np.array([16, 1, 1]), "zero_stage": 3}
    setting = training_settings(asked)[0]
    cases = training_cases(3, **columns, **shared_columns(asked, asked.cluster))
    cases, mem = decide_loss_chunks(setting, cases)
    assert cases.fused_loss.tolist() == [1, 0, 0]
    again = training_memory(setting, cases)
    assert np.array_equal(mem.peak_bytes, again.peak_bytes)
    assert np.array_equal(mem.by_stage, again.by_stage, equal_nan=True)


def test_parts_make_the_step_and_the_run():
    got = answer(SPLIT, tokens=1e12)
    step, run, memory = got["training"], got["run"], got["memory"]
    assert got["feasible"]
    assert len(step["memory_by_stage_bytes"]) == 4
    assert step["peak_memory_bytes"] == memory["total_bytes"]
    stage = memory["stages"][memory["fullest_stage"]]
    assert sum(stage.values()) == pytest.approx(memory["total_bytes"])
    # 6 · 7.5 G (without the lookup) and causal attention, 6 · 32 · 4,096 · 8,192
    per_token = step["flops_per_s_per_gpu"] / step["tokens_per_s_per_gpu"]
    flops = 6 * (8.030e9 - 128256 * 4096) + 6 * 32 * 4096 * 8192
    assert per_token == pytest.approx(flops, rel=1e-3)
    assert step["mfu"] == pytest.approx(step["flops_per_s_per_gpu"] / 989.4e12, rel=1e-3)
    assert run["steps"] == np.ceil(1e12 / (256 * 8192))
    assert run["wall_s"] == pytest.approx(run["steps"] * step["step_s"] / run["goodput"])
    assert got["cost"]["usd"] == pytest.approx(got["cost"]["usd_per_hour"] * run["wall_s"] / 3600)
    assert run["checkpoint_bytes"] == pytest.approx(14 * 8.03e9, rel=1e-3)
    assert answer(SPLIT)["run"]["wall_s"] is None


def test_a_batch_is_kept_where_nodes_fail_and_fp16_gradients_count():
    """256 sequences over 8 replicas a node: 8, 4, 2 or 1 nodes, and no others."""
    eight = cases(1, dp=64, global_batch=256, nodes=8)
    assert elastic_nodes(eight, 1, 0) == [1, 2, 4, 8]
    assert [next_smaller(eight, least)[0] for least in (1, 5)] == [4, 0]
    # Megatron Core's distributed optimizer: 4 + 16/d with fp16 gradients
    memory = answer(SPLIT | {"tp": 8, "pp": 1, "precision": "fp16"})["memory"]
    parts = ("parameters", "gradients", "optimizer", "master")
    states = sum(memory[f"{part}_bytes"] for part in parts)
    assert states == pytest.approx(8.03e9 / 8 * (4 + 16 / 8), rel=0.01)


def states(mem):
    """Bytes of what is kept from step to step."""
    parts = ("parameters", "gradients", "optimizer", "master")
    return np.asarray(sum(mem.parts[name][:, 0] for name in parts))


@over("engine stage fixed divided", table("physics.yaml", "states"))
def test_states_are_those_of_zeros_table(engine, stage, fixed, divided):
    chosen = setting(engine)
    kept = states(training_memory(chosen, cases(1, dp=8, zero_stage=stage)))[0]
    assert kept == pytest.approx(chosen.model.parameters * (fixed + divided / 8), rel=1e-6)


def test_fsdp_frees_16_bytes_a_parameter_and_context_parallel_ranks_share_them():
    """torchtitan's published rows fall by 15.0 to 15.4 GiB; the states are 14.0 of it."""
    few, many = states(training_memory(setting(), cases(2, dp=np.array([8, 128]), zero_stage=3)))
    assert (few - many) / GIB == pytest.approx(14.0, abs=0.1)
    # The same tokens a device take the same memory, however they are cut
    ranks = np.array([1, 2, 4, 8])
    peaks = training_memory(
        setting(), cases(4, cp=ranks, dp=8 // ranks, micro_batch=ranks, zero_stage=3)
    )
    assert peaks.peak_bytes == pytest.approx(np.full(4, peaks.peak_bytes[0]))


@over("model devices sequences tokens measured_gib", table("physics.yaml", "torchtitan"))
def test_torchtitans_published_rows(model, devices, sequences, tokens, measured_gib):
    shape = {"dp": devices, "zero_stage": 3, "recompute": 1, "micro_batch": sequences}
    peak = training_memory(
        setting(model=model), cases(1, sequence_length=tokens, **shape)
    ).peak_bytes[0]
    assert float(peak) / GIB == pytest.approx(measured_gib, rel=0.09)


@over("recompute sequences tokens gib", [(2, 1, 32768, 83.9), (1, 2, 8192, 77), (1, 2, 8192, 82.4)])
def test_a_loss_in_fp32_takes_three_times_as_much(recompute, sequences, tokens, gib):
    """Llama 3.1 8B before losses were compiled (llama3_h100_202412_torchtitan.md)."""
    chosen = setting()
    wide = chosen.framework.loss_bytes.model_copy(update={"value": 12.0})
    chosen = replace(chosen, framework=chosen.framework.model_copy(update={"loss_bytes": wide}))
    shape = {"dp": 8, "zero_stage": 3, "recompute": recompute, "micro_batch": sequences}
    mem = training_memory(chosen, cases(1, sequence_length=tokens, **shape))
    assert states(mem)[0] / GIB == pytest.approx(14.96, abs=0.05)
    assert float(mem.peak_bytes[0]) / GIB == pytest.approx(gib, rel=0.08)


def test_a_layer_keeps_what_saved_tensors_hooks_count():
    """8h + 4nd + 4kd + 4n + 8f bytes a token, 2f less if compiled, 8h more with unfused norms;
    eager attention keeps scores, and norms stay whole without sequence parallelism.
    """
    h, f, n, k = 4096, 14336, 32, 8
    expected = 8 * h + 4 * n * 128 + 4 * k * 128 + 4 * n + 8 * f
    layer = setting().model.layers[0]
    plain, eager, torch, deepspeed = (
        layer_bytes(chosen, cases(1), layer)[0]
        for chosen in (setting(), setting(attention="eager"), *map(setting, ("torch", "deepspeed")))
    )
    assert plain == expected - 2 * f
    assert deepspeed == torch == expected + 8 * h
    assert eager - plain == 5 * 32 * 8192
    both = layer_bytes(setting(), cases(2, tp=8, sequence_parallel=np.array([1, 0])), layer)
    # DTensor keeps what products take in as it was gathered
    assert both[1] - both[0] == 4 * 4096 * (1 - 1 / 8)


@over("schedule chunks first last bubble", table("physics.yaml", "in_flight"))
def test_micro_batches_in_flight_and_bubbles(schedule, chunks, first, last, bubble):
    split = {"pp": 4, "dp": 8, "virtual_stages": chunks, "schedule": SCHEDULES.index(schedule)}
    assert in_flight(cases(1, **split))[0, [0, 3]] == pytest.approx([first, last])
    assert bubble_micro_batches(cases(1, **split))[0] == pytest.approx(bubble)


def test_interleaved_stages_hold_more_than_1f1b_and_the_last_the_logits():
    """Measured by Primus: 16.26 GiB against 21.40."""
    chunks = np.array([1, 4])
    mem = training_memory(
        setting("deepspeed"), cases(2, pp=8, dp=8, virtual_stages=chunks, zero_stage=1)
    )
    first = mem.parts["activations"][:, 0]
    assert 1.1 < first[1] / first[0] < 1.3
    mem = training_memory(setting("megatron"), cases(1, pp=4, dp=8))
    assert mem.parts["loss"][0, 3] == 2 * 8192 * 128256
    assert not mem.parts["loss"][0, :3].any()
    assert np.nanargmax(mem.parts["activations"][0]) == 0


def test_a_fused_loss_less_state_and_adapters_save_memory():
    one = {"dp": 8, "zero_stage": 3}
    plain, fused = (
        training_memory(setting("deepspeed"), cases(1, **one, **more)).parts["loss"][0, 0]
        for more in ({}, {"fused_loss": 1})
    )
    assert fused == plain / 8
    sizes = [
        float(training_memory(setting(optimizer=name), cases(1, **one)).parts["optimizer"][0, 0])
        for name in ("adafactor", "adamw-8bit", "sgd", "muon", "adamw")
    ]
    assert sizes == sorted(sizes)
    # the peft library prints 41,943,040 for rank 16 beside every matrix
    few = {"method": "lora", "lora_targets": "attention"}
    lora, fewer, qlora = (
        training_memory(setting(**work), cases(1)).parts
        for work in ({"method": "lora"}, few, {"method": "qlora"})
    )
    assert lora["optimizer"][0, 0] / 8 == 41_943_040
    assert fewer["optimizer"][0, 0] / 8 == 13_631_488
    assert qlora["parameters"][0, 0] < 0.45 * lora["parameters"][0, 0]


def test_more_devices_and_recomputation_never_take_more_memory():
    sizes = np.array([2, 4, 8, 16, 64, 256])
    for split in ({"dp": sizes}, {"dp": np.full(3, 8), "recompute": np.arange(3)}):
        peaks = training_memory(
            setting(), cases(len(split["dp"]), zero_stage=3, **split)
        ).peak_bytes
        assert (np.diff(peaks) < 0).all()
    hybrid = states(
        training_memory(setting(), cases(2, dp=64, shard=np.array([8, 64]), zero_stage=3))
    )
    assert hybrid[0] == pytest.approx(8 * hybrid[1])
    # experts are divided over the ranks that share them
    chosen = setting("megatron", "mistralai/Mixtral-8x7B-v0.1")
    mem = training_memory(chosen, cases(2, dp=8, ep=np.array([1, 8]), zero_stage=1))
    alone, shared = mem.parts["parameters"][:, 0]
    assert shared < 0.2 * alone


def test_a_stage_with_the_head_alone_recomputes_nothing():
    """Gemma's vocabulary is so large that nanotron's last stages get no layers."""
    split = {"engine": "nanotron", "tp": 1, "pp": 4, "dp": 1, "micro_batch": 2}
    work = {"method": "lora", "sequence_length": 640, "global_batch": 16}
    work |= {"model": "google/gemma-3-270m-it", "hardware": {"device": "cpu", "per_node": 8}}
    kept, redone = (
        answer(split | {"recompute": how}, 1, **work)["memory"] for how in ("none", "full")
    )
    for stages in (kept["stages"], redone["stages"]):
        assert [stage["activations_bytes"] for stage in stages[2:]] == [0, 0]
    assert redone["total_bytes"] <= kept["total_bytes"]


FSDP = {"dp": 8, "zero_stage": 3, "global_batch": 8, "sequence_length": 4096}


def part(name, engine="torchtitan", stage=0, **columns):
    """Bytes of one part of one case."""
    return float(
        training_memory(setting(engine), cases(1, **(FSDP | columns))).parts[name][0, stage]
    )


@over("name engine columns size", table("physics.yaml", "moments"))
def test_parts_of_the_fullest_moment_have_these_bytes(name, engine, columns, size):
    assert part(name, engine, **columns) == pytest.approx(size, rel=1e-6)


def test_a_pipeline_keeps_gradients_whole():
    piped, alone = (
        part("gradients", stage=1, pp=4, global_batch=64, **split)
        for split in ({}, {"dp": 1, "shard": 1, "zero_stage": 0})
    )
    assert piped == pytest.approx(4 * setting().model.parameters / 4, rel=0.15)
    assert alone == piped


def test_further_micro_batches_keep_buffers_between_stages_and_with_gpipe_their_logits():
    """Of GPipe a log-softmax in fp32 and 16-bit logits, of a compiled loss only logits."""
    held = [part("activations", stage=1, pp=4, global_batch=8 * m) for m in (8, 9)]
    assert held[1] - held[0] == 3 * 2 * 4096 * 4096
    pipeline = {"stage": 1, "pp": 2, "recompute": 2, "schedule": SCHEDULES.index("gpipe")}
    for engine, each in (("torch", 6), ("torchtitan", 2)):
        held = [part("loss", engine, global_batch=8 * m, **pipeline) for m in (4, 5)]
        assert held[1] - held[0] == each * 4096 * 128256


@over("link columns size", table("physics.yaml", "fsdp_traffic"))
def test_ranks_exchange_what_they_gather_and_reduce(link, columns, size):
    sent = fsdp_traffic(setting(), cases(1, **(FSDP | columns)))[link][0, 0]
    assert sent == pytest.approx(size, rel=1e-5)


PIPELINE = {"sequence_length": 4096, "global_batch": 256}


def wide(engine, vocabulary=131072, **work):
    """The 8B model of nanotron's published runs, and the same with a small vocabulary."""
    config = table("small_models.yaml", "nanotron") | {"vocab_size": vocabulary}
    return setting(engine, config, **work)


def staged(chosen, n=1, **columns):
    return stage_layer_counts(chosen, cases(n, **(PIPELINE | columns)))


def test_stages_end_with_the_layer_that_passes_their_share_or_are_even():
    """The head is worth 2.2 layers: a stage of p ends with the first layer beyond 34.2/p."""
    for pp, first, last in ((2, 18, 14), (4, 9, 6), (32, 2, 0)):
        count, _, _ = staged(wide("nanotron"), pp=pp)
        assert (count[0, 0], count[0, pp - 1], count[0].sum()) == (first, last, 32)
    both, _, _ = staged(wide("nanotron"), 2, pp=np.array([2, 8]))
    assert both[0, :2].tolist() == [18, 14]
    assert np.isnan(both[0, 2:]).all()
    assert both[1].sum() == 32
    # stages are even without a heavy head and in chunks
    for engine, vocabulary, chunks in table("physics.yaml", "even_stages"):
        count, first, last = staged(wide(engine, vocabulary), pp=4, virtual_stages=chunks)
        assert (count[0] == 8).all()
        assert first[0].tolist() == [1, 0, 0, 0]
        assert last[0].tolist() == [0, 0, 0, 1]
    # 126 layers and both ends make 16 stages of 8 chunks (Llama 3: arXiv:2407.21783, section 3.3.2)
    llama = setting("megatron", "meta-llama/Llama-3.1-405B", 1024, global_batch=2048)
    count, _, _ = staged(llama, pp=16, virtual_stages=8, nodes=1024)
    assert count[0].tolist() == [7, *[8] * 14, 7]


@over("engine method", product(("torchtitan", "megatron", "nanotron"), ("pretrain", "lora")))
def test_pipelines_of_several_lengths_are_estimated_as_each_alone(engine, method):
    """Rows of stages end in NaN past the last one, in every part."""
    chosen, lengths = wide(engine, method=method), [8, 1, 32, 8]
    stages = np.array([0, 3, 3, 2])
    several = cases(4, pp=np.array(lengths), dp=2, zero_stage=stages, **PIPELINE)
    together, seconds = training_memory(chosen, several), training_step_parts(chosen, several)
    for i, pp in enumerate(lengths):
        one = several.take([i])
        alone = training_memory(chosen, one)
        for name, part_bytes in alone.parts.items():
            assert together.parts[name][i, :pp].tolist() == part_bytes[0].tolist()
            assert np.isnan(together.parts[name][i, pp:]).all()
        assert together.peak_bytes[i] == alone.peak_bytes[0] == together.by_stage[i, :pp].max()
        own = {name: part_s[0] for name, part_s in training_step_parts(chosen, one).items()}
        assert {name: part_s[i] for name, part_s in seconds.items()} == own


def test_no_part_of_a_peak_is_below_zero_where_activations_wait_on_the_host():
    shapes = product((1, 2, 4), (1, 4, 8), (64, 768), (0, 1))
    pp, tp, length, offload = (np.array(column) for column in zip(*shapes, strict=True))
    columns = {"pp": pp, "tp": tp, "sequence_length": length, "activation_offload": offload}
    found = training_memory(setting("unsloth"), cases(len(pp), recompute=2, **columns))
    for name, part in found.parts.items():
        assert not np.any(part < 0), name
