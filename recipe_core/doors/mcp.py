"""The agents' door: the JSON API's answers as tools of the Model Context Protocol, over standard input or under /mcp of the server."""

from __future__ import annotations

import base64
import binascii
import inspect
import io
import zipfile
import zlib
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Literal

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.types import ToolAnnotations
from pydantic import Field
from starlette.applications import Starlette

from recipe_core import __version__
from recipe_core.base.described import SchemaOf
from recipe_core.base.documents import MAX_DOCUMENT_BYTES, parse_json, to_json
from recipe_core.base.errors import InputError, RecipeError
from recipe_core.doors import answers
from recipe_core.doors.answers import Answers, Json
from recipe_core.request.schema import PlanRequest

WholeRequest = Annotated[
    dict[str, Any],
    SchemaOf(PlanRequest),
    Field(description="A PlanRequest: model, hardware and workload, the rest as it is wanted."),
]
"""With its schema, which is large: one tool bears it, so that agents read it once."""
Request = Annotated[
    dict[str, Any],
    Field(description="A PlanRequest, as `plan` takes it; `known` with schema describes it too."),
]
RecipeLike = Annotated[
    dict[str, Any],
    Field(
        description="A PlanRequest, a recipe, or {request, parameters, options, environment, variants, for: [device:count]}."
    ),
]
Named = Annotated[
    str | dict[str, Any] | None,
    Field(description="A device, device:count such as h100-sxm:8, or a profile of one's own."),
]
Count = Annotated[int, Field(ge=0, le=1000)]

INSTRUCTIONS = """Recipe Builder judges every way to split a large language model over NVIDIA or AMD devices, for serving and training:
memory, latency, throughput and cost of each, or the reason why it cannot run.
Ask `known` for models, hardware and engines; `plan` for the ranking; `estimate` for one split in full; `check` for a command that exists;
`build` for a bundle that starts the recipe. Memory is in bytes per device, times in seconds; figures have a band and say their basis."""

BUNDLE = "recipe://bundle/{asked}"
TOOLS = ("known", "plan", "estimate", "check", "recipe", "build", "resolve", "diff", "convert")


KNOWN: dict[str, Callable[[str | None], Json]] = {
    "models": answers.models,
    "hardware": answers.hardware,
    "engines": answers.engines,
    "schema": answers.schema,
}


class Tools:
    """What an agent can call; each method is one tool, its docstring the tool's description.

    Args:
        ask: who answers.
    """

    def __init__(self, ask: Answers) -> None:
        self._ask = ask

    def known(
        self, what: Literal["models", "hardware", "engines", "schema"], name: str | None = None
    ) -> Json:
        """What is known: names, or with a name one model, device or engine with sources; schema: that of a request, or of what is named."""
        return KNOWN[what](name)

    def plan(self, request: WholeRequest, top: Count = 5, refused: Count = 10) -> Json:
        """Every split of a model over the hardware, judged and ranked: the first `top`, the first `refused` with reasons, the counts."""
        return self._ask.plan(request, top, refused)

    def estimate(self, request: Request) -> Json:
        """One split in full (request.candidate, or the best that agrees with it): memory, times by cause, percentiles, cost, bands."""
        return self._ask.estimate(request)

    def check(
        self,
        request: Request | None = None,
        command: Annotated[
            str | list[str] | None,
            Field(description="An engine's command line, or its words; never run."),
        ] = None,
        hardware: Named = None,
        gpus: Annotated[
            int | None,
            Field(ge=1, description="Devices in a node, where hardware does not say it."),
        ] = None,
        ground: Annotated[
            dict[str, Any],
            Field(
                description="More about a command's load: nodes, input_tokens, output_tokens, concurrency, optimize, model."
            ),
        ] = {},  # noqa: B006 - read only
    ) -> Json:
        """Whether a request's split, or a command such as `vllm serve …`, can start there, what it wastes, and a better one."""
        if (request is None) == (command is None):
            raise InputError(
                "give either a request or a command.",
                field="request",
                hint="A command goes with hardware.",
            )
        if request is not None:
            return self._ask.check(request)
        answer = self._ask.check({"command": command, "hardware": hardware, "gpus": gpus} | ground)
        if "error" in answer:
            raise ToolError(to_json(answer))
        return answer

    def recipe(self, recipe: RecipeLike) -> Json:
        """The recipe of a request: split, engine options with what set each, lock, fallbacks; without its files."""
        return self._ask.recipe(recipe)

    def build(
        self,
        recipe: RecipeLike,
        files: Annotated[
            list[str], Field(description="Files whose text is wanted, by their paths in it.")
        ] = [],  # noqa: B006
    ) -> Json:
        """A runnable bundle: its files with their sizes, the text of those asked for, and the uri of the resource that is the zip."""
        name, data = self._ask.build(recipe)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            sizes = {each.filename: each.file_size for each in archive.infolist()}
            unknown = [path for path in files if path not in sizes]
            if unknown:
                raise InputError(
                    f"{unknown[0]!r} is not in the bundle.",
                    field="files",
                    hint=f"It has {', '.join(sizes)}.",
                )
            texts = {path: archive.read(path).decode() for path in files}
        return {
            "name": name,
            "files": sizes,
            "texts": texts,
            "zip": BUNDLE.format(asked=packed(recipe)),
        }

    def resolve(
        self, recipe: RecipeLike, hardware: Annotated[str, Field(description="device:count")]
    ) -> Json:
        """Which variants of a recipe apply to other hardware, and what they set."""
        return self._ask.resolve({"recipe": recipe, "hardware": hardware})

    def diff(self, before: RecipeLike, after: RecipeLike) -> Json:
        """What differs between two recipes, and what that does to the estimate."""
        return self._ask.diff({"before": before, "after": after})

    def convert(
        self,
        command: str | list[str] | None = None,
        document: Annotated[
            dict[str, Any] | None, Field(description="A published recipe: {argv, env, image, …}.")
        ] = None,
        hardware: Named = None,
        choice: Annotated[
            str | None,
            Field(
                description="Which of a document's several configurations, where it asks for one."
            ),
        ] = None,
    ) -> Json:
        """An engine's command, or a published recipe, as a recipe; what cannot be carried over is named."""
        given = {"command": command, "document": document, "hardware": hardware, "choice": choice}
        return self._ask.convert(
            {name: value for name, value in given.items() if value is not None}
        )


