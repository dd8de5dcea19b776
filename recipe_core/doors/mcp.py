"""The JSON API's answers as tools of the Model Context Protocol.

Over standard input and output, or under /mcp of the server.
"""

from __future__ import annotations

import base64
import binascii
import inspect
import io
import itertools
import zipfile
import zlib
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from functools import partial, wraps
from typing import Annotated, Any, Literal, cast

from anyio import from_thread, to_thread
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import ToolAnnotations
from pydantic import Field
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from recipe_core import __version__
from recipe_core.base import budget
from recipe_core.base.documented import SchemaOf
from recipe_core.base.documents import MAX_DOCUMENT_BYTES, parse_json, to_json
from recipe_core.base.errors import InputError, RecipeError
from recipe_core.doors import catalog, operations
from recipe_core.doors.answers import Archive
from recipe_core.doors.catalog import Json
from recipe_core.doors.guard import FaultsTold, tell_fault
from recipe_core.doors.operations import CATALOG, OPERATIONS
from recipe_core.doors.pool import Pool, own_process
from recipe_core.request.schema import PlanRequest

# With its schema, which is large: only one tool has it, so that agents read it once.
WholeRequest = Annotated[
    dict[str, Any],
    SchemaOf(PlanRequest),
    Field(description="A PlanRequest: model, hardware and workload; the rest is optional."),
]
Request = Annotated[
    dict[str, Any],
    Field(description="A PlanRequest, as for `plan`; `known` with schema describes it too."),
]
RecipeLike = Annotated[
    dict[str, Any],
    Field(
        description="A PlanRequest, a recipe, or "
        "{request, parameters, options, environment, variants, for: [device:count]}."
    ),
]
Hardware = Annotated[
    str | dict[str, Any] | None,
    Field(description="A device, device:count such as h100-sxm:8, or a custom profile."),
]
Count = Annotated[int, Field(ge=0, le=1000)]

INSTRUCTIONS = """Recipe Builder evaluates every way to split a large language model over NVIDIA or
AMD devices, for serving and training: memory, latency, throughput and cost of each layout, or the
reason why it cannot run. Call `known` for models, hardware and engines; `size` for which hardware
and how many; `plan` for the ranking of layouts on known hardware; `estimate` for one layout in
full; `compress` for what quantising or pruning would do;
`check` for an existing command; `simulate` for a load over hours and weeks and the policy that
scales replicas; `fleet` for many models on many machines; `build` for a runnable bundle.
Memory is in bytes per device, times in seconds; every estimate has a band and a basis."""

BUNDLE = "recipe://bundle/{asked}"
# Who asks: the address of an agent on the network.
_agent: ContextVar[str] = ContextVar("agent", default="agent")


async def _ask_operation(folders: bool, pool: Pool, name: str, body: Json, **options: Any) -> Json:
    """The answer of an operation; one that is a job elsewhere is a long question here."""
    sent = to_json(body, indent=None).encode(errors="surrogatepass")
    share: dict[str, Any] = {"client": _agent.get()}
    if OPERATIONS[name].job:
        share["long"] = True
    answer: Json = await pool.ask(
        operations.answer_operation, name, folders, sent, options, **share
    )
    return answer


