"""This machine: what vendors' tools print of it (small programs on PATH print the files of
tests/data/hardware), and its profile: the fit, the file, and what an estimate makes of it.
"""

import itertools
import json
import math
import os
from dataclasses import asdict, replace
from functools import cache

import numpy as np
import pytest
from typer.testing import CliRunner

from recipe_core.base.documents import read_document, to_yaml
from recipe_core.base.errors import NoAnswer
from recipe_core.calibration import machine_profile as profiling
from recipe_core.calibration.roofline_fit import fit_roofline
from recipe_core.doors.cli import load_commands
from recipe_core.estimates.bands import widen_band
from recipe_core.estimates.roofline import operator_s
from recipe_core.estimates.serving import bands as serving_bands
from recipe_core.hardware.cluster import cluster, device_profile, device_values, fabric, host_speed
from recipe_core.hardware.detect import machine as detection
from recipe_core.hardware.detect import tools
from recipe_core.hardware.detect.machine import Found
from recipe_core.hardware.microbench.collectives import Reduced
from recipe_core.hardware.microbench.disk import DiskRates
from recipe_core.hardware.microbench.host import LAYERS, REFERENCE, SEQUENCES, HostTimes
from recipe_core.hardware.microbench.points import Point, Timing
from recipe_core.hardware.microbench.run import Measured
from recipe_core.hardware.profile import Device
from recipe_core.hardware.request import HardwareRequest, read_profile
from recipe_core.payload.launcher import devices, machine
from recipe_core.plans.plans import plan_splits
from tests.conftest import make_request, request_values
from tests.fixtures.command_line import recipe
from tests.fixtures.paths import DATA
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table
from tests.fixtures.verdicts import assert_says

PEAK, BANDWIDTH = 4e11, 3e10
TRUE = {"compute_efficiency": 0.8, "memory_efficiency": 0.6, "overhead_s": 2e-5, "smoothing": 2.0}
HARDWARE = DATA / "hardware"


def host_of(slow=1.0, spread=0.0):
    start, layer, sequence = (REFERENCE[name] for name in ("step_s", "layer_s", "sequence_s"))
    cells = itertools.product(LAYERS, SEQUENCES)
    steps = {(n, tokens): slow * (start + layer * n + sequence * tokens) for n, tokens in cells}
    return HostTimes(steps, slow * REFERENCE["request_s"], spread, 3)


def points_of(noise=0.0, dtype="bf16"):
    """Points of a device whose numbers are known, timed by the estimate's own formula."""
    draw = np.random.default_rng(3)
    figure = {"source": "profile", "status": "measured"}
    known = {
        **device_values(device_profile("cpu")),
        "name": "known",
        "memory_bandwidth_bytes_per_s": {"value": BANDWIDTH, **figure},
        "peak_flops_per_s": {name: {"value": PEAK, **figure} for name in (dtype, "bf16")},
        "roofline": {"gemm": {dtype: {**TRUE, **figure}}},
    }
    exact, out = Device.model_validate(known), []
    for rows, width in itertools.product((1, 4, 16, 128, 1024), (384, 1024, 2048, 4096)):
        flops, moved = 2.0 * rows * width**2, 2.0 * (width**2 + 2 * rows * width)
        seconds = operator_s(exact, "gemm", dtype, np.array([flops]), np.array([moved]))
        timing = Timing(float(seconds[0]) * math.exp(noise * draw.normal()), noise, 9)
        out.append(Point("gemm", dtype, f"{rows} x {width}", flops, moved, timing))
    return out


def found_here(**changes):
    return Found(**table("machine_profile", "found") | changes)


def measured_here(**changes):
    values = {
        "points": [*points_of(), *points_of(dtype="fp32")],
        "bandwidth_bytes_per_s": BANDWIDTH,
        "bandwidth_timing": Timing(1e-2, 0.01, 9),
        "host": host_of(),
    }
    plain = {"kind": "cpu", "torch": "2.13", "cpus": 2, "load": 0.0, "launch_s": 5e-6}
    return Measured(**plain | {"seconds": 20.0} | values | changes)


