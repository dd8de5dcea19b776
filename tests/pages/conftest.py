"""Pages calculate in the process of the test; tests of the pool and the browser use workers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from recipe_core.doors.pool import server_pool
from recipe_core.doors.settings import variable


@pytest.fixture(scope="package", autouse=True)
def no_workers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(variable("workers"), "0")
        server_pool.cache_clear()
        yield
    server_pool.cache_clear()
