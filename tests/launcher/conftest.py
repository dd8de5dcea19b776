"""A bundle folder with a fake engine, and the launcher run on it."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from recipe_core.launcher import manifest
from recipe_core.launcher.main import main
from tests.ports import free_port

FAKE = Path(__file__).with_name("fake_server.py")


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
                "argv": [sys.executable, str(FAKE), "--port", "${port}", *server],
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

    def seal(self) -> None:
        (self.root / "MANIFEST.json").unlink(missing_ok=True)
        digests = {
            name: hashlib.sha256((self.root / name).read_bytes()).hexdigest()
            for name in manifest.walk(self.root)
        }
        (self.root / "MANIFEST.json").write_text(
            json.dumps({"schema_version": 1, "files": digests})
        )

    def state(self) -> dict[str, Any]:
        return dict(json.loads((self.root / "run" / "state.json").read_text()))

    @property
    def up(self) -> bool:
        return (self.root / "run" / "state.json").exists()


@pytest.fixture
def make_bundle(tmp_path: Path) -> Iterator[Callable[..., Bundle]]:
    made: list[Bundle] = []

    def make(*server: str) -> Bundle:
        root, model = tmp_path / f"bundle{len(made)}", tmp_path / "model"
        root.mkdir()
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text("{}")
        (model / "model.safetensors").write_bytes(b"")
        port = free_port()
        (root / "launch.json").write_text(json.dumps(launch_json(port, model, *server)))
        expected = {
            "schema_version": 1,
            "feasible": True,
            "serving": {"ttft_s": 0.01, "tpot_s": 0.002, "output_tokens_per_s": None},
        }
        (root / "expected.json").write_text(
            json.dumps({**expected, "bands": {"tpot_s": [0.001, 0.004], "ttft_s": None}})
        )
        bundle = Bundle(root, port)
        bundle.seal()
        made.append(bundle)
        return bundle

    yield make
    for bundle in made:
        if bundle.up:
            bundle.run("down")


@pytest.fixture
def bundle(make_bundle: Callable[..., Bundle]) -> Bundle:
    return make_bundle()