@cache
def calm():
    """The profile of a machine that does nothing else."""
    return profiling.assemble_profile(found_here(), measured_here())


def test_the_fit_finds_the_numbers_of_exact_points():
    fitted = fit_roofline(points_of(), PEAK, BANDWIDTH)
    assert fitted.median_error < 0.02
    for name in ("compute_efficiency", "memory_efficiency", "overhead_s"):
        assert getattr(fitted, name) == pytest.approx(TRUE[name], rel=0.1)
    assert fit_roofline(points_of()[:3], PEAK, BANDWIDTH) is None  # few points are no fit
    # interrupted points move the fit little
    points = points_of(noise=0.05)
    for place in (2, 9, 17):
        late = replace(points[place].timing, seconds=20 * points[place].timing.seconds)
        points[place] = replace(points[place], timing=late)
    fitted = fit_roofline(points, PEAK, BANDWIDTH)
    assert fitted.median_error < min(0.1, fitted.p90_error)


def test_a_profile_is_a_complete_device_with_residuals(tmp_path):
    profiled = calm()
    path = tmp_path / "machine.yaml"
    profiling.write_profile(path, profiled)
    ours = device_profile(read_profile(str(path)))
    assert ours == profiled.device
    assert (ours.name, ours.known_as, ours.runtime) == ("some-cpu-2-cores", "cpu", "cpu")
    assert ours.memory_bytes.value == 8 << 30
    for dtype in ("bf16", "fp32"):
        shape = ours.roofline["gemm"][dtype]
        assert (shape.status, "median error" in shape.note) == ("fitted", True)
        assert ours.peak_flops_per_s[dtype].status == "measured"
    assert ours.host.layers == pytest.approx(1, rel=1e-3)
    assert "recipe profile" in str(ours.sources["profile"].command)
    shown = "\n".join(profiling.profile_text(profiled))
    for said in ("gemm bf16: start", "which widens every interval"):
        assert said in shown
    # its name is not that of a shipped device
    names = table("machine_profile", "names")
    assert {name: profiling.own_profile_name(name) for name in names} == names
    assert len(profiling.own_profile_name("x" * 500)) <= 64


def test_a_known_accelerator_is_held_against_its_datasheet_an_unknown_one_against_its_best_rates():
    base = device_profile("h100-sxm")
    points = [replace(point, timing=replace(point.timing, seconds=1e-5)) for point in points_of()]
    found = found_here(matched="h100-sxm", profile={"title": "H100", "memory_bytes": None})
    measured = measured_here(
        kind="cuda",
        points=[*points, *points_of(dtype="fp8")],
        to_device_bytes_per_s=5e10,
        disk_cold_bytes_per_s=1e9,
        notes=["not measured, gemm int8: no"],
    )
    profiled = profiling.assemble_profile(found, measured)
    ours, shown = profiled.device, "\n".join(profiling.profile_text(profiled))
    assert profiled.values["based_on"] == "h100-sxm"
    assert ours.peak_flops_per_s == base.peak_flops_per_s
    assert ours.roofline["gemm"]["fp8"].source == "profile"
    assert ours.roofline["moe"] == base.roofline["moe"]
    assert host_speed(ours).layers == 1, "engines' overheads there are of GPU hosts"
    assert ours.transfers is not None
    for said in ("to device 50 GB/s", "note: not measured, gemm int8: no"):
        assert said in shown
    card = table("machine_profile", "card")
    found = found_here(matched=None, profile=card, count=4)
    ours = profiling.assemble_profile(found, measured_here(kind="cuda")).device
    assert (ours.title, ours.vendor, ours.architecture) == ("NVIDIA  New  Card", "nvidia", "sm_130")
    assert (ours.memory_bytes.value, ours.tdp_watts.value, ours.node.devices) == (96e9, 700, 4)
    assert ours.node.fabric == "pcie4"
    nameless = replace(found, profile=card | {"memory_bytes": None})
    few = measured_here(points=points_of()[:2])
    for found, measured, said in (
        (nameless, measured_here(kind="rocm"), "how much memory"),
        (found_here(), few, "--seconds"),
    ):
        assert said in str(refusal(profiling.assemble_profile, found, measured, kind=NoAnswer))


