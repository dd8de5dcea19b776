"""Which module starts an engine: the one of its name, in the folder of the engine's kind.

Nothing is registered. A module is imported when a launch needs it, so that a plan, which starts
nothing, loads none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from recipe_core.base.errors import NoAnswer

# Names of modules that are looked for: no dots, so that nothing outside the folder is imported.
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")

_NOT_AN_ENGINE = ("start",)  # finds the modules; its own `launch` would call itself


@dataclass(frozen=True, slots=True)
class LaunchFolder:
    """A package of launch modules, and the functions that each of them defines.

    ``defines``: by name, with the arguments and the answer, for who has to write one.
    """

    package: str
    defines: tuple[tuple[str, str], ...]

    def module(self, engine: str, launcher: str | None = None) -> ModuleType:
        """The module that starts an engine: ``launcher`` where its YAML names one, else its name.

        Raises:
            NoAnswer: naming the engine, the file to add and the functions it must define.
        """
        name = launcher or engine.replace("-", "_")
        if not NAME.fullmatch(name) or name in _NOT_AN_ENGINE:
            raise NoAnswer(
                f"{engine} cannot be started: {name!r} is not a name of a launch module.",
                field="candidate.engine",
                hint="Name the engine in small letters, digits and dashes, or set its `launcher`.",
            )
        module = _import_launcher(f"{self.package}.{name}")
        file = f"{self.package.replace('.', '/')}/{name}.py"
        missing = [(one, form) for one, form in self.defines if not hasattr(module, one)]
        if not missing:
            assert module is not None  # noqa: S101 - None has no function
            return module
        forms = " and ".join(f"{one}{form}" for one, form in missing)
        reason = f"{file} does not define {missing[0][0]}" if module else f"{file} is missing"
        fix = f"Define {forms} in it" if module else f"Add it; it defines {forms}"
        raise NoAnswer(
            f"{engine} cannot be started: {reason}.",
            field="candidate.engine",
            hint=f"{fix}. Or set `launcher` in the engine's YAML to the module that starts it.",
        )


@cache
def _import_launcher(module: str) -> ModuleType | None:
    return import_module(module) if find_spec(module) else None
