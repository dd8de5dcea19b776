"""The README inside a bundle: what it is, what it needs, how to run it, what to expect."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from recipe_core.base.labels import training_split
from recipe_core.base.text_rows import cost_text, text_rows
from recipe_core.base.units import gib
from recipe_core.launch.training.container import PATH as CONTAINERFILE
from recipe_core.recipe import Recipe
from recipe_core.recipe.names import dns_label
from recipe_core.targets.use import uses

_GATED = "Gated models need `HF_TOKEN` in the environment (containers), or the Secret that `token_secret` names (Kubernetes)."
_FORMATS = ("weight_dtype", "kv_dtype", "precision")


def bundle_readme(
    recipe: Recipe, launch: dict[str, Any], others: Iterable[str], refused: Mapping[str, str]
) -> str:
    """Markdown for people who have only this folder; ``others`` are paths of targets' files, ``refused`` targets that there are not."""
    parts = [_head(recipe, launch), _run(recipe, launch), _targets(recipe, others, refused)]
    parts += [_expected(recipe), _elsewhere(recipe), _notes(recipe)]
    return (
        "\n\n".join(part for part in [*parts, _verify(recipe), _files(recipe, others)] if part)
        + "\n"
    )


def _head(recipe: Recipe, launch: dict[str, Any]) -> str:
    d, lock = recipe.device, recipe.lock
    plural = "s" if d.count > 1 else ""
    weights = recipe.candidate.get("weight_dtype", recipe.candidate.get("precision"))
    image = f" or the container image `{lock.image.reference}`" if lock and lock.image else ""
    version = f" {recipe.engine.version}" if recipe.engine.version else ""
    return (
        f"# {recipe.name}\n\n{recipe.model.id} ({recipe.model.parameters / 1e9:.3g} B parameters, {weights}) on "
        f"{d.count} × {d.title}, {_split(recipe)}, with {recipe.engine.title}{version}.\n\n"
        f"Needs: {d.count} {d.vendor.upper()} device{plural} of this kind "
        f"({gib(recipe.estimate['memory']['total_bytes'])} used on each), Python 3.10 or newer, and the engine "
        f"(`{launch['engine']['install']}`{image})."
    )


def _split(recipe: Recipe) -> str:
    c = recipe.candidate
    if recipe.kind == "training":
        return training_split(c)
    split = f"tensor parallel {c['tp']} × pipeline parallel {c['pp']} × data parallel {c['dp']}"
    return split + (f", experts shared by {c['ep']} ranks" if c["ep"] > 1 else "")


def _run(recipe: Recipe, launch: dict[str, Any]) -> str:
    return f"""## Run

```
python launch.py preflight   # is this the machine the recipe needs?
python launch.py up          # start{", wait until healthy" if recipe.kind == "serving" else " the run"}
python launch.py bench       # measure, compare with what was predicted
python launch.py status
python launch.py down        # stop
```

{_nodes(launch)}{_addresses(launch) if recipe.kind == "serving" else "Options: `--model FOLDER_OR_ID`, `--data FILE`."} What is started:

```
{_commands(launch)}
```"""


def _nodes(launch: dict[str, Any]) -> str:
    """What every node of several has to be told."""
    if launch["nodes"] == 1:
        return ""
    last = launch["nodes"] - 1
    return f"On each of {launch['nodes']} nodes, with N from 0 to {last}: `python launch.py up --node N --head ADDRESS_OF_NODE_0`.\n\n"


def _addresses(launch: dict[str, Any]) -> str:
    parameters, answering = (
        launch["parameters"],
        [p for p in launch["processes"] if p["role"] != "worker"],
    )
    addresses = [
        f"http://{parameters['host']}:{parameters['port'] + p['port_offset']}" for p in answering
    ]
    return (
        f"Options: `--model FOLDER_OR_ID`, `--host`, `--port`. It listens on {', '.join(addresses)}\n"
        f"(OpenAI-compatible, model name `{launch['api']['model']}`)."
    )


def _commands(launch: dict[str, Any]) -> str:
    """Each command once, with how many processes run it, or on which node."""
    counts: dict[str, list[int]] = {}
    for process in launch["processes"]:
        counts.setdefault(shlex.join(process["argv"]), []).append(process["node"])
    return "\n".join(
        f"{shown}{_how_often(nodes, launch['nodes'])}" for shown, nodes in counts.items()
    )


