"""Checks that engines make of a command when they start, and of its container."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from recipe_core.base import texts
from recipe_core.commands.arguments import is_open
from recipe_core.commands.images import image_folder, image_is_of, image_tag
from recipe_core.commands.launches import Launch
from recipe_core.commands.verdict import Case
from recipe_core.engines.grammar import grammars
from recipe_core.engines.option_releases import (
    ReleaseTable,
    newest_release_table,
    pinned_release_table,
    release_table,
)
from recipe_core.estimates.columns.serving import Setting
from recipe_core.estimates.rules.own_options import effects_of
from recipe_core.models.spec import ModelSpec
from recipe_core.request.serving_workload import MediaItems

# ``v0.9.1`` and ``v0.4.6-cu124`` of the project, ``rocm7.0_vllm_0.11.1`` of others' builds
_TAG = re.compile(r"v?(\d{1,4}\.\d{1,4}\.\d{1,4}[^-]*)(-.*)?", re.DOTALL)
_INSIDE = re.compile(r"(?<![\d.])(\d{1,4}\.\d{1,4}\.\d{1,4})(?![\d.])")
_MOVING = re.compile(r"latest(-.*)?")


def running_release(launch: Launch, release: str | None = None) -> ReleaseTable:
    """The release of a command: what the user states, else its image's tag, else the pinned one.

    A program of another project chooses its own, and adds options. The tag "latest" is taken for
    the newest release with a table; a build that is not the engine's own project's for one that may
    differ from the release it names.
    """
    name, grammar = launch.engine, grammars()[launch.engine]
    start = grammar.start_of(launch.program)
    if start is not None and start.around:
        return replace(release_table(name, release), exact=False)
    if release is not None:
        return release_table(name, release)
    if launch.image is None:
        return pinned_release_table(name)
    image, _, digest = launch.image.partition("@")
    official, tag = image_is_of(image, grammar.official), image_tag(image) or ""
    if _MOVING.fullmatch(tag) or not (tag or digest):
        return newest_release_table(name) if official else release_table(name, None)
    inside = _TAG.fullmatch(tag) if official else _INSIDE.search(tag)
    # an image that does not carry the engine's name has versions of its own
    is_release = inside is not None and (official or name in image.partition(":")[0])
    return release_table(name, inside[1] if inside and is_release else None, official=official)


def by_pinned(launch: Launch) -> ReleaseTable:
    """Return what a command runs, judged by the pinned release, which a recipe of it will start."""
    current, table = running_release(launch), pinned_release_table(launch.engine).table
    return replace(current, table=table, exact=current.exact and current.table is table)


def check_release(case: Case, release: str | None) -> None:
    """Say what to know of the release that a command runs, and of the table that judges it.

    ``release``: the one that the user states.
    """
    launch, judged, say = case.launch, case.arguments.judged, case.findings.say
    title, table = case.spec.title, judged.table.version
    basis = f"judged with the options of {title} {table}"
    if launch.image is None and release is None and judged.exact:
        return
    if release is not None and launch.image is not None:
        tagged = running_release(launch)
        if tagged.version not in (None, judged.version):
            message = f"{title} {judged.version} is judged, as stated; the image holds"
            say("warning", "version", f"{message} {tagged.version}.")
    elif judged.version is None and judged.exact:
        message = f"{launch.image} changes without notice; {basis}."
        say("note", "unpinned", message, "Pin a release.")
        return
    if not judged.exact:
        gap = f"a table of the options of {title} {judged.version}"
        holder = launch.image or launch.program[-1]
        if judged.version is None:
            gap = f"which release of {title} {holder} holds"
        elif judged.table.partial and launch.image is None:
            message = f"the table of {title} leaves rare options out: what it lacks is a warning."
            say("note", "version", message)
            return
        elif judged.version == table:
            gap = f"what {holder} changes of {title} {table}"
        message = f"{gap} is not known; {basis}: what they lack or refuse is a warning."
        say("note", "version", message, None if release else "State the release: --engine-version.")
    elif judged.version != case.spec.version:
        place = "the image holds" if release is None else "stated:"
        say("note", "version", f"{place} {title} {judged.version}; {basis}.")


def check_surroundings(case: Case) -> None:
    """Check what the container and the environment do to the server."""
    launch = case.launch
    if launch.image is None:
        return
    if launch.image_by_name:
        title = case.spec.title
        message = f"{launch.image} is not known; read by its name as an image of {title}."
        case.findings.say("note", "image", message)
    if launch.repeated:
        words = " ".join(launch.program)
        hint = f"Leave {words} out, or set --entrypoint."
        case.findings.say("error", "repeated-program", f"the image starts {words} by itself.", hint)
    candidate = case.candidate
    ranks = (candidate.get("tp") or 1) * (candidate.get("pp") or 1)
    if launch.shares_memory is False and ranks > 1:
        message = "several ranks share memory through /dev/shm, which is small in a container."
        case.findings.say("warning", "shared-memory", message, "Add --ipc=host or --shm-size.")


def media_of(case: Case, model: ModelSpec) -> tuple[dict[str, Any], int]:
    """Fields of a workload about images and sound, and the tokens of a prompt that are images.

    A server that reads no images gets prompts of text, which is said.
    """
    out: dict[str, Any] = {}
    context = case.context
    read = tuple(tower.modality for tower in model.towers)
    if any(modality in case.without for modality in read):
        out["modalities"] = [name for name in read if name not in case.without]
    if context.images is None:
        return out, 0
    if "image" not in out.get("modalities", read):
        case.findings.say("note", "images", f"{model.name} reads no images here; prompts are text.")
        return out, 0
    items = MediaItems(per_request=context.images)
    tokens = context.image_tokens or items.tokens
    out["images"] = {"per_request": items.per_request, "tokens": tokens}
    return out, round(items.per_request * tokens)


def command_setting(shared: Setting, case: Case) -> Setting:
    """The setting of a command: its own options, graphs that it captures, encoders as held."""
    spec = shared.engine
    if case.candidate.get("eager"):
        spec = spec.without_graphs()
    if case.whole_encoders:
        spec = spec.with_whole_encoders()
    effects = replace(
        effects_of(spec, case.own_options, case.env, shared.model),
        sequences_open=spec.memory.compressed_pools is not None
        and "max_num_seqs" not in case.candidate,
    )
    if spec is shared.engine and effects == shared.effects:
        return shared
    return replace(shared, engine=spec, effects=effects)


def take_all_devices(case: Case) -> None:
    """Set the degree of a server that takes every device it sees and states none.

    That is what its container shows it, else all of a node; one device where neither is known.
    """
    unless, values = case.grammar.all_devices, case.arguments.values
    degree = "pp" if case.spec.split.pipeline else "tp"
    if unless is None or degree not in case.unstated:
        return
    if any(str(values.get(name)) in off for name, off in unless.items()):
        return
    devices = case.launch.visible_devices or case.context.per_node
    if devices is None:
        message = "takes every device it sees; judged on one."
        hint = "Set --gpus to the devices that it sees."
        case.findings.say("note", "devices", f"{case.spec.title} {message}", hint)
    case.candidate[degree] = devices or 1


_ENDING = re.compile(r"\.(jinja2?|json|ya?ml|toml|py|txt|csv|pem|crt|key|model|bin|pt)$")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def check_named_files(case: Case) -> None:
    """Warn of each relative path of a file that has to be where the server runs.

    Silent where a mount of the container covers the path, or its image is known to hold it.
    """
    launch, arguments = case.launch, case.arguments
    for name, missing in case.grammar.files.items():
        if (option := arguments.table.by_name.get(name)) is None:
            continue
        for path in _relative_paths(arguments.values.get(name)):
            for place, hint in _missing_file(launch, path):
                message = f"{option.flag} names the file {path}, {place}: {missing}."
                case.findings.say("warning", "file", message, hint, option=option.flag)


def _relative_paths(value: Any) -> Iterator[str]:
    """Relative paths of files in a value: text, or several texts, each may be ``name=path``."""
    for text in value if isinstance(value, list) else [value]:
        if not isinstance(text, str) or len(text) > 1024 or is_open(text):
            continue
        path = text.partition("=")[2] if re.fullmatch(r"[\w.-]+=[^={}\s]+", text) else text
        if path.startswith(("/", "~")) or _SCHEME.match(path) or "\n" in path or "{" in path:
            continue
        if path.startswith(("./", "../")) or _ENDING.search(path):
            yield path


def _missing_file(launch: Launch, path: str) -> Iterator[tuple[str, str]]:
    """Yield where a server looks for a relative path and a remedy; nothing if it is there."""
    if launch.image is None:
        hint = "Run the command where the file is, or give its whole path."
        yield "in the folder that the command runs in", hint
        return
    start_folder = image_folder(launch.engine, launch.image)
    workdir = launch.workdir or (start_folder.workdir if start_folder else None)
    target = posixpath.normpath(posixpath.join(workdir or "/workspace", path))
    local = texts.quote_shell(posixpath.normpath(path))
    source = local if posixpath.normpath(path).startswith("..") else f'"$PWD"/{local}'
    hint = f"Mount it: -v {source}:{texts.quote_shell(target)}:ro."
    if workdir is None:
        # where the image starts is not known: any mount may be what holds the file
        if not launch.mounts:
            yield "in the folder that the container starts in", hint
        return
    holders = list(launch.mounts)
    if start_folder:
        holders += (posixpath.join(start_folder.workdir, name) for name in start_folder.holds)
    if not any(_folder_holds(folder, target) for folder in holders):
        yield f"{target} in the container, which the image does not hold", hint


def _folder_holds(folder: str, path: str) -> bool:
    folder = posixpath.normpath(folder)
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def check_rules(case: Case, model: ModelSpec) -> None:
    """Check what an engine does when it starts."""
    for name in case.grammar.rules:
        _RULES[name](case, model)


def _batched_covers_seqs(case: Case, _: ModelSpec) -> None:
    tokens = case.candidate.get("max_batched_tokens")
    sequences = case.candidate.get("max_num_seqs")
    if tokens and sequences and tokens < sequences:
        message = (
            f"a step of {tokens:,} tokens is less than one for each of {sequences:,} sequences."
        )
        case.findings.say("error", "limits", message, "Raise the tokens.")


def _unchunked_covers_context(case: Case, model: ModelSpec) -> None:
    tokens = case.candidate.get("max_batched_tokens")
    longest = case.max_context if isinstance(case.max_context, int) else model.max_context
    if not case.chunked and tokens and tokens < longest:
        step = f"without chunked prefill a step of {tokens:,} tokens"
        case.findings.say("error", "limits", f"{step} is less than a request of {longest:,}.")


def _experts_to_share(case: Case, model: ModelSpec) -> None:
    if case.shares_experts and not model.is_moe:
        message = f"{model.name} has no experts to share."
        case.findings.say("error", "no-experts", message, "Leave expert parallelism out.")


def _balanced_needs_shared(case: Case, _: ModelSpec) -> None:
    if case.balanced and not case.shares_experts:
        case.findings.say("error", "balanced", "balancing experts needs expert parallelism.")


def _replicas_on_one_node(case: Case, _: ModelSpec) -> None:
    if (case.nodes or 1) > 1 and case.candidate.get("dp", 1) > 1 and not case.attention_dp:
        message = f"replicas (DP {case.candidate['dp']}) do not span {case.nodes} nodes."
        case.findings.say("error", "replicas", message)


_RULES: dict[str, Callable[[Case, ModelSpec], None]] = {
    "batched-covers-seqs": _batched_covers_seqs,
    "unchunked-covers-context": _unchunked_covers_context,
    "experts-to-share": _experts_to_share,
    "balanced-needs-shared": _balanced_needs_shared,
    "replicas-on-one-node": _replicas_on_one_node,
}
