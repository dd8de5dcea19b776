"""Faults of the files of a bundle: odd ones in ``run/``, damage, copies, moved folders, old pids.

A launcher that takes the name of a file for what it holds ends processes of others: these are
done where it sees none but those that stand beside it for this.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from recipe_core.payload.launcher import logs, procs
from tests.nightly.attack import alone
from tests.nightly.attack.launcher.faults import (
    DEATHS,
    EITHER,
    FAULTS,
    KILL,
    REFUSED,
    fault,
    kill_server,
    pause,
)
from tests.nightly.attack.launcher.trial import Trial

__all__ = ["FAULTS"]

Odd = Callable[[Trial, Path], object]
ZEROS = bytes(200_000)
"""As power loss leaves them at the end of a file."""
LOGS_BYTES, FLOOD_MB = 2.1 * logs.LIMIT_BYTES, 400
"""What the logs of one server may take, and what an engine writes into one."""


def _device(_: Trial, path: Path) -> None:
    """A device as /dev/null, or a link to it where none may be made."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        path.symlink_to(os.devnull)


ODD: dict[str, Odd] = {
    "a link to /dev/null": lambda _, path: path.symlink_to(os.devnull),
    "a link to /dev/stdout": lambda _, path: path.symlink_to("/dev/stdout"),
    "a link to another's log": lambda trial, path: path.symlink_to(trial.others.elsewhere()),
    "a hard link to another's log": lambda trial, path: path.hardlink_to(trial.others.elsewhere()),
    "a pipe": lambda _, path: os.mkfifo(path),
    "a folder": lambda _, path: path.mkdir(),
    "a device": _device,
}
FILES = ("keeper.log", "keeper.lock", "lock", "state.json", "events.jsonl", "metrics.csv")


def _put(trial: Trial, name: str, odd: str) -> Callable[[], None]:
    """Put something odd in a file's place; what undoes it."""
    path = trial.log if name == "log" else trial.own / name
    before = path.with_name(f"{path.name}.aside")
    if path.exists():
        path.replace(before)
    ODD[odd](trial, path)
    placed = path.lstat()

    def undo() -> None:
        gone = path.with_name(f"{path.name}.gone")
        with suppress(FileNotFoundError):
            path.rename(gone)  # at once: the launcher may put its own file in this place
            there = gone.lstat()  # of another kind: a new file may get the number of an ended one
            if (there.st_mode, there.st_ino) != (placed.st_mode, placed.st_ino):
                gone.rename(path)
            else:
                shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
        if before.exists() and not path.exists() and name != "log":
            before.replace(path)
        before.unlink(missing_ok=True)

    return undo


def _odd(name: str, *odds: str) -> None:
    """Before `up`, and under a keeper that has a server to restart."""
    about, ends = f"{name} is {odds[0] if len(odds) == 1 else 'odd'}", EITHER
    if name == "log":  # another's file is left where it is, and a new one made
        ends = frozenset({"recovered"}) if odds[0].startswith("a hard link") else REFUSED

    @fault(f"up: {about}", "any", ends=ends, down=True, up=True, alone=True)
    def before(trial: Trial) -> Iterator[None]:
        undo = _put(trial, name, trial.chance.choice(odds))
        yield
        undo()

    shows = frozenset() if name == "events.jsonl" else DEATHS

    kind = "training" if name == "metrics.csv" else "serving"

    @fault(f"restart: {about}", kind, shows=shows, heals_itself=True, alone=True)
    def meanwhile(trial: Trial) -> Iterator[None]:
        pid, count = min(trial.leaders().values()), len(trial.events())
        undo = _put(trial, name, trial.chance.choice(odds))
        trial.send(pid, KILL)
        trial.run("status")  # waits for nothing
        pause(trial, 1, 2.5)
        undo()
        if shows:
            trial.wait("it is noticed", lambda: DEATHS & set(trial.kinds(count)))
        yield


for kind in ODD:
    _odd("log", kind)
for file in FILES:
    _odd(file, *ODD)


def _damaged(name: str, damage: Callable[[bytes], bytes], about: str, **settings: Any) -> None:
    """A file that was cut short or overwritten while a server needs a restart."""
    needs = settings.pop("needs", ("serving",))

    @fault(f"{name} {about}", *needs, **settings)
    def harm(trial: Trial) -> Iterator[None]:
        path, pid = trial.own / name, min(trial.leaders().values())
        path.write_bytes(damage(path.read_bytes()))
        for command in ("status", "up"):
            trial.run(command)  # may refuse; a traceback is found
        trial.send(pid, KILL)
        yield


