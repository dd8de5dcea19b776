"""Commands that start something: a bundle's launcher, the web builder, MCP."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer import Option

from recipe_core.base.errors import BundleError
from recipe_core.bundle.contents import MAX_FILE_BYTES, RUN_FOLDER
from recipe_core.doors.cli.program import Bundle, PublicKey, app, emit, read_key, with_options

# Commands on what runs: they must work even where the bundle's folder has been changed since.
_OF_RUNNING = ("status", "down", "logs", "doctor")


def _run_launcher(
    command: str, bundle: Path, words: list[str], public_key: Path | None = None
) -> NoReturn:
    """Run the bundle's launcher with this interpreter, and exit with its code.

    With ``public_key`` nothing runs of a bundle that is not signed by it.
    Python neither reads nor writes compiled copies of it: only what digests cover is run.
    """
    from recipe_core.bundle.verify import unpack_bundle, unpacked_path

    options = ["--json"] if "--json" in words else []  # the launcher's own, not its commands'
    arguments = [*options, command, *(word for word in words if word != "--json")]
    folder, key = unpacked_path(bundle), read_key(public_key, "public_key")
    if command in _OF_RUNNING and (folder / RUN_FOLDER).is_dir():
        if (error := _find_change(folder, key)) is not None:
            raise SystemExit(_run_without_bundle(error, folder, arguments))
    else:
        folder = unpack_bundle(bundle, public_key=key, replaced=_say_replaced)
    # Nothing can be planted below a device, where this makes Python look for compiled files.
    python = [sys.executable, "-B", "-X", f"pycache_prefix={os.devnull}"]
    raise SystemExit(subprocess.call([*python, str(folder / "launch.py"), *arguments]))


def _say_replaced(folder: Path) -> None:
    from recipe_core.bundle.runs import kept_text

    runs = kept_text(folder)
    typer.echo(f"replaced {folder}{f', {runs}' if runs else ''}", err=True)


def _find_change(folder: Path, key: bytes | None) -> BundleError | None:
    """Say why nothing of a bundle's folder may be run; None for a bundle that verifies."""
    from recipe_core.bundle.verify import read_bundle

    try:
        read_bundle(folder, key)
    except BundleError as error:
        return error
    return None


def _run_without_bundle(error: BundleError, folder: Path, arguments: list[str]) -> int:
    """Do what ``arguments`` say with the launcher of this installation; returns its exit code.

    Stopping goes by the recorded state alone: launch.json may be what was changed.

    Raises:
        BundleError: where reading or writing the folder would wait, or lead out of it.
    """
    from recipe_core.bundle.contents import plain_paths, refuse_odd_runs
    from recipe_core.bundle.runs import stop_bundle_processes
    from recipe_core.payload.launcher.main import main

    refuse_odd_runs(folder)
    if "down" not in arguments or "--checkpoint" in arguments:
        if any(path.stat().st_size > MAX_FILE_BYTES for path in plain_paths(folder)):
            raise error
        typer.echo(f"warning: {error} Nothing of the bundle is run.", err=True)
        return main(arguments, root=folder)
    typer.echo(f"warning: {error} Nothing of the bundle is run.", err=True)
    stopped = stop_bundle_processes(folder)
    if "--json" in arguments:
        emit({"state": "down", "stopped": stopped})
    else:
        typer.echo(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")
    return 0


_LAUNCHER = {
    "preflight": "Check that this machine has what the bundle needs.",
    "up": "Start the bundle's servers and wait until they are healthy.",
    "bench": "Send real requests; print predicted against measured; write measurement.json.",
    "status": "Whether the bundle's servers run and are healthy.",
    "restart": "Restart one replica after the other, each healthy before the next.",
    "down": "Stop the bundle's servers.",
    "logs": "Show the ends of the logs of the bundle's processes.",
    "doctor": "Pack logs, state and versions for a report, without secrets.",
}


def _add_launcher_command(name: str, summary: str) -> None:
    def command(context: typer.Context, bundle: Bundle, public_key: PublicKey = None) -> None:
        _run_launcher(name, bundle, context.args, public_key)

    settings = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(
        name,
        help=f"{summary} Other options go to the bundle's launcher.",
        context_settings=settings,
    )(command)


for _name, _summary in _LAUNCHER.items():
    _add_launcher_command(_name, _summary)


class SettingOptions:
    """Fields of ``ServerSettings``."""

    token: str | None = Option(
        None, help="What callers have to know; better in RECIPE_BUILDER_TOKEN."
    )
    no_auth: bool = Option(False, "--no-auth", help="Let anybody in who reaches the address.")
    hosts: list[str] | None = Option(
        None,
        "--allow-host",
        metavar="NAME",
        help="A name the server may be called by; repeat for more.",
    )
    metrics: bool = Option(False, "--metrics", help="Answer /_stcore/metrics, for Prometheus.")
    workers: int | None = Option(
        None,
        min=0,
        help="Processes that calculate, beside one for short questions; 0: the server's own.",
    )
    queue: int | None = Option(None, min=0, help="Requests that may wait for a worker.")
    wait_seconds: float | None = Option(
        None, "--max-wait", min=0.1, help="Seconds that a request may wait for a worker."
    )
    sessions: int | None = Option(
        None, "--max-sessions", min=1, help="Pages that may be open at a time."
    )
    candidates: int | None = Option(
        None, "--max-candidates", min=1, help="Candidates that a plan may have."
    )
    seconds: float | None = Option(
        None, "--max-seconds", min=0.1, help="Seconds that a request may calculate."
    )
    memory_gib: float | None = Option(
        None, "--max-memory", metavar="GIB", min=0.1, help="Memory that a request may use."
    )


@app.command("serve")
@with_options("settings", SettingOptions)
def serve_command(
    host: str = Option(
        "127.0.0.1", help="The address to listen on; beyond loopback a token is needed."
    ),
    port: int = Option(8501, min=1, max=65535),
    settings: dict[str, Any] = {},  # noqa: B006 - replaced by its options
) -> None:
    """Serve the web builder, the JSON API and MCP.

    Options not given are read from RECIPE_BUILDER_TOKEN, RECIPE_BUILDER_HOSTS and so on.
    """
    from recipe_core.doors.serve import serve
    from recipe_core.hardware.offer_tables import own_offers

    own_offers()  # a table that cannot be read is better known now than at the first request
    serve(host, port, settings)


@app.command("mcp")
def mcp_command() -> None:
    """Serve the Model Context Protocol on standard input and output, for agents."""
    from recipe_core.doors.mcp import create_mcp

    create_mcp(folders=True).run("stdio")
