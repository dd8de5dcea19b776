"""A bundle's files as a list: what each is for, in reading order, with a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Characters of a file that a preview shows.
PREVIEWED = 60_000

# What files are for, by name or folder, in reading order; an engine's own follow launch.py.
_ABOUT = {
    "README.md": "What it is, how to run it",
    "recipe.yaml": "The decision and its request",
    "expected.json": "The estimate",
    "launch.json": "What to start",
    "launch.py": "Starts, measures, stops",
    "fallbacks/": "What to start where that cannot run",
    "targets/": "Files for other targets",
    "monitoring/": "Rules, scraping, dashboard",
    "trainer/": "The training program",
    "data/": "Sample text to train on",
    "launcher/": "The launcher",
    "sbom.json": "What a start downloads",
    "MANIFEST.json": "Digests of all files",
}
_OTHER = "Read by the engine"
_ORDER = [*_ABOUT]


@dataclass(frozen=True, slots=True)
class ListedFile:
    """One file: its path, its size in bytes and what it is for."""

    path: str
    size: int
    about: str


def bundle_listing(files: Mapping[str, bytes], query: str = "") -> list[ListedFile]:
    """The files whose path or text has all words of ``query``, ignoring case, in reading order."""
    words = query.casefold().split()
    matches = [path for path, data in files.items() if _matches_words(path, data, words)]
    return [
        ListedFile(path, len(files[path]), _ABOUT.get(_top_folder(path), _OTHER))
        for path in sorted(matches, key=_reading_order)
    ]


def _matches_words(path: str, data: bytes, words: list[str]) -> bool:
    if not words:
        return True
    text = f"{path}\n{data.decode('utf-8', 'replace')}".casefold()
    return all(word in text for word in words)


def _top_folder(path: str) -> str:
    folder, slash, _ = path.partition("/")
    return folder + slash


def _reading_order(path: str) -> tuple[int, str]:
    key = _top_folder(path)
    return (_ORDER.index(key) if key in _ORDER else _ORDER.index("launch.py"), path)


def preview_text(data: bytes) -> tuple[str, bool]:
    """A file's text up to ``PREVIEWED`` characters, and whether that is all of it.

    Bytes that are not UTF-8 are replaced.
    """
    text = data.decode("utf-8", "replace")
    return text[:PREVIEWED], len(text) <= PREVIEWED