@pytest.mark.nightly
def test_disks_loads_and_collectives_are_part_of_the_profile():
    rates = DiskRates(1.2e9, 3.4e9, 5000.0, 1 << 30, direct=True)
    disk = profiling.assemble_profile(found_here(), measured_here(disk=rates)).device.disk
    figures = (disk.write_bytes_per_s, disk.read_bytes_per_s, disk.window_reads_per_s)
    wanted = [(value, "measured") for value in (1.2e9, 3.4e9, 5000.0)]
    assert [(figure.value, figure.status) for figure in figures] == wanted
    assert calm().device.disk is None
    # a busy machine widens intervals
    busy = profiling.assemble_profile(
        found_here(), measured_here(load=1.0, host=host_of(spread=0.1))
    )
    assert calm().spread == pytest.approx(0.01)
    assert busy.spread == pytest.approx(math.hypot(0.1, math.log(1.5) / 2), abs=1e-3)
    assert "load 1.00 on 2 processors" in busy.values["host"]["note"]
    drifting = measured_here(host_at_end=host_of(slow=1.5))
    assert profiling.total_spread(drifting, 0.0) == pytest.approx(math.log(1.5) / 2, abs=0.01)
    # collectives are used in place of the fabric's
    inside = fabric("shared-memory")
    speed, start_s = 0.25 * inside.bandwidth_bytes_per_s.value, 4e-4
    sizes = (float(1 << bits) for bits in (10, 16, 24))
    reduced = [Reduced(2, size, start_s + size / speed) for size in sizes]
    found = profiling.fit_collectives(reduced, inside)
    assert found["efficiency"] == pytest.approx(0.25, rel=0.05)
    assert found["latency_s"] + 2 * found["latency_per_rank_s"] == pytest.approx(start_s, rel=0.05)
    assert profiling.fit_collectives([], inside) == {}
    ours = profiling.assemble_profile(found_here(), measured_here(collectives=reduced)).values
    joined, named = (
        cluster(HardwareRequest.model_validate({"device": ours, "per_node": 2} | more)).fabric
        for more in ({}, {"fabric": "pcie4"})
    )
    assert joined.efficiency.value == pytest.approx(found["efficiency"], rel=1e-3)
    assert joined.bandwidth_bytes_per_s == inside.bandwidth_bytes_per_s
    assert named == fabric("pcie4"), "what was measured is of the node's own"


def ours_with(**host):
    known = {
        name: value
        for name, value in device_values(device_profile("cpu")).items()
        if name != "host"
    }
    values = {"host": {"source": "profile", "status": "measured", **host}} if host else {}
    return {**known, "name": "ours", "known_as": "cpu", **values}


def best(profile, **parts):
    found = plan_splits(make_request(device=profile, model="Qwen/Qwen3-0.6B", per_node=1, **parts))
    return found.estimate(int(found.order[0])).to_json()


