"""Pages of earlier builds: links to them lead to where each is now."""

from __future__ import annotations

from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.routing import Route

# The pages of today by the names of earlier ones, and the lens of the plan that each became.
MOVED = {
    "objective": ("traffic", ""),
    "compare": ("plan", ""),
    "recipe": ("ship", ""),
    "size": ("plan", "hardware"),
    "formats": ("plan", "formats"),
    "over_time": ("plan", "over-time"),
    "measured": ("evidence", ""),
}
# The device of a link that names none, of the time when a link without hardware meant a node of it.
USUAL_DEVICE = "h100-sxm"


def moved_routes() -> list[Route]:
    """Return a route for each page of earlier builds."""
    return [Route(f"/{name}", lead_on) for name in MOVED]


def lead_on(request: Request) -> RedirectResponse:
    """Redirect a link to an earlier page to its place, with what it says.

    A link without hardware meant the usual node, but on the page that asked which hardware.
    """
    former = request.url.path.strip("/")
    name, lens = MOVED[former]
    query = dict(request.query_params)
    if lens:
        query["lens"] = lens
    if former != "size" and not any(
        part.startswith(("hardware.", "options.hardware")) for part in query
    ):
        query["hardware.device"] = USUAL_DEVICE
    return RedirectResponse(f"/{name}?{urlencode(query)}")
