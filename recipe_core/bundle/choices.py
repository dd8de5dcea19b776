"""Choices of a bundle: conditions, each with what is started where it holds.

``launch.json`` lists them in the order in which its launcher takes them: variants for other
devices, the first choice, variants for fewer of its own, fallbacks in the recipe's order; then
variants that are only advised. Each that can be started has a folder ``fallbacks/NAME/`` with a
``launch.json`` and an ``expected.json`` of its own, and the files that differ from those of the
first choice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from recipe_core.base.documents import to_json
from recipe_core.base.errors import RecipeError
from recipe_core.bundle.compress import compression_document, served_model
from recipe_core.engines.spec import engine
from recipe_core.estimates.rules.kernels import support_by_release
from recipe_core.hardware.cluster import device_names, device_profile
from recipe_core.hardware.request import HardwareRequest
from recipe_core.launch.process import Launch, Process, engine_words
from recipe_core.launch.start import limit_s
from recipe_core.payload.launcher.needs import RUNTIMES
from recipe_core.payload.launcher.plan import FIRST, VARIANT
from recipe_core.plans.serving_settings import workload_spread
from recipe_core.recipe import Recipe
from recipe_core.recipe.build import decision_device_facts, recipe_request
from recipe_core.recipe.decision import Decision, decide
from recipe_core.recipe.fallbacks import fallback_title, usual_hardware
from recipe_core.recipe.figures import is_pooled_estimate
from recipe_core.recipe.resolve import machine_of, request_elsewhere
from recipe_core.recipe.variants import Range, Variant
from recipe_core.request.edit import change
from recipe_core.request.schema import PlanRequest
from recipe_core.request.serving_workload import ServingWorkload
from recipe_core.targets.recipe_context import place_launch

FOLDER = "fallbacks"
# A choice stands in for what a machine starts; no policy starts and ends it.
UNSCALED = {"options.scaling": None, "options.simulated": None}
# Variants that are rendered; each is decided again, and a recipe may come from anybody.
MOST_RENDERED = 8


@dataclass(frozen=True, slots=True)
class LaunchChoice:
    """A choice: its folder's name, machines of which any will do, and its files.

    Those of the first one are the bundle's; others without files are only advised.
    """

    name: str
    kind: str
    title: str
    needs: Sequence[dict[str, Any]] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    def entry(self) -> dict[str, Any]:
        """Its entry in ``choices`` of ``launch.json``."""
        entry = {"name": self.name, "kind": self.kind, "title": self.title}
        if self.name == FIRST:
            return entry
        return {**entry, "needs": list(self.needs), **({} if self.files else {"advised": True})}


def launch_choices(recipe: Recipe, started: Launch) -> tuple[LaunchChoice, ...]:
    """All choices of a bundle, in their order; ``started`` is the first.

    A fallback that this version refuses is left out; a variant that it refuses, or whose conditions
    name no one device of the catalogue, is only advised.
    """
    variants = tuple(_variant_choices(recipe, started))
    rendered = [choice for choice in variants if choice.files]
    rendered.sort(key=lambda choice: -choice.needs[0]["count"])
    alike = [choice for choice in rendered if _is_of_own_device(choice, recipe)]
    after = [*alike, *_fallback_choices(recipe, started)]
    return (
        *(choice for choice in rendered if choice not in alike),
        LaunchChoice(FIRST, FIRST, "the recipe's first choice"),
        *sorted(after, key=lambda choice: choice.kind != "other-split"),
        *(choice for choice in variants if not choice.files),
    )


def _is_of_own_device(choice: LaunchChoice, recipe: Recipe) -> bool:
    """Tell if machines of a variant look like the recipe's own; CPUs do not tell their kind."""
    (needs,), device = choice.needs, recipe.device
    alike = not set(needs["names"]).isdisjoint(device.names)
    return alike or needs["runtime"] == device.runtime == "cpu"


