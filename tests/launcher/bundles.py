"""Bundle folders with a fake engine or trainer, for tests and attacks on the launcher."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_core.base.resources import PACKAGE
from recipe_core.launch.entry import LAUNCH_PY
from recipe_core.launcher import manifest, procs
from recipe_core.launcher.main import main

FAKE_SERVER = Path(__file__).with_name("fake_server.py")
FAKE_TRAINER = Path(__file__).with_name("fake_trainer.py")
SERVING = {"serving": {"ttft_s": 0.01, "tpot_s": 0.002, "output_tokens_per_s": None}}
TRAINING = {
    "step_s": 0.04,
    "tokens_per_s": 500.0,
    "tokens_per_s_per_gpu": 250.0,
    "mfu": 0.4,
    "peak_memory_bytes": 1 << 30,
}


def launch_json(port: int, model: Path, *server: str) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "name": "fake-cpu",
        "engine": {
            "name": "fake",
            "version": ".".join(map(str, sys.version_info[:3])),
            "program": sys.executable,
            "module": "fake",
            "install": "pip install fake==1",
        },
        "needs": {
            "runtime": "cpu",
            "device": "cpu",
            "title": "CPU",
            "names": [],
            "count": 1,
            "memory_bytes": 1 << 30,
            "used_bytes": 1 << 20,
        },
        "parameters": {"model": str(model), "host": "127.0.0.1", "port": port},
        "processes": [
            {
                "name": "server-0",
                "argv": [sys.executable, str(FAKE_SERVER), "--port", "${port}", *server],
                "env": {"MODEL": "${model}"},
                "port_offset": 0,
                "devices": [0],
            }
        ],
        "health": "/health",
        "startup_timeout_s": 20,
        "api": {"path": "/v1/completions", "model": "${model}", "body": {"ignore_eos": True}},
        "workload": {
            "mode": "closed",
            "input_tokens": 40,
            "output_tokens": 8,
            "concurrency": 3,
            "request_rate": None,
            "batch": None,
            "requests": None,
        },
    }


def training_json(port: int, model: Path, steps: int, fails_at: int, nodes: int) -> dict[str, Any]:
    data = launch_json(port, model) | {
        "kind": "training",
        "workload": {"kind": "training"},
        "health": "",
    }
    data["api"] = {"path": "", "model": "", "body": {}}
    words = [
        sys.executable,
        str(FAKE_TRAINER),
        "${run}",
        str(steps),
        str(fails_at),
        "--master-addr",
        "${head}",
    ]
    process = {"argv": words, "env": {}, "port_offset": 0, "devices": [0, 1], "role": "trainer"}
    data["processes"] = [
        {"name": f"trainer-{node}", "node": node, **process} for node in range(nodes)
    ]
    return data


def with_variable(name: str, value: str) -> list[int]:
    """Pids of living processes that have a variable in their environment."""
    entry = f"{name}={value}".encode()
    return sorted(pid for pid in _living() if entry in _environment(pid))


def _living() -> Iterator[int]:
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            stat = procs.read_stat(int(path.name))
            if stat is not None and stat.state not in "ZX":
                yield stat.pid


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def usual_signals() -> None:
    """Before a program starts: a shell's background job ignores SIGINT, and children inherit it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


@dataclass
class Bundle:
    """A bundle on disk. ``edit`` changes launch.json and brings the manifest up to date."""

    root: Path
    port: int

    def run(self, *words: str) -> int:
        return main(list(words), root=self.root)

    def edit(self, change: Callable[[dict[str, Any]], None]) -> None:
        path = self.root / "launch.json"
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data))
        self.seal()

    def add_fallback(self, name: str, change: Callable[[dict[str, Any]], None]) -> None:
        """A fallback that differs from the first choice by ``change``."""
        first = json.loads((self.root / "launch.json").read_text())
        entry = {"name": name, "kind": name.partition("-")[2], "title": f"fallback {name}"}
        listed = [*first.pop("fallbacks", []), entry]
        folder = self.root / "fallbacks" / name
        folder.mkdir(parents=True)
        launch = json.loads(json.dumps(first))
        change(launch)
        (folder / "launch.json").write_text(json.dumps(launch))
        shutil.copy(self.root / "expected.json", folder)
        self.edit(lambda data: data.update(fallbacks=listed))

    def seal(self) -> None:
        (self.root / "MANIFEST.json").unlink(missing_ok=True)
        digests = {
            name: hashlib.sha256((self.root / name).read_bytes()).hexdigest()
            for name in manifest.walk(self.root)
        }
        (self.root / "MANIFEST.json").write_text(
            json.dumps({"schema_version": 1, "files": digests})
        )

    def stand_alone(self) -> list[str]:
        """The command of the bundle as it travels: this project is not importable there."""
        (self.root / "launcher").mkdir()
        for path in sorted((PACKAGE / "launcher").glob("*.py")):
            shutil.copy(path, self.root / "launcher")
        (self.root / "launch.py").write_text(LAUNCH_PY)
        self.seal()
        return [sys.executable, str(self.root / "launch.py")]

    def state(self) -> dict[str, Any]:
        return dict(json.loads((self.root / "run" / "state.json").read_text()))

    @property
    def up(self) -> bool:
        return (self.root / "run" / "state.json").exists()


def serving_bundle(root: Path, model: Path, port: int, *server: str) -> Bundle:
    """One fake server; ``server`` are options of fake_server.py."""
    root.mkdir()
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"")
    (root / "launch.json").write_text(json.dumps(launch_json(port, model, *server)))
    expected = {"schema_version": 1, "feasible": True, **SERVING}
    bands = {"tpot_s": [0.001, 0.004], "ttft_s": None}
    (root / "expected.json").write_text(json.dumps(expected | {"bands": bands}))
    bundle = Bundle(root, port)
    bundle.seal()
    return bundle


def training_bundle(
    root: Path,
    model: Path,
    port: int,
    steps: int = 12,
    fails_at: int = 0,
    nodes: int = 1,
    *,
    record: bool = True,
) -> Bundle:
    """A fake trainer on each node, which writes its steps where there is a ``record``."""
    root.mkdir()
    launch = training_json(port, model, steps, fails_at, nodes)
    (root / "launch.json").write_text(json.dumps(launch))
    expected = {"schema_version": 1, "run": {"steps": steps}, "training": TRAINING}
    (root / "expected.json").write_text(json.dumps(expected | {"bands": {"step_s": [0.01, 0.05]}}))
    if record:
        (root / "train.json").write_text("{}")
    bundle = Bundle(root, port)
    bundle.seal()
    return bundle


def run(bundle: Bundle, *words: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """A command of a bundle that stands alone; ``settings`` are those of subprocess.run."""
    program = [sys.executable, str(bundle.root / "launch.py"), *words]
    options = {"capture_output": True, "text": True, "check": False, "timeout": 120}
    return subprocess.run(program, **(options | settings))  # type: ignore[call-overload, no-any-return]
