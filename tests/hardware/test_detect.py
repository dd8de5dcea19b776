"""Detection on recorded-looking output of the vendors' tools: small programs on PATH print the
files of tests/data/hardware.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recipe_core.doors.cli import app
from recipe_core.hardware.cluster import cluster, device
from recipe_core.hardware.detect import machine as detection
from recipe_core.hardware.detect import tools
from recipe_core.hardware.detect.links import (
    islands,
    links,
    parse_amd_topo,
    parse_nvidia_topo,
    parse_rocm_topo,
)
from recipe_core.hardware.profile import Device
from recipe_core.hardware.request import HardwareRequest
from recipe_core.launcher import machine
from tests.fixtures.paths import DATA

HARDWARE = DATA / "hardware"


def tool(folder: Path, name: str, answers: dict[str, str | Path]) -> None:
    """A program that prints the first answer whose words are all among its arguments, and fails on
    any other call.
    """
    cases = "\n".join(
        f'  *{"*".join(words.split())}*) cat "{answer}"; exit 0;;'
        if isinstance(answer, Path)
        else f"  *{words}*) {answer};;"
        for words, answer in answers.items()
    )
    path = folder / name
    path.write_text(
        f'#!/bin/sh\ncase " $* " in\n{cases}\nesac\necho "unknown option $*" >&2; exit 2\n'
    )
    path.chmod(0o755)


def nvidia(folder: Path, name: str, topology: str | None = None) -> None:
    answers: dict[str, str | Path] = {
        "name,memory.total": HARDWARE / f"nvidia-smi-{name}.csv",
        "driver_version": HARDWARE / f"nvidia-smi-{name}-more.csv",
    }
    if topology:
        answers["topo -m"] = HARDWARE / topology
    tool(folder, "nvidia-smi", answers | {"  ": HARDWARE / "nvidia-smi-header.txt"})


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """An empty folder first on PATH; no visibility variables, no torch, no GPU of this machine."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("HIP_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(tools, "ask_torch", lambda notes: {})
    monkeypatch.setattr(machine, "read_kfd", lambda nodes: [])
    return tmp_path


def found_on(bench, request=None, **links_of):
    """What is found, which makes a request and a device file that are valid."""
    found = detection.detect()
    if request:
        assert found.request == {"hardware": {"nodes": 1} | request}
    cluster(HardwareRequest(**found.request["hardware"]))
    Device.model_validate(found.profile)
    fabric = f"\n  fabric: {found.links.fabric}" if found.links else ""
    assert detection.describe(found).endswith(f"nodes: 1{fabric}")
    for name, value in links_of.items():
        assert getattr(found.links, name) == value
    return found


