"""A caller without folders learns nothing of this machine: names are judged by their form."""

import builtins
import io
import os
import pathlib
import pwd
import socket
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain

import pytest

from recipe_core.base.errors import ModelError, RecipeError
from recipe_core.base.resources import PACKAGE, shipped_path
from recipe_core.doors import answers, catalog
from recipe_core.hardware.cluster import device_profile, fabric
from recipe_core.models.catalog import load_model_spec
from tests.fixtures.refusals import refusal
from tests.fixtures.rows import over, table

# pairs of what exists here and what does not, alike in form; the first is made by the fixture
PAIRS = table("remote_names", "pairs")
ODD = [*table("remote_names", "odd"), "a" * 4000, "a/" * 1500]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ("realdir", "real/dir", "a/real/dir"):
        (tmp_path / "here" / name).mkdir(parents=True)
        (tmp_path / "here" / name / "config.json").write_text("{}")
    (tmp_path / "realdir").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


@contextmanager
def nothing_is_looked_up(monkeypatch):
    """Fail at every look at files but this package's, at users, their homes and at hosts."""
    own = (str(PACKAGE), str(shipped_path("hw_profiles")))

    def guarded(function):
        def guard(path=".", *rest, **more):
            text = os.fspath(path) if not isinstance(path, int) else ""
            assert isinstance(path, int) or str(text).startswith(own), f"looked at {text!r}"
            return function(path, *rest, **more)

        return guard

    def refused(*words, **_):
        raise AssertionError(f"looked up {words!r}")

    looks = [(os, "stat lstat listdir scandir open access readlink"), (builtins, "open")]
    asks = [(pathlib.Path, "expanduser"), (os.path, "expanduser"), (pwd, "getpwnam")]
    with monkeypatch.context() as patch:
        for where, names in (*looks, (io, "open")):
            for name in names.split():
                patch.setattr(where, name, guarded(getattr(where, name)))
        for where, name in (*asks, (socket, "socket"), (socket, "create_connection")):
            patch.setattr(where, name, refused)
        yield


def refused(name):
    """What a remote caller is told of a name that is no model, without the name itself.

    Names alike are suggested by their letters: they are left out too.
    """
    error = refusal(load_model_spec, name, folders=False, kind=ModelError)
    assert error.field == "model"
    named = repr(name)[1:-1]
    text = str(error).replace(named[:80], "NAME") if named else str(error)
    text = text.replace(named.split("@")[0], "NAME") if "@" in named else text
    return text.split(" Did you mean ")[0].split(" Available: ")[0]


def test_no_name_is_looked_up_and_what_exists_is_answered_as_what_does_not(folder, monkeypatch):
    with nothing_is_looked_up(monkeypatch):
        for name in (*chain(*PAIRS), *ODD):
            refused(name)
        with pytest.raises(AssertionError, match="looked"):  # the guard sees a look
            load_model_spec("realdir")
    assert [refused(real) for real, _ in PAIRS] == [refused(other) for _, other in PAIRS]
    for name, said in (("realdir", "config"), ("nosuchdir", "unknown model")):
        with pytest.raises(ModelError, match=said):  # a folder is read where that is allowed
            load_model_spec(name)


REQUEST = {
    "model": "Qwen/Qwen3-8B",
    "hardware": {"device": "h100-sxm", "per_node": 1},
    "workload": {"concurrency": 4},
}


@over("model", table("remote_names", "models"), share=4)
def test_a_bundle_is_built_without_a_look(model, folder, monkeypatch):
    """Also where a folder of this name is here, and where the hub has a model of it."""
    request = {**REQUEST, "model": model}
    answers.answer_build(request)  # reads what the package ships, once
    (folder / "here" / model).mkdir(parents=True)
    with nothing_is_looked_up(monkeypatch):
        name, data = answers.answer_build(request)
    assert (name, data) == answers.answer_build(request)


@pytest.mark.parametrize("path", table("remote_names", "paths"))
def test_no_name_of_hardware_or_an_engine_is_a_path(path, folder, monkeypatch):
    (folder / "here" / "realdir.yaml").write_text("schema_version: 1\n")
    names = ("device", "fabric", "offer")
    asked = [{"hardware": REQUEST["hardware"] | {name: path}} for name in names]
    asked.append({"candidate": {"engine": path}, "options": {"engines": [path]}})
    command, *documents = (
        {"hardware": "h100-sxm"} | given
        for given in (
            {"command": f"vllm serve {path}"},
            *({"document": document} for document in ({"model": path}, {"model_path": path}, path)),
        )
    )
    looks = [
        *(partial(look, path) for look in (device_profile, fabric)),
        *(partial(look, path) for look in (catalog.engines, catalog.answer_schema, catalog.models)),
        *(partial(answers.answer_plan, REQUEST | changes) for changes in asked),
        *(partial(answers.answer_convert, given) for given in (command, *documents)),
        lambda: answers.answer_check(command)["error"],
    ]
    # options that name files are passed on, and never read
    options = {"engine_options": {"chat_template": path}, "environment": {"NCCL_TOPO_FILE": path}}
    request = {**REQUEST, "candidate": {"engine": "vllm", "tp": 1}, "options": options}
    answers.answer_recipe(REQUEST)  # reads what the package ships, once
    with nothing_is_looked_up(monkeypatch):
        for look in looks:
            with suppress(RecipeError):
                assert look(), look  # the verdict on a command that cannot run
        recipe = answers.answer_recipe(request)
    assert recipe["engine"]["options"]["chat_template"] == path
