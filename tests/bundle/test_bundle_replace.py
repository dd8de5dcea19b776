"""Building over a bundle: its runs are kept, whatever happens, and a running one is refused."""

import errno
import itertools
import json
import os
from contextlib import suppress
from dataclasses import replace

import pytest

from recipe_core.base.errors import RecipeError
from recipe_core.bundle import replace as builds
from recipe_core.bundle.replace import replace_folder
from recipe_core.bundle.signing import MANIFEST, Manifest
from recipe_core.payload.launcher import state
from recipe_core.payload.launcher.state import Server, State

RUNS = {
    "run/checkpoints/step-100/model.distcp": b"weights",
    "run/checkpoints/step-200/model.distcp": b"more weights",
    "run/measurement.json": b"{}",
    "run/node-1/trainer-1.log": b"step 1",
}
"""What a bundle's starts left; locks hold nothing."""


def bundle(text, nodes=1):
    files = {
        "launch.json": json.dumps({"nodes": nodes, "text": text}).encode(),
        "launch.py": text.encode(),
        f"launcher/{text}.py": text.encode(),
    }
    manifest = Manifest.of("test", "0" * 64, files)
    return {**files, MANIFEST: manifest.model_dump_json().encode()}


def write(folder, files):
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def content(folder):
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def runs(folder):
    files = content(folder).items()
    return {n: data for n, data in files if n.startswith("run/") and not n.endswith("/lock")}


def own(folder):
    return {name: data for name, data in content(folder).items() if not name.startswith("run/")}


def beside(folder):
    return [path.name for path in folder.parent.iterdir()]


def refused(target, match):
    """A build over ``target`` is refused in words, and changes nothing."""
    before = own(target), runs(target)
    with pytest.raises(RecipeError, match=match):
        replace_folder(target, bundle("new"))
    assert (own(target), runs(target)) == before


@pytest.fixture
def target(tmp_path):
    """A bundle that has run and been stopped."""
    write(tmp_path / "b", bundle("old") | RUNS)
    return tmp_path / "b"


@pytest.fixture(params=["exchange", "renames"])
def way(request, monkeypatch):
    """With the kernel's exchange, and as on a file system without one."""
    if request.param == "renames":
        monkeypatch.setattr(builds, "exchange_paths", lambda first, second: False)
    return request.param


GONE = Server("server-0", 999_999_999, 1, 8000, "server-0.log")
"""A server that has ended: no machine has such a pid."""
USUAL = State("no-such-mark", state.boot_id(), "m", "127.0.0.1", 8000, True, (GONE,))


def record(run, **changes):
    """A state as the launcher writes it, by default of this boot and of a server that has ended."""
    run.mkdir(parents=True, exist_ok=True)
    state.save_state(run, replace(USUAL, **changes))


def test_runs_are_carried_into_the_new_bundle(target, way, tmp_path):
    write(target, {"launcher/__pycache__/main.cpython-311.pyc": b"compiled by Python"})
    replace_folder(target, bundle("new"))
    assert own(target) == bundle("new")
    assert runs(target) == RUNS
    assert beside(target) == ["b"]
    link = target.with_name("current")
    link.symlink_to(target)
    replace_folder(link, bundle("newer"))
    assert link.is_symlink()
    assert own(target) == bundle("newer")
    # a bundle that never ran has no folder of runs
    fresh = tmp_path / "fresh" / "b"
    fresh.parent.mkdir()
    for text, nodes in (("old", 1), ("new", 3), ("newer", 2)):
        replace_folder(fresh, bundle(text, nodes=nodes))
    assert (content(fresh), beside(fresh)) == (bundle("newer", nodes=2), ["b"])


def test_a_running_bundle_is_not_replaced(target, marked):
    _, server, mark = marked
    for place in ("run", "run/node-1", "run/elsewhere/deep"):
        record(target / place, servers=(server,))
        refused(target, rf"is running.*recipe down {target}")
        (target / place / "state.json").unlink()
    record(target / "run", mark=mark)  # a marked process counts though its server is gone
    refused(target, f"is running .process {server.pid}")
    assert beside(target) == ["b"]


