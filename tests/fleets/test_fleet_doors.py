"""Fleets by the command line, the API, agents and files."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

import recipe_core as rb
from recipe_core.base.documents import parse_yaml, to_yaml
from recipe_core.base.errors import InputError
from recipe_core.doors.answers import answer_fleet, check_fleet
from recipe_core.doors.api import create_api
from recipe_core.doors.jobs import Jobs
from recipe_core.doors.pool import own_process
from recipe_core.estimates.measured.runs import Run
from tests.fixtures.agents import answered, asked, error_of
from tests.fixtures.command_line import recipe

FLEET: dict[str, Any] = {
    "models": [
        {
            "name": "small",
            "model": "Qwen/Qwen3-8B",
            "workload": {
                "mode": "open",
                "input_tokens": 512,
                "output_tokens": 128,
                "request_rate": 12,
            },
            "objective": {"limits": {"ttft_ms": 2000, "tpot_ms": 50}},
            "team": "tools",
        }
    ],
    "pools": [{"name": "h100", "device": "h100-sxm", "nodes": 2, "usd_per_device_hour": 1.2}],
}
MACHINES = "device,nodes,per_node,price\nl40s,3,2,0.4\nabacus,1,1,\n"


def test_a_command_prints_a_fleet_and_what_changes_would_do(tmp_path):
    done = recipe("fleet", "-", stdin=to_yaml(FLEET), columns=160)
    assert done.returncode == 0, done.stderr
    assert "1 model, $" in done.stdout
    assert "TP 1, " in done.stdout
    changed = recipe("fleet", "-", "--load", "small=40", "--json", stdin=to_yaml(FLEET))
    answer = json.loads(changed.stdout)
    assert answer["what_if"]["differences"]["usd_per_hour"] > 0
    (tmp_path / "machines.csv").write_text(MACHINES)
    too_much = recipe(
        *("fleet", "-", "--load", "small=400", "--drop", "l40s"),
        *("--inventory", str(tmp_path / "machines.csv")),
        stdin=to_yaml(FLEET),
        columns=160,
    )
    assert too_much.returncode == 1
    assert "note: " in too_much.stdout
    assert "abacus" in too_much.stdout
    assert "what if: " in too_much.stdout
    assert "These do not go together: small's" in too_much.stdout
    for option, said in (("h10=1", "Did you mean 'h100'"), ("h100", "is not NAME=NUMBER")):
        wrong = recipe("fleet", "-", "--lose", option, stdin=to_yaml(FLEET))
        assert (wrong.returncode, said in wrong.stderr) == (2, True), wrong.stderr


def test_a_body_is_read_before_its_job_begins_and_reads_no_folders(tmp_path):
    assert check_fleet({"fleet": FLEET}) == {}
    for field, value in (
        ("pools", {"fleet": {"models": FLEET["models"]}}),
        ("seconds", {"seconds": 0}),
        ("files", {"files": "all"}),
        ("text", {"inventories": [{"name": "a.csv"}]}),
        ("inventory", {"inventories": [{"name": "a.csv", "text": "{}"}]}),
        ("measured.0", {"measured": [{}]}),
        ("drop", {"what_if": {"drop": ["big"]}}),
    ):
        with pytest.raises(InputError, match=field):
            check_fleet({"fleet": FLEET, **value})
    (tmp_path / "config.json").write_text("{}")
    inside = {**FLEET["models"][0], "model": str(tmp_path)}
    with pytest.raises(InputError, match=r"models\.0\.model"):
        check_fleet({"fleet": {**FLEET, "models": [inside]}})


def test_every_door_answers_alike_and_a_job_tells_its_search_and_has_the_files(tmp_path):
    body = {
        "fleet": {**FLEET, "today": [{"model": "small", "pool": "h100", "replicas": 1}]},
        "inventories": [{"name": "machines.csv", "text": MACHINES}],
        "what_if": {"prices": {"h100": 0.5}},
    }
    waiting: list[Callable[[], None]] = []
    jobs = Jobs(own_process(), start=waiting.append)
    api = TestClient(create_api(folders=False, jobs=jobs))
    begun = api.post("/fleet", json={**body, "files": True}).json()
    waiting.pop()()
    state = api.get(begun["links"]["self"]).json()
    assert state["status"] == "done", state
    assert state["progress"]["stage"].startswith("placing: gap 0.0 %, ")
    assert (state["progress"]["done"], state["progress"]["steps"]) == (1, 1)
    answer = state["result"]
    assert any("abacus" in note for note in answer["notes"])
    assert answer["what_if"]["answer"]["usd_per_hour"] < answer["usd_per_hour"]
    sent = api.get(state["links"]["files"])
    assert sent.headers["content-disposition"] == 'attachment; filename="fleet.zip"'
    with zipfile.ZipFile(io.BytesIO(sent.content)) as archive:
        files = {path: archive.read(path).decode() for path in archive.namelist()}
    assert parse_yaml(files["fleet.yaml"], "fleet.yaml")["pools"][1]["device"] == "l40s"
    assert json.loads(files["answer.json"])["usd_per_hour"] == answer["usd_per_hour"]
    stranger = TestClient(api.app, client=("10.1.2.3", 5000))
    plain = api.post("/fleet", json={"fleet": FLEET}).json()["links"]["self"]
    assert stranger.get(state["links"]["files"]).status_code == 404
    assert api.get(f"{plain}/files").status_code == 404  # it waits
    waiting.pop()()
    assert api.get(f"{plain}/files").status_code == 404  # and has none
    assert "files" not in api.get(plain).json()["links"]

    told: list[str] = []

    async def report(_done: float, _steps: float | None, stage: str | None) -> None:
        told.append(stage or "")

    async def question(agent: Any) -> Any:
        arguments = {**body, "files": ["fleet.yaml"]}
        return await agent.call_tool("fleet", arguments, progress_callback=report)

    said = asked(question).structured_content
    assert said.pop("texts") == {"fleet.yaml": files["fleet.yaml"]}
    assert said["files"].keys() == files.keys()
    assert said.pop("files")["fleet.yaml"] == len(files["fleet.yaml"].encode())
    assert any(stage.startswith("placing: ") for stage in told)
    assert _timeless(said) == _timeless(answer) == _timeless(answered("fleet", **body))
    assert error_of("fleet", **body, files=["nothing.txt"])["field"] == "files"

    (tmp_path / "machines.csv").write_text(MACHINES)
    placed = rb.fleet(body["fleet"], inventories=[tmp_path / "machines.csv"]).to_json()
    moved = {name: answer[name] for name in ("moves", "what_if")}
    assert _timeless(json.loads(json.dumps(placed)) | moved) == _timeless(answer)


def test_runs_of_ones_own_correct_what_a_body_asks():
    run = {"id": "ours", "model": "Qwen/Qwen3-8B", "device": "h100-sxm", "per_node": 1}
    run |= {"input_tokens": 512, "output_tokens": 128, "engine": "vllm", "tp": 1, "dp": 1}
    run |= {"mode": "closed", "load": 32, "tpot_ms": 45.0}  # slower than estimated
    fleet = {**FLEET, "models": [FLEET["models"][0] | {"candidate": {"tp": 1}}]}
    (own, plain) = (answer_fleet({"fleet": fleet, "measured": runs}) for runs in ([run], []))
    (placed,) = own["models"][0]["placements"]
    assert placed["capacity_each"] < plain["models"][0]["placements"][0]["capacity_each"]
    same = rb.fleet(fleet, measured=[Run.model_validate(run)])
    assert same.models[0].placements[0].capacity_each == placed["capacity_each"]


def _timeless(answer: Any) -> Any:
    """An answer without the seconds that it took."""
    if isinstance(answer, dict):
        return {name: _timeless(value) for name, value in answer.items() if name != "seconds"}
    return [_timeless(value) for value in answer] if isinstance(answer, list) else answer
