"""A bundle's README: what the recipe is, what it needs, how to run it, what to expect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from recipe_core.base import quoting
from recipe_core.base.labels import training_split
from recipe_core.base.text_rows import cost_text, text_rows
from recipe_core.base.units import gib, usd
from recipe_core.bundle.rented import rented_section
from recipe_core.launch.training.container import PATH as CONTAINERFILE
from recipe_core.models.spec import UNPLACED
from recipe_core.recipe import Recipe
from recipe_core.recipe.names import dns_label
from recipe_core.recipe.schema import Fallback
from recipe_core.targets.restarts import Row
from recipe_core.targets.use import TITLES, uses

_GATED = (
    "Gated models need `HF_TOKEN` in the environment (containers) or the Secret that "
    "`token_secret` names (Kubernetes)."
)
_FORMATS = ("weight_dtype", "kv_dtype", "precision")


def bundle_readme(
    recipe: Recipe,
    launch: dict[str, Any],
    paths: Iterable[str],
    refused: Mapping[str, str],
    restarts: Sequence[Row] = (),
    clusters: Sequence[str] = (),
    reach: str = "",
    spot: str = "",
) -> str:
    """Markdown for people who have only the bundle's folder.

    ``paths`` are those of the targets' files, ``refused`` says why a target is unavailable,
    ``restarts`` who starts what again where, ``clusters`` what to know of clusters, ``reach`` is
    the section on who can reach the servers, ``spot`` says which targets ask for a spot price.
    """
    sections = [
        _head(recipe, launch),
        rented_section(recipe, spot),
        _checkpoint(recipe, launch),
        _run(recipe, launch),
        _targets(recipe, launch, paths, refused, clusters),
        reach,
        _restarts(recipe, launch, restarts),
        _expected(recipe),
        _fallbacks(recipe),
        _notes(recipe),
        _verify(recipe),
        _files(recipe, paths),
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def _head(recipe: Recipe, launch: dict[str, Any]) -> str:
    d, lock = recipe.device, recipe.lock
    plural = "s" if d.count > 1 else ""
    weights = recipe.candidate.get("weight_dtype", recipe.candidate.get("precision"))
    image = ""
    if lock and lock.image:
        image = f" or the container image {quoting.markdown_code(lock.image.reference)}"
    model, device = quoting.markdown(recipe.model.id), quoting.markdown(d.title)
    version = f" {recipe.engine.version}" if recipe.engine.version else ""
    return (
        f"# {recipe.name}\n\n"
        f"{model} ({recipe.model.parameters / 1e9:.3g} B parameters, {weights}) on "
        f"{d.count} × {device}, {_split(recipe)}, with {recipe.engine.title}{version}."
        f"{_weights(recipe, launch)}\n\n"
        f"Needs {d.count} {d.vendor.upper()} device{plural} of this kind "
        f"({gib(recipe.estimate['memory']['total_bytes'])} used on each), Python 3.10 or newer, "
        f"and the engine ({quoting.markdown_code(launch['engine']['install'])}{image})."
    )


def _weights(recipe: Recipe, launch: dict[str, Any]) -> str:
    """Where the weights are, where that is not the model's name."""
    place = launch["parameters"]["model"]
    if place in (UNPLACED, recipe.model.id):
        return ""
    return f" Its weights are read from {quoting.markdown_code(place)}."


def _split(recipe: Recipe) -> str:
    c = recipe.candidate
    if recipe.kind == "training":
        return training_split(c)
    split = f"tensor parallel {c['tp']} × pipeline parallel {c['pp']} × data parallel {c['dp']}"
    return split + (f", experts sharded over {c['ep']} ranks" if c["ep"] > 1 else "")


def _checkpoint(recipe: Recipe, launch: dict[str, Any]) -> str:
    """How the checkpoint is made, and what that takes; empty where one is served as it is."""
    making, takes = launch.get("compression"), recipe.estimate.get("compression")
    if making is None or takes is None:
        return ""
    seconds = [_minutes(takes["seconds"][name]) for name in ("value", "low", "high")]
    cost = f", {usd(takes['usd'])}" if takes.get("usd") else ""
    device = f" {gib(takes['device_bytes'])} of a device," if takes["device_bytes"] else ""
    return f"""## The checkpoint

The bundle makes the weights that it serves of
{quoting.markdown_code(making["source"])}, with {quoting.markdown(making["title"])}
({quoting.markdown(making["method"])}, {quoting.markdown_code(making["technique"])}).

```
{making["install"]}
python launch.py compress    # make it, then hold it against its base
```

It takes about {seconds[0]} ({seconds[1]} to {seconds[2]}){cost},{device}
{gib(takes["host_bytes"])} of the host and {gib(takes["disk_bytes"])} of disk, and leaves
{gib(takes["output_bytes"])} in {quoting.markdown_code(making["output"])}. A finished one is kept, a
half-written one never counts. Perplexity and greedy answers beside those of the base go to
`run/compression.json`; `compress/job.json` says what is made and how much may be lost.
`--model FOLDER` names another place of the base, `--python` the Python that has the tool."""


