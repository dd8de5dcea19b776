"""Making bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recipe_core.cli.app import Json, RequestFile, app, emit, read_request, working


@app.command()
def build(
    request: RequestFile,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="BUNDLE", help="A folder, or a file that ends in .zip.")],
    as_json: Json = False,
) -> None:
    """Plan, pick the best split (or the given candidate) and write the bundle."""
    from recipe_core.bundle import write_bundle
    from recipe_core.recipe import make_recipe
    from recipe_core.request import PlanRequest
    from recipe_core.terminal import build_text

    with working("Building …"):
        recipe = make_recipe(PlanRequest.parse(read_request(request)))
        write_bundle(recipe, output)
    if as_json:
        emit({"bundle": str(output), "name": recipe.name, "digest": recipe.digest, "candidate": recipe.candidate})
    else:
        typer.echo(build_text(recipe, output))
