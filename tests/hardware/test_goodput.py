"""Time beyond the step: phases, evaluations, storage, failures, spares; against published runs."""

import math
import shutil
from unittest.mock import Mock

import numpy as np
import pytest

from recipe_core.base.errors import HardwareError
from recipe_core.estimates.training.run import erlang_b
from recipe_core.hardware.cluster import device_profile
from recipe_core.hardware.failures import NODE_DAYS_HOURS, failure_file, node_failures
from recipe_core.hardware.host import measured_tier, storage_names, storage_tier
from recipe_core.hardware.microbench.disk import measure_disk
from recipe_core.launch.start import training_launch
from recipe_core.plans.launch_rules import launch_lacks
from recipe_core.plans.plan_json import plan_launch_note
from recipe_core.plans.plans import plan_candidate, plan_splits
from recipe_core.plans.splits import row_estimates, row_reasons
from recipe_core.request.link import from_query, to_query
from recipe_core.request.schema import PlanRequest
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

SPLIT = {"engine": "megatron", "tp": 8, "pp": 1, "dp": 8, "micro_batch": 1, "recompute": "full"}
RUN = {"kind": "training", "sequence_length": 8192, "global_batch": 256, "tokens": 1e12}
OFTEN = {"device_mtbf_hours": 500.0, "repair_s": 36_000.0}
"""64 devices that fail every 8 hours together, each for 10 hours."""
RAMP = [{"tokens": 1e11, "global_batch": 128}, {"tokens": 9e11}]
STEADY = [{"tokens": 1e11, "global_batch": batch} for batch in (64, 128, 192)] + [{"tokens": 7e11}]


def request(candidate=None, hardware=None, model="meta-llama/Llama-3.1-8B", **workload):
    """Llama 3.1 8B on 64 H100."""
    value = {
        "model": model,
        "hardware": {"device": "h100-sxm", "nodes": 8, "usd_per_device_hour": 2} | (hardware or {}),
        "workload": {name: field for name, field in (RUN | workload).items() if field is not None},
    }
    return PlanRequest.parse(value | {"candidate": SPLIT | (candidate or {})})


def answer(*args, **workload):
    table, row = plan_candidate(request(*args, **workload))
    return table.estimate(row).to_json()


def run_of(*args, **workload):
    return answer(*args, **workload)["run"]


def test_llama_3_405b_is_interrupted_as_often_and_trains_over_nine_tenths_of_the_time():
    """54 days: 419 unexpected interruptions, over 90 % effective (arXiv:2407.21783, 3.3.4)."""
    split, hardware = {"pp": 16, "dp": 128, "zero_stage": 1}, {"nodes": 2048}
    workload = {"global_batch": 2048, "storage": "tectonic"}
    run = run_of(split, hardware, "meta-llama/Llama-3.1-405B", **workload)
    assert 54 * 86400 / run["mtbf_s"] == pytest.approx(419, rel=0.01)
    assert 0.90 < run["goodput"] < 0.95
    assert run["time_shares"]["restarts"] > run["time_shares"]["checkpoints"]


@over("source, per_1000_node_days, devices, hours", table("goodput", "published"))
def test_published_rates_give_published_times(source, per_1000_node_days, devices, hours):
    """RSC-1, FT-HSDP, B200; mean time to failure = 1 / (nodes · rate), as Meta projects it."""
    nodes, stated = devices // 8, 8 * NODE_DAYS_HOURS / per_1000_node_days
    run = run_of({"dp": nodes}, {"nodes": nodes}, global_batch=nodes, device_mtbf_hours=stated)
    assert run["mtbf_s"] / 3600 == pytest.approx(hours, rel=0.03)


