"""``ray_node.py --nodes N --node-rank I … -- PROGRAM``: one node of a run that Ray spreads.

The first node starts Ray, waits for the others and runs the program; the others join until the
first one ends.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

# Seconds in which all nodes must have joined.
WAIT_S = 900.0
POLL_S = 2.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one node; the exit code is the program's on the first node, 1 where nodes are missing."""
    options = _ray_run_parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _stopped)
    address = f"{options.head}:{options.port}"
    return _run_first_node(options, address) if options.node_rank == 0 else _other(options, address)


def _stopped(_signal: int, _frame: object) -> NoReturn:
    raise SystemExit(143)


def _ray_run_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ray_node.py", description="One node of a run by Ray.")
    for name in ("--nodes", "--node-rank", "--port", "--gpus"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--head", required=True, help="address of the first node")
    parser.add_argument("program", nargs="+")
    return parser


def _run_first_node(options: argparse.Namespace, address: str) -> int:
    place = ("--node-ip-address", options.head, "--port", str(options.port))
    ray = _spawn_ray("--head", *place, "--include-dashboard", "false", gpus=options.gpus)
    try:
        if not _all_join(options.nodes, address, ray):
            print(
                f"ray_node: fewer than {options.nodes} nodes joined {address} in {WAIT_S:.0f} s. "
                "Start the run on every node.",
                file=sys.stderr,
            )
            return 1
        return subprocess.call(options.program, env=os.environ | {"RAY_ADDRESS": address})
    finally:
        _terminate_ray(ray)


def _other(options: argparse.Namespace, address: str) -> int:
    """Join the first node, again and again until it is there; 0 when it has ended."""
    until = time.monotonic() + WAIT_S
    while True:
        began, ray = time.monotonic(), _spawn_ray("--address", address, gpus=options.gpus)
        try:
            code = ray.wait()
        finally:
            _terminate_ray(ray)
        joined = time.monotonic() - began > 10 * POLL_S
        if joined or code == 0:
            return 0
        if time.monotonic() > until:
            print(f"ray_node: nothing answers at {address}.", file=sys.stderr)
            return 1
        time.sleep(POLL_S)


def _spawn_ray(*words: str, gpus: int) -> subprocess.Popen[bytes]:
    usual = ("--num-gpus", str(gpus), "--disable-usage-stats", "--block")
    return subprocess.Popen(["ray", "start", *words, *usual])


def _terminate_ray(ray: subprocess.Popen[bytes]) -> None:
    """Stop Ray on this node; what it started ends with it."""
    if ray.poll() is None:
        ray.terminate()
        try:
            ray.wait(timeout=30)
        except subprocess.TimeoutExpired:
            ray.kill()
            ray.wait()


def _all_join(nodes: int, address: str, head: subprocess.Popen[bytes]) -> bool:
    """Return whether all nodes join in time; False as soon as the first one's Ray ends."""
    import ray  # type: ignore[import-not-found,import-untyped,unused-ignore]

    until = time.monotonic() + WAIT_S
    while time.monotonic() < until and head.poll() is None:
        try:
            ray.init(address=address, logging_level="ERROR", log_to_driver=False)
            alive = sum(bool(node["Alive"]) for node in ray.nodes())
        except (ConnectionError, RuntimeError, TimeoutError):
            alive = 0
        finally:
            ray.shutdown()
        if alive >= nodes:
            return True
        time.sleep(POLL_S)
    return False