def http_app(server: MCPServer[Any], *, local: bool) -> Starlette:
    """The server as an ASGI application with the one route /mcp; its ``lifespan`` must run.

    Args:
        server: what answers.
        local: whether only this machine should reach it: what a page of another site sends here under its own name is then refused.
    """
    host = "127.0.0.1" if local else "0.0.0.0"  # noqa: S104 - what is checked, not what is listened on
    return server.streamable_http_app(
        json_response=True, stateless_http=True, max_request_body_size=MAX_DOCUMENT_BYTES, host=host
    )


def create_mcp(*, folders: bool) -> MCPServer[Any]:
    """The server with its tools and resources.

    Args:
        folders: whether a request may name a model by a path on this machine; only where strangers cannot reach the server.
    """
    server: MCPServer[Any] = MCPServer(
        "recipe-builder",
        title="Recipe Builder",
        version=__version__,
        instructions=INSTRUCTIONS,
        log_level="WARNING",
    )
    tools = Tools(Answers(folders=folders))
    for name in TOOLS:
        server.add_tool(
            _said(getattr(tools, name), ToolError),
            annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
        )
    _resources(server, Answers(folders=folders))
    return server


def _resources(server: MCPServer[Any], ask: Answers) -> None:
    def schema(name: str) -> str:
        """The JSON Schema of a request, an estimate, a recipe or a bundle's manifest."""
        return to_json(answers.schema(name))

    def bundle(asked: str) -> bytes:
        """The zip of a bundle that `build` described."""
        return ask.build(unpacked(asked))[1]

    server.resource("recipe://schema/{name}", mime_type="application/schema+json")(
        _said(schema, ResourceError)
    )
    server.resource(BUNDLE, mime_type="application/zip")(_said(bundle, ResourceError))


def _said(answer: Callable[..., Any], kind: type[Exception]) -> Callable[..., Any]:
    """The function, with errors of users as the protocol's: ``{"error": {"code", "field", "message", "hint"}}`` as text."""

    @wraps(answer)
    def told(*args: Any, **named: Any) -> Any:
        try:
            return answer(*args, **named)
        except RecipeError as error:
            raise kind(to_json(error.to_json(), indent=None)) from None

    told.__signature__ = inspect.signature(answer, eval_str=True)  # type: ignore[attr-defined]
    return told


def packed(body: Json) -> str:
    """A body as one word of a uri, so that a server can make its bundle without keeping anything."""
    return (
        base64.urlsafe_b64encode(zlib.compress(to_json(body, indent=None).encode(), 9))
        .decode()
        .rstrip("=")
    )


def unpacked(word: str) -> Json:
    """The body of `packed`.

    Raises:
        InputError: for what is not one, or unpacks to more than a document may have.
    """
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(
            base64.urlsafe_b64decode(word + "=" * (-len(word) % 4)), MAX_DOCUMENT_BYTES
        )
        if stream.unconsumed_tail or not stream.eof:
            raise InputError(
                "is cut off, or too large.", field="uri", hint="Take the uri that build gives."
            )
        body = parse_json(data.decode(), "the uri")
    except (binascii.Error, ValueError, zlib.error) as error:
        raise InputError(
            f"holds no request: {error}.", field="uri", hint="Take the uri that build gives."
        ) from None
    if not isinstance(body, dict):
        raise InputError("holds no request.", field="uri", hint="Take the uri that build gives.")
    return body