_damaged("events.jsonl", lambda text: text + ZEROS, "ends in zeros", shows=DEATHS)
_damaged("state.json", lambda text: text[: len(text) // 2], "is cut short", shows=DEATHS)
_damaged("state.json", lambda _: b"", "is empty", shows=DEATHS)
RECORD = {"needs": ("training",), "shows": DEATHS}
_damaged("metrics.csv", lambda text: text + b"7\xff,1.0\n", "has a byte that is no text", **RECORD)
_damaged("metrics.csv", lambda text: text + ZEROS, "ends in zeros", **RECORD)


@fault("down with a damaged launch.json", "any", up=True)
def down_without_plan(trial: Trial) -> Iterator[None]:
    path = trial.root / "launch.json"
    text = path.read_bytes()
    path.write_bytes(text[: len(text) // 2])
    code, said = trial.run("down")
    path.write_bytes(text)
    if code or trial.servers():
        trial.found.append(f"down gave {code}, {len(trial.servers())} run on: {said[-300:]}")
    yield


# Bundles that are copied, moved and deleted while they run.


def _in_a_copy(name: str, *commands: str) -> None:
    @fault(f"{name} of a running bundle", alone=True)
    def harm(trial: Trial) -> Iterator[None]:
        before = trial.leaders(), trial.keeper()
        copy = trial.copy(trial.root.parent / "copy" / "bundle")
        try:
            for command in commands:
                words = command.replace("PORT", str(copy.deployment.bundle.port)).split()
                code, said = copy.run(*words)
                if code and words[0] != "status":
                    trial.found.append(f"{command} in a copy gave {code}: {said[-300:]}")
                shown = copy.status()
                trial.found += _wrong(words[0], shown, trial, copy)
        finally:
            trial.found += [f"in a copy: {text}" for text in [*copy.found, *copy.end()]]
            shutil.rmtree(copy.root.parent)
        if (trial.leaders(), trial.keeper()) != before:
            trial.found.append(f"foreign process ended: {before} by {commands} in a copy")
        yield


def _wrong(command: str, shown: dict[str, Any], trial: Trial, copy: Trial) -> list[str]:
    """What the status of a copy says that is not so."""
    wanted = "up" if command == "up" else "down"
    found = [f"status of a copy is {shown.get('state')} after {command}"]
    pids = {server["pid"] for server in shown.get("servers", ()) if server.get("alive")}
    others = pids & {*trial.leaders().values()} if copy.root != trial.root else set()
    return (found if shown.get("state") != wanted else []) + [
        f"status of a copy shows the other's server {pid}" for pid in others
    ]


_in_a_copy("down in a copy", "status", "down")
_in_a_copy("up in a copy", "up --port PORT", "down")


@fault("the bundle is moved", alone=True, up=True)
def moved(trial: Trial) -> Iterator[None]:
    old = trial.root
    trial.lies_at(old.parent / "moved" / "bundle")
    trial.root.parent.mkdir()
    old.rename(trial.root)
    pause(trial, 0, 2)
    if trial.servers() and (word := trial.status().get("state")) == "down":
        trial.found.append(f"status says {word}, and {len(trial.servers())} run")
    yield
    if old.exists():
        trial.found.append(f"a ghost at the old place: {sorted(old.rglob('*'))[:4]}")
        shutil.rmtree(old)
    trial.require("down")
    new = trial.root
    trial.lies_at(old)
    new.rename(old)
    new.parent.rmdir()


@fault("the bundle is deleted, and put back", alone=True, up=True)
def deleted(trial: Trial) -> Iterator[None]:
    kept, before = trial.root.parent / "kept", trial.servers()
    shutil.copytree(trial.root, kept, ignore=lambda *_: ["run"], symlinks=True)
    for _ in range(2):  # something may be written meanwhile
        shutil.rmtree(trial.root, ignore_errors=True)
    pause(trial, 1, 3)
    if trial.root.exists():
        trial.found.append(f"a ghost at the old place: {sorted(trial.root.rglob('*'))[:4]}")
        shutil.rmtree(trial.root)
    kept.rename(trial.root)
    trial.own.mkdir(parents=True)
    yield
    if left := sorted({*before} & {*trial.servers()}):
        trial.found.append(f"orphans of a deleted bundle: {left}")


@fault("another process gets the pid of a server", alone=True, up=True)
def recycled(trial: Trial) -> Iterator[None]:
    """The keeper's pid, too: nobody saw either end."""
    pids = [trial.keeper(), *trial.leaders().values()]
    for pid in [*pids[:1], *trial.servers()]:
        trial.send(pid, signal.SIGKILL)
    for pid in pids:
        trial.wait("it is gone", lambda pid=pid: procs.read_stat(pid) is None)
        trial.sessions.pop(pid, None)
        for _ in range(20 * alone.set_next_pid(pid)):
            if trial.others.start(f"got the pid {pid}") == pid:
                break
            alone.set_next_pid(pid)
    yield


# Logs that are rotated by others, or grow.


@fault("the log is cut short (copytruncate)", "fake", shows=DEATHS)
def truncated(trial: Trial) -> Iterator[None]:
    _flood(trial, 1)
    os.truncate(trial.log, 0)
    _flood(trial, 1)
    with trial.log.open("rb") as file:
        if file.read(1) == b"\0":
            trial.found.append("the log begins with zeros after copytruncate")
    kill_server(trial)
    yield


@fault("the log grows fast", "fake", shows=DEATHS)
def flooded(trial: Trial) -> Iterator[None]:
    _flood(trial, FLOOD_MB)

    def taken() -> int:
        return sum(p.stat().st_blocks * 512 for p in trial.own.glob(f"{trial.log.name}*"))

    trial.wait(f"its logs are below {LOGS_BYTES / 1e6:.0f} MB", lambda: taken() < LOGS_BYTES)
    kill_server(trial)
    yield


def _flood(trial: Trial, megabytes: int) -> None:
    trial.condition("flood", str(megabytes))
    words = f"{megabytes} MB are logged"
    trial.wait(words, lambda: not (trial.deployment.conditions / "flood").exists())
