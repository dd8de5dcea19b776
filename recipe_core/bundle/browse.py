"""A bundle's files as a list to look through: what each is for, in which order they are worth reading, and a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PREVIEWED = 60_000
"""Characters of a file that are shown; the download has all of it."""

_ABOUT = {
    "README.md": "What it is, how to run it",
    "recipe.yaml": "The decision and its request",
    "expected.json": "The estimate",
    "launch.json": "What is started",
    "launch.py": "Starts, measures, stops",
    "targets/": "Another place to start it",
    "monitoring/": "Rules, scraping, dashboard",
    "trainer/": "The training program",
    "data/": "Text to try the run with",
    "launcher/": "The launcher",
    "sbom.json": "What starting it pulls",
    "MANIFEST.json": "Digests of all files",
}
"""What files are for, by name or folder, in the order of a list; what is not named (an engine's own files) comes after the launch."""
_OWN = "Read by the engine"
_ORDER = [*_ABOUT]


@dataclass(frozen=True, slots=True)
class Listed:
    """One file: its path, its size in bytes and what it is for."""

    path: str
    size: int
    about: str


def listing(files: Mapping[str, bytes], wanted: str = "") -> list[Listed]:
    """The files whose path or text holds all words of ``wanted`` (case does not matter), the most telling first."""
    words = wanted.casefold().split()
    found = [path for path, data in files.items() if _holds(path, data, words)]
    return [
        Listed(path, len(files[path]), _ABOUT.get(_key(path), _OWN))
        for path in sorted(found, key=_rank)
    ]


def _holds(path: str, data: bytes, words: list[str]) -> bool:
    if not words:
        return True
    text = f"{path}\n{data.decode('utf-8', 'replace')}".casefold()
    return all(word in text for word in words)


def _key(path: str) -> str:
    folder, slash, _ = path.partition("/")
    return folder + slash


def _rank(path: str) -> tuple[int, str]:
    key = _key(path)
    return (_ORDER.index(key) if key in _ORDER else _ORDER.index("launch.py"), path)


def preview(data: bytes) -> tuple[str, bool]:
    """A file's text, and whether that is all of it; bytes that are no text are replaced."""
    text = data.decode("utf-8", "replace")
    return text[:PREVIEWED], len(text) <= PREVIEWED
