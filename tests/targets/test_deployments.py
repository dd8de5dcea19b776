"""Deployment files that people have: what is read of them, and verdicts on their engines."""

from __future__ import annotations

import json

import pytest
from fastapi.testclient import TestClient

from recipe_core.base.errors import InputError
from recipe_core.doors.api import create_api
from recipe_core.targets.deployments.deployment import device_called
from recipe_core.targets.deployments.documents import MAX_BYTES, read_documents
from recipe_core.targets.deployments.judge import check_folder, model_hint
from recipe_core.targets.deployments.read import is_deployment, read_deployment
from tests.fixtures.command_line import recipe
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

FILES = {name: text for name, _, text, _, _ in table("deployments", "files")}


def seen(engine):
    """What the table says of an engine."""
    launch, place = engine.launch, engine.place
    return {
        "where": engine.where,
        "line": engine.line,
        "engine": launch.engine,
        "image": launch.image,
        "args": list(launch.args),
        "env": dict(launch.env),
        "shares": launch.shares_memory,
        "device": place.device,
        "per_node": place.per_node,
        "nodes": place.nodes,
        "model": engine.model,
        "release": engine.release,
        "replicas": engine.replicas,
        "unset": list(engine.unset),
    }


@over("name, kind, text, engines, left", table("deployments", "files"))
def test_engines_of_files_are_read(name, kind, text, engines, left):
    file = read_deployment(text, name)
    assert file.kind == kind
    assert len(file.engines) == len(engines)
    for engine, expected in zip(file.engines, engines, strict=True):
        note, where = expected.pop("note", ""), expected.pop("where")
        assert engine.where.startswith(where)
        assert note in " ".join(engine.place.notes)
        assert {key: seen(engine)[key] for key in expected} == expected
    assert len(file.unread) == len(left)
    assert all(why in each.why for why, each in zip(left, file.unread, strict=True))


@over("name, text, says", table("deployments", "refused"))
def test_what_cannot_be_read_says_why(name, text, says):
    error = refusal(read_deployment, text, name)
    assert says in str(error)
    assert error.field == "file"


def test_bombs_and_requests_are_no_deployments():
    doubled = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))
    for text in (f"a0: &a0 [x]\n{doubled}", "[" * 100 + "]" * 100, "a" * (MAX_BYTES + 1)):
        refusal(read_documents, text)
    assert not is_deployment("model: Qwen/Qwen3-8B\nhardware: {device: l4}\n", "request.yaml")
    assert is_deployment(FILES["compose.yaml"], "compose.yaml")
    assert read_documents("a: 0.90\nb: ~\nc: !x yes")[0] == {"a": "0.90", "b": None, "c": "yes"}


@over("name, profile", table("deployments", "called"))
def test_names_of_devices_are_profiles(name, profile):
    assert device_called(name) == profile


def test_a_folder_is_hinted_at_by_its_name_and_never_guessed():
    assert "Qwen/Qwen3-8B" in model_hint("/data/models/Qwen/Qwen3-8B")
    assert "Qwen/Qwen3-8B" in model_hint("/hub/models--Qwen--Qwen3-8B/snapshots/1")
    assert model_hint("/mnt/models") is None
    assert model_hint("Qwen/Qwen3-8B") is None


def test_files_are_judged_on_their_own_hardware_or_what_is_stated(tmp_path):
    path = tmp_path / "pods.yaml"
    path.write_text(FILES["pods.yaml"])
    done = recipe("check", str(path), "--json")
    answer = json.loads(done.stdout)
    chat, big = answer["engines"]
    assert (done.returncode, answer["ok"]) == (0, True)
    assert (chat["verdict"], chat["hardware"]["device"], chat["hardware"]["per_node"]) == (
        "tight",
        "l4",
        1,
    )
    assert (big["verdict"], big["hardware"]["nodes"]) == ("fits", 2)
    assert (chat["replicas"], len(answer["left"])) == (3, 1)
    stated = recipe("check", str(path), "--hardware", "t4", "--json")
    engines = json.loads(stated.stdout)["engines"]
    assert (stated.returncode, [each["hardware"]["device"] for each in engines]) == (1, ["t4"] * 2)
    path.with_name("compose.yaml").write_text(FILES["compose.yaml"])
    without = recipe("check", str(tmp_path / "compose.yaml"))
    assert without.returncode == 2
    assert "--hardware" in without.stdout
    converted = recipe("convert", str(path), "--choice", "chat", "--json")
    assert json.loads(converted.stdout)["recipe"]["candidate"]["tp"] == 1
    several = recipe("convert", str(path))
    assert (several.returncode, "--choice" in several.stderr) == (2, True)


def test_a_repository_is_walked_and_no_link_followed(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "run.sh").write_text("vllm serve Qwen/Qwen3-8B")
    repository = tmp_path / "repository"
    (repository / "node_modules").mkdir(parents=True)
    (repository / "node_modules" / "run.sh").write_text("vllm serve Qwen/Qwen3-8B")
    (repository / "linked").symlink_to(tmp_path / "outside")
    (repository / "one.sh").symlink_to(tmp_path / "outside" / "run.sh")
    (repository / "large.sh").write_text("vllm serve Qwen/Qwen3-8B\n" + "#" * MAX_BYTES)
    (repository / "other.yaml").write_text("name: nothing\n")
    (repository / "task.yaml").write_text(FILES["task.yaml"])
    (repository / "template.yaml").write_text("{{ if .x }}\nimage: vllm/vllm-openai\n")
    (repository / "list.txt").write_text("vllm serve Qwen/Qwen3-32B -tp 3\n")
    answers = check_folder(repository, {"hardware": "h100-sxm:8"})
    found = {answer["source"]: answer.get("verdict") for answer in answers}
    assert found == {"list.txt:1": "cannot start", "task.yaml:11": "fits", "template.yaml": None}
    done = recipe("check", "--dir", str(repository), "--hardware", "h100-sxm:8")
    assert done.returncode == 1
    assert "1 fits" in done.stdout
    with pytest.raises(InputError):
        check_folder(tmp_path / "none", {})


def test_the_api_takes_the_text_of_a_file():
    client = TestClient(create_api(folders=False))
    body = {"file": FILES["task.yaml"], "name": "task.yaml"}
    answer = client.post("/check", json=body).json()
    assert [each["verdict"] for each in answer["engines"]] == ["fits"]
    assert client.post("/check", json={"file": "a: ["}).status_code == 422
