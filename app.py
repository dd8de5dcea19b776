"""The server: the web pages and, on the same port, the JSON API under /api/v1 and MCP under /mcp.

Start it with ``recipe serve``, ``streamlit run app.py``, ``python app.py`` or ``uvicorn app:app``.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import streamlit as st
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.routing import Mount, Route

from recipe_core.api import create_api
from recipe_core.mcp import create_mcp, http_app
from recipe_core.resources import root
from recipe_core.serve import folders_allowed

log = logging.getLogger("recipe_builder")


def say_sorry(error: Exception) -> bool:
    """Show an unexpected error as one sentence with an id; the log has the traceback under the same id."""
    number = secrets.token_hex(4)
    log.error("error %s in a page", number, exc_info=error)
    st.error(
        f"Something went wrong that is not your fault. The log of the server has the details under **{number}**. "
        "Your choices are kept in the address; reload the page to go on.",
        icon=":material/bug_report:",
    )
    return True


def first_page(request: Request) -> RedirectResponse:
    """The first page has no path of its own, but /model is what a person would type."""
    return RedirectResponse(f"/?{request.url.query}" if request.url.query else "/")


agents = create_mcp(folders=folders_allowed())
agents_routes = http_app(agents, local=folders_allowed()).routes


@asynccontextmanager
async def lifespan(_: st.App) -> AsyncIterator[None]:
    """Answer agents for as long as the server runs."""
    async with agents.session_manager.run():
        yield


app = st.App(
    root("pages") / "_entry.py",
    lifespan=lifespan,
    routes=[Mount("/api/v1", app=create_api(folders=folders_allowed())), *agents_routes, Route("/model", first_page)],
    on_script_error=say_sorry,
)

if __name__ == "__main__":
    app.run(config={"server.address": "127.0.0.1", "server.port": 8501})
