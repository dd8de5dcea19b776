"""Which module starts an engine: the one of its name, in the folder of the engine's kind.

Nothing is registered. A module is imported when a launch needs it, so that a plan, which starts
nothing, loads none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from recipe_core.base.errors import NoAnswer

# Names of modules that are looked for: no dots, so that nothing outside the folder is imported.
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")

_NOT_AN_ENGINE = ("start",)  # finds the modules


@dataclass(frozen=True, slots=True)
class LaunchFolder:
    """A package of launch modules, each of which defines one function, ``VERB_NAME``.

    ``form``: the arguments and the answer of the functions, for who has to write one.
    """

    package: str
    verb: str
    form: str

    def function(self, engine: str, launcher: str | None = None) -> Callable[[Any], Any]:
        """What starts an engine, of the module ``launcher`` where its YAML names one, else its own.

        Raises:
            NoAnswer: naming the engine, the file to add and the function it must define.
        """
        name = launcher or engine.replace("-", "_")
        if not NAME.fullmatch(name) or name in _NOT_AN_ENGINE:
            raise NoAnswer(
                f"{engine} cannot be started: {name!r} is not a name of a launch module.",
                field="candidate.engine",
                hint="Name the engine in small letters, digits and dashes, or set its `launcher`.",
            )
        module, function_name = _import_launcher(f"{self.package}.{name}"), f"{self.verb}_{name}"
        function: Callable[[Any], Any] | None = getattr(module, function_name, None)
        if function is not None:
            return function
        file = f"{self.package.replace('.', '/')}/{name}.py"
        reason = f"{file} does not define {function_name}" if module else f"{file} is missing"
        form = f"{function_name}{self.form}"
        fix = f"Define {form} in it" if module else f"Add it; it defines {form}"
        raise NoAnswer(
            f"{engine} cannot be started: {reason}.",
            field="candidate.engine",
            hint=f"{fix}. Or set `launcher` in the engine's YAML to the module that starts it.",
        )


@cache
def _import_launcher(module: str) -> ModuleType | None:
    return import_module(module) if find_spec(module) else None
