"""The surroundings of recorded answers: no file of this machine, no network, one day."""

from __future__ import annotations

import datetime
import os

DAY = datetime.date(2026, 11, 28)
"""The day by which prices age."""
KEPT = ("PATH", "PYTHON", "LD_", "TMP", "TEMP", "SYSTEMROOT", "OPENBLAS", "OMP", "MKL", "NPY")
"""Variables that stay, by how they begin: what a process needs, and how numpy calculates."""
NOWHERE = f"{os.devnull}/nothing"
"""A folder that no machine has."""
SETTINGS = {
    "COLUMNS": "100",
    "HF_HOME": NOWHERE,
    "HF_HUB_OFFLINE": "1",
    "HOME": NOWHERE,
    "LC_ALL": "C.UTF-8",
    "NO_COLOR": "1",
    "RECIPE_BUILDER_CALIBRATION": "",
    "RECIPE_MODELS": "",
    "TERM": "dumb",
    "TZ": "UTC",
}


def settle() -> None:
    """Give this process the surroundings, for good; before anything of the product is imported."""
    for name in list(os.environ):
        if not name.startswith(KEPT):
            del os.environ[name]
    os.environ.update(SETTINGS)

    from recipe_core.hardware import offers

    offers.current_day = lambda: DAY
