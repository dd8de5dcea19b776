"""Start the web builder, the API and MCP on one port."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import ipaddress
import os
import socket
import sys
import threading
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from recipe_core.base.errors import InputError
from recipe_core.base.resources import root
from recipe_core.doors.settings import ServerSettings, variable

PAGES = (
    "bundle.browse",
    "commands.judge",
    "hardware.detect.machine",
    "hardware.ownership",
    "hardware.upload",
    "calibration.comparison",
    "measured.support",
    "model.uploaded",
    "model.variants",
    "present.exports",
    "present.measured_view",
    "present.report",
    "present.side_by_side",
    "present.size_later",
    "present.size_tables",
    "present.snippets",
    "present.verdict",
    "present.views",
    "recipe.other_engines",
    "recipe.calibrate",
    "request.open_hardware",
    "recipe.parameters",
    "request.shelf",
    "search.plans",
    "search.changes",
    "search.slos",
    "sizing.parts",
    "targets.form",
    "targets.start_command",
)
"""With what they import, all modules that any page uses."""
importing = threading.RLock()
"""Taken while modules are imported. Two threads that enter a package by different modules deadlock,
which Python breaks by giving one a half-initialized module:
https://github.com/python/cpython/issues/83065."""


def folders_allowed() -> bool:
    """Whether requests may name models by a path on this machine.

    Only if the environment variable says so; ``recipe serve`` sets it on a loopback address.
    Started otherwise (another ASGI server, a proxy in front), the app cannot know who sends
    requests, so it reads no paths.
    """
    return ServerSettings.of_environment().folders


class Later:
    """An ASGI app built, with its lifespan, on its first request: the first page need not wait."""

    def __init__(self, make: Callable[[], Starlette]) -> None:
        self._make, self._lock = make, asyncio.Lock()
        self._app: Starlette | None = None
        self._life: asyncio.Task[None] | None = None
        self._over = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on to the app, built on the first one."""
        async with self._lock:
            if self._app is None:
                self._app = await self._begun()
        await self._app(scope, receive, send)

    async def _begun(self) -> Starlette:
        app, ready = await run_in_threadpool(self._make), asyncio.Event()

        async def live() -> None:
            try:
                async with app.router.lifespan_context(app):
                    ready.set()
                    await self._over.wait()
            finally:
                ready.set()

        life = asyncio.create_task(live())  # a lifespan has to end in the task that began it
        await ready.wait()
        if life.done():  # the app failed to start: raise its error
            life.result()
        self._life = life
        return app

    async def close(self) -> None:
        """End the app's lifespan, if it began."""
        self._over.set()
        if self._life:
            await self._life


def load_pages() -> None:
    """Import the modules of the pages, while the first browser still loads its own part."""
    with importing:
        for name in PAGES:
            importlib.import_module(f"recipe_core.{name}")


def serve(host: str, port: int, stated: Mapping[str, object]) -> None:
    """Run the builder until it is stopped.

    Args:
        host: the address to listen on.
        port: the port.
        stated: settings that go before those of the environment.

    Raises:
        InputError: when nothing can listen on the address, and when the network would reach a
            server that asks for no token though nobody said that it need not.
    """
    settings = _settings(stated)
    local = _is_loopback(host)
    if not local and not settings.token and not settings.no_auth:
        raise InputError(
            f"{host} can be reached from the network, and the server has no token.",
            field="host",
            hint=f"Set {variable('token')} (or --token), or let strangers in with --no-auth.",
        )
    _check_free(host, port)
    os.environ.setdefault(variable("folders"), "1" if local else "0")
    path = root("app.py")
    spec = importlib.util.spec_from_file_location("recipe_builder_app", path)
    if spec is None or spec.loader is None:  # a broken installation
        raise InputError(f"{path} is missing.", hint="Install the package again.")
    sys.argv = [str(path)]
    module = importlib.util.module_from_spec(spec)
    config = _flat(tomllib.loads((root(".streamlit") / "config.toml").read_text(encoding="utf-8")))
    spec.loader.exec_module(module)
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104 - not bound here
    sys.stdout.write(f"Recipe Builder: http://{shown}:{port}\n")
    sys.stdout.flush()
    module.app.run(config=config | {"server.address": host, "server.port": port})


def _settings(stated: Mapping[str, object]) -> ServerSettings:
    """The settings of the environment with the stated ones, which then stand in it too.

    The app reads them there, however it is started.
    """
    for name, value in stated.items():
        if value is not None and value is not False and value != ():
            text = ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
            os.environ[variable(name)] = text
    return ServerSettings.of_environment()


def _is_loopback(host: str) -> bool:
    """Whether an address, or all that a name stands for, is of this machine alone."""
    try:
        known = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(address[0]).is_loopback for *_, address in known)


def _check_free(host: str, port: int) -> None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise InputError(
            f"cannot listen on {host} port {port}: {error.strerror}.",
            field="port",
            hint="Choose another with --port.",
        ) from None


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A TOML document by dotted option names."""
    options: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            options |= _flat(value, f"{prefix}{key}.")
        else:
            options[f"{prefix}{key}"] = value
    return options
