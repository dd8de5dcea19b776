"""Links, recipes, bundles and estimates that version 0.1.0 wrote still open and mean the same."""

from __future__ import annotations

import io
import json
import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
import yaml
from starlette.applications import Starlette
from starlette.testclient import TestClient

from recipe_core import __version__
from recipe_core.base.errors import NoAnswer
from recipe_core.doors.api import create_api
from recipe_core.doors.moved import moved_routes
from recipe_core.payload.launcher.plan import LaunchPlan, load_plan
from recipe_core.recipe.decision import decide
from recipe_core.request.edit import SHARED
from recipe_core.request.link import from_query, link_query
from recipe_core.request.schema import PlanRequest
from recipe_core.request.split_key import candidate_key, key_split, read_pins, split_key
from tests.fixtures import command_line
from tests.fixtures.opening import opened, query_of
from tests.fixtures.paths import DATA
from tests.fixtures.rows import over

pytestmark = pytest.mark.usefixtures("no_workers")

BEFORE = DATA / "before"
LINKS = [json.loads(line) for line in (BEFORE / "links.jsonl").read_text().splitlines()]
DECIDED = [link for link in LINKS if link["split"]]
MAX_PINS = 4
RECIPES = sorted((BEFORE / "recipes").glob("*.yaml"))
BUNDLES = sorted((BEFORE / "bundles").glob("*.zip"))
ESTIMATES = sorted((BEFORE / "estimates").glob("*.yaml"))
SENTENCES = ("notes", "reasons")
"""Fields for people to read: their words may become better."""
SAME = 1e-12
"""Processors differ in the last digits of exponentials and logarithms."""
REFITTED = 0.5
"""By how much times, and training's memory, may differ: they are fitted again and again."""
TIMED = ("serving", "ttft_s", "training", "step_s", "step", "parameters_bytes")
"""Fields beside or in which figures are fitted."""
OF_LOAD = ("kv_needed_bytes", "total_bytes", "max_context_at_load")
"""Figures of memory that follow from how long requests take, and so how many there are."""
RECOUNTED = 0.06
"""By how much figures ``OF_POOL`` may differ, as ``RECOUNTED_BYTES`` do."""
OF_POOL = ("kv_cache_bytes", "kv_cache_tokens", "max_concurrency")
OF_FAILURES = {"mtbf_s": 0.8, "checkpoint_interval_s": 0.6, "goodput": 0.01}
"""By how much figures of a training run may differ that follow from how often devices fail: that
was the rate of one fleet for all."""
ALIKE = dict.fromkeys(OF_POOL, RECOUNTED) | OF_FAILURES
RECOUNTED_BYTES = {"runtime_bytes": 2.6e9, "activations_bytes": 6e9}
"""By how much memory may differ: captured graphs were not counted, and samplers sorted."""
NO_LONGER_KEPT = ("gathered_bytes", "reserve_bytes", "loss_bytes")
"""Memory that Megatron Core was said to need: 16-bit gradients beside fp32 ones, fragments, and
logits in 10 bytes, beside the first layer that goes back too."""
RETOLD = ("config", "checkpoints", "lora")
"""Options of training that have other values: a name of torchtitan's registry has another place,
and checkpoints follow how often devices fail."""
PRICE = ".basis.usd_per_hour"
"""Of which the commitment stays: price lists are renewed, and with them the cheapest offer."""
PROFILE = "lock.device.profile_digest"
"""Of a device whose figures were fitted again."""
PARTS = ("breakdown_s", "causes_s")
"""Of which even more may have changed: parts of a time go over into one another."""


