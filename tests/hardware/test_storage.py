"""Storage tiers: files with sources, and what nodes reach of them."""

import shutil

import numpy as np
import pytest

from recipe_core import estimate
from recipe_core.base.errors import HardwareError
from recipe_core.hardware.cluster import device
from recipe_core.hardware.microbench.disk import measure_disk
from recipe_core.hardware.storage import measured_tier, storage_names, storage_tier
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over


@over("name", storage_names())
def test_every_tier_states_what_nodes_reach(name):
    tier = storage_tier(name)
    for whole, per_node in (
        (tier.read_bytes_per_s, tier.read_bytes_per_s_per_node),
        (tier.write_bytes_per_s, tier.write_bytes_per_s_per_node),
    ):
        assert 1e9 <= per_node.value <= 2e11
        assert whole is None or whole.value >= 0.5 * per_node.value
    assert (tier.kind == "network") == (tier.read_bytes_per_s is not None)
    assert 1e-5 <= tier.latency_s.value < 1


LLAMA = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "hardware": {"device": "h100-sxm", "per_node": 8, "nodes": 4},
    "candidate": {"engine": "torchtitan", "dp": 32, "zero_stage": 3},
}
WORK = {"kind": "training", "sequence_length": 4096, "global_batch": 128, "tokens": 1e10}


def best(workload=(), **parts):
    return estimate({**LLAMA, **parts, "workload": {**WORK, **dict(workload)}})


def test_checkpoints_are_written_at_the_rate_of_the_tier():
    size = best().run.checkpoint_bytes
    good, local = best({"storage": "superpod-good"}), best({"storage": "nvme-raid8"})
    assert good.run.checkpoint_s == pytest.approx(size / (4 * 2e9))
    assert local.run.checkpoint_s == pytest.approx(size / (4 * 28e9))
    both = {"storage": "superpod-good", "storage_bytes_per_s": 1e9}
    assert "storage_bytes_per_s" in str(refusal(best, both))
    error = refusal(storage_tier, "superpod-bester", kind=HardwareError)
    assert (error.field, "superpod-best" in error.hint) == ("workload.storage", True)
    unknown = refusal(best, {"storage": "superpod-worst"}, kind=HardwareError)
    assert "superpod-worst" in str(unknown)
    # a shared tier stops growing, local drives do not
    nodes = np.array([1.0, 10.0, 1000.0])
    assert storage_tier("superpod-better").read_rate(nodes).tolist() == [8e9, 80e9, 160e9]
    assert storage_tier("superpod-better").write_rate(nodes).tolist() == [4e9, 40e9, 80e9]
    assert storage_tier("nvme").write_rate(nodes).tolist() == [3.5e9, 35e9, 3500e9]


def test_a_step_waits_for_what_the_tier_cannot_read_in_time():
    """EFS gives four nodes 6.3 GB/s; at 1 MB a token a step of 524,288 tokens needs 524 GB."""
    heavy = {"bytes_per_token": 1e6}
    free = best({"loading": heavy}).step_s.value
    waits = best({"loading": heavy, "storage": "efs"}).step_s.value
    assert waits == pytest.approx(128 * 4096 * 1e6 / (4 * 1_572_864_000), rel=0.01)
    assert waits > 10 * free
    assert best({"storage": "efs"}).step_s.value == best().step_s.value


def test_the_measured_disk_of_a_profile_counts_where_no_tier_is_named():
    rates = {"read": ("bytes", 5e9), "write": ("bytes", 1e9), "window": ("reads", 2e4)}
    figure = {"source": "ours", "status": "measured"}
    own = {
        "schema_version": 1,
        "name": "my-h100",
        "title": "ours",
        "based_on": "h100-sxm",
        "disk": {
            f"{what}_{unit}_per_s": {"value": value, **figure}
            for what, (unit, value) in rates.items()
        },
        "sources": {"ours": {"title": "recipe profile --disk", "date": "2026-11-26"}},
    }
    hardware = {**LLAMA["hardware"], "device": own}
    size = best().run.checkpoint_bytes
    assert best(hardware=hardware).run.checkpoint_s == pytest.approx(size / 4e9)
    named = best({"storage": "nvme"}, hardware=hardware)
    assert named.run.checkpoint_s == pytest.approx(size / (4 * 3.5e9))
    stated = best({"storage_bytes_per_s": 1e9}, hardware=hardware)
    assert stated.run.checkpoint_s == pytest.approx(size / 1e9)
    assert measured_tier(device(own)).latency_s.value == pytest.approx(5e-5)
    assert measured_tier(device("h100-sxm")) is None


def test_a_disk_is_measured_in_bounded_time_and_left_clean(tmp_path):
    rates = measure_disk(tmp_path, size=1 << 25, seconds=3.0)
    assert 1 << 24 <= rates.size_bytes <= 1 << 25
    assert 1e5 < rates.write_bytes_per_s < 1e12
    assert 1e5 < rates.read_bytes_per_s < 1e12
    assert rates.window_reads_per_s > 1
    assert measure_disk(tmp_path, size=1 << 28, seconds=0.0).size_bytes < 1 << 26
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_measured_is_named_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    assert "is not a folder" in str(refusal(measure_disk, tmp_path / "missing", size=1 << 25))
    assert "too few to measure a disk" in str(refusal(measure_disk, tmp_path, size=1 << 20))
    with monkeypatch.context() as patch:
        usage = shutil._ntuple_diskusage(100, 70, 1 << 25)
        patch.setattr("shutil.disk_usage", lambda _: usage)
        error = refusal(measure_disk, tmp_path, size=1 << 25)
    assert "32 MiB free; the benchmark writes 32 MiB" in str(error)
    assert (error.field, list(tmp_path.iterdir())) == ("disk", [])
    monkeypatch.setattr("os.write", full)
    assert "No space left on device" in str(refusal(measure_disk, tmp_path, size=1 << 25))
    assert list(tmp_path.iterdir()) == []