def test_failures_and_slow_nodes_are_those_of_fleets_unless_stated():
    for name, architecture in (("h100-sxm", "sm_90"), ("a100-sxm-80gb", "sm_80")):
        fleet = node_failures(architecture).mtbf_hours
        assert run_of({}, {"device": name})["mtbf_s"] == pytest.approx(fleet * 3600 / 8)
    assert run_of(device_mtbf_hours=6400.0)["mtbf_s"] == pytest.approx(100 * 3600)
    # a failure of a fleet takes a node away in some cases only: a restart ends most of them
    waits = run_of(repair_s=86_400.0)["time_shares"]["waiting"]
    mtbf_hours = node_failures("sm_90").mtbf_hours * 8
    all_wait = run_of(repair_s=86_400.0, device_mtbf_hours=mtbf_hours)["time_shares"]["waiting"]
    assert waits / all_wait == pytest.approx(failure_file().repair.drained_share.value, rel=0.1)
    # spares without a repair time assume a day
    day = run_of(spare_nodes=1, device_mtbf_hours=500.0, repair_s=86_400.0)
    assert run_of(spare_nodes=1, device_mtbf_hours=500.0) == day
    # MegaScale: 0.5 % of the machines of 12,288 GPUs are a tenth slower; one of 1,536 surely is
    share = failure_file().slow_nodes.share.value
    large = {"dp": 1536}, {"nodes": 1536, "device": "a100-sxm-80gb"}
    kept = run_of(*large, global_batch=1536, slow_node_share=share)
    gone = run_of(*large, global_batch=1536)
    assert gone["goodput"] / kept["goodput"] == pytest.approx(1.1, rel=1e-3)
    few = run_of(slow_node_share=share)["time_shares"]
    assert few["slow_nodes"] / few["steps"] == pytest.approx(0.1 * (1 - 0.995**8))


def test_erlangs_formula_and_the_loss_system_simulated():
    """Tabulated values: B(1, 1) = 1/2, B(2, 1) = 1/5, B(10, 5) = 1.84 %."""
    loads = np.array([1.0, 5.0])
    assert erlang_b(1, loads)[0] == pytest.approx(0.5)
    assert erlang_b(2, loads)[0] == pytest.approx(0.2)
    assert erlang_b(10, loads)[1] == pytest.approx(0.01838, rel=1e-3)
    assert erlang_b(0, loads).tolist() == [1.0, 1.0]
    # two spares, repairs of an exponential time: the share of time that three nodes are away
    rng, away, clock, waited, repair = np.random.default_rng(1), 0, 0.0, 0.0, 3.0
    for _ in range(200_000):
        rate = (1.0 if away < 3 else 0.0) + away / repair
        step = rng.exponential(1 / rate)
        waited, clock = waited + (step if away == 3 else 0.0), clock + step
        away += 1 if away < 3 and rng.random() < 1 / rate else -1
    assert waited / clock == pytest.approx(erlang_b(3, np.array([repair]))[0], rel=0.02)
    often = {"device_mtbf_hours": 64.0, "repair_s": 3 * 3600.0, "spare_nodes": 2}
    shares = run_of(**often, restart_s=1e-6, storage_bytes_per_s=1e18)["time_shares"]
    running = 1 - shares["waiting"] - shares["lost_work"] - shares["restarts"]
    waiting = shares["waiting"] / (shares["waiting"] + running)
    assert waiting == pytest.approx(erlang_b(3, np.array([3.0]))[0], rel=0.01)


def test_spares_never_lower_goodput_and_shares_of_time_add_up():
    runs = [answer(spare_nodes=spares, **OFTEN) for spares in range(6)]
    kept = [found["run"]["goodput"] for found in runs]
    suffice = [found["run"].get("spares_suffice") or 0.0 for found in runs]
    assert (kept, suffice) == (sorted(kept), sorted(suffice))
    assert suffice[5] > 0.99
    assert [found["cost"]["devices_rented"] for found in runs] == [64 + 8 * n for n in range(6)]
    costs = [found["cost"]["usd"] for found in runs]
    assert 0 < costs.index(min(costs)) < 5  # neither none nor all of them
    for field, values in (("device_mtbf_hours", (5e4, 5e3, 5e2)), ("repair_s", (0.0, 1e4, 1e5))):
        kept = [run_of(**(OFTEN | {field: value}))["goodput"] for value in values]
        assert kept == sorted(kept, reverse=True)
        assert kept[0] > kept[-1]
    evaluation = {"every_steps": 100, "tokens": 1e7}
    rare = {"evaluation": evaluation, "spare_nodes": 1, "slow_node_share": 0.01}
    run = run_of(**rare, time_limit_s=86_400, **OFTEN)
    assert sum(run["time_shares"].values()) == pytest.approx(1)
    assert all(share > 0 for share in run["time_shares"].values())
    assert run["time_shares"]["steps"] == run["goodput"]
    assert run["failures"] == pytest.approx(run["wall_s"] / run["mtbf_s"])


