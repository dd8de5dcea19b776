"""The place of this machine's calibration.

It alone is loaded to learn that there is none: reading one needs all of recipes.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from pathlib import Path

# The environment's path of the calibration; set to an empty text it switches it off.
VARIABLE = "RECIPE_BUILDER_CALIBRATION"

FILE = "calibration.json"
# The source of own runs that says: not even the calibration of this machine.
NONE = "none"


def default_path(environment: Mapping[str, str] | None = None) -> Path | None:
    """Return the place of this machine's calibration, or None where it is switched off."""
    environment = os.environ if environment is None else environment
    if (configured_path := environment.get(VARIABLE)) is not None:
        return Path(configured_path).expanduser() if configured_path else None
    data = environment.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "recipe-builder" / "calibration"


def calibration_stamp() -> str:
    """Say what tells the calibration of this machine apart from what it was and will be.

    Changes with its file, and with the day, by which runs expire. Empty where there is none.
    """
    place = default_path()
    if place is None:
        return ""
    try:
        status = calibration_file(place).stat()
    except OSError:
        return ""
    today = datetime.datetime.now(datetime.UTC).date()
    return (
        f"{calibration_file(place)}:{status.st_ino}:{status.st_mtime_ns}:{status.st_size}:{today}"
    )


def calibration_file(path: Path) -> Path:
    """The file of a calibration, which is a folder or one ``.json`` file."""
    return path if path.suffix == ".json" else path / FILE
