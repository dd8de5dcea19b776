"""The README inside a bundle: what it is, what it needs, how to run it, what to expect."""

from __future__ import annotations

import shlex
from typing import Any

from recipe_core.figures import cost_text, serving_rows
from recipe_core.recipe import Recipe
from recipe_core.units import gib


def bundle_readme(recipe: Recipe, launch: dict[str, Any]) -> str:
    """Markdown for people who have only this folder."""
    return "\n\n".join([_head(recipe, launch), _run(launch), _expected(recipe), _notes(recipe), _files()]) + "\n"


def _head(recipe: Recipe, launch: dict[str, Any]) -> str:
    c, d = recipe.candidate, recipe.device
    split = f"tensor parallel {c['tp']} × pipeline parallel {c['pp']} × data parallel {c['dp']}"
    if c["ep"] > 1:
        split += f", experts shared by {c['ep']} ranks"
    plural = "s" if d.count > 1 else ""
    return (
        f"# {recipe.name}\n\n{recipe.model.id} ({recipe.model.parameters / 1e9:.3g} B parameters, {c['weight_dtype']} weights) on "
        f"{d.count} × {d.title}, {split}, with {recipe.engine.title} {recipe.engine.version}.\n\n"
        f"Needs: {d.count} {d.vendor.upper()} device{plural} of this kind "
        f"({gib(recipe.estimate['memory']['total_bytes'])} used on each), Python 3.10 or newer, and the engine "
        f"(`{launch['engine']['install']}`)."
    )


def _run(launch: dict[str, Any]) -> str:
    first = launch["processes"][0]
    addresses = [f"http://{launch['parameters']['host']}:{launch['parameters']['port'] + p['port_offset']}" for p in launch["processes"]]
    shown = shlex.join(first["argv"])
    many = "es" if len(launch["processes"]) > 1 else ""
    return f"""## Run

```
python launch.py preflight   # is this the machine the recipe needs?
python launch.py up          # start, wait until healthy
python launch.py bench       # measure, compare with what was predicted
python launch.py status
python launch.py down        # stop
```

Options: `--model FOLDER_OR_ID`, `--host`, `--port`. It listens on {", ".join(addresses)}
(OpenAI-compatible, model name `{launch["api"]["model"]}`). What is started, {len(launch["processes"])} process{many}:

```
{shown}
```"""


def _expected(recipe: Recipe) -> str:
    load = ", ".join(f"{name} {value}" for name, value in recipe.request["workload"].items() if name != "kind" and value)
    rows = [f"| {row.label} | {row.value} | {row.low} – {row.high} | {row.basis} |" for row in serving_rows(recipe.estimate)]
    price = cost_text(recipe.estimate)
    table = ["| | predicted | band | basis |", "|---|---|---|---|", *rows]
    return "\n".join(["## Expected", "", f"For the workload {load}:", "", *table, *(["", f"Cost: {price}."] if price else [])])


def _notes(recipe: Recipe) -> str:
    notes = recipe.estimate["notes"]
    return "## Notes\n\n" + ("\n".join(f"- {note}" for note in notes) if notes else "None.")


def _files() -> str:
    return """## Files

`recipe.yaml` the decision and the request it came from; `expected.json` the estimate; `launch.json` what is started;
`launcher/` the program (standard library only); `MANIFEST.json` digests of all of it; `run/` logs and measurements of your runs.
Verify with `recipe check` or `python launch.py preflight`."""
