"""Answers to take away: tables and charts as files, and requests as commands and programs."""

from __future__ import annotations

import json
import re
from pprint import pformat
from typing import Any

import plotly.graph_objects as go
import plotly.io

from recipe_core.base.texts import quote_command
from recipe_core.recipe.place import Parameters
from recipe_core.request.schema import PlanRequest
from recipe_core.views.charts.style import LIGHT

_PYTHON = """import json
import urllib.request

body = {body}
request = urllib.request.Request(
    {address},
    data=json.dumps(body).encode(),
    headers={{"Content-Type": "application/json"}},
)
with urllib.request.urlopen(request) as answer, open({file}, "wb") as bundle:
    bundle.write(answer.read())
"""


def changed_parameters(parameters: Parameters) -> dict[str, Any]:
    return parameters.model_dump(mode="json", exclude_defaults=True)


def body(request: PlanRequest, parameters: Parameters) -> dict[str, Any]:
    """The body of the API's /build and /recipe: the request, with changed parameters."""
    values = changed_parameters(parameters)
    return {"request": request.to_json(), "parameters": values} if values else request.to_json()


def build_request_curl(base: str, request: PlanRequest, parameters: Parameters, name: str) -> str:
    """A command that stores the bundle; ``base`` is the server's address."""
    text = json.dumps(body(request, parameters), ensure_ascii=False)
    words = [
        "curl",
        "--fail-with-body",
        "-sS",
        f"{base}/api/v1/build",
        "-H",
        "Content-Type: application/json",
        "-d",
        text,
    ]
    return quote_command([*words, "-o", f"{name}.zip"])


def python(base: str, request: PlanRequest, parameters: Parameters, name: str) -> str:
    """A program of the standard library alone that stores the bundle."""
    values = pformat(body(request, parameters), sort_dicts=False, width=100)
    return _PYTHON.format(
        body=values, address=repr(f"{base}/api/v1/build"), file=repr(f"{name}.zip")
    )


def agent(base: str) -> str:
    """The configuration of an MCP client: this server, and a local program without a server."""
    servers = {
        "recipe-builder": {"type": "http", "url": f"{base}/mcp"},
        "recipe-builder-local": {"command": "recipe", "args": ["mcp"]},
    }
    return json.dumps({"mcpServers": servers}, indent=2)


def tool_call(request: PlanRequest, parameters: Parameters) -> str:
    """The message with which an agent asks for the bundle."""
    call = {"name": "build", "arguments": {"recipe": body(request, parameters)}}
    return json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call},
        indent=2,
        ensure_ascii=False,
    )


def command_line(parameters: Parameters, name: str) -> list[str]:
    """Commands for a request that is saved as request.yaml."""
    texts = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in changed_parameters(parameters).items()
    }
    place = [word for key, text in texts.items() for word in ("--set", f"{key}={text}")]
    return [
        "recipe plan request.yaml --top 5",
        quote_command(["recipe", "build", "request.yaml", *place, "-o", f"{name}.zip"]),
        quote_command(["recipe", "check", f"{name}.zip"]),
    ]


# Formats in which a browser saves a chart.
PICTURES = ("png", "svg")

CSV, PARQUET, HTML = "text/csv", "application/vnd.apache.parquet", "text/html"

LONGEST_NAME = 80


def file_name(request: PlanRequest, subject: str) -> str:
    """A name for files about a request, without an ending: model, devices and ``subject``."""
    model = request.model if isinstance(request.model, str) else "model"
    hardware = request.hardware
    device = hardware.device if isinstance(hardware.device, str) else "own-device"
    words = f"{model.rstrip('/').rpartition('/')[2]}-{hardware.devices}x-{device}"
    slug = re.sub(r"[^a-z0-9.]+", "-", words.lower()).strip("-.")[:LONGEST_NAME]
    return f"{slug}-{subject}"


def picture_config(name: str, picture: str) -> dict[str, Any]:
    """Settings of plotly's buttons: the camera saves ``name``, in one of ``PICTURES``."""
    extension = picture if picture in PICTURES else PICTURES[0]
    return {
        "displaylogo": False,
        "showSendToCloud": False,
        "toImageButtonOptions": {"format": extension, "filename": name, "scale": 2},
    }


def light_chart(figure: go.Figure, **layout: Any) -> go.Figure:
    """A chart as on paper, whatever the page's theme."""
    plain = {"template": "plotly_white", "paper_bgcolor": LIGHT.paper, "plot_bgcolor": LIGHT.paper}
    return go.Figure(figure).update_layout(**plain, **layout)


def chart_page(figure: go.Figure, name: str) -> bytes:
    """A chart as one HTML file that works without a network; about 5 MB, most of it plotly."""
    config = picture_config(name, PICTURES[0]) | {"responsive": True}
    text: str = plotly.io.to_html(light_chart(figure), config=config)
    return text.encode()
