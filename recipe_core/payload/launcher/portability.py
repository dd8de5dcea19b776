"""Portability to another machine: the engine's kernels there.

Whoever built the bundle asked the engine's releases; here their answers meet the devices and the
release that the machine really has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .devices import Device
from .typed_json import Fields, read_typed

VERDICTS = ("no", "unknown")


@dataclass(frozen=True, slots=True)
class Told:
    """An answer, in words, of some releases on some architectures: "no", or "unknown"."""

    verdict: str = field(metadata={"allowed": VERDICTS})
    releases: tuple[str, ...]
    architectures: tuple[str, ...]
    words: str


@dataclass(frozen=True, slots=True)
class Support:
    """All that releases answered to what the recipe needs.

    ``architecture``: that of the recipe's device. ``releases`` and ``architectures``: those that
    were asked, oldest releases first; where nothing is told of one of them, it runs there.
    """

    architecture: str
    releases: tuple[str, ...]
    architectures: tuple[str, ...]
    verdicts: tuple[Told, ...]

    def nearest(self, release: str) -> str:
        """The asked release that answers for another: the next older, or of a build the newest."""
        numbers = _release_numbers(release)
        older = [candidate for candidate in self.releases if _release_numbers(candidate) <= numbers]
        return older[-1] if older else self.releases[0 if numbers else -1]

    def of(self, release: str, architecture: str) -> Told | None:
        """Return what a release answered about an architecture; None where it runs there."""
        if architecture not in self.architectures:
            words = f"nobody asked about {architecture}"
            return Told("unknown", (release,), (architecture,), words)
        for verdict in self.verdicts:
            if release in verdict.releases and architecture in verdict.architectures:
                return verdict
        return None

    def running(self, architecture: str) -> list[str]:
        """Releases that run on an architecture, oldest first."""
        return [release for release in self.releases if self.of(release, architecture) is None]


def read_support(fields: Fields) -> Support | None:
    """The optional object ``kernels`` of a ``launch.json``; None where no release was asked."""
    if fields.data.get("kernels") is None:
        return None
    kernels = fields.child("kernels")
    releases = kernels.texts("releases")
    if not releases:
        raise kernels.fail("releases", "a list of at least one release")
    rows = kernels.children("told") if kernels.data.get("told") else ()
    verdicts = tuple(read_typed(Told, item) for item in rows)
    return Support(kernels.text("architecture"), releases, kernels.texts("architectures"), verdicts)


def answer_support(
    support: Support, engine: str, release: str, devices: Sequence[Device], names: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    """Status, detail and hint for each architecture here.

    A refusal stops the launch only where the very release was asked.
    """
    tested_release, title = support.nearest(release), f"{engine} {release}"
    for architecture in sorted(architectures_of(support, devices, names)):
        verdict = support.of(tested_release, architecture)
        answered = "" if tested_release == release else f", as {tested_release} answers"
        if verdict is None:
            yield "ok", f"{title} has what the recipe needs on {architecture}{answered}", ""
            continue
        hint = "Use another device, or plan again for this one with `recipe plan`."
        if running := support.running(architecture):
            hint = f"Releases that have it: {', '.join(running)}."
        status = "FAIL" if verdict.verdict == "no" and tested_release == release else "warn"
        yield status, f"{title} on {architecture}{answered}: {verdict.words}", hint


def architectures_of(support: Support, devices: Sequence[Device], names: Sequence[str]) -> set[str]:
    """Architectures of devices; one that does not tell it, but has the recipe's name, has its."""
    device_names = {name.casefold() for name in names}
    architectures = {
        device.architecture
        or (support.architecture if device.name.casefold() in device_names else "")
        for device in devices
    }
    return architectures - {""}


def _release_numbers(release: str) -> tuple[int, ...]:
    """Numbers that sort releases by age; those of a build that is no release are empty."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", release)
    return tuple(map(int, match[1].split("."))) if match else ()
