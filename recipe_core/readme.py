"""The README inside a bundle: what it is, what it needs, how to run it, what to expect."""

from __future__ import annotations

import shlex
from typing import Any

from recipe_core.recipe import Recipe
from recipe_core.units import duration, gib, rate, usd


def bundle_readme(recipe: Recipe, launch: dict[str, Any]) -> str:
    """Markdown for people who have only this folder."""
    return "\n\n".join([_head(recipe, launch), _run(recipe, launch), _expected(recipe), _notes(recipe), _files()]) + "\n"


def _head(recipe: Recipe, launch: dict[str, Any]) -> str:
    c, d = recipe.candidate, recipe.device
    split = f"tensor parallel {c['tp']} × pipeline parallel {c['pp']} × data parallel {c['dp']}"
    if c["ep"] > 1:
        split += f", experts shared by {c['ep']} ranks"
    plural = "s" if d.count > 1 else ""
    return (
        f"# {recipe.name}\n\n{recipe.model.id} ({recipe.model.parameters / 1e9:.3g} B parameters, {c['weight_dtype']} weights) on "
        f"{d.count} × {d.title}, {split}, with {recipe.engine.title} {recipe.engine.version}.\n\n"
        f"Needs: {d.count} {d.vendor.upper() if d.vendor != 'nvidia' else 'NVIDIA'} device{plural} of this kind "
        f"({gib(recipe.estimate['memory']['total_bytes'])} used on each), Python 3.10 or newer, and the engine "
        f"(`{launch['engine']['install']}`)."
    )


def _run(recipe: Recipe, launch: dict[str, Any]) -> str:
    first = launch["processes"][0]
    addresses = [f"http://{launch['parameters']['host']}:{launch['parameters']['port'] + p['port_offset']}" for p in launch["processes"]]
    shown = shlex.join(first["argv"])
    return f"""## Run

```
python launch.py preflight   # is this the machine the recipe needs?
python launch.py up          # start, wait until healthy
python launch.py bench       # measure, compare with what was predicted
python launch.py status
python launch.py down        # stop
```

Options: `--model FOLDER_OR_ID`, `--host`, `--port`. It listens on {", ".join(addresses)} (OpenAI-compatible, model name `{launch["api"]["model"]}`).
What is started, {len(launch["processes"])} process{"es" if len(launch["processes"]) > 1 else ""}:

```
{shown}
```"""


def _expected(recipe: Recipe) -> str:
    e = recipe.estimate
    s, bands = e["serving"], e["bands"]
    rows = [
        ("time to first token", "ttft_s", duration),
        ("time per output token", "tpot_s", duration),
        ("request latency", "request_latency_s", duration),
        ("output tokens per second", "output_tokens_per_s", rate),
    ]
    table = [
        f"| {label} | {show(s[key])} | {show(bands[key][0])} – {show(bands[key][1])} | {e['basis'][key]} |" for label, key, show in rows
    ]
    cost = e["cost"]["usd_per_hour"]
    price = (
        f"\n\nCost: {usd(cost)} per hour, {usd(e['cost']['usd_per_million_output_tokens'])} per million output tokens ({e['basis']['usd_per_hour']})."
        if cost
        else ""
    )
    w = recipe.request["workload"]
    load = ", ".join(f"{name} {value}" for name, value in w.items() if name != "kind")
    return (
        "\n".join(["## Expected", "", f"For the workload {load}:", "", "| | predicted | band | basis |", "|---|---|---|---|", *table])
        + price
    )


def _notes(recipe: Recipe) -> str:
    notes = recipe.estimate["notes"]
    return "## Notes\n\n" + ("\n".join(f"- {note}" for note in notes) if notes else "None.")


def _files() -> str:
    return """## Files

`recipe.yaml` the decision and the request it came from; `expected.json` the estimate; `launch.json` what is started;
`launcher/` the program (standard library only); `MANIFEST.json` digests of all of it; `run/` logs and measurements of your runs.
Verify with `recipe check` or `python launch.py preflight`."""
