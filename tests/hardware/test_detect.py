"""Detection on recorded-looking output of the vendors' tools: small programs on PATH print the
files of tests/data/hardware.
"""

import json
import os
from dataclasses import asdict

import pytest
from typer.testing import CliRunner

from recipe_core.doors.cli import app
from recipe_core.hardware.cluster import cluster, device
from recipe_core.hardware.detect import links as parsed
from recipe_core.hardware.detect import machine as detection
from recipe_core.hardware.detect import tools
from recipe_core.hardware.profile import Device
from recipe_core.hardware.request import HardwareRequest
from recipe_core.launcher import machine
from tests.fixtures.paths import DATA
from tests.fixtures.rows import over, table
from tests.fixtures.verdicts import assert_says

HARDWARE = DATA / "hardware"


def tool(folder, name, answers):
    """A program that prints the file of the first answer whose words are all among its arguments,
    or runs the answer, and fails on any other call.
    """
    cases = "\n".join(
        f'  *{"*".join(words.split())}*) cat "{HARDWARE / answer}"; exit 0;;'
        if (HARDWARE / answer).is_file()
        else f"  *{words}*) {answer};;"
        for words, answer in answers.items()
    )
    path = folder / name
    path.write_text(f'#!/bin/sh\ncase " $* " in\n{cases}\nesac\necho "unknown $*" >&2; exit 2\n')
    path.chmod(0o755)


def nvidia(name, topology=None):
    answers = {"name,memory.total": f"nvidia-smi-{name}.csv"}
    answers |= {"driver_version": f"nvidia-smi-{name}-more.csv"}
    answers |= {"topo -m": topology} if topology else {}
    return answers | {"  ": "nvidia-smi-header.txt"}


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """An empty folder first on PATH; no visibility variables, no torch, no GPU of this machine."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    for vendor in ("CUDA", "HIP"):
        monkeypatch.delenv(f"{vendor}_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(tools, "ask_torch", lambda notes: {})
    monkeypatch.setattr(machine, "read_kfd", lambda nodes: [])
    return tmp_path


@over("programs, environment, wanted", table("detect", "machines"))
def test_machines_are_found_by_what_tools_print(bench, monkeypatch, programs, environment, wanted):
    for path in bench.iterdir():
        path.unlink()
    for name, answers in programs.items():
        tool(bench, name, answers if isinstance(answers, dict) else nvidia(*answers))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = detection.detect()
    notes = wanted.get("notes", [""])[0]
    assert any(notes in note for note in [*found.notes, ""])
    assert_says(asdict(found), {name: wanted[name] for name in wanted if name != "notes"})
    if found.request:  # which makes a request and a device file that are valid
        cluster(HardwareRequest(**found.request["hardware"]))
        Device.model_validate(found.profile)
        fabric = f"\n  fabric: {found.links.fabric}" if found.links else ""
        assert detection.describe(found).endswith(f"nodes: 1{fabric}")


def test_what_a_process_gets_is_assumed_or_told_by_torch(bench, monkeypatch):
    tool(bench, "nvidia-smi", nvidia("hgx-h100", "topo-hgx-h100.txt"))
    assumed = detection.detect().allocatable_memory_bytes["value"]
    assert assumed == pytest.approx(79.18 * 2**30, rel=1e-3)
    tool(bench, "nvidia-smi", nvidia("l40s", "topo-l40s-pcie.txt"))
    seen = {"cuda": "12.8", "hip": None, "devices": [["NVIDIA L40S", 47_697_362_944, "sm_89"]] * 4}
    monkeypatch.setattr(tools, "ask_torch", lambda notes: seen)
    found = detection.detect()
    memory = found.allocatable_memory_bytes
    assert (memory["value"], memory["status"]) == (47_697_362_944, "measured")
    assert found.versions["torch's CUDA"] == "12.8"
    # bridged pairs lie on PCIe, and an unknown device is not guessed
    monkeypatch.setattr(tools, "ask_torch", lambda notes: {})
    tool(bench, "nvidia-smi", nvidia("h100-nvl", "topo-h100-nvl-pairs.txt"))
    pairs = detection.detect().request["hardware"]
    assert cluster(HardwareRequest(**pairs)).beyond.name == "pcie5"
    tool(bench, "nvidia-smi", nvidia("v100", "topo-dgx1-mesh.txt"))
    found = detection.detect()
    assert {"memory_bandwidth_bytes_per_s", "peak_flops_per_s", "node"} <= set(found.unknown)
    assert "partial mesh" in found.links.note
    assert "memory_bandwidth_bytes_per_s: no tool" in detection.describe(found)


def test_this_machine_for_real():
    result = CliRunner().invoke(app, ["hardware", "--detect", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    host = found["host"]
    cpus, memory_bytes = len(os.sched_getaffinity(0)), machine.memory()[0]
    assert (host["cpus"], host["memory_bytes"]) == (cpus, memory_bytes)
    if not found["devices"]:
        assert found["matched"] == "cpu"
        assert found["request"] == {"hardware": {"device": "cpu", "per_node": 1, "nodes": 1}}
        assert found["profile"]["memory_bytes"]["value"] == memory_bytes
    named = CliRunner().invoke(app, ["hardware", "l4", "--detect"])
    assert named.exit_code != 0
    assert "--detect" in str(named.exception)


def test_islands_links_and_names_of_tools():
    for topology, sizes in (
        ("topo-hgx-h100", [8]),
        ("topo-h100-nvl-pairs", [2, 2]),
        ("topo-l40s-pcie", [1, 1, 1, 1]),
    ):
        pairs = parsed.parse_nvidia_topo((HARDWARE / f"{topology}.txt").read_text())
        found = parsed.islands(pairs, sorted({first for first, _ in pairs}))
        assert sorted(map(len, found)) == sizes
    assert parsed.links({}, [0], device("l40s")) is None
    assert parsed.links({(0, 1): "NV18"}, [0, 1], device("h100-sxm")) is None
    # an unknown PCIe generation names no fabric
    pairs = {(0, 1): "PHB", (1, 0): "PHB"}
    assert parsed.links(pairs, [0, 1], device("rtx-3090"), 3).fabric is None
    # matrices leave out network cards
    pairs = parsed.parse_nvidia_topo((HARDWARE / "topo-hgx-h100.txt").read_text())
    assert (len(pairs), set(pairs.values())) == (8 * 7, {"NV18"})
    rocm, amd = (
        (HARDWARE / f"{name}-topo-mi300x.json").read_text() for name in ("rocm-smi", "amd-smi")
    )
    assert len(parsed.parse_rocm_topo(rocm)) == 8 * 7
    assert parsed.parse_amd_topo(amd) == {(0, 1): "XGMI", (1, 0): "XGMI"}
    usual = {"gfx9010": "gfx90a", "gfx9402": "gfx942", "gfx942": "gfx942", "gfx1100": "gfx1100"}
    assert {printed: tools.gfx(printed) for printed in usual} == usual