def recipe(*words: str) -> Any:
    """The JSON answer of a command that ends well."""
    done = command_line.recipe(*words, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def assert_holds(now: Any, before: Any, where: str = "", *, refitted: bool = False):
    """All that was answered before is answered now, numbers to the digit; fields may join.

    Times, and what training keeps in memory, are ``refitted``, and near what they were.
    """
    if ".basis." in f".{where}":  # its first words say what a figure rests on, the rest explains
        now, before = now.partition(":")[0], before.partition(":")[0]
    if f".{where}".endswith(PRICE):
        now, before = now.split(", ")[1:2], before.split(", ")[1:2]
    if where.rpartition(".")[2] == "cost" and isinstance(before, dict):
        now = at_price(now, before)
    if isinstance(before, dict):
        assert_fields_hold(now, before, where, refitted=refitted)
    elif isinstance(before, list):
        assert len(now) == len(before), where
        for index, (value, earlier) in enumerate(zip(now, before, strict=True)):
            assert_holds(value, earlier, f"{where}[{index}]", refitted=refitted)
    elif isinstance(before, bool) or not isinstance(before, int | float):
        assert now == before, where
    elif ".bands." not in f".{where}" and not (refitted and set(PARTS) & set(where.split("."))):
        far = REFITTED if refitted else SAME
        assert now == pytest.approx(before, rel=far, abs=0), where


def assert_fields_hold(now: dict[str, Any], before: dict[str, Any], where: str, *, refitted: bool):
    missing = before.keys() - now.keys()
    assert not missing, f"{where}: {sorted(missing)}"
    refitted = refitted or not before.keys().isdisjoint(TIMED)
    refitted = refitted and "weights_bytes" not in before  # memory of serving is not
    for name in before.keys() - set(SENTENCES):
        place, of_time = f"{where}.{name}", refitted or name in OF_LOAD
        if name in NO_LONGER_KEPT and "gradients_bytes" in before:
            assert now[name] <= before[name], place
        elif name in OF_FAILURES or (name in ALIKE and not refitted):
            assert now[name] == pytest.approx(before[name], rel=ALIKE[name]), place
        elif name in RECOUNTED_BYTES and not refitted:
            assert abs(now[name] - before[name]) <= RECOUNTED_BYTES[name], place
        else:
            assert_holds(now[name], before[name], place, refitted=of_time)


def at_price(now: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """A cost at the price that held before."""
    if before["usd_per_hour"] is None:
        return now
    scale = before["usd_per_hour"] / now["usd_per_hour"]
    return {name: v * scale if v and name.startswith("usd") else v for name, v in now.items()}


@over("link", LINKS)
def test_a_link_means_the_same_request(link):
    query = dict(parse_qsl(link["link"]))
    request, ignored = from_query(query)
    assert (request, ignored) == (PlanRequest.parse(link["request"]), [])
    assert_holds(request.to_json(), link["request"])
    assert (candidate_key(request.candidate.model_dump()) if request.candidate else None) == link[
        "split"
    ]
    assert read_pins(query.get("pins", ""), MAX_PINS) == (link["pins"], [])
    assert link_query(request, link["pins"]) == query  # and a copy of it is the same link


@over("link", DECIDED)
def test_the_splits_of_a_link_are_in_its_plan(link):
    whole_plan = {name: value for name, value in link["request"].items() if name != "candidate"}
    stated = key_split(link["split"]) or {}
    if link["request"]["workload"].get("kind") == "training":  # what all of its splits share
        whole_plan["candidate"] = {name: stated[name] for name in ("engine", "precision")}
    words = ("plan", "-", "--top", "5000", "--json")
    done = command_line.recipe(*words, stdin=json.dumps(whole_plan))
    assert done.returncode in (0, 1)  # 1: a framework that cannot launch the model
    names = {split_key(row["candidate"]) for row in json.loads(done.stdout)["candidates"]}
    wanted = {name.partition(".on")[0] for name in (*link["pins"], link["split"])}
    for name in wanted - names:  # plans refuse by now what no bundle could be made of
        candidate = {**whole_plan.get("candidate", {}), **(key_split(name) or {})}
        with pytest.raises(NoAnswer):
            decide(PlanRequest.parse({**whole_plan, "candidate": candidate})).started()


@pytest.fixture(scope="module")
def earlier() -> TestClient:
    """What leads links of earlier pages to their places of today."""
    return TestClient(Starlette(routes=moved_routes()), follow_redirects=False)


@over("link", DECIDED[::4])
def test_a_page_opens_at_its_link(link, earlier):
    address = f"/{link['page']}?{link['link']}"
    place, _, query = earlier.get(address).headers.get("location", address).partition("?")
    page = opened(f"{place.strip('/')}.py?{query}", hardware_chosen=False)
    assert page.session_state["request"] == PlanRequest.parse(link["request"])
    assert page.session_state["pins"] == link["pins"]
    kept = dict(parse_qsl(query))
    outside = page.session_state["outside"]
    if outside.split:  # it was never buildable, and is now refused
        assert any("no longer fits" in caption.value for caption in page.caption)
        of_all = {f"candidate.{field}" for field in SHARED}  # not of this split alone
        kept = {k: v for k, v in kept.items() if k in of_all or not k.startswith("candidate.")}
    if outside.pins:
        pins = ",".join(pin for pin in link["pins"] if pin not in outside.pins)
        kept = {name: text for name, text in {**kept, "pins": pins}.items() if text}
    assert query_of(page) == kept


@pytest.fixture(scope="module")
def api() -> TestClient:
    return TestClient(create_api(folders=False))


def request_then(recipe):
    """The request of a recipe with the longest request that was usual when it was made."""
    longest = recipe.get("max_context")
    if longest is None:
        return recipe["request"]
    return recipe["request"] | {
        "workload": recipe["request"]["workload"] | {"max_context": longest}
    }


@over("path", RECIPES)
def test_a_recipe_is_what_its_request_leads_to_and_built_as_it_is(path, api):
    """Planned again with the split that it holds, it is the same: options, variables, figures."""
    before = yaml.safe_load(path.read_text())
    stated = request_then(before) | {"candidate": before["candidate"]}
    compared = api.post("/diff", json={"before": before, "after": stated}).json()
    changed = compared["changed"]
    told_more = {"engine", "environment"} if before["kind"] == "training" else set()
    assert set(changed) - set(SENTENCES) <= {"request", "provenance", "lock"} | told_more
    # each device's own build is installed, which was the same for all
    installed = ("lock.engine.install", "lock.engine.packages.", "lock.engine.version", PROFILE)
    assert all(change["field"].startswith(installed) for change in changed.get("lock", []))
    assert before["kind"] == "training" or api.post("/check", json=stated).json()["ok"] is True
    now = api.post("/recipe", json=stated).json()
    for part in ("kind", "name", "candidate", "estimate", "environment", "max_context"):
        assert_holds(now.get(part), before.get(part), part)
    options = {k: v for k, v in before["engine"]["options"].items() if k not in RETOLD}
    if before["kind"] == "training":  # more of a model and of a run is told than was
        assert now["engine"]["options"].items() >= options.items()
    else:
        assert now["engine"]["options"] == options
    # it is built as it is
    answer = api.post("/build", json=before)
    assert answer.status_code == 200, answer.text
    with zipfile.ZipFile(io.BytesIO(answer.content)) as bundle:
        built = yaml.safe_load(bundle.read("recipe.yaml"))
    for part in ("kind", "name", "candidate", "estimate", "environment", "parameters"):
        assert_holds(built[part], before[part], part)


@over("path", BUNDLES)
def test_a_bundle_verifies(path):
    answer = recipe("check", str(path))
    assert answer["ok"]
    # this version builds other files from the same recipe, and says so of an unsigned bundle
    differs, *estimates = [warning.partition(" (")[0] for warning in answer["warnings"]]
    assert differs == f"It differs from what recipe-builder {__version__} builds from its recipe"
    assert all(warning.startswith("This version estimates ") for warning in estimates)
    lock = recipe("lock", str(path), "--verify")
    assert lock["ok"]
    # a shipped profile changes with its fits, prices with their lists, and the lock says so
    renewed = {row["what"]: row["found"] for row in lock["found"] if row["level"] == "renewed"}
    assert not {"recipe", "image", "model architecture"} & set(renewed)
    moved = [text for what, text in renewed.items() if not what.startswith("profile of ")]
    assert all(re.search(r" \([+-][\d.,]+ %(, within the band)?\)$", text) for text in moved)
    text = command_line.recipe("lock", str(path), "--verify")
    assert text.returncode == 0
    assert (not renewed) != ("the bundle starts what it started" in text.stdout)
    assert recipe("diff", str(path), str(path))["same"]


SINCE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
"""What trainers were not told before."""


def launched(bundle: Path, folder: Path) -> LaunchPlan:
    """What this version's launcher would start of a bundle, its folder taken away."""
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(folder)
    plan = load_plan(folder)
    processes = tuple(
        replace(
            each,
            argv=tuple(word.replace(str(folder), "BUNDLE") for word in each.argv),
            env={name: value for name, value in each.env.items() if name != SINCE},
        )
        for each in plan.processes
    )
    return replace(plan, root=Path("BUNDLE"), processes=processes)


@over("path", BUNDLES)
def test_a_bundle_built_again_starts_the_same_processes(path, tmp_path):
    plan = launched(path, tmp_path / "before")
    assert plan.processes
    before = yaml.safe_load((tmp_path / "before" / "recipe.yaml").read_text())
    request = tmp_path / "request.yaml"
    request.write_text(yaml.safe_dump(request_then(before)))
    recipe("build", str(request), "--output", str(tmp_path / "again.zip"))
    now = launched(tmp_path / "again.zip", tmp_path / "now")
    required = [name.replace("-", "_") for name in plan.engine.requires]  # as modules are named
    names = [name.replace("-", "_") for name in now.engine.requires]
    assert names in (required, [*required, "peft"])  # whose adapters became peft's
    engine = replace(plan.engine, requires=now.engine.requires, install=now.engine.install)
    assert now.startup_timeout_s >= plan.startup_timeout_s  # grows with the weights
    later = ("startup_timeout_s", "needs", "choices", "supervision", "support")
    joined = {name: getattr(now, name) for name in later}
    before_lengths = (now.workload.input_spread, now.workload.output_spread)
    assert before_lengths == ((0.1, 0.1) if now.kind == "serving" else (0.0, 0.0))  # as is usual
    joined["workload"] = replace(plan.workload, input_spread=before_lengths[0])
    joined["workload"] = replace(joined["workload"], output_spread=before_lengths[1])
    joined["api"] = replace(plan.api, key_variable=now.api.key_variable)
    assert now == replace(plan, engine=engine, **joined)


def test_the_command_of_a_bundle_converts_to_its_recipe(tmp_path):
    """The bundle's request has the lengths and the load that are taken where none are stated."""
    folder = tmp_path / "before"
    (process,) = launched(BEFORE / "bundles" / "serving-nvidia-one-node.zip", folder).processes
    before = yaml.safe_load((folder / "recipe.yaml").read_text())
    converted = recipe("convert", " ".join(process.argv), "--hardware", "h100-sxm:2")
    assert converted["lost"] == []
    assert_holds(converted["recipe"]["candidate"], before["candidate"])
    assert_holds(converted["recipe"]["estimate"]["serving"], before["estimate"]["serving"])


@over("path", ESTIMATES)
def test_an_estimate_is_the_same(path):
    assert_holds(recipe("estimate", str(path)), json.loads(path.with_suffix(".json").read_text()))
