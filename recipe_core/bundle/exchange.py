"""Two paths trade places in one step, so that neither is ever missing."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def exchange(one: Path, other: Path) -> bool:
    """Whether the paths have traded places: some systems and file systems cannot do it.

    Python has no binding of ``renameat2``, hence the call of the C library's.

    Raises:
        OSError: when a path is missing, or its folder is not writable.
    """
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None or not sys.platform.startswith("linux"):
        return False
    paths = (os.fsencode(one), os.fsencode(other))
    if rename(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))