def _minutes(seconds: float) -> str:
    """A time that people wait for: 40 s, 13 min, 4.1 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _run(recipe: Recipe, launch: dict[str, Any]) -> str:
    start, options = " the run, and keep it", "Options: `--model FOLDER_OR_ID`, `--data FILE`."
    restart, end = "", "--checkpoint   # stop after a checkpoint; without: at once"
    if recipe.kind == "serving":
        start, options = ", wait until healthy, and keep it up", _addresses(launch)
        restart = "\npython launch.py restart     # one replica after the other"
        end = "--drain 30     # stop when requests are done; without: at once"
    return f"""## Run

```
python launch.py preflight   # is this the machine the recipe needs?
python launch.py up          # start{start}
python launch.py bench       # measure, compare with the prediction
python launch.py status      # what runs, what went wrong last{restart}
python launch.py logs        # also: doctor packs what a report needs, without secrets
python launch.py down {end}
```

`up` starts what was decided or, where this machine holds less, the first fallback that fits;
`--strict` refuses that.

{_nodes(launch)}{options} It starts:

{quoting.markdown_block(_commands(launch))}"""


def _nodes(launch: dict[str, Any]) -> str:
    """The command for each node; empty for a single one."""
    if launch["nodes"] == 1:
        return ""
    last = launch["nodes"] - 1
    command = "`python launch.py up --node N --head ADDRESS_OF_NODE_0`"
    return f"On each of {launch['nodes']} nodes, with N from 0 to {last}: {command}.\n\n"


def _addresses(launch: dict[str, Any]) -> str:
    parameters = launch["parameters"]
    addresses = [
        f"http://{parameters['host']}:{parameters['port'] + p['port_offset']}"
        for p in launch["processes"]
        if p["role"] != "worker"
    ]
    return (
        "Options: `--model FOLDER_OR_ID`, `--host`, `--port`. "
        f"It listens on {quoting.markdown(', '.join(addresses))}\n"
        f"(OpenAI-compatible, model name {quoting.markdown_code(launch['api']['model'])})."
    )


def _commands(launch: dict[str, Any]) -> str:
    """Each command once, with the number of processes that run it, or their nodes."""
    counts: dict[str, list[int]] = {}
    for process in launch["processes"]:
        counts.setdefault(quoting.shell_command(process["argv"]), []).append(process["node"])
    return "\n".join(
        f"{command}{_placement(nodes, launch['nodes'])}" for command, nodes in counts.items()
    )


def _placement(nodes: list[int], all_nodes: int) -> str:
    """A comment on the processes of one command, which run on ``nodes``."""
    remarks = []
    if len(nodes) > 1 and len(set(nodes)) == 1:
        remarks.append(f"{len(nodes)} times, each on devices of its own")
    if all_nodes > 1:
        remarks.append(f"on node {', '.join(map(str, sorted(set(nodes))))}")
    return f"   # {', '.join(remarks)}" if remarks else ""


def _targets(
    recipe: Recipe,
    launch: dict[str, Any],
    paths: Iterable[str],
    refused: Mapping[str, str],
    clusters: Sequence[str],
) -> str:
    """The commands of each target, and why the others are unavailable."""
    key = launch["api"].get("key_variable")
    rows = [
        f"| {use.title} | `{use.start}` | `{use.stop}` |"
        for use in uses(paths, dns_label(recipe.name), recipe.kind, key)
    ]
    if not rows and not refused:
        return ""
    lines = ["## Other targets", ""]
    if rows:
        lines += ["| target | start | stop |", "|---|---|---|", *rows]
    lines += ["", _GATED]
    for note in clusters:
        lines += ["", note]
    for name, reason in refused.items():
        lines += ["", f"Not for {name}: {quoting.markdown(reason)}"]
    return "\n".join(lines)


def _restarts(recipe: Recipe, launch: dict[str, Any], restarts: Sequence[Row]) -> str:
    """A table of what happens when something breaks; empty without any rows."""
    if not restarts:
        return ""
    lines = [
        "## When something breaks",
        "",
        "| where | when | who | does what |",
        "|---|---|---|---|",
    ]
    for row in restarts:
        where, answer = TITLES.get(row.target, row.target), row.answer
        told = ", ".join(f"`{setting}`" for setting in answer.settings)
        does = f"{answer.does} ({told})" if told else answer.does
        lines.append(f"| {where} | {', '.join(row.events)} | {answer.who} | {does} |")
    latency_s = recipe.estimate.get("serving", {}).get("request_latency_s", 0.0)
    drain_s = launch["supervision"]["drain_s"]
    if latency_s > drain_s:
        lines += [
            "",
            f"A request takes {latency_s:.3g} s on average, and a stop waits {drain_s} s for those "
            "that run: longer ones are cut off. `options.supervision.drain_s` changes that.",
        ]
    return "\n".join(lines)


def _expected(recipe: Recipe) -> str:
    load = _terms(
        f"{name} {value}"
        for name, value in recipe.request["workload"].items()
        if name != "kind" and value
    )
    lines = ["## Expected", "", f"For the workload {load}:", ""]
    lines += ["| | predicted | band | basis |", "|---|---|---|---|"]
    for row in text_rows(recipe.kind, recipe.estimate):
        lines.append(f"| {row.label} | {row.value} | {row.low} – {row.high} | {row.basis} |")
    if recipe.kind == "serving" and (price := cost_text(recipe.estimate)):
        lines += ["", f"Cost: {price}."]
    for claim in recipe.claims:
        dates = f"Measured {claim.date}, valid until {claim.expires}"
        lines += ["", f"{dates}: {_metrics(claim.metrics)}."]
    return "\n".join(lines)


def _metrics(metrics: Mapping[str, float]) -> str:
    return _terms(f"{name} {value:.4g}" for name, value in metrics.items())


def _terms(texts: Iterable[str]) -> str:
    return ", ".join(map(quoting.markdown, texts))


def _fallbacks(recipe: Recipe) -> str:
    """The fallbacks, one line each; empty without any."""
    lines = [_fallback(recipe, fallback) for fallback in recipe.fallbacks]
    return "\n".join(["## Fallbacks", "", *lines]) if lines else ""


def _fallback(recipe: Recipe, fallback: Fallback) -> str:
    """A fallback's devices, split, differences from the recipe and first three metrics."""
    candidate = fallback.candidate
    degrees = [
        f"{name} {candidate[name]}"
        for name in ("tp", "pp", "cp", "dp", "ep")
        if candidate.get(name, 1) > 1
    ]
    terms = [" × ".join(degrees) or "one device"]
    terms += [
        f"{name} {candidate[name]}"
        for name in _FORMATS
        if candidate.get(name) != recipe.candidate.get(name)
    ]
    changes = fallback.changes.items()
    terms += [f"{name} {value}" for name, value in changes if not isinstance(value, dict)]
    metrics = [
        (name, value) for name, value in [*fallback.figures.items()][:3] if value is not None
    ]
    devices = f"{fallback.gpus} × {quoting.markdown(fallback.device)}"
    kind = fallback.kind.replace("-", " ")
    return f"- {kind}: {devices}, {_terms(terms)} ({_metrics(dict(metrics))})"


