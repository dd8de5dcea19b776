"""What the vendors' tools print, as recorded or in the form their documentation gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recipe_core.launcher import machine
from recipe_core.launcher.machine import Device, parse_amd_smi, parse_nvidia_smi, parse_rocm_smi

H100 = "NVIDIA H100 80GB HBM3, 81559\n" * 8
MI300X, SIZE = "AMD Instinct MI300X", 206141652992
ROCM_SMI = {
    f"card{n}": {
        f"Card {series}": MI300X if n else "0x74a1",
        f"Card {model}": "0x74a1" if n else f"{MI300X} OAM",
        "VRAM Total Memory (B)": str(SIZE),
    }
    for n, series, model in ((1, "Series", "Model"), (0, "series", "model"))
} | {"system": {"Driver version": "6.10.5"}}
AMD_SMI = [
    {
        "gpu": n,
        "asic": {"market_name": "AMD Instinct MI350X"},
        "vram": {"type": "HBM3E", "size": size},
    }
    for n, size in enumerate(({"value": 294896, "unit": "MB"}, "N/A"))
]


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
    for listed in (AMD_SMI, {"gpu_data": AMD_SMI}):
        assert parse_amd_smi(json.dumps(listed)) == [
            Device(0, "AMD Instinct MI350X", 294896 << 20),
            Device(1, "AMD Instinct MI350X", None),
        ]


def test_kfd_lists_only_nodes_with_simds(tmp_path: Path) -> None:
    for node, simds, size in (("0", 0, 1 << 40), ("1", 1216, 206141652992)):
        bank = tmp_path / node / "mem_banks" / "0"
        bank.mkdir(parents=True)
        (tmp_path / node / "properties").write_text(f"cpu_cores_count 0\nsimd_count {simds}\n")
        (bank / "properties").write_text(f"heap_type 1\nsize_in_bytes {size}\n")
    assert machine.read_kfd(tmp_path) == [Device(0, "AMD GPU", 206141652992)]


def test_memory_respects_the_container(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 900 kB\n")
    assert machine.memory(tmp_path / "meminfo", tmp_path) == (1_024_000, 921_600)
    (tmp_path / "memory.max").write_text("500000\n")
    (tmp_path / "memory.current").write_text("300000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 100000\n")
    assert machine.memory(tmp_path / "meminfo", tmp_path) == (500_000, 300_000)
    assert machine.memory(tmp_path / "nothing", tmp_path) == (None, None)


def tool(folder: Path, name: str, text: str, code: int = 0) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n/bin/cat <<'EOT'\n{text}\nEOT\nexit {code}\n")
    path.chmod(0o755)


def test_detect_through_the_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_visible_devices_as_the_runtimes_read_them(monkeypatch):
    devices = [Device(n, "NVIDIA H200", None) for n in (0, 1)]
    none = [(value, []) for value in ("", " ", "-1", "-1,0")]
    for value, left in [*none, ("1, 0", [0, 1]), ("0,9,1", [0]), ("GPU-8a2f", [0, 1])]:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        seen = [device.index for device in machine.visible(devices, "CUDA_VISIBLE_DEVICES")]
        assert (value, seen) == (value, left)


def test_hidden_devices_leave_the_processor(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    tool(tmp_path, "nvidia-smi", H100.strip())
    found = machine.detect()
    assert (found.runtime, found.devices) == ("cpu", ())
    assert found.notes == ("CUDA_VISIBLE_DEVICES= hides all of 8 x NVIDIA H100 80GB HBM3",)


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
