"""The command that says how long a replica takes to start."""

from __future__ import annotations

import typer

from recipe_core.doors.cli.app import Json, RequestFile, app, emit, plan_request, working


@app.command("cold-start")
def cold_start_command(request: RequestFile, as_json: Json = False) -> None:
    """Say how long a replica takes to start, by phases, and what would shorten it."""
    from recipe_core.plans.plans import plan_candidate
    from recipe_core.scaling.setup import start_of
    from recipe_core.views.cold_start import start_text

    values = plan_request(request)
    with working("Estimating …"):
        plan, row = plan_candidate(values)
        start, devices = start_of(plan, row)
    if as_json:
        emit({"candidate": plan.candidate(row), "devices": devices, **start.to_json()})
    else:
        typer.echo(start_text(plan.candidate(row), devices, start.to_json()))