class Tools:
    """The tools: each method is one, its docstring the tool's description."""

    def __init__(self, ask: Callable[..., Coroutine[Any, Any, Json]]) -> None:
        self._ask = ask

    async def known(
        self,
        what: Literal["models", "hardware", "offers", "engines", "schema"],
        name: str | None = None,
    ) -> Json:
        """List names, or describe one model, device or engine with its sources.

        `offers` with the name of a device lists its prices, with source, date and what to doubt.

        `schema` without a name is a request's; with one an estimate's, a recipe's or a manifest's.
        """
        return await to_thread.run_sync(CATALOG[what], name)

    async def size(
        self,
        request: Annotated[
            dict[str, Any],
            Field(
                description="A PlanRequest whose hardware is `any`, or {any: {devices, vendors, "
                "providers, regions, commitments, most_devices, owned, …}}; objective.confidence "
                "is the probability with which its limits must hold."
            ),
        ],
        ladders: bool = False,
    ) -> Json:
        """Return which hardware, how many of it, at what cost: one row a device, the best first.

        With the offer, the confidence, what would make each win; `ladders` adds every count.
        """
        return await self._ask("size", request, ladders=ladders)

    async def plan(self, request: WholeRequest, top: Count = 5, refused: Count = 10) -> Json:
        """Judge and rank all layouts: the first `top`, the first `refused` with reasons, counts."""
        return await self._ask("plan", request, top=top, refused=refused)

    async def estimate(self, request: Request) -> Json:
        """One layout in full: request.candidate, or the best that matches it.

        Memory, times by bottleneck, percentiles, cost, bands.
        """
        return await self._ask("estimate", request)

    async def compress(
        self,
        request: Request,
        techniques: Annotated[
            Sequence[str] | None,
            Field(description="Names of techniques such as int4_weight_only; all unless given."),
        ] = None,
        refused: bool = False,
        matrix: bool = False,
    ) -> Json:
        """Estimate compression of a served model here: memory, times, cost, accuracy kept.

        One row a technique, best first by the objective, with the ratio to the model in its own
        format on the same layout and on the best layout for it; which go together. `refused` adds
        techniques that do not run here, with the engine's own words; `matrix` adds who runs what.
        """
        names = ",".join(techniques) if techniques else None
        options = {"techniques": names, "refused": refused, "matrix": matrix}
        return await self._ask("compress", request, **options)

    async def check(
        self,
        request: Request | None = None,
        command: Annotated[
            str | list[str] | None,
            Field(description="An engine's command line, or its words; it is never run."),
        ] = None,
        file: Annotated[
            str | None,
            Field(description="The text of a Compose file, Kubernetes manifest, Slurm script …"),
        ] = None,
        hardware: Hardware = None,
        gpus: Annotated[
            int | None,
            Field(ge=1, description="Devices per node, if hardware has no count."),
        ] = None,
        ground: Annotated[
            dict[str, Any],
            Field(
                description="A command's load: nodes, input_tokens, output_tokens, concurrency, "
                "optimize, model; and engine_version, the release that runs."
            ),
        ] = {},  # noqa: B006 - read only
    ) -> Json:
        """Judge if a request's layout, a command (`vllm serve …`) or a file's engines can start.

        With what it wastes, and a better layout.
        """
        if sum(value is not None for value in (request, command, file)) != 1:
            raise InputError(
                "give either a request, a command or a file.",
                field="request",
                hint="A command also needs hardware.",
            )
        if request is not None:
            return await self._ask("check", request)
        body = _without_none(**{"hardware": hardware, "gpus": gpus} | ground)
        body |= {"command": command} if file is None else {"file": file}
        answer = await self._ask("check", body)
        if "error" in answer:
            raise ToolError(to_json(answer))
        return answer

    async def recipe(self, recipe: RecipeLike) -> Json:
        """The recipe of a request: layout, engine options and what set each, lock, fallbacks."""
        return await self._ask("recipe", recipe)

    async def build(
        self,
        recipe: RecipeLike,
        files: Annotated[
            list[str], Field(description="Paths of files in the bundle whose text to return.")
        ] = [],  # noqa: B006 - read only
    ) -> Json:
        """A runnable bundle: its files with sizes, the text of `files`, and the URI of its zip."""
        bundle: Any = await self._ask("build", recipe)
        return {
            "name": bundle.name,
            **_list_files(bundle, files),
            "zip": BUNDLE.format(asked=pack_body(recipe)),
        }

    async def resolve(
        self, recipe: RecipeLike, hardware: Annotated[str, Field(description="device:count")]
    ) -> Json:
        """Return which variants of a recipe apply to other hardware, and what they set."""
        return await self._ask("resolve", {"recipe": recipe, "hardware": hardware})

    async def diff(self, before: RecipeLike, after: RecipeLike) -> Json:
        """The differences between two recipes and between their estimates."""
        return await self._ask("diff", {"before": before, "after": after})

    async def convert(
        self,
        command: str | list[str] | None = None,
        document: Annotated[
            dict[str, Any] | None, Field(description="A published recipe: {argv, env, image, …}.")
        ] = None,
        hardware: Hardware = None,
        choice: Annotated[
            str | None, Field(description="Which configuration, for a document with several.")
        ] = None,
    ) -> Json:
        """An engine's command, or a published recipe, as a recipe; lists what it cannot express."""
        body = _without_none(command=command, document=document, hardware=hardware, choice=choice)
        return await self._ask("convert", body)

    async def reconcile(
        self,
        request: Request,
        texts: Annotated[
            list[str],
            Field(
                description="Contents of files: results of vllm bench serve, "
                "sglang.bench_serving, guidellm, aiperf, InferenceX or MLPerf, training logs, "
                "start-up logs of engines, their Prometheus metrics."
            ),
        ],
    ) -> Json:
        """Compare a measurement with the estimate: each figure a match, explained, or neither."""
        return await self._ask("reconcile", {"request": request, "texts": texts})

    async def simulate(
        self,
        request: Request,
        context: Context[Any, Any],
        trace: Annotated[
            dict[str, str] | None,
            Field(description="The load as a trace, {name, text}, for workload.over_time."),
        ] = None,
        policies: Annotated[
            Sequence[str] | None,
            Field(description="Policies to compare; options.scaling, or all, unless given."),
        ] = None,
        days: Annotated[float | None, Field(gt=0, le=366)] = None,
        series: bool = False,
    ) -> Json:
        """Policies that scale replicas over a load, each with the parameters that cost least.

        Share of requests within the limits, device-hours, dollars a month, cold starts, against two
        bounds. `request` with the best `scaling` in its options builds the bundle that was
        simulated; `series` adds what happened interval by interval.
        """
        body = _without_none(request=request, trace=trace, policies=policies, days=days)

        with budget.watched(_report_to(context)):
            return await self._ask("simulate", body, series=series)

    async def fleet(
        self,
        fleet: Annotated[
            dict[str, Any],
            Field(
                description="A fleet.yaml: models (each with workload and objective.limits), pools "
                "(device, nodes, term, usd_per_device_hour), jobs, regions, periods, headroom."
            ),
        ],
        context: Context[Any, Any],
        what_if: Annotated[
            dict[str, Any] | None,
            Field(
                description="Changes to try: lose_nodes, lose_racks, prices, loads, months, "
                "add_models, add_pools, drop."
            ),
        ] = None,
        month: Annotated[float, Field(ge=0, le=600)] = 0.0,
        seconds: Annotated[float, Field(gt=0, le=600)] = 30.0,
        inventories: Annotated[
            list[dict[str, str]],
            Field(
                description="Machines to merge into the pools, {name, text} each: of kubectl get "
                "nodes -o json, sinfo, SkyPilot, a CSV, Kueue or OpenCost."
            ),
        ] = [],  # noqa: B006 - read only
        measured: Annotated[
            list[dict[str, Any]], Field(description="Measured runs that correct the estimates.")
        ] = [],  # noqa: B006 - read only
        files: Annotated[
            list[str] | None,
            Field(description="Paths of the fleet's folder whose text to return; [] lists all."),
        ] = None,
    ) -> Json:
        """Place many models on owned and rented machines: who runs where, cost, joint probability.

        With replicas, layouts and router weights by pool, what is rented or reserved, what each
        team pays, and the smallest set of demands and bounds that conflict where not all fit.
        `files`: bundles and what joins them, with their sizes, and `texts` of those that are named.
        """
        body = _without_none(fleet=fleet, what_if=what_if, month=month, seconds=seconds)
        body |= {"inventories": inventories, "measured": measured, "files": files is not None}
        with budget.watched(_report_to(context)):
            answer: Any = await self._ask("fleet", body)
        if files is None:
            return cast(Json, answer)
        return {**answer.answer, **_list_files(answer.archive, files)}

    async def trace(
        self,
        text: Annotated[
            str,
            Field(
                description="Content of a trace: Azure or BurstGPT CSV, Mooncake JSON lines, a "
                "table, or an access log in OpenTelemetry or JSON lines."
            ),
        ],
        name: Annotated[str, Field(description="Name of its file.")] = "",
    ) -> Json:
        """Return what a trace of requests shows: rates, burstiness, lengths, reuse of prefixes."""
        return await self._ask("trace", {"name": name, "text": text})


