"""Pages calculate in the process of the test; tests of the pool and the browser use workers."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def calculating_here(no_workers: None) -> None:
    """For every test in this folder."""
