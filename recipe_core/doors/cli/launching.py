"""Starting: a bundle's own launcher, and the web builder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from recipe_core.doors.cli.app import Bundle, app


def _launcher(command: str, bundle: Path, words: list[str]) -> NoReturn:
    """Run the bundle's own launcher in this interpreter's environment."""
    from recipe_core.bundle.verify import unpack

    folder = unpack(bundle)
    raise SystemExit(
        subprocess.call(
            [
                sys.executable,
                str(folder / "launch.py"),
                *(["--json"] if "--json" in words else []),
                command,
                *(w for w in words if w != "--json"),
            ]
        )
    )


_LAUNCHER = {
    "preflight": "Check that this is the machine the bundle needs.",
    "up": "Start the bundle's servers and wait until they are healthy.",
    "bench": "Send real requests; print predicted against measured; write measurement.json.",
    "status": "Whether the bundle's servers run and are healthy.",
    "down": "Stop the bundle's servers.",
}


def _launcher_command(name: str, summary: str) -> None:
    def command(context: typer.Context, bundle: Bundle) -> None:
        _launcher(name, bundle, context.args)

    settings = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(
        name,
        help=f"{summary} Options of the bundle's own launcher are passed on.",
        context_settings=settings,
    )(command)


for _name, _summary in _LAUNCHER.items():
    _launcher_command(_name, _summary)


@app.command()
def serve(
    host: Annotated[
        str, typer.Option(help="The address to listen on; others than loopback let strangers in.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8501,
) -> None:
    """The web builder, the JSON API and MCP."""
    from recipe_core.doors.serve import serve as run

    run(host, port)


@app.command()
def mcp() -> None:
    """The Model Context Protocol on standard input and output: what an agent on this machine starts."""
    from recipe_core.doors.mcp import create_mcp

    create_mcp(folders=True).run("stdio")
