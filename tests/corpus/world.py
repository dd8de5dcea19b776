"""The surroundings of recorded answers: no file of this machine, no network, one day."""

import datetime
import os

DAY = datetime.date(2026, 11, 28)  # by which prices age
# How variables begin that a process needs, or by which numpy calculates
KEPT = ("PATH", "PYTHON", "LD_", "TMP", "TEMP", "SYSTEMROOT", "OPENBLAS", "OMP", "MKL", "NPY")
NOWHERE = f"{os.devnull}/nothing"  # a folder that no machine has
SETTINGS = {
    "COLUMNS": "100",
    "HF_HOME": NOWHERE,
    "HF_HUB_OFFLINE": "1",
    "HOME": NOWHERE,
    "LC_ALL": "C.UTF-8",
    "NO_COLOR": "1",
    "RECIPE_BUILDER_CALIBRATION": "",
    "RECIPE_BUILDER_TODAY": DAY.isoformat(),
    "RECIPE_MODELS": "",
    "TERM": "dumb",
    "TZ": "UTC",
}


def settle():
    """Give this process the surroundings, for good; before anything of the product is imported."""
    for name in list(os.environ):
        if not name.startswith(KEPT):
            del os.environ[name]
    os.environ.update(SETTINGS)
