"""Building over a bundle: its runs are kept, whatever happens, and a running one is refused."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recipe_core.base.errors import InputError
from recipe_core.bundle import replace
from recipe_core.bundle.manifest import MANIFEST, Manifest
from recipe_core.bundle.replace import recover, replace_folder
from recipe_core.launcher import procs, state
from recipe_core.launcher.state import Server, State
from tests.fixtures.paths import ROOT

RUNS = {
    "run/checkpoints/step-100/model.distcp": b"weights",
    "run/checkpoints/step-200/model.distcp": b"more weights",
    "run/measurement.json": b"{}",
    "run/node-1/trainer-1.log": b"step 1",
}
"""What a bundle's starts left; locks hold nothing."""


def bundle(text: str, *, nodes: int = 1) -> dict[str, bytes]:
    """The files of a small bundle; the manifest is all that a swap reads of them."""
    files = {
        "launch.json": json.dumps({"nodes": nodes, "text": text}).encode(),
        "launch.py": text.encode(),
        f"launcher/{text}.py": text.encode(),
    }
    manifest = Manifest.of("test", "0" * 64, files)
    return {**files, MANIFEST: manifest.model_dump_json().encode()}


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def content(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def runs(folder: Path) -> dict[str, bytes]:
    files = content(folder).items()
    return {n: data for n, data in files if n.startswith("run/") and not n.endswith("/lock")}


def own(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in content(folder).items() if not name.startswith("run/")}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A bundle that has run and been stopped."""
    write(tmp_path / "b", bundle("old") | RUNS)
    return tmp_path / "b"


@pytest.fixture(params=["exchange", "renames"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the kernel's exchange, and as on a file system without one."""
    if request.param == "renames":
        monkeypatch.setattr(replace, "exchange", lambda one, other: False)
    return str(request.param)


GONE = Server("server-0", 999_999_999, 1, 8000, "server-0.log")
"""A server that has ended: no machine has such a pid."""


def record(run: Path, **changes: object) -> None:
    """A state as the launcher writes it, by default of this boot and of a server that has ended."""
    values: dict[str, object] = {
        "mark": "no-such-mark",
        "boot": state.boot_id(),
        "model": "m",
        "host": "127.0.0.1",
        "port": 8000,
        "ready": True,
        "servers": (GONE,),
    }
    run.mkdir(parents=True, exist_ok=True)
    state.save(run, State(**(values | changes)))  # type: ignore[arg-type]


@pytest.fixture
def marked() -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A process with a launcher's mark in its environment."""
    environment = {**os.environ, procs.MARK: "mark-of-this-test"}
    with subprocess.Popen(["sleep", "600"], env=environment) as process:
        yield process, "mark-of-this-test"
        process.kill()


def server(pid: int) -> Server:
    stat = procs.read_stat(pid)
    return Server("server-0", pid, stat.started if stat else 1, 8000, "log")


def test_runs_are_carried_into_the_new_bundle(target: Path, way: str) -> None:
    replace_folder(target, bundle("new"))
    assert own(target) == bundle("new")
    assert runs(target) == RUNS
    assert [path.name for path in target.parent.iterdir()] == ["b"]


def test_a_bundle_that_never_ran_has_no_run_folder(tmp_path: Path, way: str) -> None:
    replace_folder(tmp_path / "b", bundle("old"))
    replace_folder(tmp_path / "b", bundle("new", nodes=3))
    replace_folder(tmp_path / "b", bundle("newer", nodes=2))
    assert content(tmp_path / "b") == bundle("newer", nodes=2)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_link_to_a_bundle_stays_a_link(target: Path, way: str) -> None:
    link = target.with_name("current")
    link.symlink_to(target)
    replace_folder(link, bundle("new"))
    assert link.is_symlink()
    assert own(target) == bundle("new")


@pytest.mark.parametrize("place", ["run", "run/node-1", "run/elsewhere/deep"])
def test_a_running_bundle_is_not_replaced(
    target: Path, place: str, marked: tuple[subprocess.Popen[bytes], str]
) -> None:
    process, _ = marked
    record(target / place, servers=(server(process.pid),))
    before = runs(target)
    with pytest.raises(InputError, match=rf"is running.*recipe down {target}"):
        replace_folder(target, bundle("new"))
    assert (own(target), runs(target)) == (bundle("old"), before)
    assert [path.name for path in target.parent.iterdir()] == ["b"]


def test_a_marked_process_counts_though_its_server_is_gone(
    target: Path, marked: tuple[subprocess.Popen[bytes], str]
) -> None:
    process, mark = marked
    record(target / "run", mark=mark)
    with pytest.raises(InputError, match=f"is running .process {process.pid}"):
        replace_folder(target, bundle("new"))


@pytest.mark.parametrize("changes", [{}, {"boot": "an earlier one"}])
def test_a_state_of_what_has_ended_is_kept(target: Path, changes: dict[str, object]) -> None:
    record(target / "run", **changes)
    before = runs(target)
    replace_folder(target, bundle("new"))
    assert runs(target) == before
    assert own(target) == bundle("new")


def test_a_process_of_an_earlier_boot_is_another_one(
    target: Path, marked: tuple[subprocess.Popen[bytes], str]
) -> None:
    record(target / "run", boot="an earlier one", servers=(server(marked[0].pid),))
    replace_folder(target, bundle("new"))
    assert own(target) == bundle("new")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"servers": 3}', "\0"])
