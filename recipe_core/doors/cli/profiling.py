"""The command that measures this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recipe_core.doors.cli.app import Json, app, emit


@app.command()
def profile(
    output: Annotated[Path, typer.Option("--output", "-o", help="The YAML file to write.")],
    device: Annotated[
        str | None, typer.Option("--device", help="cuda, rocm or cpu; default: what torch sees.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", help="Total time; default 180, or 20 if quick.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer shapes, in 20 seconds.")] = False,
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", help="Processes for collectives; default: one per accelerator."),
    ] = None,
    disk: Annotated[
        Path | None,
        typer.Option("--disk", help="Also measure the storage of this folder (1 GiB, 30 s)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure this machine and write its profile, for `hardware.device` of a request."""
    from recipe_core.calibration.machine_profile import (
        check_output,
        profile_machine,
        profile_text,
        write_profile,
    )

    check_output(output)
    profiled = profile_machine(
        device,
        seconds=seconds,
        quick=quick,
        ranks=ranks,
        disk=disk,
        tell=lambda part: typer.echo(f"profile: {part} …", err=True),
    )
    write_profile(output, profiled)
    if as_json:
        emit(profiled.values)
        return
    typer.echo("\n".join(profile_text(profiled)))
    typer.echo(f"wrote {output}")
    typer.echo(f"next: set hardware.device of a request to {output}")
