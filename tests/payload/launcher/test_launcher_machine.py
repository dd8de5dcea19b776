"""What the vendors' tools and the kernel print, as recorded or in the form that is documented."""

import json
import os
import socket
import subprocess
import sys
from functools import partial

from recipe_core.hardware.cluster import device_profile
from recipe_core.payload.launcher import devices as listing
from recipe_core.payload.launcher import machine
from recipe_core.payload.launcher.devices import Device, Holder
from recipe_core.payload.launcher.health import Observer
from recipe_core.payload.launcher.machine import Memory, node_memories
from recipe_core.payload.launcher.plan import load_plan
from recipe_core.payload.launcher.world import HERE
from tests.fixtures.rows import over, table

ROWS = partial(table, "launcher_machine")
H100 = "NVIDIA H100 80GB HBM3, 81559\n" * 8
SIZE = 206141652992


def printed(data):
    return data if isinstance(data, str) else json.dumps(data)


@over("tool data devices", ROWS("devices"))
def test_devices_as_tools_print_them(tool, data, devices):
    parse = getattr(listing, f"parse_{tool}_smi")
    assert parse(printed(data)) == [Device(*device) for device in devices]


@over("data free", ROWS("amd_usage"))
def test_free_memory_as_amd_smi_tells_it(data, free):
    assert listing.parse_amd_usage(printed(data)) == free


@over("tool data found", ROWS("holders"))
def test_processes_on_devices_as_tools_print_them(tool, data, found):
    parse = getattr(listing, f"parse_{tool}")
    assert listing._sum_by_pid(parse(printed(data))) == [Holder(2**22 + 7, *each) for each in found]


def test_kfd_lists_only_nodes_with_simds(tmp_path):
    for node, simds, size in (("0", 0, 1 << 40), ("1", 1216, SIZE)):
        bank = tmp_path / node / "mem_banks" / "0"
        bank.mkdir(parents=True)
        (tmp_path / node / "properties").write_text(
            f"cpu_cores_count 0\nsimd_count {simds}\ngfx_target_version 90402\n"
        )
        (bank / "properties").write_text(f"heap_type 1\nsize_in_bytes {size}\n")
    assert listing.read_kfd(tmp_path) == [Device(0, "AMD GPU", SIZE, architecture="gfx942")]
    (tmp_path / "1" / "properties").write_text("simd_count 416\ngfx_target_version 90010\n")
    assert listing.read_kfd(tmp_path)[0].architecture == "gfx90a"


def tool(folder, name, text, code=0):
    path = folder / name
    path.write_text(f"#!/bin/sh\n/bin/cat <<'EOT'\n{text}\nEOT\nexit {code}\n")
    path.chmod(0o755)


def test_detect_through_the_tools(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    failed = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    tool(tmp_path, "nvidia-smi", failed, 9)
    found = machine.detect_machine()
    assert found.runtime == "cpu"
    assert "couldn't communicate" in found.notes[0]
    tool(tmp_path, "rocm-smi", next(data for name, data, _ in ROWS("devices") if name == "rocm"))
    assert (machine.detect_machine().runtime, len(machine.detect_machine().devices)) == ("rocm", 2)
    old = '#!/bin/sh\ncase "$*" in *compute_cap*) echo "not a valid field"; exit 2;; esac\n'
    path = tmp_path / "nvidia-smi"
    path.write_text(f'{old}echo "NVIDIA A40, 46068, 45000"\n')
    assert machine.detect_machine().devices == (Device(0, "NVIDIA A40", 46068 << 20, 45000 << 20),)
    assert machine.detect_machine().notes == ()  # which an old driver's words are not
    tool(tmp_path, "nvidia-smi", H100.strip())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    found = machine.detect_machine()
    assert (found.runtime, [device.index for device in found.devices]) == ("cuda", [2, 3])
    # Hidden devices leave the processor.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "rocm-smi").unlink()
    found = machine.detect_machine()
    assert (found.runtime, found.devices) == ("cpu", ())
    assert found.notes == ("CUDA_VISIBLE_DEVICES= hides all of 8 x NVIDIA H100 80GB HBM3",)


def test_mig_slices_are_the_devices_of_who_has_some(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    listed = ["GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5d5ba0d6)"] + [
        f"  MIG 1g.10gb     Device  {n}: (UUID: MIG-{n}-9c)" for n in range(3)
    ]
    whole = "NVIDIA H100 80GB HBM3, 81559, 81000, 9.0"
    script = "\n".join(["cat <<'EOT'", *listed, "EOT"]).replace("cat", "/bin/cat")

    def smi(line):
        shell = f'#!/bin/sh\ncase "$1" in -L) {script}\n;; *) echo "{line}";; esac\n'
        (tmp_path / "nvidia-smi").write_text(shell)
        (tmp_path / "nvidia-smi").chmod(0o755)

    smi(whole)
    assert machine.detect_machine().devices[0].memory_bytes == 81559 << 20
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-2-9c,MIG-0-9c")
    name = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    found = machine.detect_machine()
    assert found.devices == tuple(Device(n, name, None, None, "sm_90") for n in (0, 1))
    assert name in device_profile("h100-sxm-mig-1g.10gb").aliases  # so that the check knows it
    # A container that was given a slice cannot read the device's memory.
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    smi("NVIDIA H100 80GB HBM3, [Insufficient Permissions], [Insufficient Permissions], 9.0")
    assert [device.index for device in machine.detect_machine().devices] == [0, 1, 2]


@over("value left", ROWS("visible"))
def test_visible_devices_as_the_runtimes_read_them(monkeypatch, value, left):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    devices = [Device(n, "NVIDIA H200", None) for n in (0, 1)]
    seen = machine.visible_devices(devices, "CUDA_VISIBLE_DEVICES")
    assert [device.index for device in seen] == left


@over("runtime text version", ROWS("drivers"))
def test_the_kernel_says_which_driver_it_has(tmp_path, monkeypatch, runtime, text, version):
    path = tmp_path / "version"
    if text is not None:
        path.write_text(text)
    monkeypatch.setitem(machine._DRIVERS, runtime, (path, machine._DRIVERS[runtime][1]))
    assert machine.driver_version(runtime) == version


# Memory, and who holds it


def test_memory_respects_the_container(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 900 kB\n")
    assert machine.host_memory_bytes(tmp_path / "meminfo", tmp_path) == (1_024_000, 921_600)
    (tmp_path / "memory.max").write_text("500000\n")
    (tmp_path / "memory.current").write_text("300000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 100000\n")
    assert machine.host_memory_bytes(tmp_path / "meminfo", tmp_path) == (500_000, 300_000)
    assert machine.host_memory_bytes(tmp_path / "nothing", tmp_path) == (None, None)


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


def test_who_holds_memory_of_the_machine():
    code = "import time; held = bytearray(200 << 20); print('x', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        sizes = {holder.pid: holder.size_bytes for holder in listing.list_memory_holders()}
        process.kill()
    assert (sizes[process.pid] or 0) >= 200 << 20
    assert len(listing.list_holders("cpu")) <= 3


def test_a_kill_for_want_of_memory_counts_once(bundle, world):
    observer, plan = Observer(world), load_plan(bundle.root)

    def killed():
        return observer.look(plan, (), [0]).observations[0].out_of_memory

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