def _how_often(nodes: list[int], all_nodes: int) -> str:
    where = f"on node {', '.join(map(str, sorted(set(nodes))))}" if all_nodes > 1 else ""
    often = (
        f"{len(nodes)} times, each on devices of its own"
        if len(nodes) > 1 and len(set(nodes)) == 1
        else ""
    )
    said = ", ".join(each for each in (often, where) if each)
    return f"   # {said}" if said else ""


def _targets(recipe: Recipe, paths: Iterable[str], refused: Mapping[str, str]) -> str:
    """One command a target, and why there are no others."""
    rows = [
        f"| {use.title} | `{use.start}` | `{use.stop}` |"
        for use in uses(paths, dns_label(recipe.name), recipe.kind)
    ]
    table = ["| where | start | stop |", "|---|---|---|", *rows] if rows else []
    missing = [f"Not for {name}: {why}" for name, why in refused.items()]
    return (
        "\n".join(
            [
                "## Elsewhere",
                "",
                *table,
                "",
                _GATED,
                *(line for each in missing for line in ("", each)),
            ]
        )
        if rows or missing
        else ""
    )


def _expected(recipe: Recipe) -> str:
    load = ", ".join(
        f"{name} {value}"
        for name, value in recipe.request["workload"].items()
        if name != "kind" and value
    )
    figures = text_rows(recipe.kind, recipe.estimate)
    rows = [
        f"| {row.label} | {row.value} | {row.low} – {row.high} | {row.basis} |" for row in figures
    ]
    price = cost_text(recipe.estimate) if recipe.kind == "serving" else None
    measured = [
        f"Measured {claim.date}, valid until {claim.expires}: {_metrics(claim.metrics)}."
        for claim in recipe.claims
    ]
    table = ["| | predicted | band | basis |", "|---|---|---|---|", *rows]
    more = [
        line for each in [*([f"Cost: {price}."] if price else []), *measured] for line in ("", each)
    ]
    return "\n".join(["## Expected", "", f"For the workload {load}:", "", *table, *more])


def _metrics(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def _elsewhere(recipe: Recipe) -> str:
    """The fallbacks, one line each."""
    if not recipe.fallbacks:
        return ""
    lines = []
    for each in recipe.fallbacks:
        split = " × ".join(
            f"{name} {each.candidate[name]}"
            for name in ("tp", "pp", "cp", "dp", "ep")
            if each.candidate.get(name, 1) > 1
        )
        other = [
            f"{name} {each.candidate[name]}"
            for name in _FORMATS
            if each.candidate.get(name) != recipe.candidate.get(name)
        ]
        other += [
            f"{name} {value}" for name, value in each.changes.items() if not isinstance(value, dict)
        ]
        figures = _metrics(
            {name: value for name, value in list(each.figures.items())[:3] if value is not None}
        )
        shown = ", ".join([split or "one device", *other])
        lines.append(
            f"- {each.kind.replace('-', ' ')}: {each.gpus} × {each.device}, {shown} ({figures})"
        )
    return "\n".join(["## Where it cannot run", "", *lines])


def _notes(recipe: Recipe) -> str:
    return "## Notes\n\n" + (
        "\n".join(f"- {note}" for note in recipe.notes) if recipe.notes else "None."
    )


def _verify(recipe: Recipe) -> str:
    return f"""## Verify

`recipe check .` (files, digests, signature, whether this version still agrees) or `python launch.py preflight`;
`recipe lock . --verify` holds what is installed against the lock. The recipe's digest is `{recipe.digest}`."""


def _files(recipe: Recipe, others: Iterable[str]) -> str:
    trainer = "`trainer/` the training program;\n" if recipe.kind == "training" else ""
    trainer += (
        f"`{CONTAINERFILE}` what an image that holds the framework is built from;\n"
        if CONTAINERFILE in others
        else ""
    )
    return f"""## Files

`recipe.yaml` the decision and the request it came from; `expected.json` the estimate; `launch.json` what is started;
`launcher/` the program (standard library only); {trainer}`targets/` and `monitoring/` other places to start it; `sbom.json` what is pulled;
`MANIFEST.json` digests of all of it; `run/` logs and measurements of your runs."""
