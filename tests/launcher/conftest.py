"""A bundle folder with a fake engine, and the launcher run on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fixtures.bundles import Bundle, serving_bundle
from tests.fixtures.ports import free_port


@pytest.fixture
def make_bundle(tmp_path: Path) -> Iterator[Callable[..., Bundle]]:
    made: list[Bundle] = []

    def make(*server: str) -> Bundle:
        root = tmp_path / f"bundle{len(made)}"
        bundle = serving_bundle(root, tmp_path / "model", free_port(), *server)
        made.append(bundle)
        return bundle

    yield make
    for bundle in made:
        if bundle.up:
            bundle.run("down")


@pytest.fixture
def bundle(make_bundle: Callable[..., Bundle]) -> Bundle:
    return make_bundle()