def _notes(recipe: Recipe) -> str:
    notes = "\n".join(f"- {quoting.markdown(note)}" for note in recipe.notes)
    return f"## Notes\n\n{notes or 'None.'}"


def _verify(recipe: Recipe) -> str:
    tag = ""
    if recipe.lock and recipe.lock.image and not recipe.lock.image.digest:
        tag = (
            "\n\nThe container image is pinned by its tag alone, which may move: "
            "`recipe lock BUNDLE --online -o BUNDLE` asks its registry for the digest."
        )
    return f"""## Verify

`recipe check .` checks files, digests and signature, and whether the installed version of
Recipe Builder still agrees; `python launch.py preflight` checks the machine, and
`recipe lock . --verify` what is installed on it. The recipe's digest is `{recipe.digest}`.{tag}"""


def _files(recipe: Recipe, paths: Iterable[str]) -> str:
    trainer = "`trainer/` the training program;\n" if recipe.kind == "training" else ""
    if "compress/job.json" in paths:
        trainer += "`compress/` and `compressor/` what makes the checkpoint and checks it;\n"
    if CONTAINERFILE in paths:
        trainer += f"`{CONTAINERFILE}` builds an image with the framework;\n"
    return f"""## Files

`recipe.yaml` the decision and its request; `expected.json` the estimate; `launch.json` what to
start; `fallbacks/` what to start where that cannot run; `launcher/` the program that starts it
(standard library only); {trainer}`targets/` and `monitoring/` files for other targets;
`sbom.json` what a start downloads; `MANIFEST.json` digests of all files; `run/` logs and
measurements of your runs."""
