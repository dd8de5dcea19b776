"""Places of files that are not Python, in a checkout and in an installed package alike."""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from recipe_core.base.errors import InputError

PACKAGE = Path(__file__).resolve().parent.parent


@cache
def shipped_path(name: str) -> Path:
    """The folder or file ``name`` (``hw_profiles``, ``app.py``, ``pages`` …).

    A wheel carries them under ``recipe_core/_share``; a checkout has them beside ``recipe_core``.
    """
    packaged = PACKAGE / "_share" / name
    return packaged if packaged.exists() else PACKAGE.parent / name


def load_tool(name: str) -> ModuleType:
    """Import a developer's package that lies beside ``recipe_core``, in a wheel too.

    Raises:
        InputError: this installation does not carry it.
    """
    if name in sys.modules:
        return sys.modules[name]
    path = shipped_path(name) / "__init__.py"
    spec = spec_from_file_location(name, path, submodule_search_locations=[str(path.parent)])
    if spec is None or spec.loader is None or not path.is_file():
        hint = "Run it from a checkout of Recipe Builder."
        raise InputError(f"{name}/ is not part of this installation.", field=name, hint=hint)
    # Its modules import each other by name: the package must be known before it runs.
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
