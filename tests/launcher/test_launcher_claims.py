"""What an engine claims at its start is compared with what is free now, and who holds the rest."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

from recipe_core.launcher import holders, machine_watch, preflight
from recipe_core.launcher.claims import Claim, Memory, node_memories, refused
from recipe_core.launcher.holders import (
    Holder,
    parse_amd_processes,
    parse_compute_apps,
    parse_rocm_pids,
)
from recipe_core.launcher.machine import Machine, parse_amd_usage
from recipe_core.launcher.plan import load_plan
from tests.conftest import make_request
from tests.fixtures.recipes import bundle_for_request

from .test_launcher_preflight import H100, NEEDS, checks, on

GIB = 1 << 30
NODE = Memory("memory node 0", round(21.84 * GIB), round(17.64 * GIB))
SMALL_CPU = Machine("cpu", (), "EPYC", 2, 24 * GIB, 18 * GIB, memories=(NODE,))
ON_CPU = {"runtime": "cpu", "names": [], "count": 1, "used_bytes": GIB // 7}


def test_a_share_of_the_cpu_that_is_not_free_fails_in_words(bundle, capsys, monkeypatch):
    """0.92 of 21.84 GiB were claimed while 17.64 were free: the engine refused after minutes."""
    monkeypatch.setattr(preflight, "holders", lambda _: [Holder(812, "python3 train.py", 4 * GIB)])
    on(SMALL_CPU, monkeypatch, bundle, **ON_CPU, claim={"share": 0.92})
    code, answer = checks(bundle, capsys)
    assert code == 1
    memory = answer["memory"]
    assert memory["status"] == "FAIL"
    assert "17.64 GiB of 21.84 GiB are free on memory node 0" in memory["detail"]
    assert "the engine claims 20.09 GiB" in memory["detail"]
    assert "pid 812 (python3 train.py) holds 4.00 GiB" in memory["detail"]
    assert "memory_fraction of the candidate to 0.79 " in memory["hint"]
    assert bundle.run("up") == 1
    assert "memory_fraction" in capsys.readouterr().err


def test_a_lower_share_or_a_stated_size_passes(bundle, capsys, monkeypatch):
    monkeypatch.setattr(preflight, "holders", lambda _: [])
    for claim, environment, status in (
        ({"share": 0.79}, "", "ok"),
        ({"share": 0.92, "size_gib_variable": "SPACE_GIB"}, "4", "ok"),
        ({"share": 0.5, "size_gib_variable": "SPACE_GIB"}, "18", "FAIL"),
        ({"share": 0.92, "size_gib_variable": "SPACE_GIB"}, "", "FAIL"),
        ({"share": 0.92, "size_bytes": 4 * GIB}, "", "ok"),
        ({"share": 0.79, "programs_bytes": GIB}, "", "FAIL"),
        ({"share": 0.74, "programs_bytes": GIB}, "", "ok"),
    ):
        monkeypatch.setenv("SPACE_GIB", environment)
        on(SMALL_CPU, monkeypatch, bundle, **ON_CPU, claim=claim)
        assert checks(bundle, capsys)[1]["memory"]["status"] == status, claim


def test_a_device_that_another_process_fills(bundle, capsys, monkeypatch):
    monkeypatch.setattr(preflight, "holders", lambda _: [Holder(99, "python3", 8 * GIB)])
    idle, busy = ((81559 - used) << 20 for used in (600, 9000))
    first, second = H100.devices
    machine = replace(
        H100, devices=(replace(first, free_bytes=idle), replace(second, free_bytes=busy))
    )
    small = {"used_bytes": 20 * GIB, "claim": {"share": 0.92}}
    on(machine, monkeypatch, bundle, **small)
    memory = checks(bundle, capsys)[1]["memory"]
    assert memory["status"] == "FAIL"
    assert "on device 1" in memory["detail"]
    assert "pid 99" in memory["detail"]
    assert "to 0.87 " in memory["hint"]
    on(machine, monkeypatch, bundle, **small | {"count": 1})
    assert checks(bundle, capsys)[1]["memory"]["status"] == "ok"
    on(machine, monkeypatch, bundle, used_bytes=20 * GIB)  # an engine that takes what it uses
    assert checks(bundle, capsys)[1]["memory"]["status"] == "ok"
    # What an idle device's driver keeps does not count against a share.
    devices = tuple(replace(device, free_bytes=80951 << 20) for device in H100.devices)
    on(replace(H100, devices=devices), monkeypatch, bundle, claim={"share": 0.99})
    assert checks(bundle, capsys)[1]["memory"]["status"] == "ok"
    bundle.edit(lambda data: data.update(needs={**NEEDS, "claim": {"share": 1.2}}))
    assert bundle.run("preflight") == 2
    assert "needs.claim.share" in capsys.readouterr().err


def test_what_runs_does_not_count_against_itself(bundle):
    """A keeper that looks at its own machine sees the share that its engine holds as free."""
    claim = {**NEEDS, "used_bytes": GIB, "claim": {"share": 0.92}}
    bundle.edit(lambda data: data.update(needs=claim))
    needs = load_plan(bundle.root).needs
    full = replace(
        H100, devices=tuple(replace(device, free_bytes=5 * GIB) for device in H100.devices)
    )
    freed = machine_watch.freed(full, needs)
    verdicts = [check.status for check in preflight.check_machine(needs, freed)]
    assert "FAIL" not in verdicts
    assert "FAIL" in [check.status for check in preflight.check_machine(needs, full)]


def test_the_share_in_the_fix_passes():
    claim = Claim(0.92, programs_bytes=GIB)
    refusal = refused(claim, NODE, GIB, exact=True)
    assert refusal is not None
    assert "beside 1.00 GiB of its own processes" in refusal.detail
    share = float(refusal.hint.split(" to ")[1].split()[0])
    assert refused(replace(claim, share=share), NODE, GIB, exact=True) is None
    sized = refused(replace(claim, size_bytes=20 * GIB), NODE, GIB, exact=True)
    assert sized is not None
    assert "to 16 GiB" in sized.hint
    assert refused(replace(claim, size_bytes=16 * GIB), NODE, GIB, exact=True) is None
    refusal = refused(Claim(0.9), Memory("device 0", 80 * GIB, 10 * GIB), 20 * GIB, exact=True)
    assert refusal is not None
    assert refusal.hint.startswith("Free 62.00 GiB")  # no share would help


def test_a_bundle_of_vllm_states_its_claim():
    launch = json.loads(bundle_for_request(make_request()).files["launch.json"])
    words = launch["processes"][0]["argv"]
    share = float(words[words.index("--gpu-memory-utilization") + 1])
    assert launch["needs"]["claim"] == {"share": share}


def test_nodes_of_memory(tmp_path):
    for number, cpus in ((0, "0-3,8"), (1, "4-7")):
        node = tmp_path / f"node{number}"
        node.mkdir()
        (node / "cpulist").write_text(cpus + "\n")
        figures = {"MemTotal": 1000, "MemFree": 500, "Active(file)": 40, "SReclaimable": 2}
        lines = [f"Node {number} {name}:  {size} kB\n" for name, size in figures.items()]
        (node / "meminfo").write_text("".join(lines))
    both = node_memories(frozenset({5, 8}), tmp_path)
    assert [memory.name for memory in both] == ["memory node 1", "memory node 0"]
    assert both[0] == Memory("memory node 1", 1000 << 10, 542 << 10)
    (limited,) = node_memories(
        frozenset({1}), tmp_path, limit_bytes=800 << 10, available_bytes=300 << 10
    )
    assert (limited.total_bytes, limited.free_bytes) == (800 << 10, 300 << 10)
    assert node_memories(frozenset({1}), tmp_path / "none") == ()


def test_processes_on_devices_as_tools_print_them():
    nothing = 2**22 + 7  # no such process: the tool's name stands
    assert parse_compute_apps(f"{nothing}, 38912, /usr/bin/python3\n{nothing}, 1024, x\n") == [
        Holder(nothing, "x", 39936 << 20)
    ]
    assert parse_compute_apps("No running processes found") == []
    assert parse_compute_apps(f"{nothing}, [N/A], [Not Found]") == [Holder(nothing, "", None)]
    usage = {"vram_mem": {"value": 37, "unit": "GB"}}
    process = {"name": "python3", "pid": nothing, "memory_usage": usage}
    devices = [{"gpu": 0, "process_list": [{"process_info": process}]}]
    assert parse_amd_processes(json.dumps(devices)) == [Holder(nothing, "python3", 37 << 30)]
    silent = [{"gpu": 0, "process_list": [{"process_info": "No running processes detected"}]}]
    assert parse_amd_processes(json.dumps(silent)) == []
    pids = {"system": {f"PID{nothing}": "python3, 1, 40802189312, 0, 0"}}
    assert parse_rocm_pids(json.dumps(pids)) == [Holder(nothing, "python3", 40802189312)]


def test_free_memory_as_amd_smi_tells_it():
    sizes = {"total_vram": 196592, "used_vram": 592}
    usage = {name: {"value": size, "unit": "MB"} for name, size in sizes.items()}
    listed = [{"gpu": 0, "mem_usage": usage}]
    assert parse_amd_usage(json.dumps(listed)) == {0: 196000 << 20}
    usage["free_vram"] = {"value": 195000, "unit": "MB"}
    assert parse_amd_usage(json.dumps({"gpu_data": listed})) == {0: 195000 << 20}


def test_who_holds_memory_of_the_machine():
    code = "import time; held = bytearray(200 << 20); print('x', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        sizes = {holder.pid: holder.size_bytes for holder in holders._of_machine()}
        process.kill()
    assert (sizes[process.pid] or 0) >= 200 << 20
    assert len(holders.holders("cpu")) <= 3
