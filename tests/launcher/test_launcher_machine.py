"""What the vendors' tools and the kernel print, as recorded or in the form that is documented."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

from recipe_core.launcher import holders, machine
from recipe_core.launcher.claims import Memory, node_memories
from recipe_core.launcher.holders import Holder
from recipe_core.launcher.machine import Device, parse_amd_smi, parse_nvidia_smi, parse_rocm_smi
from recipe_core.launcher.observe import Observer
from recipe_core.launcher.plan import load_plan
from recipe_core.launcher.world import HERE

H100 = "NVIDIA H100 80GB HBM3, 81559\n" * 8
MI300X, MI350X, SIZE = "AMD Instinct MI300X", "AMD Instinct MI350X", 206141652992
ROCM_SMI = {
    f"card{n}": {
        f"Card {series}": MI300X if n else "0x74a1",
        f"Card {model}": "0x74a1" if n else f"{MI300X} OAM",
        "VRAM Total Memory (B)": str(SIZE),
    }
    for n, series, model in ((1, "Series", "Model"), (0, "series", "model"))
} | {"system": {"Driver version": "6.10.5"}}


def test_nvidia_smi():
    devices = parse_nvidia_smi(H100)
    assert len(devices) == 8
    assert devices[7] == Device(7, "NVIDIA H100 80GB HBM3", 81559 << 20)
    assert parse_nvidia_smi("NVIDIA GB10, [N/A]\n") == [Device(0, "NVIDIA GB10", None)]
    assert parse_nvidia_smi("No devices were found\n") == []


def test_rocm_smi_sorts_and_finds_the_name():
    assert parse_rocm_smi("WARNING: something\n" + json.dumps(ROCM_SMI)) == [
        Device(0, f"{MI300X} OAM", SIZE),
        Device(1, MI300X, SIZE),
    ]


def test_amd_smi():
    cards = [
        {"gpu": n, "asic": {"market_name": MI350X}, "vram": {"type": "HBM3E", "size": size}}
        for n, size in enumerate(({"value": 294896, "unit": "MB"}, "N/A"))
    ]
    found = [Device(0, MI350X, 294896 << 20), Device(1, MI350X, None)]
    for listed in (cards, {"gpu_data": cards}):
        assert parse_amd_smi(json.dumps(listed)) == found
    sizes = {"total_vram": 196592, "used_vram": 592}
    usage = {name: {"value": size, "unit": "MB"} for name, size in sizes.items()}
    listed = [{"gpu": 0, "mem_usage": usage}]
    assert machine.parse_amd_usage(json.dumps(listed)) == {0: 196000 << 20}
    usage["free_vram"] = {"value": 195000, "unit": "MB"}
    assert machine.parse_amd_usage(json.dumps({"gpu_data": listed})) == {0: 195000 << 20}


def test_kfd_lists_only_nodes_with_simds(tmp_path):
    for node, simds, size in (("0", 0, 1 << 40), ("1", 1216, SIZE)):
        bank = tmp_path / node / "mem_banks" / "0"
        bank.mkdir(parents=True)
        (tmp_path / node / "properties").write_text(f"cpu_cores_count 0\nsimd_count {simds}\n")
        (bank / "properties").write_text(f"heap_type 1\nsize_in_bytes {size}\n")
    assert machine.read_kfd(tmp_path) == [Device(0, "AMD GPU", SIZE)]


def tool(folder, name, text, code=0):
    path = folder / name
    path.write_text(f"#!/bin/sh\n/bin/cat <<'EOT'\n{text}\nEOT\nexit {code}\n")
    path.chmod(0o755)


def test_detect_through_the_tools(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    failed = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    tool(tmp_path, "nvidia-smi", failed, 9)
    found = machine.detect()
    assert found.runtime == "cpu"
    assert "couldn't communicate" in found.notes[0]
    tool(tmp_path, "rocm-smi", json.dumps(ROCM_SMI))
    assert (machine.detect().runtime, len(machine.detect().devices)) == ("rocm", 2)
    tool(tmp_path, "nvidia-smi", H100.strip())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    found = machine.detect()
    assert (found.runtime, [device.index for device in found.devices]) == ("cuda", [2, 3])
    # Hidden devices leave the processor.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "rocm-smi").unlink()
    found = machine.detect()
    assert (found.runtime, found.devices) == ("cpu", ())
    assert found.notes == ("CUDA_VISIBLE_DEVICES= hides all of 8 x NVIDIA H100 80GB HBM3",)


def test_visible_devices_as_the_runtimes_read_them(monkeypatch):
    devices = [Device(n, "NVIDIA H200", None) for n in (0, 1)]
    none = [(value, []) for value in ("", " ", "-1", "-1,0")]
    for value, left in [*none, ("1, 0", [0, 1]), ("0,9,1", [0]), ("GPU-8a2f", [0, 1])]:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        seen = [device.index for device in machine.visible(devices, "CUDA_VISIBLE_DEVICES")]
        assert (value, seen) == (value, left)


def test_the_kernel_says_which_driver_it_has(tmp_path, monkeypatch):
    nvidia = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5\nGCC version: 12"
    path = tmp_path / "version"
    for runtime, text, version in (
        ("cuda", nvidia, "550.54.15"),
        ("rocm", "6.8.5\n", "6.8.5"),
        ("cuda", "nothing of use", ""),
        ("cuda", None, ""),
    ):
        path.unlink(missing_ok=True) if text is None else path.write_text(text)
        monkeypatch.setitem(machine._DRIVERS, runtime, (path, machine._DRIVERS[runtime][1]))
        assert machine.driver_version(runtime) == version


# Memory, and who holds it


def test_memory_respects_the_container(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 900 kB\n")
    assert machine.memory(tmp_path / "meminfo", tmp_path) == (1_024_000, 921_600)
    (tmp_path / "memory.max").write_text("500000\n")
    (tmp_path / "memory.current").write_text("300000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 100000\n")
    assert machine.memory(tmp_path / "meminfo", tmp_path) == (500_000, 300_000)
    assert machine.memory(tmp_path / "nothing", tmp_path) == (None, None)


def test_nodes_of_memory(tmp_path):
    figures = {"MemTotal": 1000, "MemFree": 500, "Active(file)": 40, "SReclaimable": 2}
    for number, cpus in ((0, "0-3,8"), (1, "4-7")):
        node = tmp_path / f"node{number}"
        node.mkdir()
        (node / "cpulist").write_text(cpus + "\n")
        lines = [f"Node {number} {name}:  {size} kB\n" for name, size in figures.items()]
        (node / "meminfo").write_text("".join(lines))
    both = node_memories(frozenset({5, 8}), tmp_path)
    assert [memory.name for memory in both] == ["memory node 1", "memory node 0"]
    assert both[0] == Memory("memory node 1", 1000 << 10, 542 << 10)
    sizes = {"limit_bytes": 800 << 10, "available_bytes": 300 << 10}
    (limited,) = node_memories(frozenset({1}), tmp_path, **sizes)
    assert (limited.total_bytes, limited.free_bytes) == (800 << 10, 300 << 10)
    assert node_memories(frozenset({1}), tmp_path / "none") == ()


def test_processes_on_devices_as_tools_print_them():
    nothing = 2**22 + 7  # no such process: the tool's name stands
    for text, found in (
        (f"{nothing}, 38912, /usr/bin/python3\n{nothing}, 1024, x\n", [("x", 39936 << 20)]),
        ("No running processes found", []),
        (f"{nothing}, [N/A], [Not Found]", [("", None)]),
    ):
        assert holders.parse_compute_apps(text) == [Holder(nothing, *each) for each in found]
    usage = {"vram_mem": {"value": 37, "unit": "GB"}}
    process = {"name": "python3", "pid": nothing, "memory_usage": usage}
    for info, found in (
        (process, [Holder(nothing, "python3", 37 << 30)]),
        ("No running processes detected", []),
    ):
        devices = [{"gpu": 0, "process_list": [{"process_info": info}]}]
        assert holders.parse_amd_processes(json.dumps(devices)) == found
    pids = json.dumps({"system": {f"PID{nothing}": "python3, 1, 40802189312, 0, 0"}})
    assert holders.parse_rocm_pids(pids) == [Holder(nothing, "python3", 40802189312)]


def test_who_holds_memory_of_the_machine():
    code = "import time; held = bytearray(200 << 20); print('x', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        sizes = {holder.pid: holder.size_bytes for holder in holders._of_machine()}
        process.kill()
    assert (sizes[process.pid] or 0) >= 200 << 20
    assert len(holders.holders("cpu")) <= 3


def test_a_kill_for_want_of_memory_counts_once(bundle, world):
    observer, plan = Observer(world), load_plan(bundle.root)

    def killed():
        return observer.look(plan, (), [0]).seen[0].out_of_memory

    assert not killed()
    world.oom["machine"] += 1
    assert killed()
    assert not killed()
    world.oom["/a.slice"] = 9  # seen for the first time: nobody knows since when
    assert not killed()
    assert all(count >= 0 for count in HERE.oom_kills([os.getpid()]).values())


def test_connections_to_a_port_are_counted():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert HERE.connections([port]) == 0
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = server.accept()
            assert HERE.connections([port]) == 1
            accepted.close()
