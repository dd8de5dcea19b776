"""A real Slurm on one host, without root: a controller and node daemons with fake devices."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
WAIT_S = 60

CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={root}/run/munge.sock
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmctldLogFile={root}/log/slurmctld.log
StateSaveLocation={root}/state
SlurmdPidFile={root}/run/slurmd.%n.pid
SlurmdLogFile={root}/log/slurmd.%n.log
SlurmdSpoolDir={root}/spool.%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
MpiDefault=none
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
EnforcePartLimits=ALL
KillWait=3
GresTypes=gpu
"""
NODES = """NodeName={nodes} NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports}] \\
    CPUs=64 RealMemory=16000 Gres=gpu:{kind}:{gpus}
PartitionName={partition} Nodes={nodes} Default={default} MaxTime=3-00:00:00 State=UP
"""


def missing() -> list[str]:
    """Programs of Slurm that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


@dataclass(frozen=True)
class Slurm:
    """A running cluster."""

    root: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.root / "etc" / "slurm.conf")}

    def run(
        self, *words: str, cwd: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            cwd=cwd,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )

    def show(self, job: str) -> dict[str, str]:
        """Fields of a job."""
        words = self.run("scontrol", "show", "job", job, "--oneliner").stdout.split()
        return dict(word.split("=", 1) for word in words if "=" in word)


@contextmanager
def cluster(root: Path, partitions: dict[str, tuple[str, int]], gpus: int = 8) -> Iterator[Slurm]:
    """Start everything below ``root``; stop it at the end, by the process ids it wrote.

    ``partitions``: by name, the first one the default, the type of its devices and its nodes.
    """
    nodes = sum(count for _, count in partitions.values())
    for folder in ("etc", "run", "log", "state", "dev"):
        (root / folder).mkdir(parents=True, mode=0o755)
    _configure(root, partitions, gpus)
    slurm = Slurm(root)
    try:
        _start(slurm, nodes)
        yield slurm
    finally:
        _stop(root)


def _configure(root: Path, partitions: dict[str, tuple[str, int]], gpus: int) -> None:
    key = root / "etc" / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    for n in range(gpus):
        (root / "dev" / f"nvidia{n}").symlink_to("/dev/null")  # Slurm counts files
    port = _free_ports(1 + sum(count for _, count in partitions.values()))
    host = socket.gethostname().split(".")[0]
    text = CONFIGURATION.format(host=host, port=port, root=root, user=getpass.getuser())
    resources, first = "", 0
    for partition, (kind, count) in partitions.items():
        last = first + count - 1
        text += NODES.format(
            nodes=f"n[{first}-{last}]",
            host=host,
            ports=f"{port + 1 + first}-{port + 1 + last}",
            kind=kind,
            gpus=gpus,
            partition=partition,
            default="NO" if first else "YES",
        )
        files = f"{root}/dev/nvidia[0-{gpus - 1}]"
        resources += f"NodeName=n[{first}-{last}] Name=gpu Type={kind} File={files}\n"
        first = last + 1
    (root / "etc" / "slurm.conf").write_text(text)
    (root / "etc" / "gres.conf").write_text(resources)


def _free_ports(count: int) -> int:
    """The first of ``count`` ports in a row that nobody listens on."""
    for first in range(26000, 32000, count):
        if all(_free(first + n) for n in range(count)):
            return first
    raise RuntimeError("no ports are free")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _start(slurm: Slurm, nodes: int) -> None:
    root = slurm.root
    options = [
        f"--{name}={root}/{path}"
        for name, path in (("key-file", "etc/munge.key"), ("socket", "run/munge.sock"))
    ]
    options += [
        f"--{name}={root}/{path}"
        for name, path in (("pid-file", "run/munged.pid"), ("log-file", "log/munged.log"))
    ]
    daemons = [
        ("munged", "--force", *options, f"--seed-file={root}/run/munge.seed"),
        ("slurmctld", "-c"),
    ]
    for words in (*daemons, *(("slurmd", "-N", f"n{n}") for n in range(nodes))):
        done = slurm.run(*words)
        assert done.returncode == 0, done.stderr
    until = time.monotonic() + WAIT_S
    while slurm.run("sinfo", "-h", "-t", "idle", "-o", "%D").stdout.strip() != str(nodes):
        assert time.monotonic() < until, slurm.run("sinfo", "-N", "-o", "%N %t %E").stdout
        time.sleep(0.2)


def _stop(root: Path) -> None:
    for path in sorted(
        (root / "run").glob("*.pid"), reverse=True
    ):  # node daemons before munged, which they ask
        try:
            os.kill(int(path.read_text()), signal.SIGTERM)
        except (ValueError, ProcessLookupError):
            continue
