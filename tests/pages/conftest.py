"""Pages calculate in the process of the test; tests of the pool and the browser use workers."""

import pytest

from recipe_core.estimates.measured import runs


@pytest.fixture(scope="module", autouse=True)
def calculating_here(no_workers):
    """For every test in this folder, and of the published runs a few: all take long."""
    few = [run for run in runs.published_runs() if run.device == "mi300x"][:12]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "published_runs", lambda: tuple(few))
        yield