def test_hgx_h100(bench, monkeypatch):
    nvidia(bench, "hgx-h100", "topo-hgx-h100.txt")
    whole = {"device": "h100-sxm", "per_node": 8, "fabric": "nvlink4"}
    found = found_on(bench, whole, kind="nvlink", domain=8, per_pair=18)
    assert (found.matched, found.count) == ("h100-sxm", 8)
    assert found.versions["driver"] == "570.133.20"
    assert found.versions["CUDA of the driver"] == "12.8"
    memory = {"value": 81559 << 20, "source": "machine", "status": "measured"}
    assert found.profile["memory_bytes"] == memory
    assert found.allocatable_memory_bytes["status"] == "assumed"
    assert found.allocatable_memory_bytes["value"] == pytest.approx(79.18 * 2**30, rel=1e-3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    found_on(bench, whole | {"per_node": 2})


def test_l40s_over_pcie_and_what_torch_says_a_process_gets(bench, monkeypatch):
    nvidia(bench, "l40s", "topo-l40s-pcie.txt")
    found_on(bench, {"device": "l40s", "per_node": 4, "fabric": "pcie4"}, kind="pcie")
    seen = {"cuda": "12.8", "hip": None, "devices": [["NVIDIA L40S", 47_697_362_944, "sm_89"]] * 4}
    monkeypatch.setattr(tools, "ask_torch", lambda notes: seen)
    found = detection.detect()
    assert found.allocatable_memory_bytes["value"] == 47_697_362_944
    assert found.allocatable_memory_bytes["status"] == "measured"
    assert found.versions["torch's CUDA"] == "12.8"


def test_bridged_pairs(bench):
    nvidia(bench, "h100-nvl", "topo-h100-nvl-pairs.txt")
    pairs = {"device": "h100-nvl", "per_node": 4, "fabric": "nvlink4-bridge"}
    found = found_on(bench, pairs, domain=2, per_pair=12)
    assert cluster(HardwareRequest(**found.request["hardware"])).beyond.name == "pcie5"


def test_an_unknown_device_is_not_guessed(bench):
    nvidia(bench, "v100", "topo-dgx1-mesh.txt")
    found = detection.detect()
    assert (found.matched, found.request) == (None, None)
    assert found.profile["memory_bytes"]["value"] == 32768 << 20
    assert found.profile["architecture"] == "sm_70"
    assert found.profile["tdp_watts"]["value"] == 300.0
    assert {"memory_bandwidth_bytes_per_s", "peak_flops_per_s", "node"} <= set(found.unknown)
    assert "partial mesh" in found.links.note
    assert "memory_bandwidth_bytes_per_s: no tool" in detection.describe(found)


def test_a_slice_of_a_known_card_is_no_match_and_two_kinds_are_said(bench):
    cards = bench / "cards.csv"
    tool(bench, "nvidia-smi", {"name,memory.total": cards})
    cards.write_text("NVIDIA H100 80GB HBM3, 40448\n")
    found = detection.detect()
    assert found.matched is None
    assert any("partition" in note for note in found.notes)
    cards.write_text("NVIDIA L4, 23034\nNVIDIA L40S, 46068\nNVIDIA L4, 23034\n")
    found = detection.detect()
    assert (found.matched, found.count) == ("l4", 2)
    assert any("1 × NVIDIA L40S" in note for note in found.notes)


def test_unified_memory_prints_no_total(bench):
    nvidia(bench, "gb10")
    found = found_on(bench)
    assert found.matched == "dgx-spark"
    assert found.allocatable_memory_bytes["status"] == "assumed"


def amd(bench, program, **files):
    tool(bench, program, {words: HARDWARE / f"{name}.json" for words, name in files.items()})


def test_mi300x_by_rocm_smi_and_by_amd_smi(bench):
    found = {"device": "mi300x", "fabric": "xgmi-mi300"}
    files = {"--showtopo": "rocm-smi-topo-mi300x", "--showproductname": "rocm-smi-mi300x"}
    amd(bench, "rocm-smi", **files)
    rocm = found_on(bench, found | {"per_node": 8}, kind="xgmi", domain=8)
    assert rocm.versions["driver"] == "6.12.12"
    (bench / "rocm-smi").unlink()
    amd(bench, "amd-smi", topology="amd-smi-topo-mi300x", static="amd-smi-mi300x")
    assert found_on(bench, found | {"per_node": 2}).versions["driver"] == "6.14.14"


def test_a_nameless_card_is_told_by_architecture_and_memory(bench):
    amd(bench, "rocm-smi", **{"--showproductname": "rocm-smi-w7900"})
    found = found_on(bench)
    assert (found.matched, found.matched_by) == ("radeon-pro-w7900", "architecture and memory")


def test_tools_that_fail_or_know_no_links_leave_a_note(bench):
    tool(bench, "nvidia-smi", {"name,memory.total": "echo 'NVIDIA-SMI has failed' >&2; exit 9"})
    failed = detection.detect()
    assert failed.matched == "cpu"
    assert any("has failed" in note for note in failed.notes)
    (bench / "nvidia-smi").unlink()
    tool(bench, "hl-smi", {"name,memory.total": HARDWARE / "hl-smi-gaudi3.csv"})
    found = detection.detect()
    assert (found.matched, found.count) == ("gaudi3", 8)
    assert any("links could not be read" in note for note in found.notes)


def test_this_machine_for_real():
    result = CliRunner().invoke(app, ["hardware", "--detect", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["host"]["cpus"] == len(os.sched_getaffinity(0))
    assert found["host"]["memory_bytes"] == machine.memory()[0]
    if not found["devices"]:
        assert found["matched"] == "cpu"
        assert found["request"] == {"hardware": {"device": "cpu", "per_node": 1, "nodes": 1}}
        assert found["profile"]["memory_bytes"]["value"] == found["host"]["memory_bytes"]
    named = CliRunner().invoke(app, ["hardware", "l4", "--detect"])
    assert named.exit_code != 0
    assert "--detect" in str(named.exception)


def test_matrices_leave_out_network_cards():
    pairs = parse_nvidia_topo((HARDWARE / "topo-hgx-h100.txt").read_text())
    assert len(pairs) == 8 * 7
    assert set(pairs.values()) == {"NV18"}
    assert len(parse_rocm_topo((HARDWARE / "rocm-smi-topo-mi300x.json").read_text())) == 8 * 7
    both = parse_amd_topo((HARDWARE / "amd-smi-topo-mi300x.json").read_text())
    assert both == {(0, 1): "XGMI", (1, 0): "XGMI"}


def test_islands_and_links_of_part_of_a_machine():
    for topology, sizes in (
        ("topo-hgx-h100", [8]),
        ("topo-h100-nvl-pairs", [2, 2]),
        ("topo-l40s-pcie", [1, 1, 1, 1]),
    ):
        pairs = parse_nvidia_topo((HARDWARE / f"{topology}.txt").read_text())
        assert sorted(map(len, islands(pairs, sorted({first for first, _ in pairs})))) == sizes
    assert links({}, [0], device("l40s")) is None
    assert links({(0, 1): "NV18"}, [0, 1], device("h100-sxm")) is None
    # an unknown PCIe generation names no fabric
    assert links({(0, 1): "PHB", (1, 0): "PHB"}, [0, 1], device("rtx-3090"), 3).fabric is None


def test_gfx_names():
    usual = {"gfx9010": "gfx90a", "gfx9402": "gfx942", "gfx942": "gfx942", "gfx1100": "gfx1100"}
    assert {printed: tools.gfx(printed) for printed in usual} == usual
