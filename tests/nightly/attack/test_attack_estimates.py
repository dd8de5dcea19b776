"""What looks odd in known estimates has a reason that holds."""

from __future__ import annotations

import re
from functools import cache
from math import inf
from typing import Any

import pytest
import yaml

from recipe_core.base.units import gib, seconds_text
from recipe_core.hardware.cluster import in_nodes
from recipe_core.plans.plans import estimate_batch
from tests.fixtures.paths import DATA
from tests.fixtures.rows import over
from tests.nightly.attack.estimate_oddities import ODDITIES, Case, Pair, over_reason
from tests.nightly.attack.estimate_properties import Request

KNOWN: Any = yaml.safe_load((DATA / "odd_estimates.yaml").read_text())


def request(model: str, device: str, candidate: Request, workload: Request) -> Request:
    split = {"tp": 1, "pp": 1, "dp": 1, **candidate}
    asked = {"workload": {"kind": "serving", **workload}, "candidate": split}
    return {"model": model, "hardware": in_nodes(device, 8, 16), **asked}


@cache
def pair(name: str) -> Pair:
    """A known request and its neighbour, both estimated."""
    stated, instead = KNOWN[name]["request"], KNOWN[name]["instead"]
    after = stated | {part: stated[part] | values for part, values in instead.items()}
    requests = [request(**stated), request(**after)]
    return Pair(*map(Case, requests, estimate_batch(requests)))


def note(case: Case, words: str) -> str:
    """The one note with these words."""
    (found,) = (said for said in case.answer["notes"] if words in said)
    return found


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_pair_is_as_odd_as_its_reason_explains(name: str) -> None:
    known, found = KNOWN[name], pair(name)
    for figure, (low, high) in known.get("changes", {}).items():
        least, most = -inf if low is None else low, inf if high is None else high
        assert least < found.change(figure) < most, figure
    if oddity := ODDITIES.get(known.get("oddity")):
        assert oddity.seen(found) == known.get("seen", True)
        reason = oddity.reason_for(found)
        assert reason is not None
        assert reason.startswith(known["reason"])
        silent = (Case(case.request, case.answer | {"notes": []}) for case in found)
        assert oddity.reason_for(Pair(*silent)) is None  # a reason that no answer states is none
    if words := known.get("note"):
        assert note(found.after, words)


def test_notes_have_the_figures_of_what_they_explain() -> None:
    slower = pair("kernels explain a small model that 8 bits slow down")
    assert not slower.before.says("kernels are slower")
    figures = re.findall(r"([\d.]+) ms", note(slower.after, "fp8 kernels are slower here than"))
    times = [1e3 * case.figure("tpot_s") for case in (slower.after, slower.before)]
    assert [float(figure) for figure in figures[:2]] == pytest.approx(times, rel=0.05)

    experts = pair("links and idle ranks slow experts down")
    for case, ranks in ((experts.before, 4), (experts.after, 8)):
        exchange = seconds_text(case.answer["breakdown_s"]["decode"]["all_to_all"])
        words = f"{exchange} for exchanging tokens among experts of dp {ranks}"
        assert words in note(case, "Links between devices take")
        idle = f"{ranks - 2} of {ranks} data-parallel ranks have no request"
        assert idle in note(case, "have no request")

    halved = pair("links halve throughput").after
    reduce = seconds_text(halved.answer["breakdown_s"]["prefill"]["all_reduce"])
    assert f"{reduce} for summing over TP" in note(halved, "Links between")

    buffers = pair("buffers outweigh a small model")
    rise = buffers.after.memory["runtime_bytes"] - buffers.before.memory["runtime_bytes"]
    assert f"buffers take {gib(rise)} of a device" in note(buffers.after, "Communication")


def test_long_prompts_are_served_no_faster_than_one_chunk_a_step() -> None:
    """8-bit weights, whose steps with a chunk take less time, serve more of them."""
    before = pair("8-bit weights serve more chunks of long prompts").before
    chunks_per_s = before.figure("output_tokens_per_s") / 14 / 8 * 26_553 / 512
    # two stages; prompts that start together decode together, in longer steps
    assert chunks_per_s * before.figure("tpot_s") == pytest.approx(2, rel=0.2)


@over(
    "mode, load, queued",
    [
        ("closed", {"concurrency": 500}, True),
        ("offline", {"requests": 500}, True),
        ("static", {"batch": 60}, False),
    ],
)
def test_what_needs_more_memory_than_there_is_says_how_much_is_held(mode, load, queued):
    workload = {"mode": mode, "input_tokens": 4000, "output_tokens": 4000} | load
    crowded = request("meta-llama/Llama-3.1-8B-Instruct", "h100-sxm", {"engine": "vllm"}, workload)
    case = Case(crowded, estimate_batch([crowded])[0])
    assert case.answer["feasible"]
    assert case.memory["total_bytes"] > case.memory["usable_bytes"]
    assert over_reason(case) is not None
    holds = note(case, "requests at full length")
    assert f"holds {case.memory['max_concurrency']:,} of" in holds
    assert case.says("run at once") == queued
    assert ("starts and queues" in holds) == queued
    total, usable = (gib(case.memory[name]) for name in ("total_bytes", "usable_bytes"))
    assert f"{total} of {usable} usable" in holds