def _list_files(bundle: Archive, paths: Sequence[str]) -> Json:
    """Sizes of the files of a bundle, and the texts of those at ``paths``."""
    with zipfile.ZipFile(io.BytesIO(bundle.data)) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    if unknown := [path for path in paths if path not in contents]:
        hint = f"Available: {', '.join(contents)}."
        raise InputError(f"{unknown[0]!r} is not in the bundle.", field="files", hint=hint)
    return {
        "files": {path: len(content) for path, content in contents.items()},
        "texts": {path: contents[path].decode() for path in paths},
    }


def _report_to(context: Context[Any, Any]) -> budget.Watcher:
    """Tell an agent how far it is; stages are parts of one more step, as progress must grow."""
    stages = itertools.count(2)

    def report(done: int, steps: int, stage: str) -> None:
        part = 1 - 1 / next(stages) if stage else 0.0
        total = float(steps + bool(stage))
        from_thread.run(context.report_progress, done + part, total, stage or None)

    return report


def _without_none(**arguments: Any) -> Json:
    return {name: value for name, value in arguments.items() if value is not None}


def http_app(server: MCPServer[Any]) -> Starlette:
    """The server of ``create_mcp`` as an ASGI app with the route /mcp; its ``lifespan`` must run.

    Whom requests are for and from is checked before all doors, in module ``guard``.
    """
    app = server.streamable_http_app(
        json_response=True,
        stateless_http=True,
        max_request_body_size=MAX_DOCUMENT_BYTES,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    app.add_middleware(FaultsTold, where="MCP")
    app.add_middleware(_Named)
    return app


class _Named:
    """Notes which address an agent asks from, for a fair share of the workers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = _agent.set((scope.get("client") or ("",))[0])
        try:
            await self._app(scope, receive, send)
        finally:
            _agent.reset(token)


def create_mcp(*, folders: bool, pool: Pool | None = None) -> MCPServer[Any]:
    """The server with its tools and resources.

    Args:
        folders: whether a request may name a model by a path on this machine; only for a server
            that strangers cannot reach.
        pool: the worker processes; by default this process calculates.
    """
    server: MCPServer[Any] = MCPServer(
        "recipe-builder",
        title="Recipe Builder",
        version=__version__,
        instructions=INSTRUCTIONS,
        log_level="WARNING",
    )
    ask = partial(_ask_operation, folders, pool or own_process())
    tools = Tools(ask)
    for name in vars(Tools):
        if not name.startswith("_"):
            server.add_tool(
                _with_errors(getattr(tools, name), ToolError),
                annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
            )
    _add_resources(server, ask)
    return server


def _add_resources(server: MCPServer[Any], ask: Callable[..., Coroutine[Any, Any, Json]]) -> None:
    async def schema(name: str) -> str:
        """The JSON Schema of a request, a size, an estimate, a recipe or a manifest."""
        return to_json(catalog.answer_schema(name))

    async def bundle(asked: str) -> bytes:
        """The zip of a bundle that `build` described."""
        archive: Any = await ask("build", unpack_body(asked))
        return bytes(archive.data)

    server.resource("recipe://schema/{name}", mime_type="application/schema+json")(
        _with_errors(schema, ResourceError)
    )
    server.resource(BUNDLE, mime_type="application/zip")(_with_errors(bundle, ResourceError))


def _with_errors(answer: Callable[..., Any], kind: type[Exception]) -> Callable[..., Any]:
    """The function, raising ``kind`` with the JSON of an error where it raises another."""

    @wraps(answer)
    async def wrapper(*args: Any, **arguments: Any) -> Any:
        try:
            return await answer(*args, **arguments)
        except kind:
            raise
        except RecipeError as error:
            problem = error.to_json()
        except Exception as error:
            problem = tell_fault(error, f"the tool {answer.__name__}").to_json()
        raise kind(to_json(problem, indent=None)) from None

    # The server builds a tool's schema from the signature, and resolves no string annotations.
    wrapper.__signature__ = inspect.signature(answer, eval_str=True)  # type: ignore[attr-defined]
    return wrapper


def pack_body(body: Json) -> str:
    """A body as one word of a URI, so that the server can build its bundle without any state."""
    data = zlib.compress(to_json(body, indent=None).encode(), 9)
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def unpack_body(word: str) -> Json:
    """The body of `pack_body`.

    Raises:
        InputError: for another word, or one that unpacks to more than a document may have.
    """
    stream, hint = zlib.decompressobj(), "Use the URI that `build` returned."
    try:
        data = base64.urlsafe_b64decode(word + "=" * (-len(word) % 4))
        text = stream.decompress(data, MAX_DOCUMENT_BYTES)
        if stream.unconsumed_tail or not stream.eof:
            raise InputError("is truncated or too large.", field="uri", hint=hint)
        body = parse_json(text.decode(), "the uri")
    except (binascii.Error, ValueError, zlib.error) as error:
        raise InputError(f"contains no request: {error}.", field="uri", hint=hint) from None
    if not isinstance(body, dict):
        raise InputError("contains no request.", field="uri", hint=hint)
    return body