def test_a_reference_host_changes_no_bit_a_slow_one_slows_and_a_varying_one_widens():
    shipped, ours = best("cpu"), best(ours_with(layers=1.0, sequences=1.0, requests=1.0))
    assert (ours["serving"], ours["memory"]) == (shipped["serving"], shipped["memory"])
    still, wild = best(ours_with()), best(ours_with(spread=0.3))
    for figure in ("ttft_s", "tpot_s", "output_tokens_per_s"):
        low, high = still["bands"][figure]
        assert wild["bands"][figure][0] < low < high < wild["bands"][figure][1]
        assert wild["serving"][figure] == still["serving"][figure]
    # as independent errors add
    band = serving_bands.serving_bands().band("tpot_s", ((),), {})
    wide = widen_band(band, 0.3)
    assert wide.independent == pytest.approx(math.hypot(band.independent, 0.3))
    spread = math.hypot(math.log(band.factors["80"][1]), 1.2816 * 0.3)
    assert math.log(wide.factors["80"][1]) == pytest.approx(spread, rel=1e-4)
    (a, b), (c, d), (e, f) = (wide.factors[level] for level in ("50", "80", "95"))
    assert e < c < a < b < d < f
    alone = {"mode": "static", "batch": 4, "concurrency": None}
    base, slow, chatty = (
        best(ours_with(**host), workload=alone)["breakdown_s"]["decode"]
        for host in ({}, {"layers": 3.0}, {"sequences": 4.0})
    )
    assert slow["engine"] > 2 * base["engine"]
    assert base["engine"] < chatty["engine"] < slow["engine"]
    assert {**slow, "engine": 0} == {**base, "engine": 0}, "the device is as fast as it was"
    prompt, late = (
        best(ours_with(**host))["breakdown_s"]["prefill"]["request"]
        for host in ({}, {"requests": 5.0})
    )
    assert late == pytest.approx(5 * prompt)


def test_files_and_seconds_that_are_no_profiles_are_refused(tmp_path):
    other = tmp_path / "request.yaml"
    other.write_text(to_yaml(request_values()))
    for path, says in (
        (tmp_path / "machine.json", "-o machine.yaml"),
        (tmp_path / "none" / "machine.yaml", "is not a folder"),
        (other, "is not a profile"),
    ):
        assert says in str(refusal(profiling.check_output, path))
    profiling.write_profile(other, calm())
    profiling.check_output(other)
    for seconds in (1.0, 1e6, math.nan):
        assert "seconds" in str(refusal(profiling.profile_machine, "cpu", seconds=seconds))


def test_the_command_writes_what_a_plan_reads(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="NOT TESTED: recipe profile, torch is missing")
    monkeypatch.setattr(profiling, "measure_device", lambda *_, **__: measured_here())
    out, request = tmp_path / "machine.yaml", tmp_path / "request.json"
    values = request_values(device=str(out), model="Qwen/Qwen3-0.6B", per_node=1)
    request.write_text(json.dumps(values))
    for words, said in (
        (f"profile -o {out} --device cpu --quick", f"hardware.device of a request to {out}"),
        (f"plan {request}", "2 cores, measured here"),
        (f"hardware {out}", ""),
    ):
        done = recipe(*words.split())
        assert done.returncode == 0, done.stderr
        assert said in done.stdout
    answer = json.loads(recipe("profile", "-o", str(out), "--json").stdout)
    assert answer["roofline"] == read_document(out)["roofline"]


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
    monkeypatch.setattr(devices, "read_kfd", lambda nodes: [])
    return tmp_path


@over("programs, environment, wanted", table("detect", "machines"))
def test_machines_are_found_by_what_tools_print(bench, monkeypatch, programs, environment, wanted):
    for path in bench.iterdir():
        path.unlink()
    for name, answers in programs.items():
        tool(bench, name, answers if isinstance(answers, dict) else nvidia(*answers))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = detection.detect_machine()
    notes = wanted.get("notes", [""])[0]
    assert any(notes in note for note in [*found.notes, ""])
    assert_says(asdict(found), {name: wanted[name] for name in wanted if name != "notes"})
    if found.request:  # which makes a request and a device file that are valid
        cluster(HardwareRequest(**found.request["hardware"]))
        Device.model_validate(found.profile)
        known = found.links.fabric if found.links else None
        fabric = f"\n  fabric: {known}" if known else ""
        assert detection.detected_text(found).endswith(f"nodes: 1{fabric}")


