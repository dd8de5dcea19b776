"""The routes of the JSON API and the tools of agents in ``docs/reference/api.md``."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from recipe_core.doors.api import create_api
from recipe_core.doors.mcp import create_mcp
from scripts.documents import REFERENCE, exchange

PAGE = REFERENCE / "api.md"


def renewed(text: str) -> str:
    """The page with its routes and tools written anew."""
    return exchange(exchange(text, "routes", routes()), "tools", tools())


def routes() -> str:
    """A row a route of the OpenAPI document: what it takes, and what it answers."""
    document = create_api(folders=False).openapi()
    lines = ["| route | takes | does |", "|---|---|---|"]
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            query = [
                f"`?{parameter['name']}`"
                for parameter in route.get("parameters", [])
                if parameter["in"] == "query"
            ]
            body = route.get("requestBody", {}).get("content", {}).get("application/json", {})
            schema = body.get("schema", {})
            model = schema.get("$ref", "").rpartition("/")[2] or schema.get("title", "")
            takes = ", ".join([*([f"`{model}`"] if model else []), *query])
            about = (route.get("description") or route["summary"]).split("\n\n")[0]
            lines.append(f"| `{method.upper()} {path}` | {takes} | {' '.join(about.split())} |")
    return "\n".join(lines)


def tools() -> str:
    """A row a tool of the Model Context Protocol."""
    lines = ["| tool | answers |", "|---|---|"]
    # In a thread of its own: the caller's may run a loop already, as a browser of Playwright does.
    with ThreadPoolExecutor(1) as threads:
        listed = threads.submit(
            lambda: asyncio.run(create_mcp(folders=False).list_tools())
        ).result()
    for tool in listed:
        about = (tool.description or "").split("\n\n")[0]
        lines.append(f"| `{tool.name}` | {' '.join(about.split())} |")
    return "\n".join(lines)