def test_a_tier_of_storage_writes_and_reads_checkpoints_in_the_best_interval():
    slow, fast = run_of(storage="efs"), run_of(storage="superpod-best")
    read_s = slow["checkpoint_bytes"] / storage_tier("efs").read_rate(8)
    assert slow["restart_s"] == pytest.approx(600 + read_s, rel=1e-3)
    assert slow["goodput"] < fast["goodput"]
    assert run_of(storage="efs", restart_s=300.0)["restart_s"] == 300
    hows = ("synchronous", "asynchronous")  # a copy in the background costs less
    waits, copies = (run_of(storage="efs", checkpoints=how) for how in hows)
    assert copies["checkpoint_stall_s"] < 0.05 * waits["checkpoint_stall_s"]
    assert copies["time_shares"]["checkpoints"] < waits["time_shares"]["checkpoints"]
    # the chosen interval loses least
    for tier in ("efs", "nvme"):
        best = run_of(storage=tier)
        for interval in (0.5 * best["checkpoint_interval_s"], 2.0 * best["checkpoint_interval_s"]):
            assert run_of(storage=tier, checkpoint_interval_s=interval)["goodput"] < best["goodput"]
    free, paid = answer(), answer(storage_usd_per_gb_month=0.1, kept_checkpoints=10)
    months = paid["run"]["wall_s"] / 3600 / 730
    stored = 0.1 * 10 * paid["run"]["checkpoint_bytes"] / 1e9 * months
    assert paid["cost"]["usd_storage"] == pytest.approx(stored)
    assert paid["cost"]["usd"] == pytest.approx(free["cost"]["usd"] + stored)
    size = run_of()["checkpoint_bytes"]
    for tier, rate in (("superpod-good", 2e9), ("nvme-raid8", 28e9)):
        assert run_of(storage=tier)["checkpoint_s"] == pytest.approx(size / (8 * rate))
    # a shared tier stops growing, local drives do not
    nodes = np.array([1.0, 10.0, 1000.0])
    assert storage_tier("superpod-better").read_rate(nodes).tolist() == [8e9, 80e9, 160e9]
    assert storage_tier("superpod-better").write_rate(nodes).tolist() == [4e9, 40e9, 80e9]
    assert storage_tier("nvme").write_rate(nodes).tolist() == [3.5e9, 35e9, 3500e9]


def test_an_evaluation_takes_the_forward_third_of_as_many_steps():
    """Without recomputation a forward pass is a third of the passes, and half of their traffic."""
    shape, evaluation = {"recompute": "none"}, {"every_steps": 100, "tokens": 10 * 256 * 8192}
    found = answer(shape, evaluation=evaluation)
    run, step_s = found["run"], found["training"]["step_s"]
    assert 0.3 < run["evaluation_s"] / (10 * step_s) < 0.4
    shares, share = run["time_shares"], run["evaluation_s"] / (100 * step_s)
    assert shares["evaluation"] / shares["steps"] == pytest.approx(share)
    assert run_of(shape)["evaluation_s"] == 0


