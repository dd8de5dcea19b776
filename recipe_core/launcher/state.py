"""``run/state.json``: the started servers, so that later commands find exactly these."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from . import procs
from .errors import InputError, LauncherError
from .fields import Fields
from .files import read_object, write_json

_NAME = "state.json"


@dataclass(frozen=True, slots=True)
class Server:
    """One started process; ``started`` is its start tick, which no recycled pid shares."""

    name: str
    pid: int
    started: int
    port: int
    log: str

    @property
    def identity(self) -> tuple[int, int]:
        """Pid and start tick."""
        return self.pid, self.started

    @property
    def alive(self) -> bool:
        """True while this very process runs."""
        return procs.alive(self.pid, self.started)


@dataclass(frozen=True, slots=True)
class State:
    """The running servers and their parameters; ``boot`` guards against an earlier boot."""

    mark: str
    boot: str
    model: str
    host: str
    port: int
    ready: bool
    servers: tuple[Server, ...]

    @property
    def alive(self) -> bool:
        """True when every server of this boot still runs."""
        if self.boot != boot_id() or not self.servers:
            return False
        return all(server.alive for server in self.servers)

    @property
    def ports(self) -> frozenset[int]:
        """The ports these servers hold."""
        return frozenset(server.port for server in self.servers)


def boot_id() -> str:
    """The kernel's id of the time since the machine started."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def save(run: Path, state: State) -> None:
    """Write the state atomically."""
    write_json(run / _NAME, {"schema_version": 1, **asdict(state)})


def load(run: Path) -> State | None:
    """The recorded state, or None.

    Raises:
        LauncherError: for a damaged file, which is never a reason to kill something.
    """
    path = run / _NAME
    if not path.exists():
        return None
    try:
        fields = Fields(read_object(path), str(path))
        servers = tuple(_server(item) for item in fields.children("servers"))
        mark, model, host = (fields.text(key) for key in ("mark", "model", "host"))
        return State(
            mark,
            str(fields.data.get("boot")),
            model,
            host,
            fields.integer("port", low=1),
            fields.data.get("ready") is True,
            servers,
        )
    except InputError as error:
        raise LauncherError(
            f"{path} is damaged: {error.message}",
            hint=f"Stop its processes by hand, then remove {path}.",
        ) from None


def _server(fields: Fields) -> Server:
    return Server(
        fields.text("name"),
        fields.integer("pid", low=2),
        fields.integer("started"),
        fields.integer("port", low=1),
        fields.text("log"),
    )


def remove(run: Path) -> None:
    """Forget what was started."""
    (run / _NAME).unlink(missing_ok=True)


@contextmanager
def exclusive(run: Path) -> Iterator[None]:
    """Let one command at a time start or stop servers of a bundle.

    The kernel drops the lock when its holder dies.
    """
    run.mkdir(parents=True, exist_ok=True)
    with (run / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LauncherError(
                "another launcher is starting or stopping this bundle.",
                hint="Wait until it is done, then try again.",
            ) from None
        yield