def _fallback_choices(recipe: Recipe, started: Launch) -> Iterator[LaunchChoice]:
    for number, fallback in enumerate(recipe.fallbacks, 1):
        changes = {**fallback.changes, "candidate": fallback.candidate, **UNSCALED}
        name = f"{number}-{fallback.kind}"
        choice = LaunchChoice(name, fallback.kind, fallback_title(recipe, fallback))
        with suppress(RecipeError):
            request = change(recipe_request(recipe), changes)
            yield from _rendered(choice, request, recipe, started)


def _variant_choices(recipe: Recipe, started: Launch) -> Iterator[LaunchChoice]:
    """Variants that depend on hardware, the most exact first; of one machine the first is rendered.

    That has all that apply there. Nodes of a bundle cannot agree on one by themselves.
    """
    numbered = sorted(enumerate(recipe.variants, 1), key=lambda item: -item[1].when.exactness)
    machines = {(recipe.device.name, recipe.device.count)}
    for number, variant in numbered:
        needs = _variant_needs(recipe, variant, started.nodes)
        choice = LaunchChoice(f"{number}-{VARIANT}", VARIANT, variant.name, needs)
        rendered: list[LaunchChoice] = []
        if len(needs) == started.nodes == 1 and len(machines) <= MOST_RENDERED:
            count, bounds = recipe.device.count, variant.when.count or Range()
            count = bounds.at_least or min(count, bounds.at_most or count)
            hardware = usual_hardware(device_profile(needs[0]["device"]), count)
            machine = (needs[0]["device"], count)
            if hardware.nodes == 1 and machine not in machines:
                machines.add(machine)
                with suppress(RecipeError):
                    request = change(request_elsewhere(recipe, hardware)[0], UNSCALED)
                    rendered += _rendered(choice, request, recipe, started)
        if needs:
            yield from rendered or [choice]


def _variant_needs(recipe: Recipe, variant: Variant, nodes: int) -> list[dict[str, Any]]:
    """A node of each kind of device that meets the conditions, by number of devices.

    Where none names a kind of device, the recipe's own.
    """
    names: list[str] = []
    if variant.when.exactness:
        names = list(device_names())
    elif variant.when.count and recipe.device.name in device_names():
        names = [recipe.device.name]
    bounds = variant.when.count or Range()
    counts = {"count": math.ceil((bounds.at_least or 1) / nodes)}
    if bounds.at_most is not None:
        counts["at_most"] = bounds.at_most // nodes
    return [
        {
            "runtime": profile.runtime,
            "device": profile.name,
            "title": profile.title,
            "names": list(profile.aliases),
            **counts,
        }
        for profile in map(device_profile, names)
        if profile.runtime in RUNTIMES
        and (profile.runtime != "cpu" or counts["count"] == 1)
        and variant.when.model_copy(update={"count": None}).holds(
            machine_of(HardwareRequest(device=profile.name, per_node=1), recipe)
        )
    ]


def _rendered(
    choice: LaunchChoice, request: PlanRequest, recipe: Recipe, first_choice: Launch
) -> Iterator[LaunchChoice]:
    """The choice with its files, where its launcher may take it without asking.

    Raises:
        RecipeError: where the request has no answer that can be started.
    """
    alternative, folder = decide(request), f"{FOLDER}/{choice.name}"
    if _other_checkpoint(alternative, recipe) or _other_run(alternative, recipe):
        return
    start = place_launch(alternative, recipe.parameters)
    launch, files = _launch_beside(start, first_choice, folder)
    recipe_there = recipe.model_copy(
        update={
            "request": alternative.request.to_json(),
            "device": decision_device_facts(alternative),
            "estimate": alternative.estimate,
        }
    )
    document = launch_document(recipe_there, alternative, launch)
    needs = document.pop("needs")
    condition: dict[str, Any] = dict(*choice.needs)
    needs = condition | needs | {"count": max(needs["count"], condition.get("count", 1))}
    documents = {"launch.json": document, "expected.json": alternative.estimate}
    files |= {f"{folder}/{path}": to_json(value) for path, value in documents.items()}
    yield replace(choice, needs=[needs], files=files)


def _other_checkpoint(alternative: Decision, recipe: Recipe) -> bool:
    """Tell if a choice serves a checkpoint that the first choice's job does not make."""
    if alternative.deployment is None or alternative.deployment.compression is None:
        return False
    compressed = recipe.estimate.get("compression") or {}
    return compressed.get("technique") != alternative.deployment.compression.technique


