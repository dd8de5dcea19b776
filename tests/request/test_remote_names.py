"""A caller without folders learns nothing of this machine: names are judged by their form."""

from __future__ import annotations

import builtins
import io
import os
import pathlib
import pwd
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from recipe_core.base.errors import ModelError, RecipeError
from recipe_core.base.resources import PACKAGE, root
from recipe_core.doors import answers
from recipe_core.doors.answers import Answers
from recipe_core.hardware.cluster import device, fabric
from recipe_core.model.catalog import load_model

# pairs of what exists here and what does not, alike in form; the first is made by the fixture
PAIRS = [
    ("realdir", "nosuchdir"),
    ("real/dir", "nosuch/dir"),
    ("realdir/config.json", "nosuchdir/config.json"),
    ("a/real/dir", "a/nosuch/dir"),
    ("./realdir", "./nosuchdir"),
    ("../realdir", "../nosuchdir"),
    ("/etc", "/etcetera"),
    ("/etc/passwd", "/etc/nosuchfile"),
    ("~", "~nosuchuser"),
    ("~root", "~nosuchuser"),
    ("~root/.ssh", "~nosuchuser/.ssh"),
    ("~daemon", "~nosuchdaemon"),
    ("..", "..."),
    ("realdir@main", "nosuchdir@main"),
    ("real/dir@main", "nosuch/dir@main"),
]
ODD = [
    "",
    ".",
    "/",
    "//",
    "/proc/self/environ",
    "/dev/zero",
    "/dev/stdin",
    "file:///etc/passwd",
    "\\\\host\\share",
    "C:\\Windows",
    "realdir\x00",
    "realdir/../realdir",
    "-rf",
    "a" * 4000,
    "a/" * 1500,
]
NAMES = [*(name for pair in PAIRS for name in pair), *ODD]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("realdir", "real/dir", "a/real/dir"):
        (tmp_path / "here" / name).mkdir(parents=True)
        (tmp_path / "here" / name / "config.json").write_text("{}")
    (tmp_path / "realdir").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


@contextmanager
def nothing_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail at every look at files but this package's, at users, their homes and at hosts."""
    own = (str(PACKAGE), str(root("hw_profiles")))

    def guarded(function: Any) -> Any:
        def guard(path: Any = ".", *rest: Any, **more: Any) -> Any:
            text = os.fspath(path) if not isinstance(path, int) else ""
            assert isinstance(path, int) or str(text).startswith(own), f"looked at {text!r}"
            return function(path, *rest, **more)

        return guard

    def refused(*words: Any, **_: Any) -> Any:
        raise AssertionError(f"looked up {words!r}")

    with monkeypatch.context() as patch:
        for name in ("stat", "lstat", "listdir", "scandir", "open", "access", "readlink"):
            patch.setattr(os, name, guarded(getattr(os, name)))
        patch.setattr(builtins, "open", guarded(builtins.open))
        patch.setattr(io, "open", guarded(io.open))
        patch.setattr(pathlib.Path, "expanduser", refused)
        patch.setattr(os.path, "expanduser", refused)
        patch.setattr(pwd, "getpwnam", refused)
        patch.setattr(socket, "socket", refused)
        patch.setattr(socket, "create_connection", refused)
        yield


def refusal(name: str) -> str:
    """What a remote caller is told of a name that is no model, without the name itself."""
    with pytest.raises(ModelError) as refused:
        load_model(name, folders=False)
    assert refused.value.field == "model"
    named = repr(name)[1:-1]
    text = str(refused.value).replace(named[:80], "NAME") if named else str(refused.value)
    return text.replace(named.split("@")[0], "NAME") if "@" in named else text


def test_the_names_are_many() -> None:
    assert len(NAMES) == 45


