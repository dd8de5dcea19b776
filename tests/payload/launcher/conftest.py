"""A bundle folder with a fake engine, the launcher run on it, and a world in which time jumps."""

import json

import pytest

from recipe_core.payload.launcher import state
from tests.fixtures.bundles import serving_bundle, training_bundle
from tests.fixtures.fake_world import Deployment, FakeWorld, Training, trains
from tests.fixtures.ports import free_port


@pytest.fixture
def make_bundle(tmp_path):
    made = []

    def make(*server):
        root = tmp_path / f"bundle{len(made)}"
        made.append(serving_bundle(root, tmp_path / "model", free_port(), *server))
        return made[-1]

    yield make
    for bundle in made:
        if bundle.up:
            bundle.run("down")


@pytest.fixture
def bundle(make_bundle):
    return make_bundle()


@pytest.fixture
def world():
    return FakeWorld()


@pytest.fixture
def writes_are_steps(world, monkeypatch):
    """A launcher can be killed before it writes its state, too."""
    write = state.write_json

    def written(path, data):
        world.step()
        write(path, data)

    monkeypatch.setattr(state, "write_json", written)


@pytest.fixture
def deployed(tmp_path, world):
    """A bundle in a fake world, of one server or some replicas."""

    def make(replicas=1, *, routed=False, **limits):
        root = tmp_path / f"deployed-{world.clock.at}"
        found = serving_bundle(root, tmp_path / "model", 20_000)
        if replicas > 1:
            found.put_replicas(replicas, routed=routed)
        return Deployment(found, world, **limits)

    return make


@pytest.fixture
def trained(tmp_path, world):
    """A training run in a fake world; ``faults`` of its trainer."""

    def make(steps=12, *faults, every=2, **limits):
        found = training_bundle(tmp_path / "trained", tmp_path, 20_000, steps)
        (found.root / "run").mkdir()
        scenario = {"every": every, "faults": list(faults)}
        (found.root / "run" / "fake.json").write_text(json.dumps(scenario))
        world.scripts["trainer-0"] = [trains]
        return Training(found, world, **limits)

    return make