def _other_run(alternative: Decision, recipe: Recipe) -> bool:
    """Tell if a choice would train something else: in another precision, or at another length."""
    length = recipe.request["workload"].get("sequence_length")
    return recipe.kind == "training" and (
        alternative.candidate["precision"] != recipe.candidate["precision"]
        or alternative.request.to_json()["workload"].get("sequence_length") != length
    )


def _launch_beside(
    launch: Launch, first_choice: Launch, folder: str
) -> tuple[Launch, dict[str, str]]:
    """A launch that reads what it does not share with the first choice from ``folder``.

    What is shared is shared by whole top-level entries: programs address folders, too.
    """
    tops = {path.partition("/")[0] for path, text in launch.files.items()}
    moved = sorted(
        top for top in tops if _files_below(launch, top) != _files_below(first_choice, top)
    )
    if not moved:
        return launch, {}
    pattern = re.compile(r"\$\{root\}/(?=(?:" + "|".join(map(re.escape, moved)) + r")(?:/|$))")

    def text(word: str) -> str:
        return pattern.sub(f"${{root}}/{folder}/", word)

    def process(started: Process) -> Process:
        env = {name: text(value) for name, value in started.env.items()}
        return replace(started, argv=tuple(map(text, started.argv)), env=env)

    files = {path: content for top in moved for path, content in _files_below(launch, top).items()}
    moved_launch = replace(launch, processes=tuple(map(process, launch.processes)))
    return moved_launch, {f"{folder}/{path}": content for path, content in files.items()}


def _files_below(launch: Launch, top: str) -> dict[str, str]:
    return {p: content for p, content in launch.files.items() if p.partition("/")[0] == top}


def launch_document(
    recipe: Recipe,
    decision: Decision,
    started: Launch,
    choices: Sequence[LaunchChoice] = (),
) -> dict[str, Any]:
    """``launch.json``: the processes, with placeholders for model, host, port and addresses."""
    device, workload = recipe.device, recipe.request["workload"]
    entries = [choice.entry() for choice in choices]
    return {
        "schema_version": 1,
        "kind": recipe.kind,
        "nodes": started.nodes,
        "name": recipe.name,
        "engine": _engine_document(decision, started),
        "needs": {
            "runtime": device.runtime,
            "device": device.name,
            "title": device.title,
            "names": list(device.names),
            "count": device.count,
            "per_node": device.per_node or device.count,
            "memory_bytes": device.memory_bytes,
            "used_bytes": int(recipe.estimate["memory"]["total_bytes"]),
            **_memory_claim(decision, started, device.runtime),
        },
        "parameters": {
            "model": _model_to_load(decision, recipe),
            "host": recipe.parameters.host,
            "port": recipe.parameters.port,
        },
        "processes": list(map(asdict, started.processes)),
        "health": started.health,
        "startup_timeout_s": limit_s(
            started,
            int(decision.model.checkpoint_bytes or decision.model.counted_bytes),
            recipe.parameters.model or decision.model.source,
            recipe.parameters.storage_mb_per_s,
        ),
        "api": _api_document(decision, recipe, started),
        "workload": _load_document(recipe) if recipe.kind == "serving" else workload,
        "supervision": decision.request.options.supervision.for_launcher(),
        **compression_document(decision, recipe.parameters),
        **_kernel_document(decision),
        **({"choices": entries} if len(entries) > 1 else {}),
    }


def _api_document(decision: Decision, recipe: Recipe, started: Launch) -> dict[str, Any]:
    """The path and body of requests, and the variable with the API key that servers ask for."""
    api = {"path": started.api_path, "model": started.api_model, "body": started.api_body}
    key = decision.deployment and decision.deployment.setting.engine.api_key
    routed = any(process.role == "router" for process in started.processes)
    if not key or (routed and key.router_option is None):
        return api
    if key.option and not recipe.parameters.api_key_secret:
        return api  # an engine that reads no variable is told the key only where one is named
    needed = {"key_needed": True} if recipe.parameters.api_key_secret else {}
    return {**api, "key_variable": key.variable, **needed}


