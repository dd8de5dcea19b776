"""Starts a server that asks its callers for the API key in a variable.

It travels in bundles: standard library only. ``python3 keyed.py VARIABLE -- PROGRAM WORD …`` runs
the program in place of this one, with `Guard` where the program can import it. ``python3 keyed.py
VARIABLE OPTION -- PROGRAM WORD …`` is for programs that read no variable: it runs them in this
process, with the option added to their words, so that neither `ps` nor their log shows the key.
Without a key nothing is started.
"""

import hmac
import logging
import os
import re
import runpy
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any, NoReturn

HIDDEN = "[redacted]"
# What probes and Prometheus ask, who hold no key.
OPEN = frozenset({"/health", "/ping", "/metrics"})
REMEMBERED, AGAIN = "RECIPE_KEY_VARIABLE", "RECIPE_KEY_AGAIN"
MODULE = ("python3", "-m")

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Callable[[], Awaitable[Message]], Send], Awaitable[None]]


class Guard:
    """An ASGI middleware: every path asks for the key, but those of probes and figures."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.expected = caller_key(os.environ[REMEMBERED]).encode()

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Send
    ) -> None:
        """Answer, or refuse with 401 and close a websocket with 1008 (policy)."""
        if scope["type"] not in ("http", "websocket") or self._passes(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b'{"error": "Unauthorized"}'})

    def _passes(self, scope: Message) -> bool:
        path = scope["path"].removeprefix(scope.get("root_path", "")).rstrip("/")
        if path in OPEN or scope.get("method") == "OPTIONS":  # browsers ask ahead without the key
            return True
        credentials = [
            value for name, value in scope["headers"] if name.lower() == b"authorization"
        ]
        scheme, _, key = (credentials[0] if credentials else b"").partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(key, self.expected)


def caller_key(variable: str) -> str:
    """The key; exits with 2, which no restart cures, where the variable is empty."""
    key = os.environ.get(variable, "")
    if not key:
        exit_with(
            2, f"{variable} is not set: anybody would be answered. Set it to the callers' key."
        )
    return key


def exit_with(code: int, message: str) -> NoReturn:
    """Exit with the code and say why."""
    sys.stderr.write(message + "\n")
    raise SystemExit(code)


def hide_key(key: str) -> None:
    """Take the key out of everything that this process logs: some log their own options."""
    make_record = logging.getLogRecordFactory()

    def record(*arguments: Any, **keywords: Any) -> logging.LogRecord:
        entry = make_record(*arguments, **keywords)
        message = entry.getMessage()
        if key in message:
            entry.msg, entry.args = message.replace(key, HIDDEN), ()
        return entry

    logging.setLogRecordFactory(record)


def run_here(words: list[str]) -> int:
    """A module of this Python, or a program that its packages install, in this process.

    Of another Python where this one has it not.
    """
    if tuple(words[:2]) == MODULE:
        if not find_spec(words[2].partition(".")[0]):
            start_again(words[2], which(words[0]))
        sys.argv = words[2:]
        runpy.run_module(words[2], run_name="__main__", alter_sys=True)
        return 0
    programs = [*entry_points(group="console_scripts", name=words[0])]
    if not programs:
        start_again(words[0], python_of_program(words[0]))
    sys.argv = words
    return int(programs[0].load()() or 0)


def python_of_program(program: str) -> str | None:
    """The Python in the first lines of a program, which pip writes in one of two ways."""
    path = which(program)
    lines = Path(path).read_bytes()[:1024].decode("utf-8", "replace").splitlines() if path else []
    if not lines or not lines[0].startswith("#!"):
        return None
    long = re.match(r"'''exec' \"?([^\" ]+)", lines[1]) if len(lines) > 1 else None
    return long[1] if long else lines[0].removeprefix("#!").strip()


def start_again(name: str, interpreter: str | None) -> NoReturn:
    """Run the same words in the Python that has it, once."""
    if interpreter is None or AGAIN in os.environ:
        exit_with(127, f"{name} is not installed for {sys.executable}")
    os.environ[AGAIN] = "1"
    os.execv(interpreter, [interpreter, __file__, *sys.argv[1:]])  # noqa: S606 - no shell


def run_instead(variable: str, words: list[str]) -> NoReturn:
    """The program in place of this one; it finds this file as the module ``keyed``."""
    folder, path = str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH")
    os.environ |= {"PYTHONPATH": f"{folder}:{path}" if path else folder, REMEMBERED: variable}
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # a bundle with compiled code beside is refused
    beside = Path(sys.executable).with_name(words[0])  # where nobody has put it on the path
    try:
        os.execvp(beside if os.access(beside, os.X_OK) else words[0], words)  # noqa: S606 - as the launcher starts all words of the bundle
    except FileNotFoundError:
        exit_with(127, f"{words[0]} is not installed")


def main(words: list[str]) -> int:
    """Run the words after the two dashes."""
    end = words.index("--")
    variable, *option = words[:end]
    key, program = caller_key(variable), words[end + 1 :]
    if not option:
        run_instead(variable, program)
    hide_key(key)
    return run_here([*program, option[0], key])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
