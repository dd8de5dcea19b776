"""Requests that tests share."""

import os

from tests.corpus.world import DAY
from tests.fixtures.paths import DATA, ROOT

# Before anything reads it: tests ask no hub, runs of this machine and the calendar change no test's
# numbers, and threads of torch that wait leave their core to the other worker.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["RECIPE_BUILDER_CALIBRATION"] = ""
os.environ["RECIPE_BUILDER_TODAY"] = DAY.isoformat()
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
from hypothesis import settings

from recipe_core.base.documents import read_document
from recipe_core.doors.pool import server_pool
from recipe_core.doors.settings import variable
from recipe_core.hardware.cluster import in_nodes
from recipe_core.request.schema import PlanRequest
from tests.fixtures import engines, groups
from tests.fixtures.sizes import examples

# No test waits for the disk: what it is told to keep is seen by tests/fixtures/power.py.
os.fsync = lambda _: None
# The machine is shared with another worker and real servers: no example is late.
settings.register_profile("suite", max_examples=examples(100), deadline=None)
settings.load_profile("suite")

LLAMA_70B = "meta-llama/Llama-3.1-70B-Instruct"


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items):
    """Mark what lies in the folder of nightly tests before -m asks, and sort what it leaves."""
    for item in items:
        if ROOT / "tests" / "nightly" in item.path.parents:
            item.add_marker(pytest.mark.nightly)
    yield
    items.sort(key=groups.place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return groups.GroupScheduling(config, log) if config.getoption("dist") == "loadgroup" else None


def request_values(model=LLAMA_70B, device="h100-sxm", per_node=8, nodes=1, **parts):
    """A request's values: by default a closed loop of 64 requests of 1,024 + 256 tokens."""
    load = {"mode": "closed", "input_tokens": 1024, "output_tokens": 256, "concurrency": 64}
    load |= parts.pop("workload", {})
    return {
        "model": model,
        "hardware": in_nodes(device, per_node, nodes),
        "workload": {name: value for name, value in load.items() if value is not None},
        **parts,
    }


def make_request(*args, **parts):
    return PlanRequest.parse(request_values(*args, **parts))


@pytest.fixture(scope="module")
def no_workers():
    """Pages calculate in the process of the test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(variable("workers"), "0")
        server_pool.cache_clear()
        yield
    server_pool.cache_clear()


@pytest.fixture(scope="session")
def demo_model(tmp_path_factory):
    """The demo's model, trained once, half as long; tests that change its folder copy it."""
    return engines.demo_model(tmp_path_factory.mktemp("trained") / "model", loss=0.5)


@pytest.fixture
def tiny_config():
    """A small Llama that needs no catalog."""
    return dict(read_document(DATA / "tiny_model.json"))


@pytest.fixture
def registered_chart(monkeypatch):
    """A view that only this test registers."""
    import plotly.graph_objects as go  # most tests draw nothing

    from recipe_core.views.charts import views

    monkeypatch.setattr(views, "VIEWS", dict(views.VIEWS))

    @views.view("devices", "Device count")
    def devices(focus):
        count = float(focus.plan.raw("gpus")[focus.row])
        figure = go.Figure(go.Bar(x=["devices"], y=[count]))
        yield views.Chart("devices", "Devices of a layout", figure, "How many devices it uses")

    return views.VIEWS["devices"]