def test_a_damaged_state_counts_as_running(target: Path, text: str) -> None:
    (target / "run" / "state.json").write_text(text)
    with pytest.raises(InputError, match=r"state\.json is damaged"):
        replace_folder(target, bundle("new"))
    assert own(target) == bundle("old")


def test_another_program_may_call_a_file_state(target: Path) -> None:
    (target / "run" / "checkpoints" / "step-100" / "state.json").write_text("{}")
    replace_folder(target, bundle("new"))
    assert own(target) == bundle("new")


@pytest.mark.parametrize("place", ["run", "run/node-0", "run/node-2"])
def test_a_launcher_at_work_is_waited_for_by_its_user(target: Path, place: str) -> None:
    write(target, bundle("old", nodes=3))
    with (
        state.exclusive(target / place),
        pytest.raises(InputError, match="another launcher is starting or stopping"),
    ):
        replace_folder(target, bundle("new"))
    assert own(target) == bundle("old", nodes=3)


@pytest.mark.parametrize(
    "name", ["notes.txt", "launcher/mine.py", "launcher/__pycache__/notes.txt", ".env"]
)
def test_a_users_own_file_is_named_and_stays(target: Path, name: str) -> None:
    write(target, {name: b"years of work"})
    before = content(target)
    with pytest.raises(InputError, match=f"{name} is not a file of the bundle"):
        replace_folder(target, bundle("new"))
    assert content(target) == before


def test_what_python_compiled_is_dropped(target: Path, way: str) -> None:
    write(target, {"launcher/__pycache__/main.cpython-311.pyc": b"compiled"})
    replace_folder(target, bundle("new"))
    assert own(target) == bundle("new")
    assert [path.name for path in target.parent.iterdir()] == ["b"]


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/etc/hosts")])
@pytest.mark.parametrize("name", ["run/lock", "run/state.json", "run/node-1/state.json"])
def test_odd_files_in_run_are_neither_followed_nor_waited_for(
    target: Path, name: str, make: Callable[[Path], None]
) -> None:
    (target / name).unlink(missing_ok=True)
    make(target / name)
    with pytest.raises(Exception, match=f"{name} is not a plain file"):
        replace_folder(target, bundle("new"))
    assert own(target) == bundle("old")


def test_runs_of_two_builds_are_never_mixed(target: Path) -> None:
    write(target.with_name(".b.swap-12345678"), {f"new/{n}": d for n, d in bundle("new").items()})
    write(target.with_name(".b.swap-12345678"), {"new/run/measurement.json": b"other"})
    with pytest.raises(InputError, match=r"\.b\.swap-12345678/new/run holds runs"):
        replace_folder(target, bundle("newer"))
    assert runs(target) == RUNS
    assert (target.with_name(".b.swap-12345678") / "new/run/measurement.json").exists()


def test_leftovers_of_other_names_are_left_alone(target: Path) -> None:
    others = [target.with_name(name) for name in (".b.c.swap-12345678", ".b.zip.k3j2h1g0", ".b")]
    for folder in others:
        write(folder, {"new/file": b"x"})
    replace_folder(target, bundle("new"))
    assert all((folder / "new" / "file").exists() for folder in others)


CALLS = ("mkdir", "rename", "replace", "unlink", "rmdir", "chmod")
"""What a build changes files with, beside writing and exchanging."""
KILLED = 77


