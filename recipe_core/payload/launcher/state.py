"""``run/state.json``: the started servers, so that later commands find exactly these."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import procs
from .errors import BusyError, InputError, LauncherError, file_error
from .files import make_run, odd_error, open_own, open_plain, read_object, write_json
from .plan import FIRST
from .procs import HERE, Processes
from .typed_json import Fields, read_typed


def owner_of(folder: Path) -> dict[str, Any]:
    """Return what a record in this folder says of whose it is.

    Raises:
        LauncherError: where the folder cannot be looked at.
    """
    try:
        status = folder.stat()
        path = folder.resolve()
    except OSError as error:
        raise file_error(error, folder) from None
    return {"device": status.st_dev, "inode": status.st_ino, "path": str(path)}


def find_copied_owner(owner: Fields, folder: Path) -> str | None:
    """The folder whose record was copied to this one; None where it is this one's own.

    Raises:
        InputError: for a record that does not say whose it is.
        LauncherError: where the folder cannot be looked at.
    """
    folder_owner = owner_of(folder)
    recorded = {"device": owner.integer("device"), "inode": owner.integer("inode")}
    path = owner.text("path")
    return None if recorded == {name: folder_owner[name] for name in recorded} else path


_NAME = "state.json"
_A_PID = {"low": 2}


@dataclass(frozen=True, slots=True)
class Server:
    """One started process; ``started`` is its start tick, which no recycled pid shares.

    ``output``: the device and inode of its log, by which it is known also where that is removed.
    """

    name: str
    pid: int = field(metadata=_A_PID)
    started: int
    port: int = field(metadata={"low": 1})
    log: str
    output: procs.Place | None = None

    @property
    def identity(self) -> tuple[int, int]:
        return self.pid, self.started

    @property
    def alive(self) -> bool:
        return procs.alive(self.pid, self.started)


@dataclass(frozen=True, slots=True)
class Keeper:
    """The process that supervises the servers; its metrics are on a port of the loopback.

    ``watching``: it has noted itself; before that, whoever started it has. ``silence_s``: without
    a sign of life for so long it counts as dead.
    """

    pid: int = field(metadata=_A_PID)
    started: int
    metrics_port: int | None = field(default=None, metadata={"low": 1})
    watching: bool = True
    silence_s: float | None = None

    @property
    def alive(self) -> bool:
        return procs.alive(self.pid, self.started)


@dataclass(frozen=True, slots=True)
class State:
    """The running servers and their parameters; ``boot`` guards against an earlier boot.

    ``choice``: which of the bundle's choices runs. ``logs``: what its processes write to, also
    those that are not noted yet. ``restarts`` of groups since the first start,
    ``parked``: groups that failed and wait while others serve. It is written with its mark before
    the first start, so that a launcher that is killed in between leaves nothing that the mark does
    not find.
    """

    mark: str
    boot: str
    model: str
    host: str
    port: int = field(metadata={"low": 1})
    ready: bool
    servers: tuple[Server, ...]
    choice: str = FIRST
    keeper: Keeper | None = None
    restarts: int = 0
    parked: tuple[int, ...] = ()
    logs: tuple[str, ...] = ()

    @property
    def alive(self) -> bool:
        return self.here and bool(self.servers) and all(server.alive for server in self.servers)

    @property
    def identities(self) -> list[procs.Identity]:
        """Pids and start ticks of the servers, newest first."""
        return [server.identity for server in reversed(self.servers)]

    @property
    def here(self) -> bool:
        """False after a restart of the machine: its pids and ticks mean nothing any more."""
        return self.boot == boot_id()

    @property
    def outputs(self) -> frozenset[procs.Place]:
        """The logs of every process of this start, by where they lie."""
        opened = (server.output for server in self.servers if server.output is not None)
        return frozenset(opened) | procs.places_of(self.logs)

    def unrecorded(self, processes: Processes = HERE) -> list[int]:
        """Pids of processes of this start that its launcher could not record."""
        if not self.here:
            return []
        return processes.unrecorded(self.identities, self.mark, outputs=self.outputs)

    def left_behind(self, processes: Processes = HERE) -> list[int]:
        """Pids of this start that outlive the server they belong to."""
        if not self.here:
            return []
        return processes.left_behind(self.identities, self.mark, outputs=self.outputs)

    def family(self, processes: Processes = HERE) -> set[procs.Identity]:
        """Every process of this start that runs."""
        if not self.here:
            return set()
        return processes.family(self.identities, self.mark, outputs=self.outputs)

    @property
    def ports(self) -> frozenset[int]:
        return frozenset(server.port for server in self.servers)


def boot_id() -> str:
    """The kernel's id of the time since the machine started."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def save_state(run: Path, state: State) -> None:
    """Write the state atomically, and whose it is."""
    make_run(run)
    write_json(run / _NAME, {"schema_version": 2, "run": owner_of(run), **asdict(state)})