@pytest.mark.parametrize("name", NAMES)
def test_no_name_is_looked_up(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with nothing_is_looked_up(monkeypatch):
        refusal(name)


def shape(message: str) -> str:
    """A refusal without the suggestions of names alike, which depend on the letters."""
    return message.split(" Did you mean ")[0].split(" Available: ")[0]


@pytest.mark.parametrize(("real", "other"), PAIRS)
def test_what_exists_is_answered_as_what_does_not(real: str, other: str, folder: Path) -> None:
    assert shape(refusal(real)) == shape(refusal(other))


def test_a_folder_of_this_machine_is_still_read_where_that_is_allowed(folder: Path) -> None:
    with pytest.raises(ModelError, match="config"):
        load_model("realdir")
    with pytest.raises(ModelError, match="unknown model"):
        load_model("nosuchdir")


def test_the_guard_sees_a_look(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with nothing_is_looked_up(monkeypatch), pytest.raises(AssertionError, match="looked"):
        load_model("realdir")


@pytest.mark.parametrize(
    "model",
    [
        "Qwen/Qwen3-8B",
        "qwen/qwen3-8b",
        "Qwen/Qwen3-8B@main",
        "unsloth/Qwen3-8B",
        "a-gpt [h=2048,L=24,heads=16,vocab=32000]",
    ],
)
def test_a_bundle_is_built_without_a_look(
    model: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a folder of this name is here, and where the hub has a model of it."""
    ask, request = Answers(folders=False), {**REQUEST, "model": model}
    ask.build(request)  # reads what the package ships, once
    (folder / "here" / model).mkdir(parents=True)
    with nothing_is_looked_up(monkeypatch):
        name, data = ask.build(request)
    assert (name, data) == ask.build(request)


REQUEST = {
    "model": "Qwen/Qwen3-8B",
    "hardware": {"device": "h100-sxm", "per_node": 1},
    "workload": {"concurrency": 4},
}


@pytest.mark.parametrize(
    "path",
    [
        "realdir",
        "realdir.yaml",
        "/etc/passwd",
        "../../etc/passwd.yaml",
        "../priors",
        "fabrics/nvlink4",
        "~root/x.yaml",
    ],
)
def test_no_name_of_hardware_or_an_engine_is_a_path(
    path: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Answers(folders=False)
    (folder / "here" / "realdir.yaml").write_text("schema_version: 1\n")
    looks = [
        lambda: device(path),
        lambda: fabric(path),
        lambda: answers.engines(path),
        lambda: answers.schema(path),
        lambda: answers.models(path),
        lambda: ask.plan({**REQUEST, "hardware": {"device": path}}),
        lambda: ask.plan({**REQUEST, "hardware": {**REQUEST["hardware"], "fabric": path}}),
        lambda: ask.plan({**REQUEST, "hardware": {**REQUEST["hardware"], "offer": path}}),
        lambda: ask.plan(
            {**REQUEST, "candidate": {"engine": path}} | {"options": {"engines": [path]}}
        ),
        lambda: ask.check({"command": f"vllm serve {path}", "hardware": "h100-sxm"})["error"],
        lambda: ask.convert({"command": f"vllm serve {path}", "hardware": "h100-sxm"}),
        lambda: ask.convert({"document": {"model": path}, "hardware": "h100-sxm"}),
        lambda: ask.convert({"document": {"model_path": path}, "hardware": "h100-sxm"}),
        lambda: ask.convert({"document": path, "hardware": "h100-sxm"}),
    ]
    with nothing_is_looked_up(monkeypatch):
        for look in looks:
            try:
                answer = look()
            except RecipeError:
                continue
            assert answer, look  # the verdict on a command that cannot run

    # options that name files are passed on, and never read
    options = {"engine_options": {"chat_template": path}, "environment": {"NCCL_TOPO_FILE": path}}
    request = {**REQUEST, "candidate": {"engine": "vllm", "tp": 1}, "options": options}
    ask.recipe(REQUEST)  # reads what the package ships, once
    with nothing_is_looked_up(monkeypatch):
        recipe = ask.recipe(request)
    assert recipe["engine"]["options"]["chat_template"] == path