def test_phases_are_estimated_each_by_itself_and_plans_rank_by_the_whole_run():
    run, small = run_of(phases=RAMP), answer(global_batch=128, tokens=1e11)
    first, second = run["phases"]
    assert first["step_s"] == pytest.approx(small["training"]["step_s"])
    assert first["steps"] == small["run"]["steps"]
    assert run["steps"] == first["steps"] + second["steps"]
    assert run["wall_s"] == pytest.approx(first["wall_s"] + second["wall_s"])
    busy_s = first["steps"] * first["step_s"] + second["steps"] * second["step_s"]
    assert run["wall_s"] == pytest.approx(busy_s / run["goodput"])
    assert run["run_tokens_per_s"] == pytest.approx(1e12 / run["wall_s"])
    # one phase is a run without phases
    plain, phased = answer(), answer(phases=[{"tokens": 1e12}])
    assert phased["run"].pop("phases")[0]["tokens"] == 1e12
    of_phases, mfu = phased["run"].pop("mfu"), plain["run"].pop("mfu")
    assert of_phases == pytest.approx(mfu, rel=1e-5)  # its last step is not full
    assert phased == plain
    plain, ramped = run_of({"pp": 2, "dp": 4}), run_of({"pp": 2, "dp": 4}, phases=RAMP)
    assert ramped["wall_s"] > plain["wall_s"]
    assert ramped["mfu"] < plain["mfu"]
    # Llama 3's last phase: sequences of 131,072 tokens over 16 ranks.
    long = {"tokens": 1e11, "sequence_length": 131_072, "global_batch": 16, "cp": 8}
    phases = [{"tokens": 9e11}, long]
    last = run_of(phases=phases)["phases"][1]
    assert (last["cp"], last["dp"]) == (8, 1)
    alone = answer({"cp": 8, "dp": 1}, sequence_length=131_072, global_batch=16)["training"]
    peak = answer(phases=phases)["training"]["peak_memory_bytes"]
    assert last["step_s"] == pytest.approx(alone["step_s"])
    assert [last["peak_memory_bytes"], peak] == pytest.approx([alone["peak_memory_bytes"]] * 2)
    value = request(phases=RAMP, spare_nodes=1).to_json()
    value["candidate"] = None
    table = plan_splits(PlanRequest.parse(value | {"options": {"nodes": "all"}}))
    first, second = (table.estimate(int(row)).run for row in table.order[:2])
    assert first.run_tokens_per_s >= second.run_tokens_per_s
    columns = [table.columns[name][table.order[0]] for name in ("goodput", "wall_s", "run_mfu")]
    assert columns == pytest.approx([first.goodput, first.wall_s, first.mfu])
    assert {"goodput", "wall", "usd_run"} <= set(table.shown.tabled) & set(table.shown.listed)


@over("phases, said", table("goodput", "not_run"))
def test_a_split_has_to_run_in_every_phase(phases, said):
    found, row = plan_candidate(request({"recompute": "none"}, phases=phases))
    (reason,) = row_reasons(found, row)
    assert said in reason


def test_a_wrong_field_is_named_with_the_fix():
    for workload, field, text in table("goodput", "a_wrong_field_is_named_with_the_fix"):
        error = refusal(request, **workload)
        assert (error.field, text in str(error)) == (f"workload.{field}", True), workload
    error = refusal(answer, storage="nvm", kind=HardwareError)
    assert (error.field, "nvme" in str(error)) == ("workload.storage", True)
    phases = [{"tokens": 1e11, "sequence_length": 1_000_000}, {"tokens": 9e11}]
    assert refusal(answer, phases=phases).field == "workload.phases.0.sequence_length"
    # phases bring their tokens and travel in a link
    evaluation = {"every_steps": 10, "tokens": 1e6}
    asked = request(phases=RAMP, tokens=None, evaluation=evaluation, storage="nvme")
    assert asked.workload.tokens == 1e12
    again, ignored = from_query(to_query(asked))
    assert (again.workload, ignored) == (asked.workload, [])


def ramped(engine, phases):
    """The plan with phases on a framework, or on whichever can launch them."""
    value = request(phases=phases, tokens=None).to_json()
    split = SPLIT | {"zero_stage": 1, "recompute": "none", "engine": engine}
    value["candidate"] = {name: field for name, field in split.items() if field}
    return plan_candidate(PlanRequest.parse(value))[0]


def words_of(table):
    return training_launch(*row_estimates(table, 0)).processes[0].argv


