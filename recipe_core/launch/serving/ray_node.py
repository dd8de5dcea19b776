"""One node of a Ray cluster over which an engine is spread.

It travels in bundles: standard library only, besides Ray's own. ``python3 ray_node.py head NODES
ADDRESS PORT DEVICES -- PROGRAM WORD …`` starts the cluster on this node, waits for the others and
then runs the engine; whichever ends first ends the other. ``python3 ray_node.py join ADDRESS PORT
OWN DEVICES`` waits for the head at ADDRESS and adds this node, of address OWN, until the head is
gone.
"""

import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from typing import NoReturn

WAIT_S = 1800  # as long as the engine itself may take to start
PAUSE_S = 1.0


def ray_start_words(*words: str, devices: str) -> list[str]:
    return ["ray", "start", *words, f"--num-gpus={devices}", "--disable-usage-stats", "--block"]


def wait_for(address: str, port: str, until: float) -> None:
    """Wait until something listens there; exit when the time is over."""
    while time.monotonic() < until:
        try:
            with socket.create_connection((address, int(port)), timeout=PAUSE_S):
                return
        except OSError:
            time.sleep(PAUSE_S)
    sys.exit(f"no Ray cluster at {address}:{port} after {WAIT_S} s")


def wait_for_nodes(nodes: int, cluster: str, until: float) -> None:
    """Wait until so many nodes are in the cluster; exit when the time is over."""
    ray = importlib.import_module("ray")
    ray.init(address=cluster, log_to_driver=False)
    while (alive := sum(bool(node["Alive"]) for node in ray.nodes())) < nodes:
        if time.monotonic() > until:
            sys.exit(f"{alive} of {nodes} nodes joined the Ray cluster in {WAIT_S} s")
        time.sleep(PAUSE_S)
    ray.shutdown()


def run_ray_head(nodes: str, address: str, port: str, devices: str, program: list[str]) -> int:
    """Ray and the engine side by side; the engine's exit code."""
    until, cluster = time.monotonic() + WAIT_S, f"{address}:{port}"
    os.environ["RAY_ADDRESS"] = cluster
    # A stop reaches Ray and the engine as this program leaves.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = [
        subprocess.Popen(
            ray_start_words(
                "--head", f"--node-ip-address={address}", f"--port={port}", devices=devices
            )
        )
    ]
    try:
        wait_for(address, port, until)
        wait_for_nodes(int(nodes), cluster, until)
        started.append(subprocess.Popen(program))
        while all(child.poll() is None for child in started):
            time.sleep(PAUSE_S)
        return started[-1].returncode if started[-1].returncode is not None else 1
    finally:
        for child in reversed(started):
            child.terminate()
        for child in started:
            child.wait()


def join_ray_head(address: str, port: str, own_address: str, devices: str) -> NoReturn:
    """Become Ray on this node, once there is a head."""
    wait_for(address, port, time.monotonic() + WAIT_S)
    node = f"--node-ip-address={own_address}"
    words = ray_start_words(f"--address={address}:{port}", node, devices=devices)
    os.execvp(words[0], words)  # noqa: S606 - as the launcher starts all words of the bundle


def main(words: list[str]) -> int:
    """Be the first node, or one of the others."""
    if words[0] == "join":
        join_ray_head(*words[1:])
    end = words.index("--")
    nodes, address, port, devices = words[1:end]
    return run_ray_head(nodes, address, port, devices, words[end + 1 :])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
