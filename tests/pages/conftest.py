"""Pages calculate in the process of the test; tests of the pool and the browser use workers."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def calculating_here(no_workers):
    """For every test in this folder."""
