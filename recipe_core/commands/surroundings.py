"""What surrounds a server: its container, and the release of the engine that this holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from recipe_core.commands.arguments import Finding
from recipe_core.commands.launches import Launch
from recipe_core.commands.verdict import Case
from recipe_core.commands.words import image_is_of, image_tag
from recipe_core.engines.grammar import grammars
from recipe_core.engines.option_releases import (
    ReleaseTable,
    newest_release_table,
    pinned_release_table,
    release_table,
)
from recipe_core.engines.spec import engine

_TAG = re.compile(r"v?(\d{1,4}\.\d{1,4}\.\d{1,4}[^-]*)(-.*)?", re.DOTALL)
_INSIDE = re.compile(r"(?<![\d.])\d{1,4}\.\d{1,4}\.\d{1,4}(?![\d.])")
_MOVING = re.compile(r"latest(-.*)?")


def running_release(launch: Launch, release: str | None = None) -> ReleaseTable:
    """The release of a command: what the user states, else its image's tag, else the pinned one.

    A program of another project chooses its own, and adds options. The tag "latest" is taken for
    the newest release with a table; a build that is not the engine's own project's for one that may
    differ from the release it names.
    """
    start = grammars()[launch.engine].start_of(launch.program)
    if start is not None and start.around:
        return replace(release_table(launch.engine, release), exact=False)
    if release is not None:
        return release_table(launch.engine, release)
    if launch.image is None:
        return pinned_release_table(launch.engine)
    tag, official = image_tag(launch.image.partition("@")[0]), _is_official(launch)
    if (tag is None and "@" not in launch.image) or (tag and _MOVING.fullmatch(tag)):
        return (
            newest_release_table(launch.engine) if official else release_table(launch.engine, None)
        )
    return release_table(
        launch.engine, _release_in_tag(launch, tag or "", official), official=official
    )


def by_pinned(launch: Launch) -> ReleaseTable:
    """What a command runs, judged by the pinned release, which a recipe of it will start."""
    current, table = running_release(launch), pinned_release_table(launch.engine).table
    return replace(current, table=table, exact=current.exact and current.table is table)


def _is_official(launch: Launch) -> bool:
    return image_is_of(launch.image or "", grammars()[launch.engine].official)


def _release_in_tag(launch: Launch, tag: str, official: bool) -> str | None:
    """A release in a tag: ``v0.9.1``, ``v0.4.6-cu124``, ``rocm7.0_vllm_0.11.1`` of others' builds.

    An image that does not carry the engine's name has versions of its own.
    """
    if official:
        start = _TAG.fullmatch(tag)
        return start[1] if start else None
    inside = _INSIDE.search(tag)
    is_engine = launch.engine in (launch.image or "").partition(":")[0]
    return inside[0] if inside and is_engine else None


def about_release(
    launch: Launch, release: ReleaseTable, stated_release: str | None
) -> Iterator[Finding]:
    """What to know of the release that a command runs, and of the table that judges it."""
    title, table = engine(launch.engine).title, release.table.version
    basis = f"judged with the options of {title} {table}"
    if launch.image is None and stated_release is None and release.exact:
        return
    if stated_release is not None and launch.image is not None:
        tagged = running_release(launch)
        if tagged.version not in (None, release.version):
            message = f"{title} {release.version} is judged, as stated; the image holds"
            yield Finding("warning", "version", None, f"{message} {tagged.version}.")
    elif release.version is None and release.exact:
        message = f"{launch.image} changes without notice; {basis}."
        yield Finding("note", "unpinned", None, message, "Pin a release.")
        return
    if not release.exact:
        gap = f"a table of the options of {title} {release.version}"
        holder = launch.image or launch.program[-1]
        if release.version is None:
            gap = f"which release of {title} {holder} holds"
        elif release.table.partial and launch.image is None:
            message = f"the table of {title} leaves rare options out: what it lacks is a warning."
            yield Finding("note", "version", None, message)
            return
        elif release.version == table:
            gap = f"what {holder} changes of {title} {table}"
        message = f"{gap} is not known; {basis}: what they lack or refuse is a warning."
        hint = None if stated_release else "State the release: --engine-version."
        yield Finding("note", "version", None, message, hint)
    elif release.version != engine(launch.engine).version:
        place = "the image holds" if stated_release is None else "stated:"
        yield Finding("note", "version", None, f"{place} {title} {release.version}; {basis}.")


def check_surroundings(case: Case) -> None:
    """What the container and the environment do to the server."""
    launch = case.launch
    if launch.image is None:
        return
    if launch.image_by_name:
        title = engine(launch.engine).title
        message = f"{launch.image} is not known; read by its name as an image of {title}."
        case.say("note", "image", message)
    if launch.repeated:
        words = " ".join(launch.program)
        hint = f"Leave {words} out, or set --entrypoint."
        case.say("error", "repeated-program", f"the image starts {words} by itself.", hint)
    candidate = case.meant.candidate
    ranks = (candidate.get("tp") or 1) * (candidate.get("pp") or 1)
    if launch.shares_memory is False and ranks > 1:
        message = "several ranks share memory through /dev/shm, which is small in a container."
        case.say("warning", "shared-memory", message, "Add --ipc=host or --shm-size.")