def test_megatron_is_told_an_even_ramp_and_others_are_refused_by_name():
    """Batches of 64, 128, 192 for as many sequences each, then 256."""
    found = ramped(None, STEADY)
    assert found.setting(0).engine == "megatron"
    words, sequences = words_of(found), round(3e11 / 8192)
    place = words.index("--rampup-batch-size")
    assert words[place + 1 : place + 4] == ("64", "64", str(sequences))
    assert words[words.index("--train-samples") + 1] == str(math.ceil(1e12 / 8192))
    assert not {"--train-iters", "--lr-warmup-iters"} & set(words)
    # what Megatron makes of it: a ramp in equal parts that starts at the first batch
    increments = (256 - 64) // 64
    parts = [64 + 64 * int(seen / (sequences / increments)) for seen in (0, sequences // 2)]
    assert parts == [64, 128]
    for phases in table("goodput", "no_even_ramps"):
        assert "no even ramp" in plan_launch_note(ramped("megatron", phases))
    (lack,) = launch_lacks(ramped("torchtitan", STEADY).setting(0))
    assert lack.phrase == "a ramp of the batch"
    # phases of one shape are launched as one run
    whole = ramped("megatron", [{"tokens": 5e11}, {"tokens": 5e11}])
    words = words_of(whole)
    assert "--rampup-batch-size" not in words
    assert int(words[words.index("--train-iters") + 1]) == whole.estimate(0).run.steps


@over("name", storage_names())
def test_every_tier_states_what_nodes_reach(name):
    tier = storage_tier(name)
    for what in ("read", "write"):
        whole = getattr(tier, f"{what}_bytes_per_s")
        per_node = getattr(tier, f"{what}_bytes_per_s_per_node").value
        assert 1e9 <= per_node <= 2e11
        assert whole is None or whole.value >= 0.5 * per_node
    assert (tier.kind == "network") == (tier.read_bytes_per_s is not None)
    assert 1e-5 <= tier.latency_s.value < 1


def test_a_step_waits_for_the_tier_or_the_measured_disk_of_a_profile():
    """EFS gives eight nodes 12.6 GB/s; at 1 MB a token a step of 2 M tokens needs 2 TB."""
    heavy = {"loading": {"bytes_per_token": 1e6}}
    free, waits, plain, light = (
        answer(**work)["training"]["step_s"]
        for work in (heavy, heavy | {"storage": "efs"}, {}, {"storage": "efs"})
    )
    assert waits == pytest.approx(256 * 8192 * 1e6 / (8 * 1_572_864_000), rel=0.01)
    assert waits > 10 * free
    assert light == plain
    # the measured disk of a profile counts where no tier is named
    own = table("goodput", "own_device")
    size = run_of()["checkpoint_bytes"]
    for workload, rate in (
        ({}, 8 * 1e9),
        ({"storage": "nvme"}, 8 * 3.5e9),
        ({"storage_bytes_per_s": 2e9}, 2e9),
    ):
        assert run_of({}, {"device": own}, **workload)["checkpoint_s"] == pytest.approx(size / rate)
    assert measured_tier(device_profile(own)).latency_s.value == pytest.approx(5e-5)
    assert measured_tier(device_profile("h100-sxm")) is None


def test_a_disk_is_measured_in_bounded_time_and_left_clean_or_refused(tmp_path, monkeypatch):
    rates = measure_disk(tmp_path, size=1 << 25, seconds=3.0)
    assert 1 << 24 <= rates.size_bytes <= 1 << 25
    for rate in (rates.write_bytes_per_s, rates.read_bytes_per_s):
        assert 1e5 < rate < 1e12
    assert rates.window_reads_per_s > 1
    assert measure_disk(tmp_path, size=1 << 28, seconds=0.0).size_bytes < 1 << 26
    assert list(tmp_path.iterdir()) == []

    def refused(folder=tmp_path, size=1 << 25):
        error = refusal(measure_disk, folder, size=size)
        assert list(tmp_path.iterdir()) == []
        return error

    assert "is not a folder" in str(refused(tmp_path / "missing"))
    assert "too few to measure a disk" in str(refused(size=1 << 20))
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(100, 70, 1 << 25))
        error = refused()
    assert "32 MiB free; the benchmark writes 32 MiB" in str(error)
    assert error.field == "disk"
    full = OSError(28, "No space left on device")
    monkeypatch.setattr("os.write", Mock(side_effect=full))
    assert "No space left on device" in str(refused())
