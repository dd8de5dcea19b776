"""Container images: which engine one holds, what it starts by itself, and its tag."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from recipe_core.engines.grammar import ImageFolder, grammars
from recipe_core.engines.history import release_key

_OF_RELEASE = re.compile(r"v?(\d{1,4}\.\d{1,4}\.\d{1,4})")
_PARTS = re.compile(r"[-_.]")


def image_folder(engine: str, image: str) -> ImageFolder | None:
    """The folder that servers of an image start in, None for one that is not known."""
    folders = grammars()[engine].folders
    return next(
        (
            folder
            for name, folder in folders.items()
            if _image_repository(image).endswith(f"/{name}")
        ),
        None,
    )


def image_start(image: str) -> tuple[str, tuple[str, ...]]:
    """The engine of an image and the words that it starts by itself; empty for an unknown image."""
    for repository, (engine, words) in _images().items():
        if _image_repository(image).endswith(f"/{repository}"):
            return engine, _started_then(engine, repository, image) or words
    return "", ()


def _started_then(engine: str, repository: str, image: str) -> tuple[str, ...]:
    """What an image of an older release of the engine's own project started; empty for others."""
    grammar, tag = grammars()[engine], _OF_RELEASE.match(image_tag(image.partition("@")[0]) or "")
    if tag is None or repository not in grammar.official:
        return ()
    older = (
        start for start in grammar.older_images if release_key(tag[1]) < release_key(start.before)
    )
    return next((start.words for start in older), ())


def engine_by_name(image: str) -> tuple[str, tuple[str, ...]] | None:
    """What an image of others starts by its name: that with ``vllm`` in it, as vLLM's own do."""
    parts = _PARTS.split(_image_repository(image).rpartition("/")[2].casefold())
    for engine, start in _images().values():
        if engine in parts and start:
            return engine, start
    return None


@cache
def _images() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Repositories, the longest first, with their engine and what they start by themselves."""
    rows = [
        (repository, (name, words))
        for name, g in grammars().items()
        for repository, words in g.images.items()
    ]
    return dict(sorted(rows, key=lambda row: -len(row[0])))


def _image_repository(image: str) -> str:
    """An image without digest and tag, after a slash so that only entire path parts match."""
    name = image.split("@", 1)[0]
    head, slash, last = name.rpartition("/")
    return f"/{head}{slash}{last.split(':', 1)[0]}"


def image_is_of(image: str, repositories: Iterable[str]) -> bool:
    return any(_image_repository(image).endswith(f"/{name}") for name in repositories)


def image_tag(image: str) -> str | None:
    """The tag of an image; None when it has neither tag nor digest."""
    if "@" in image:
        return image.split("@", 1)[1]
    return image.rpartition("/")[2].partition(":")[2] or None
