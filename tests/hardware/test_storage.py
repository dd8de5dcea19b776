"""Storage tiers: files with sources, and what nodes reach of them."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from recipe_core import estimate
from recipe_core.base.errors import HardwareError, InputError
from recipe_core.hardware.cluster import device
from recipe_core.hardware.microbench.disk import measure_disk
from recipe_core.hardware.storage import measured_tier, storage_names, storage_tier


@pytest.mark.parametrize("name", storage_names())
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


def test_a_shared_tier_stops_growing_and_local_drives_do_not():
    nodes = np.array([1.0, 10.0, 1000.0])
    assert storage_tier("superpod-better").read_rate(nodes).tolist() == [8e9, 80e9, 160e9]
    assert storage_tier("superpod-better").write_rate(nodes).tolist() == [4e9, 40e9, 80e9]
    assert storage_tier("nvme").write_rate(nodes).tolist() == [3.5e9, 35e9, 3500e9]


def test_an_unknown_tier_is_named():
    with pytest.raises(HardwareError) as caught:
        storage_tier("superpod-bester")
    assert caught.value.field == "workload.storage"
    assert "superpod-best" in caught.value.hint


LLAMA = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "hardware": {"device": "h100-sxm", "per_node": 8, "nodes": 4},
    "workload": {
        "kind": "training",
        "sequence_length": 4096,
        "global_batch": 128,
        "tokens": 1e10,
    },
    "candidate": {"engine": "torchtitan", "dp": 32, "zero_stage": 3},
}


def best(workload=(), **parts):
    request = {**LLAMA, **parts, "workload": {**LLAMA["workload"], **dict(workload)}}
    return estimate(request)


def test_checkpoints_are_written_at_the_rate_of_the_tier():
    size = best().run.checkpoint_bytes
    good, local = best({"storage": "superpod-good"}), best({"storage": "nvme-raid8"})
    assert good.run.checkpoint_s == pytest.approx(size / (4 * 2e9))
    assert local.run.checkpoint_s == pytest.approx(size / (4 * 28e9))
    with pytest.raises(InputError, match="storage_bytes_per_s"):
        best({"storage": "superpod-good", "storage_bytes_per_s": 1e9})


def test_a_step_waits_for_what_the_tier_cannot_read_in_time():
    """EFS gives four nodes 6.3 GB/s; at 1 MB a token a step of 524,288 tokens needs 524 GB."""
    heavy = {"bytes_per_token": 1e6}
    free = best({"loading": heavy}).step_s.value
    waits = best({"loading": heavy, "storage": "efs"}).step_s.value
    assert waits == pytest.approx(128 * 4096 * 1e6 / (4 * 1_572_864_000), rel=0.01)
    assert waits > 10 * free
    assert best({"storage": "efs"}).step_s.value == best().step_s.value


def test_the_measured_disk_of_a_profile_counts_where_no_tier_is_named():
    own = {
        "schema_version": 1,
        "name": "my-h100",
        "title": "ours",
        "based_on": "h100-sxm",
        "disk": {
            "read_bytes_per_s": {"value": 5e9, "source": "ours", "status": "measured"},
            "write_bytes_per_s": {"value": 1e9, "source": "ours", "status": "measured"},
            "window_reads_per_s": {"value": 2e4, "source": "ours", "status": "measured"},
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


def test_an_unknown_tier_in_a_request_is_named():
    with pytest.raises(HardwareError, match="superpod-worst"):
        best({"storage": "superpod-worst"})


def test_a_disk_is_measured_and_left_clean(tmp_path):
    rates = measure_disk(tmp_path, size=1 << 25, seconds=3.0)
    assert 1 << 24 <= rates.size_bytes <= 1 << 25
    assert 1e5 < rates.write_bytes_per_s < 1e12
    assert 1e5 < rates.read_bytes_per_s < 1e12
    assert rates.window_reads_per_s > 1
    assert list(tmp_path.iterdir()) == []


def test_time_bounds_what_is_measured(tmp_path):
    rates = measure_disk(tmp_path, size=1 << 28, seconds=0.0)
    assert rates.size_bytes < 1 << 26
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(100, 70, 1 << 25))
    with pytest.raises(InputError) as caught:
        measure_disk(tmp_path, size=1 << 25)
    assert "32 MiB free; the benchmark writes 32 MiB and leaves as much" in str(caught.value)
    assert (caught.value.field, list(tmp_path.iterdir())) == ("disk", [])


@pytest.mark.parametrize(
    ("folder", "size", "says"),
    [("missing", 1 << 25, "is not a folder"), (".", 1 << 20, "too few to measure a disk")],
)
def test_what_cannot_be_measured_is_named(tmp_path, folder, size, says):
    with pytest.raises(InputError, match=says):
        measure_disk(tmp_path / folder, size=size)


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.write", full)
    with pytest.raises(InputError, match="No space left on device"):
        measure_disk(tmp_path, size=1 << 25)
    assert list(tmp_path.iterdir()) == []
