"""Start the web builder, the API and MCP on one port."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import ipaddress
import os
import re
import socket
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from recipe_core.base.errors import InputError
from recipe_core.base.resources import shipped_path
from recipe_core.doors.settings import ServerSettings, variable

# With what they import, all modules that the first page uses with an empty link.
FIRST_PAGE = (
    "base.budget",
    "doors.pool",
    "hardware.cluster",
    "hardware.prices",
    "models.catalog",
    "models.uploaded",
    "models.variants",
    "views.glossary",
    "views.verdict",
    "request.describe",
    "request.edit",
    "request.presets",
    "request.open_hardware",
    "request.shelf",
    "plans.alternatives",
    "plans.remedies",
    "plans.plan",
)
_IMPORT = re.compile(r"^ *from (recipe_core[\w.]*) import (?:\(([^)]*)\)|(.+))$", re.MULTILINE)
# Time in which a browser draws what it was sent (seconds, on a slow machine): until then nothing
# else takes the processor.
DRAWING_S = 1.0
# Time after which nobody is taken to wait for the first page (seconds).
NOBODY_S = 5.0
# Set when the first page was sent to a browser.
first_page_sent = threading.Event()
# Taken while modules are imported. Two threads that enter a package by different modules deadlock,
# which Python breaks by giving one a half-initialized module:
# https://github.com/python/cpython/issues/83065.
importing = threading.RLock()


def folders_allowed() -> bool:
    """True where requests may name models by a path on this machine.

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


def load_first_page() -> None:
    """Import the modules of the first page, while the browser still loads its own part."""
    with importing:
        for name in FIRST_PAGE:
            importlib.import_module(f"recipe_core.{name}")


def load_pages() -> None:
    """Import all modules that any page imports, when it starts or later."""
    load_first_page()
    texts = [
        page.read_text(encoding="utf-8") for page in sorted(shipped_path("pages").glob("*.py"))
    ]
    with importing:
        for module, block, line in _IMPORT.findall("\n".join(texts)):
            __import__(module, fromlist=re.findall(r"\w+", block or line))  # also of submodules


def read_first_page() -> None:
    """Read the data files of the first page, which then come from memory."""
    from recipe_core.models.catalog import load_model_spec
    from recipe_core.models.variants import model_variants
    from recipe_core.request.link import DEFAULT, from_query
    from recipe_core.request.presets import examples
    from recipe_core.views.glossary import field_help

    from_query({})
    load_model_spec(DEFAULT.model, folders=False)
    model_variants(str(DEFAULT.model))
    field_help("model")
    _ = [example.asked for example in examples().values()]


def get_ready(
    start_workers: Callable[[], None],
    *,
    sent_within: Callable[[float], bool] = first_page_sent.wait,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Load what pages need, in the order in which readers miss it, and start the workers.

    The first page comes first. Until a browser has drawn it, or nobody has come for it, the rest
    waits: on a small machine both would take twice as long side by side. ``sent_within`` waits so
    many seconds for the page to be sent, ``sleep`` until it is drawn.
    """
    load_first_page()
    read_first_page()
    if sent_within(NOBODY_S):
        sleep(DRAWING_S)
    load_pages()
    start_workers()


def serve(host: str, port: int, options: Mapping[str, object]) -> None:
    """Run the builder until it is stopped.

    Args:
        host: the address to listen on.
        port: the port.
        options: settings that go before those of the environment.

    Raises:
        InputError: when nothing can listen on the address, and when the network would reach a
            server that asks for no token though nobody said that it need not.
    """
    settings = _apply_options(options)
    local = _is_loopback(host)
    if not local and not settings.token and not settings.no_auth:
        raise InputError(
            f"{host} can be reached from the network, and the server has no token.",
            field="host",
            hint=f"Set {variable('token')} (or --token), or let strangers in with --no-auth.",
        )
    _check_free(host, port)
    os.environ.setdefault(variable("folders"), "1" if local else "0")
    path = shipped_path("app.py")
    spec = importlib.util.spec_from_file_location("recipe_builder_app", path)
    if spec is None or spec.loader is None:  # a broken installation
        raise InputError(f"{path} is missing.", hint="Install the package again.")
    sys.argv = [str(path)]
    module = importlib.util.module_from_spec(spec)
    config = _flat(
        tomllib.loads((shipped_path(".streamlit") / "config.toml").read_text(encoding="utf-8"))
    )
    spec.loader.exec_module(module)
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104 - not bound here
    sys.stdout.write(f"Recipe Builder: http://{shown}:{port}\n")
    sys.stdout.flush()
    module.app.run(config=config | {"server.address": host, "server.port": port})


def _apply_options(options: Mapping[str, object]) -> ServerSettings:
    """The settings of the environment with these options, which then stand in it too.

    The app reads them there, however it is started.
    """
    for name, value in options.items():
        if value is not None and value is not False and value != ():
            text = ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
            os.environ[variable(name)] = text
    return ServerSettings.of_environment()


def _is_loopback(host: str) -> bool:
    """True where an address, or all that a name stands for, is of this machine alone."""
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(address[0]).is_loopback for *_, address in addresses)


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
