"""The server: the web pages and, on the same port, the JSON API under /api/v1 and MCP under /mcp.

Start it with ``recipe serve``, ``streamlit run app.py``, ``python app.py`` or ``uvicorn app:app``.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import streamlit as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount, Route

from recipe_core.base.resources import shipped_path
from recipe_core.doors.frontend import Frontend
from recipe_core.doors.guard import Guard, note_fault
from recipe_core.doors.moved import moved_routes
from recipe_core.doors.pool import server_pool
from recipe_core.doors.serve import Later, get_ready, importing
from recipe_core.doors.settings import ServerSettings


def say_sorry(error: Exception) -> bool:
    """Show an unexpected error with an id; the log has the traceback under the same id."""
    number = note_fault(error, "a page")
    st.error(
        f"Something failed, and it is not your fault. The server's log has the details under "
        f"**{number}**. The page's URL keeps your choices: reload the page to go on.",
        icon=":material/bug_report:",
    )
    return True


def make_api() -> Starlette:
    """The API; its libraries are not needed by the pages."""
    with importing:
        from recipe_core.doors.api import create_api

    return create_api(folders=settings.folders, pool=server_pool())


def make_mcp() -> Starlette:
    """The agents' door, likewise."""
    with importing:
        from recipe_core.doors.mcp import create_mcp, http_app

    return http_app(create_mcp(folders=settings.folders, pool=server_pool()))


settings = ServerSettings.of_environment()
api, agents = Later(make_api), Later(make_mcp)


@asynccontextmanager
async def lifespan(_: st.App) -> AsyncIterator[None]:
    """Load what pages need while the server already answers; at the end, close API and MCP."""
    threading.Thread(
        target=get_ready, args=(server_pool().start,), name="loading", daemon=True
    ).start()
    try:
        yield
    finally:
        await api.close()
        await agents.close()
        server_pool().close()


app = st.App(
    shipped_path("pages") / "_entry.py",
    lifespan=lifespan,
    middleware=[Middleware(Guard, settings=settings), Middleware(Frontend)],
    routes=[Mount("/api/v1", app=api), Route("/mcp", agents), *moved_routes()],
    on_script_error=say_sorry,
)

if __name__ == "__main__":
    app.run(config={"server.address": "127.0.0.1", "server.port": 8501})
