"""The scripts by which a bundle's own programs start: of the bundle's folder they run sources only.

Python would take modules beside a script for its own library, and prefer byte code and extension
modules to the sources that a manifest lists. Scripts also say which Python they need, in syntax
that older ones read.
"""

from __future__ import annotations

_SCRIPT = '''{first}"""{title}"""

import sys

if sys.version_info < (3, 10):
    sys.exit("{program} needs Python 3.10 or newer; this is %d.%d." % sys.version_info[:2])

import os  # loaded already
{setup}
HERE = os.path.dirname(os.path.realpath(__file__))
# Nothing beside this file stands in for Python's own library or an installed package.
sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != HERE]

from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_file_location


class Sources(SourceFileLoader):
    """Loads {package}/ from its sources: byte code beside them may be anybody's."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        parts = name.split(".")
        if parts[0] != "{package}":
            return None
        if len(parts) == 1:
            parts.append("__init__")
        file = os.path.join(HERE, *parts) + ".py"
        return spec_from_file_location(name, file, loader=cls(name, file))

    def get_code(self, fullname):
        return self.source_to_code(self.get_data(self.path), self.path)


sys.meta_path.insert(0, Sources)

{load}

if __name__ == "__main__":
    raise SystemExit(main())
'''
_QUIET = """import _signal  # the built-in part, which is there at once

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # Ctrl-C before anything runs
    _signal.signal(_signal.SIGINT, lambda *_: os._exit(130))
"""

_WHOLE = """try:
    from launcher.main import main
except Exception as error:
    sys.exit("launch: launcher/ is damaged: %s. Unpack or build the bundle again." % error)"""

LAUNCH_PY = _SCRIPT.format(
    first="#!/usr/bin/env python3\n",
    title="Run this bundle: python launch.py preflight | up | bench | status | restart | down.",
    program="launch.py",
    package="launcher",
    setup=_QUIET,
    load=_WHOLE,
)


def compress_py() -> str:
    """The script that starts ``compressor/`` on a job."""
    return _SCRIPT.format(
        first="",
        title="Makes a smaller checkpoint, or checks one: started by launch.py compress.",
        program="compress.py",
        package="compressor",
        setup="",
        load="from compressor.__main__ import main",
    )


def train_py(script: str, module: str) -> str:
    """The script ``script`` of a training bundle, which starts ``module`` of ``trainer/``."""
    return _SCRIPT.format(
        first="",
        title="One process of the run: started by launch.py.",
        program=script,
        package="trainer",
        setup="",
        load=f"from trainer.{module} import main",
    )
