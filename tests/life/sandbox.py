"""A process with the files, variables, user and network that its target gives it, and no others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

ENTER = Path(__file__).with_name("enter.py")
UNSHARE = ("unshare", "--mount", "--net", "--uts", "--pid", "--fork", "--kill-child")
TIME_S = 900
PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc")
PASSWD = "root:x:0:0:root:/root:/bin/bash\n"
"""Of images: the user of a pod is a number, and nobody there has it."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of this machine in the sandbox; in memory where there is none."""

    place: str
    source: Path | None
    readonly: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of a process, as a target states it."""

    words: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    mounts: Sequence[Mount]
    user: int
    group: int
    hosts: Sequence[str] = ()
    """Names that lead to this machine."""

    def replaced(self, words: Sequence[str]) -> Start:
        """The same place with other words."""
        return replace(self, words=words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An environment of Python as the image that a process starts from."""

    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def programs(self) -> tuple[str, ...]:
        """Folders of this machine that the environment needs."""
        lines = (self.folder / "pyvenv.cfg").read_text().splitlines()
        stated = dict(line.split(" = ", 1) for line in lines if " = " in line)
        python = Path(stated["home"]).parent
        return (*PROGRAMS, *({str(python)} - {"/usr"}), str(self.folder))

    @property
    def variables(self) -> dict[str, str]:
        """What an image sets by itself."""
        path = os.pathsep.join((str(self.folder / "bin"), "/usr/local/bin", "/usr/bin", "/bin"))
        return {"PATH": path, "LANG": "C.UTF-8", "HF_HUB_OFFLINE": "1", **self.env}


def command() -> tuple[str, ...]:
    """Namespaces of one's own; without root in a namespace of users, as its root."""
    return UNSHARE if os.geteuid() == 0 else (*UNSHARE, "--map-root-user")


@cache
def refused() -> str | None:
    """Why this machine gives no namespaces; None where it does."""
    if shutil.which("unshare") is None:
        return "unshare is not installed"
    done = subprocess.run([*command(), "true"], capture_output=True, text=True)
    return done.stderr.strip() or "unshare failed" if done.returncode else None


def live(start: Start, image: Image, folder: Path, hub: Sequence[str] = ()) -> int:
    """Run a start to its end; its exit status. What it says is in ``log`` in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    root = folder / "root"
    root.mkdir(exist_ok=True)
    names = start.hosts or ("node-0",)
    spec = {
        "folder": str(folder),
        "root": str(root),
        "programs": image.programs,
        "etc": {"hosts": f"127.0.0.1 localhost {' '.join(names)}\n", "passwd": PASSWD},
        "hostname": names[0].partition(".")[0],
        "mounts": [
            {
                "place": each.place,
                "source": str(each.source) if each.source else None,
                "readonly": each.readonly,
            }
            for each in start.mounts
        ],
        "user": start.user if os.geteuid() == 0 else None,
        "group": start.group,
        "env": {**image.variables, **start.env},
        "cwd": start.cwd,
        "words": list(start.words),
        "hub": list(hub),
    }
    path = folder / "spec.json"
    path.write_text(json.dumps(spec, indent=1))
    words = [*command(), sys.executable, str(ENTER), str(path)]
    with (folder / "log").open("w") as log:
        return subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, timeout=TIME_S
        ).returncode