def load_state(run: Path) -> State | None:
    """The recorded state, or None: also where another folder's was copied here.

    Raises:
        LauncherError: for a damaged file, which is never a reason to kill something.
    """
    return _load_owned_state(run)[0]


def find_copied_state(run: Path) -> str | None:
    """The folder whose state lies in a run folder that is a copy of it; None for one's own.

    Raises:
        LauncherError: for a damaged file.
    """
    return _load_owned_state(run)[1]


def _load_owned_state(run: Path) -> tuple[State | None, str | None]:
    path = run / _NAME
    if not path.exists():
        return None, None
    try:
        if (odd := odd_error(path)) is not None:
            raise odd
        fields = Fields(read_object(path), str(path))
        if (elsewhere := find_copied_owner(fields.child("run"), run)) is not None:
            return None, elsewhere
        items = fields.children("servers") if fields.data.get("servers") != [] else ()
        current = read_typed(
            State,
            fields,
            boot=str(fields.data.get("boot")),
            servers=tuple(_parse_server(item, run) for item in items),
            logs=tuple(_here(run, log) for log in fields.texts("logs")),
        )
    except InputError as error:
        raise LauncherError(
            f"{path} is damaged: {error.message}",
            hint=f"Stop its processes by hand, then remove {path}.",
        ) from None
    return current, None


def _here(run: Path, log: str) -> str:
    """A log of this run folder, also where that was moved since; never one elsewhere."""
    return str(run / Path(log).name)


def _parse_server(fields: Fields, run: Path) -> Server:
    place = fields.integers("output") if fields.data.get("output") else ()
    output = (place[0], place[1]) if len(place) == 2 else None
    return read_typed(Server, fields, log=_here(run, fields.text("log")), output=output)


def list_state_folders(run: Path) -> list[Path]:
    """The folders with a state in a bundle's ``run/``: its own, and one for each node."""
    places = (run, *sorted(run.glob("node-*")))
    return [place for place in places if (place / _NAME).is_file()]


def forget_state(run: Path) -> None:
    """Forget what was started, and what a killed launcher was about to write.

    Raises:
        LauncherError: where the file cannot be removed.
    """
    try:
        for path in (run / _NAME, *run.glob(f".{_NAME}.*")):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise file_error(error, run / _NAME) from None


@contextmanager
def exclusive(run: Path) -> Iterator[None]:
    """Let one command at a time start or stop servers of a bundle.

    The kernel drops the lock when its holder dies.

    Raises:
        BusyError: while another command holds the lock.
        LauncherError: where the file cannot be opened.
    """
    with _lock_file(run) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(
                "another launcher is starting or stopping this bundle.",
                hint="Wait until it is done, then try again.",
            ) from None
        yield


@contextmanager
def _lock_file(run: Path) -> Iterator[int]:
    path = run / "lock"
    make_run(run)
    try:
        descriptor = open_own(path, os.O_WRONLY | os.O_APPEND)
    except LauncherError:
        # A disk that became read-only after the start: a lock needs no writing, `down` must work.
        reading = open_plain(path) if os.statvfs(run).f_flag & os.ST_RDONLY else None
        if reading is None:
            raise
        descriptor = reading
    try:
        yield descriptor
    finally:
        os.close(descriptor)
