"""Fleets by the command line, the API, agents and files."""

from __future__ import annotations

import json

import pytest

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import InputError
from recipe_core.doors.answers import answer_fleet, check_fleet
from tests.fixtures.command_line import recipe

FLEET = {
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


def test_a_command_prints_a_fleet_and_what_changes_would_do():
    done = recipe("fleet", "-", stdin=to_yaml(FLEET), columns=160)
    assert done.returncode == 0, done.stderr
    assert "1 model, $" in done.stdout
    assert "TP 1, " in done.stdout
    changed = recipe("fleet", "-", "--load", "small=40", "--json", stdin=to_yaml(FLEET))
    answer = json.loads(changed.stdout)
    assert answer["what_if"]["differences"]["usd_per_hour"] > 0
    too_much = recipe("fleet", "-", "--load", "small=400", stdin=to_yaml(FLEET), columns=160)
    assert too_much.returncode == 1
    assert "These do not go together: small's" in too_much.stdout
    wrong = recipe("fleet", "-", "--lose", "h10=1", stdin=to_yaml(FLEET))
    assert wrong.returncode == 2
    assert "Did you mean 'h100'" in wrong.stderr


def test_a_body_is_read_before_its_job_begins_and_reads_no_folders(tmp_path):
    assert check_fleet({"fleet": FLEET}) == {}
    answer = answer_fleet({"fleet": FLEET, "what_if": {"prices": {"h100": 0.5}}})
    assert answer["status"] == "optimal"
    assert answer["what_if"]["answer"]["usd_per_hour"] < answer["usd_per_hour"]
    with pytest.raises(InputError, match="pools"):
        check_fleet({"fleet": {"models": FLEET["models"]}})
    with pytest.raises(InputError, match="seconds"):
        check_fleet({"fleet": FLEET, "seconds": 0})
    (tmp_path / "config.json").write_text("{}")
    inside = {**FLEET["models"][0], "model": str(tmp_path)}
    with pytest.raises(InputError, match=r"models\.0\.model"):
        answer_fleet({"fleet": {**FLEET, "models": [inside]}})
