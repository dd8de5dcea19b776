"""A bundle folder with a fake engine, the launcher run on it, and a world in which time jumps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from recipe_core.launcher import state
from tests.fixtures.bundles import Bundle, serving_bundle, training_bundle
from tests.fixtures.fake_world import Deployment, FakeWorld, Training, trains
from tests.fixtures.ports import free_port


@pytest.fixture
def make_bundle(tmp_path: Path) -> Iterator[Callable[..., Bundle]]:
    made: list[Bundle] = []

    def make(*server: str) -> Bundle:
        root = tmp_path / f"bundle{len(made)}"
        bundle = serving_bundle(root, tmp_path / "model", free_port(), *server)
        made.append(bundle)
        return bundle

    yield make
    for bundle in made:
        if bundle.up:
            bundle.run("down")


@pytest.fixture
def bundle(make_bundle: Callable[..., Bundle]) -> Bundle:
    return make_bundle()


@pytest.fixture
def world() -> FakeWorld:
    return FakeWorld()


@pytest.fixture
def writes_are_steps(world: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher can be killed before it writes its state, too."""
    write = state.write_json

    def written(path: Path, data: object) -> None:
        world.step()
        write(path, data)

    monkeypatch.setattr(state, "write_json", written)


@pytest.fixture
def deployed(tmp_path: Path, world: FakeWorld) -> Callable[..., Deployment]:
    """A bundle in a fake world, of one server or some replicas."""

    def make(replicas: int = 1, *, routed: bool = False, **limits: Any) -> Deployment:
        root = tmp_path / f"deployed-{world.clock.at}"
        found = serving_bundle(root, tmp_path / "model", 20_000)
        if replicas > 1:
            found.put_replicas(replicas, routed=routed)
        return Deployment(found, world, **limits)

    return make


@pytest.fixture
def trained(tmp_path: Path, world: FakeWorld) -> Callable[..., Training]:
    """A training run in a fake world; ``faults`` of its trainer."""

    def make(steps: int = 12, *faults: dict[str, Any], every: int = 2, **limits: Any) -> Training:
        found = training_bundle(tmp_path / "trained", tmp_path, 20_000, steps)
        (found.root / "run").mkdir()
        scenario = {"every": every, "faults": list(faults)}
        (found.root / "run" / "fake.json").write_text(json.dumps(scenario))
        world.scripts["trainer-0"] = [trains]
        return Training(found, world, **limits)

    return make