def test_a_state_of_what_has_ended_is_kept(target, marked):
    # A process of an earlier boot is another one; another program may call a file so.
    write(target, {"run/checkpoints/step-100/state.json": b"{}"})
    for changes in ({}, {"boot": "earlier"}, {"boot": "earlier", "servers": marked[1:2]}):
        record(target / "run", **changes)
        before = runs(target)
        replace_folder(target, bundle("new"))
        assert (own(target), runs(target)) == (bundle("new"), before)


def test_what_is_damaged_held_or_a_users_own_is_named_and_stays(target):
    for name in ("notes.txt", "launcher/mine.py", "launcher/__pycache__/notes.txt", ".env"):
        write(target, {name: b"years of work"})
        refused(target, f"{name} is not a file of the bundle")
        (target / name).unlink()
    for text in ("", "{", "[]", '{"servers": 3}', "\0"):
        (target / "run" / "state.json").write_text(text)
        refused(target, r"state\.json is damaged")
    (target / "run" / "state.json").unlink()
    # a launcher at work is waited for by its user
    write(target, bundle("old", nodes=3))
    for place in ("run", "run/node-0", "run/node-2"):
        with state.exclusive(target / place):
            refused(target, "another launcher is starting or stopping")


def test_odd_files_are_neither_followed_nor_waited_for(target):
    for name in ("run/lock", "run/state.json", "run/node-1/state.json"):
        for make in (os.mkfifo, lambda path: path.symlink_to("/etc/hosts")):
            make(target / name)
            refused(target, f"{name} is not a plain file")
            (target / name).unlink()
    (target / "launch.json").unlink()
    os.mkfifo(target / "launch.json")
    replace_folder(target, bundle("new"))
    assert own(target) == bundle("new")


def test_runs_of_two_builds_are_never_mixed_and_other_leftovers_stay(target):
    others = [target.with_name(name) for name in (".b.c.swap-12345678", ".b.zip.k3j2h1g0", ".b")]
    for folder in others:
        write(folder, {"new/file": b"x"})
    replace_folder(target, bundle("new"))
    left = target.with_name(".b.swap-12345678") / "new"
    write(left, bundle("new") | {"run/measurement.json": b"other"})
    refused(target, r"\.b\.swap-12345678/new/run holds runs")
    assert runs(target) == RUNS
    assert (left / "run/measurement.json").exists()
    assert all((folder / "new" / "file").exists() for folder in others)


CALLS = ("mkdir", "rename", "replace", "unlink", "rmdir", "chmod", "fsync")
"""What a build changes files with, beside writing and exchanging."""


class Fault:
    """Lets the ``count``-th change of a file fail."""

    def __init__(self, count, patch):
        self.count, self.calls = count, 0
        for owner, name in (*((os, name) for name in CALLS), (builds, "exchange_paths")):
            patch.setattr(owner, name, self.around(getattr(owner, name)))

    def around(self, function):
        def call(*args, **settings):
            self.calls += 1
            if self.calls == self.count:
                raise OSError(errno.ENOSPC, "No space left on device")
            return function(*args, **settings)

        return call


def forked(work):
    """The pid of a process that does ``work``, and ends with 1 where that raises an error."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def test_a_build_that_fails_anywhere_loses_nothing(tmp_path, way, monkeypatch):
    for count in itertools.count(1):
        target = tmp_path / str(count) / "b"
        write(target, bundle("old") | RUNS)
        with monkeypatch.context() as patch:
            fault = Fault(count, patch)
            with suppress(RecipeError):
                replace_folder(target, bundle("new"))
        assert own(target) in (bundle("old"), bundle("new")), count
        assert runs(target) == RUNS, count
        replace_folder(target, bundle("newer"))
        assert (own(target), runs(target)) == (bundle("newer"), RUNS)
        assert beside(target) == ["b"]
        if fault.calls < count:
            break
    assert count > 20


def test_builds_at_once_leave_one_whole_bundle_and_readers_always_see_one(target):
    """The manifest at the name is always there."""
    pids = [
        forked(lambda text=text: [replace_folder(target, bundle(text)) for _ in range(20)])
        for text in ("one", "two")
    ]
    missing, codes = 0, []
    while pids:
        missing += not (target / MANIFEST).exists()
        ended, status = os.waitpid(pids[0], os.WNOHANG)
        if ended:
            codes.append(status)
            pids.pop(0)
    assert (missing, codes) == (0, [0, 0])
    assert own(target) in (bundle("one"), bundle("two"))
    assert runs(target) == RUNS
    assert beside(target) == ["b"]
