"""Whose a record of processes is: the run folder that it was written in, not a copy of it.

A folder is known by its device and inode: one that is moved keeps them, a copy has others. Its path
is for people.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .errors import file_error
from .fields import Fields


def owner_of(folder: Path) -> dict[str, Any]:
    """What a record in this folder says of whose it is.

    Raises:
        LauncherError: where the folder cannot be looked at.
    """
    try:
        status = folder.stat()
        path = folder.resolve()
    except OSError as error:
        raise file_error(error, folder) from None
    return {"device": status.st_dev, "inode": status.st_ino, "path": str(path)}


def find_copied_owner(owner: Fields, folder: Path) -> str | None:
    """The folder whose record was copied to this one; None where it is this one's own.

    Raises:
        InputError: for a record that does not say whose it is.
        LauncherError: where the folder cannot be looked at.
    """
    folder_owner = owner_of(folder)
    recorded = {"device": owner.integer("device"), "inode": owner.integer("inode")}
    path = owner.text("path")
    return None if recorded == {name: folder_owner[name] for name in recorded} else path