class Fault:
    """Lets the ``count``-th change of a file fail, or be the last thing that this process does."""

    def __init__(self, count: int, mode: str) -> None:
        self.count, self.mode, self.calls = count, mode, 0

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in CALLS:
            patch.setattr(os, name, self.around(getattr(os, name)))
        patch.setattr(replace, "exchange", self.around(replace.exchange))
        patch.setattr(Path, "write_bytes", self.around(Path.write_bytes, self.half))

    def around(
        self, function: Callable[..., object], part: Callable[..., object] | None = None
    ) -> Callable[..., object]:
        def call(*args: object, **settings: object) -> object:
            self.calls += 1
            now = self.calls == self.count
            if now and self.mode != "after":
                if part:
                    part(*args)
                self.strike()
            try:
                return function(*args, **settings)
            finally:
                if now:
                    self.strike()

        return call

    def strike(self) -> None:
        if self.mode == "fail":
            raise OSError(errno.ENOSPC, "No space left on device")
        os._exit(KILLED)

    @staticmethod
    def half(path: Path, data: bytes) -> None:
        with path.open("wb") as file:
            file.write(data[: len(data) // 2])


def in_a_process(work: Callable[[], object]) -> int:
    """The exit code of a process that does ``work``; 1 where it raises an error."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def struck(fault: Fault, work: Callable[..., object], *args: object) -> int:
    """The exit code of a process that does ``work`` under a fault."""

    def broken() -> None:
        with pytest.MonkeyPatch.context() as patch:
            fault.install(patch)
            work(*args)

    return in_a_process(broken)


def changes_of_a_build(folder: Path) -> int:
    write(folder / "b", bundle("old") | RUNS)
    fault = Fault(0, "fail")
    with pytest.MonkeyPatch.context() as patch:
        fault.install(patch)
        replace_folder(folder / "b", bundle("new"))
    return fault.calls


def holds_all(target: Path) -> bool:
    """Whether ``target`` is a complete bundle with all its runs."""
    return own(target) in (bundle("old"), bundle("new")) and runs(target) == RUNS


def somewhere(folder: Path) -> bool:
    """Whether every file of the runs is below ``folder``, in one and the same ``run``."""
    return any(runs(run.parent) == RUNS for run in folder.rglob("run"))


@pytest.mark.parametrize("mode", ["before", "after"])
def test_a_build_killed_anywhere_loses_nothing(tmp_path: Path, way: str, mode: str) -> None:
    changes = changes_of_a_build(tmp_path / "count")
    assert changes > 20
    for count in range(1, changes + 1):
        folder = tmp_path / str(count)
        target = folder / "b"
        write(target, bundle("old") | RUNS)
        code = struck(Fault(count, mode), replace_folder, target, bundle("new"))
        assert code == KILLED, f"the build ended with {code} at change {count}"
        assert somewhere(folder), count
        if way == "exchange":  # without one, nothing is at the name for a moment
            assert own(target) in (bundle("old"), bundle("new")), count
        recover(target)
        assert holds_all(target), count
        replace_folder(target, bundle("newer"))
        assert own(target) == bundle("newer")
        assert runs(target) == RUNS
        assert [path.name for path in folder.iterdir()] == ["b"], count


def test_a_build_that_fails_anywhere_leaves_a_whole_bundle(tmp_path: Path, way: str) -> None:
    for count in range(1, changes_of_a_build(tmp_path / "count") + 1):
        folder = tmp_path / str(count)
        target = folder / "b"
        write(target, bundle("old") | RUNS)
        struck(Fault(count, "fail"), replace_folder, target, bundle("new"))
        assert holds_all(target), count
        replace_folder(target, bundle("newer"))
        assert own(target) == bundle("newer")
        assert [path.name for path in folder.iterdir()] == ["b"], count


def test_a_recovery_killed_anywhere_loses_nothing(tmp_path: Path, way: str) -> None:
    displaced = 0
    for count in range(1, changes_of_a_build(tmp_path / "count") + 1):
        for second in range(1, 40):
            folder = tmp_path / f"{count}-{second}"
            target = folder / "b"
            write(target, bundle("old") | RUNS)
            struck(Fault(count, "after"), replace_folder, target, bundle("new"))
            if holds_all(target):
                break
            displaced += 1
            code = struck(Fault(second, "after"), recover, target)
            assert somewhere(folder), (count, second)
            recover(target)
            assert holds_all(target), (count, second)
            if code != KILLED:
                break
    assert displaced > 0


def test_a_first_build_killed_anywhere_is_no_obstacle(tmp_path: Path) -> None:
    for count in range(1, 12):
        target = tmp_path / str(count) / "b"
        target.parent.mkdir()
        struck(Fault(count, "before"), replace_folder, target, bundle("new"))
        replace_folder(target, bundle("newer"))
        assert content(target) == bundle("newer")
        assert [path.name for path in target.parent.iterdir()] == ["b"], count


def test_builds_at_once_leave_one_whole_bundle(target: Path) -> None:
    code = textwrap.dedent(
        """
        import json, sys
        from pathlib import Path
        from recipe_core.bundle.replace import replace_folder
        files = {name: text.encode() for name, text in json.loads(sys.argv[2]).items()}
        for _ in range(20):
            replace_folder(Path(sys.argv[1]), files)
        """
    )
    texts = [{name: data.decode() for name, data in bundle(t).items()} for t in ("one", "two")]
    builds = [
        subprocess.Popen([sys.executable, "-c", code, str(target), json.dumps(text)], cwd=ROOT)
        for text in texts
    ]
    assert [build.wait() for build in builds] == [0, 0]
    assert own(target) in (bundle("one"), bundle("two"))
    assert runs(target) == RUNS
    assert [path.name for path in target.parent.iterdir()] == ["b"]


def test_a_reader_always_sees_a_whole_bundle(target: Path) -> None:
    """While one process builds again and again, the manifest at the name is always there."""
    pid = os.fork()
    if pid == 0:
        try:
            for number in range(200):
                replace_folder(target, bundle(f"n{number}"))
        finally:
            os._exit(0)
    missing = 0
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        missing += not (target / MANIFEST).exists()
    assert missing == 0
    assert runs(target) == RUNS
