"""Container images by their names: the engine inside, what it starts by itself, its release."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from recipe_core.engines.grammar import ImageFolder, grammars
from recipe_core.engines.release import release_key

_OF_RELEASE = re.compile(r"v?(\d{1,4}\.\d{1,4}\.\d{1,4})")
_PARTS = re.compile(r"[-_.]")


def image_folder(engine: str, image: str) -> ImageFolder | None:
    """The folder that servers of an image start in, None for one that is not known."""
    folders = grammars()[engine].folders
    return next((folders[name] for name in folders if image_is_of(image, [name])), None)


def image_start(image: str) -> tuple[str, tuple[str, ...]]:
    """The engine of an image and the words that it starts by itself; empty for an unknown image.

    Older images of the engine's own project start others.
    """
    names = _images()
    repository = next((name for name in names if image_is_of(image, [name])), None)
    if repository is None:
        return "", ()
    engine, words = names[repository]
    grammar, tag = grammars()[engine], _OF_RELEASE.match(image_tag(image.partition("@")[0]) or "")
    if tag is not None and repository in grammar.official:
        for start in grammar.older_images:
            if release_key(tag[1]) < release_key(start.before):
                return engine, start.words
    return engine, words


def engine_by_name(image: str) -> tuple[str, tuple[str, ...]] | None:
    """Return what an image of others starts by its name: one with ``vllm`` in it, as vLLM's."""
    parts = _PARTS.split(_image_repository(image).rpartition("/")[2].casefold())
    return next((row for row in _images().values() if row[0] in parts and row[1]), None)


@cache
def _images() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Repositories, the longest first, with their engine and what they start by themselves."""
    images = {
        repository: (name, words)
        for name, grammar in grammars().items()
        for repository, words in grammar.images.items()
    }
    return {name: images[name] for name in sorted(images, key=len, reverse=True)}


def _image_repository(image: str) -> str:
    """An image without digest and tag, after a slash so that only entire path parts match."""
    head, slash, last = image.split("@", 1)[0].rpartition("/")
    return f"/{head}{slash}{last.split(':', 1)[0]}"


def image_is_of(image: str, repositories: Iterable[str]) -> bool:
    return any(_image_repository(image).endswith(f"/{name}") for name in repositories)


def image_tag(image: str) -> str | None:
    """The tag of an image; None when it has neither tag nor digest."""
    if "@" in image:
        return image.split("@", 1)[1]
    return image.rpartition("/")[2].partition(":")[2] or None