def test_what_a_process_gets_is_assumed_or_told_by_torch(bench, monkeypatch):
    tool(bench, "nvidia-smi", nvidia("hgx-h100", "topo-hgx-h100.txt"))
    assumed = detection.detect_machine().allocatable_memory_bytes["value"]
    assert assumed == pytest.approx(79.18 * 2**30, rel=1e-3)
    tool(bench, "nvidia-smi", nvidia("l40s", "topo-l40s-pcie.txt"))
    seen = {"cuda": "12.8", "hip": None, "devices": [["NVIDIA L40S", 47_697_362_944, "sm_89"]] * 4}
    monkeypatch.setattr(tools, "ask_torch", lambda notes: seen)
    found = detection.detect_machine()
    memory = found.allocatable_memory_bytes
    assert (memory["value"], memory["status"]) == (47_697_362_944, "measured")
    assert found.versions["torch's CUDA"] == "12.8"
    # bridged pairs lie on PCIe, and an unknown device is not guessed
    monkeypatch.setattr(tools, "ask_torch", lambda notes: {})
    tool(bench, "nvidia-smi", nvidia("h100-nvl", "topo-h100-nvl-pairs.txt"))
    pairs = detection.detect_machine().request["hardware"]
    assert cluster(HardwareRequest(**pairs)).beyond.name == "pcie5"
    tool(bench, "nvidia-smi", nvidia("p100", "topo-dgx1-mesh.txt"))
    found = detection.detect_machine()
    assert {"memory_bandwidth_bytes_per_s", "peak_flops_per_s", "node"} <= set(found.unknown)
    assert "partial mesh" in found.links.note
    assert "memory_bandwidth_bytes_per_s: no tool" in detection.detected_text(found)


def test_this_machine_for_real():
    result = CliRunner().invoke(load_commands(), ["hardware", "--detect", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    host = found["host"]
    cpus, memory_bytes = len(os.sched_getaffinity(0)), machine.host_memory_bytes()[0]
    assert (host["cpus"], host["memory_bytes"]) == (cpus, memory_bytes)
    if not found["devices"]:
        assert found["matched"] == "cpu"
        assert found["request"] == {"hardware": {"device": "cpu", "per_node": 1, "nodes": 1}}
        assert found["profile"]["memory_bytes"]["value"] == memory_bytes
    named = CliRunner().invoke(load_commands(), ["hardware", "l4", "--detect"])
    assert named.exit_code != 0
    assert "--detect" in str(named.exception)


def test_islands_links_and_names_of_tools():
    for topology, sizes in (
        ("topo-hgx-h100", [8]),
        ("topo-h100-nvl-pairs", [2, 2]),
        ("topo-l40s-pcie", [1, 1, 1, 1]),
    ):
        pairs = tools.parse_nvidia_topo((HARDWARE / f"{topology}.txt").read_text())
        found = tools.link_islands(pairs, sorted({first for first, _ in pairs}))
        assert sorted(map(len, found)) == sizes
    assert tools.machine_links({}, [0], device_profile("l40s")) is None
    assert tools.machine_links({(0, 1): "NV18"}, [0, 1], device_profile("h100-sxm")) is None
    # an unknown PCIe generation names no fabric
    pairs = {(0, 1): "PHB", (1, 0): "PHB"}
    assert tools.machine_links(pairs, [0, 1], device_profile("rtx-3090"), 2).fabric is None
    assert tools.machine_links(pairs, [0, 1], device_profile("t4"), 3).fabric == "pcie3"
    # matrices leave out network cards
    pairs = tools.parse_nvidia_topo((HARDWARE / "topo-hgx-h100.txt").read_text())
    assert (len(pairs), set(pairs.values())) == (8 * 7, {"NV18"})
    rocm, amd = (
        (HARDWARE / f"{name}-topo-mi300x.json").read_text() for name in ("rocm-smi", "amd-smi")
    )
    assert len(tools.parse_rocm_topo(rocm)) == 8 * 7
    assert tools.parse_amd_topo(amd) == {(0, 1): "XGMI", (1, 0): "XGMI"}
    usual = {"gfx9010": "gfx90a", "gfx9402": "gfx942", "gfx942": "gfx942", "gfx1100": "gfx1100"}
    assert {printed: devices.spell_gfx(printed) for printed in usual} == usual
