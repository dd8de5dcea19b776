"""Cold starts: published starts, formulas, and what must hold of any."""

import json
from importlib import import_module

import pytest

from recipe_core.base.errors import InputError
from recipe_core.calibration.cold_starts import errors, half
from recipe_core.engines.spec import engine, engine_names
from recipe_core.hardware.cluster import device
from recipe_core.launch.startup import startup_rates
from recipe_core.measured.starts import published_starts
from recipe_core.physics.serving.cold_start import cold_start
from recipe_core.physics.serving.start_numbers import engine_start, place_names, start_numbers
from recipe_core.request.start import Start
from scripts.fit_cold_start import fit
from tests.fixtures.command_line import recipe

READY = Start(node="ready")
H100 = device("h100-sxm")


def base_s(name):
    """What a launch of an engine allows beside its weights."""
    module = engine(name).wraps or engine(name).launcher or name
    return import_module(f"recipe_core.launch.serving.{module.replace('-', '_')}").STARTUP_TIMEOUT_S


def start(of=READY, name="vllm", gb=140.0, devices=4, **more):
    return cold_start(of, engine=name, weights_bytes=gb * 1e9, devices=devices, device=H100, **more)


@pytest.mark.parametrize(("held", "most"), [(0, 0.30), (1, 0.35)])
def test_totals_of_sources_that_were_not_used(held, most):
    """Numbers fitted on half of the sources, held against starts of the other half."""
    runs = published_starts()
    numbers = fit([run for run in runs if half(run.source) != held])
    score = errors([run for run in runs if half(run.source) == held], "total", numbers)
    assert score.runs >= 15
    assert score.median <= most
    assert score.covered >= 0.7  # of the 80 % bands


def test_shipped_numbers_hold_the_published_starts():
    score = errors(published_starts(), "total")
    assert score.median <= 0.25
    assert 0.7 <= score.covered <= 0.95
    assert errors(published_starts(), "engine init").median <= 0.35


def test_a_ready_node_starts_qwen_2_5_72b_as_published():
    # ai-dynamo/snapshot: 97.8 s on a B200, weights on NFS, empty caches
    of = Start(node="ready", weights="superpod-good")
    answer = cold_start(
        of, engine="vllm", weights_bytes=145.4e9, devices=1, device=device("b200-sxm")
    )
    assert answer.low_s < 97.8 < answer.high_s


def test_phases_add_up_and_bands_hold_them():
    answer = start(Start())
    assert sum(part.seconds for part in answer.phases) == pytest.approx(answer.seconds)
    assert all(part.low_s <= part.seconds <= part.high_s for part in answer.phases)
    names = [part.name for part in answer.phases]
    assert names.index("node") < names.index("image") < names.index("weights")


def test_a_new_node_downloads_and_a_ready_one_reads_its_drive():
    new, ready = ({part.name for part in start(of).phases} for of in (Start(), READY))
    assert new - ready == {"node", "device plugin", "image", "download"}


@pytest.mark.parametrize(("slow", "fast"), [("ebs-gp3", "nvme"), ("nvme", "tmpfs"), ("hub", "s3")])
def test_faster_places_start_sooner(slow, fast):
    slower, faster = (
        start(Start(node="ready", weights=place, loader="streamer")) for place in (slow, fast)
    )
    assert faster.seconds < slower.seconds


def test_every_saving_is_the_difference_of_two_starts():
    for saving in start(Start()).savings:
        field, value = saving.change.split(": ")
        if field in ("weights", "loader", "wake"):
            changed = start(Start(**{field: value}))
            difference = start(Start()).seconds - changed.seconds
            assert saving.seconds_saved == pytest.approx(difference)


def test_a_sleeping_engine_wakes_as_fast_as_published():
    # vLLM's sleep mode, level 1: 61.1 GB in 2.87 s and 236 GB on four A100 in 5.41 s
    for gb, devices, seconds in ((61.1, 1, 2.87), (236, 4, 5.41)):
        answer = cold_start(
            Start(node="ready", wake="sleep-1"),
            engine="vllm",
            weights_bytes=gb * 1e9,
            devices=devices,
            device=device("a100-sxm-80gb"),
        )
        assert answer.low_s / 1.2 < seconds < answer.high_s * 1.2


def test_eager_mode_and_caches_leave_out_what_they_should():
    names = {part.name for part in start(eager=True).phases}
    assert not {"compilation", "graphs"} & names
    cached = start(Start(node="ready", compile_cache=True), weight_dtype="fp8")
    assert "kernels" not in {part.name for part in cached.phases}
    assert "kernels" in {part.name for part in start(weight_dtype="fp8").phases}


def test_more_weights_never_start_sooner_nor_more_devices_read_slower():
    assert start(gb=10).seconds < start(gb=100).seconds < start(gb=1000).seconds
    one, eight = (
        next(part.seconds for part in start(devices=n).phases if part.name == "weights")
        for n in (1, 8)
    )
    assert eight < one


def test_what_is_not_measured_of_an_engine_says_so():
    process = next(part for part in start(name="tensorrt-llm").phases if part.name == "process")
    assert process.basis.startswith("assumed")
    assert start_numbers().engines["vllm"].status == "measured"


@pytest.mark.parametrize("engine_name", engine_names())
@pytest.mark.parametrize("gb", [1, 16, 140, 700])
def test_a_start_is_given_more_time_than_it_takes(engine_name, gb):
    """The limit of a start is above the far end of its band, from the process on.

    A network file system counts where the engine reads it by several streams: in one, its rate has
    to be stated in the request.
    """
    rates = startup_rates()
    places = ["hub", "nvme", *(["efs"] if engine_start(engine_name).prefetches else [])]
    for place in places:
        answer = start(Start(node="ready", weights=place), name=engine_name, gb=gb, devices=8)
        limit = base_s(engine_name) + gb * 1e9 / rates.read_bytes_per_s.value
        if place == "hub":
            limit += gb * 1e9 / rates.fetch_bytes_per_s.value
        assert answer.high_s <= limit, (place, answer)


def test_wrong_places_and_sizes_are_refused():
    with pytest.raises(InputError, match="nvme"):
        start(Start(node="ready", weights="nvm"))
    with pytest.raises(InputError, match="weights_bytes"):
        start(gb=-1)
    assert {"hub", "tmpfs", "peer", "nvme", "ebs-gp3"} <= set(place_names())


def test_the_command_says_phases_total_and_savings(tmp_path):
    path = tmp_path / "request.json"
    hardware = {"device": "h100-sxm", "per_node": 8}
    path.write_text(
        json.dumps(
            {"model": "Qwen/Qwen3-32B", "hardware": hardware, "workload": {"concurrency": 8}}
        )
    )
    answer = json.loads(recipe("cold-start", str(path), "--json").stdout)
    assert answer["low_s"] < answer["seconds"] < answer["high_s"]
    assert {part["name"] for part in answer["phases"]} >= {"node", "weights"}
    text = recipe("cold-start", str(path)).stdout
    assert "in eight of ten starts" in text
    assert "keep the image on the node" in text