def _model_to_load(decision: Decision, recipe: Recipe) -> str:
    """The served model: the made checkpoint, else the model where the place has it.

    A place names the made checkpoint; a fallback that serves the base has that from its source.
    """
    checkpoint = served_model(decision, recipe.parameters)
    if checkpoint is None and decision.request.options.compression is not None:
        return decision.model.source
    return checkpoint or recipe.parameters.model or decision.model.source


def _memory_claim(decision: Decision, started: Launch, runtime: str) -> dict[str, Any]:
    """Memory that must be free when the engine starts; empty where that is what it uses."""
    deployment = decision.deployment
    claim = deployment.setting.engine.memory.claim if deployment is not None else None
    if deployment is None or claim is None:
        return {}
    values: dict[str, Any] = {"share": deployment.candidate.memory_fraction}
    setting = claim.stated.get(runtime)  # type: ignore[call-overload]
    if setting is not None:
        values["size_gib_variable"] = setting.variable_gib
        if size := started.options.get(setting.option_bytes):
            values["size_bytes"] = int(size)
    programs = claim.programs_bytes.get(runtime)  # type: ignore[call-overload]
    if programs is not None:
        values["programs_bytes"] = int(programs.value)
    return {"claim": values}


def _kernel_document(decision: Decision) -> dict[str, Any]:
    """Kernels of the engine's releases by architecture; empty where no release was asked."""
    deployment = decision.deployment
    by_release = support_by_release(deployment.setting) if deployment is not None else {}
    if deployment is None or not by_release:
        return {}
    releases: dict[tuple[str, str, str], list[str]] = {}
    for (release, architecture), kernels in by_release.items():
        if names := kernels.refused or kernels.unknown:
            verdict = "no" if kernels.refused else "unknown"
            releases.setdefault((architecture, verdict, "; ".join(names)), []).append(release)
    verdict_architectures: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (architecture, verdict, words), of in releases.items():
        verdict_architectures.setdefault((verdict, words, tuple(of)), []).append(architecture)
    return {
        "kernels": {
            "architecture": deployment.setting.cluster.device.architecture,
            "releases": list(dict.fromkeys(release for release, _ in by_release)),
            "architectures": list(dict.fromkeys(architecture for _, architecture in by_release)),
            "told": [
                {"verdict": verdict, "words": words, "releases": list(of), "architectures": where}
                for (verdict, words, of), where in verdict_architectures.items()
            ],
        }
    }


def _engine_document(decision: Decision, started: Launch) -> dict[str, Any]:
    """The program to start, the module whose version is checked, and how to install it."""
    program = engine_words(started.processes[0].argv)[0]
    if started.kind == "serving":
        program = engine(decision.engine).program
    return {
        "name": decision.engine,
        "version": decision.version,
        "program": program,
        "module": decision.module,
        "install": decision.install,
        "requires": list(started.requires),
    }


# Even shares of requests of which a bundle states the length.
_LENGTHS = 64


def _load_document(recipe: Recipe) -> dict[str, Any]:
    """The part of a workload that a load generator needs, defaults included."""
    lengths = ("input_tokens", "output_tokens")
    load = ("concurrency", "request_rate", "batch", "requests")
    values = ServingWorkload.model_validate(recipe.request["workload"])
    out = {name: getattr(values, name) for name in ("mode", *lengths, *load)}
    varied = workload_spread(values)
    if values.mode == "static" or is_pooled_estimate(recipe.estimate):  # exact, unless stated
        varied = replace(varied, input=values.input_spread or 0.0, output=0.0)
    for side, spread in (("input", varied.input), ("output", varied.output)):
        relative = np.asarray(values.relative_lengths(side))
        if relative.size and np.ptp(relative) > 0:
            means = relative.reshape(_LENGTHS, -1).mean(axis=1) * out[f"{side}_tokens"]
            out[f"{side}_lengths"] = np.maximum(np.rint(means), 1).astype(int).tolist()
            out["max_context"] = recipe.max_context
        elif spread and not relative.size:
            out[f"{side}_spread"] = spread
    return out
