"""The parts of the page Ship: deployment, files, provenance, engines, fallbacks, API and CLI."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

import _address as address
import _common as common
import _deployment as deployment
import _session as session
import _widgets as widgets
import _work as work
import streamlit as st

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import RecipeError
from recipe_core.bundle.contents import PREVIEWED, bundle_listing, preview_text
from recipe_core.bundle.write import Bundle
from recipe_core.doors.serve import folders_allowed
from recipe_core.recipe import Recipe, recipe_request
from recipe_core.recipe.comparison import OtherEngine, other_engines
from recipe_core.request.link import link_omissions
from recipe_core.request.schema import PlanRequest
from recipe_core.targets.by_hand import TITLES, node_commands, read_addresses, target_uses
from recipe_core.views import columns, exports, overview
from recipe_core.views.estimates import figure_rows

BY_HAND = "by hand"
SHOWN_PX = 460


# --- deploy --------------------------------------------------------------------------------------


def draw_deployment(bundle: Bundle) -> None:
    refused = {name: reason for name, reason in bundle.targets.items() if isinstance(reason, str)}
    titles = {BY_HAND: "By hand, on its own machines"}
    titles |= {name: TITLES[name] for name in bundle.targets}
    name = st.selectbox(
        "Target", list(titles), format_func=titles.get, key="target", persist_state="session"
    )
    deployment.fill_in(bundle, [] if name in (None, BY_HAND) else [name])
    if name is None or name not in titles or name == BY_HAND:
        draw_by_hand(bundle)
    elif name in refused:
        st.warning(
            f"**{TITLES[name]} is not available.** {common.escape(refused[name])}",
            icon=":material/block:",
        )
    else:
        draw_target(bundle, name)


def chosen_target(bundle: Bundle) -> str | None:
    """The target that is chosen, where the bundle can be run on it; None by hand."""
    name = st.session_state.get("target")
    return None if isinstance(bundle.targets.get(name, ""), str) else name


def draw_by_hand(bundle: Bundle) -> None:
    context = bundle.context
    if context.install:
        st.caption("Install the engine:")
        widgets.code(context.install)
    st.caption("Unpack the bundle and run, in its folder:")
    addresses = deployment.addresses(bundle)
    if context.nodes > 1:
        st.text_input(
            "Node addresses",
            key="addresses",
            placeholder=", ".join(addresses),
            persist_state="session",
            max_chars=4096,
            help="Separated by commas, node 0 first. Kept in this session, not in links",
        )
        try:
            read_addresses(st.session_state.get("addresses", ""), context.nodes)
        except RecipeError as error:
            st.error(common.escape(error), icon=":material/error:")
    for node in node_commands(context, addresses):
        if context.nodes > 1:
            st.markdown(f"**Node {node.node}**")
        widgets.code(node.launcher)
        for name, command in node.processes:
            st.caption(f"which starts {common.escape(name)}:")
            widgets.code(command)
    st.caption("Then:")
    widgets.code("python launch.py bench\npython launch.py status\npython launch.py down")


def draw_target(bundle: Bundle, name: str) -> None:
    files: Mapping[str, str] = bundle.targets[name]
    for use in target_uses(files, bundle.context.name, bundle.context.kind):
        st.caption("Start and stop, in the bundle's folder:")
        widgets.code(use.start)
        widgets.code(use.stop)
    if name == "monitoring":
        st.caption(
            "Scrape configuration and alert rules for Prometheus and a dashboard for Grafana, "
            "with thresholds from this recipe's limits and estimate."
        )
    main = next(
        (use.path for use in target_uses(files, bundle.context.name, bundle.context.kind)), None
    )
    ordered = sorted(
        files, key=lambda path: (path.endswith("kustomization.yaml"), path != main, path)
    )
    path = st.selectbox(
        "File", ordered, key=f"file-of-{name}", format_func=lambda path: path.rpartition("/")[2]
    )
    draw_file_text(files[path or ordered[0]])


def draw_file_text(text: str) -> None:
    """A file's text in a scrolling frame, which holds the copy button: the keyboard reaches it."""
    with st.container(height=SHOWN_PX):
        st.code(text, language=None, line_numbers=True, wrap_lines=True)


# --- files ---------------------------------------------------------------------------------------


def draw_bundle_files(bundle: Bundle) -> None:
    listing_column, preview_column = st.columns([2, 3], gap="large")
    with listing_column:
        words = st.text_input(
            "Find",
            key="find",
            placeholder="file name or words in a file",
            icon=":material/search:",
            persist_state="session",
            max_chars=200,
        )
        files = {file.path: file for file in bundle_listing(bundle.files, words or "")}
        if not files:
            st.info("No file matches.", icon=":material/search_off:")
            return
        path = st.session_state.get("file")
        st.session_state["_file"] = path if path in files else next(iter(files))
        st.caption(f"{len(files)} of {len(bundle.files)} files")
        with st.container(height=SHOWN_PX):
            path = st.radio(
                "File",
                list(files),
                key="_file",
                format_func=common.escape,
                on_change=pick_file,
                label_visibility="collapsed",
            )
    with preview_column:
        file = files[path or next(iter(files))]
        text, complete = preview_text(bundle.files[file.path])
        st.markdown(f"**{common.escape(file.path)}**")
        st.caption(f"{file.about}; {file.size:,} bytes")
        draw_file_text(text)
        if not complete:
            st.caption(f"First {PREVIEWED:,} characters. The download has the whole file.")


def pick_file() -> None:
    st.session_state["file"] = st.session_state["_file"]


# --- provenance, other engines, fallbacks, API and CLI -------------------------------------------


def draw_provenance(bundle: Bundle) -> None:
    rows = overview.option_origins(bundle.recipe)
    st.dataframe(
        columns.column_frame(rows, overview.ORIGINS),
        hide_index=True,
        height="content" if len(rows) < 12 else SHOWN_PX,
        column_config={"Option": st.column_config.TextColumn(pinned=True)},
        alt=f"{len(rows)} options with the layer that set each",
    )
    st.caption(
        "Later layers override earlier ones: base, model, architecture, device, objective, user. "
        "${…} is filled in at start."
    )


@lru_cache(maxsize=64)
def _cached_engines(text: str, candidate: str, digest: str, may_read: bool) -> list[OtherEngine]:  # noqa: ARG001 - part of the key
    request, split = PlanRequest.parse(json.loads(text)), json.loads(candidate)
    return work.calculated("Trying other engines", other_engines, request, split, folders=may_read)


def draw_other_engines(
    request: PlanRequest, candidate: Mapping[str, Any], recipe: Recipe | None = None
) -> None:
    """The same split on every other engine: figures and a button to switch, or why it cannot run.

    ``recipe``: the one to compare with.
    """
    tried = _cached_engines(
        json.dumps(request.to_json()),
        json.dumps(candidate),
        session.inputs_digest(),
        folders_allowed(),
    )
    able = [engine for engine in tried if not engine.reasons]
    unable = [engine for engine in tried if engine.reasons]
    if able:
        common.draw_cells(engine_rows(able, recipe), "The same layout on other engines")
        with st.container(horizontal=True):
            for engine in able:
                common.edit_button(
                    f"Switch to {engine.title}",
                    f"use-{engine.name}",
                    engine.changes,
                    ":material/swap_horiz:",
                )
    else:
        st.info("No other engine can run this layout.", icon=":material/info:")
    if unable:
        st.markdown("**Engines that cannot run it**")
        common.draw_cells(
            {
                "Engine": [common.escape(f"{engine.title} {engine.version}") for engine in unable],
                "Why not": [common.escape("; ".join(engine.reasons)) for engine in unable],
            },
            "Engines that cannot run this layout",
        )


def engine_rows(able: list[OtherEngine], recipe: Recipe | None) -> list[dict[str, str]]:
    """Figures of the same split by engine, the recipe's own first."""
    rows = []
    for engine in able:
        figures = {row.label: row.value for row in engine.figures}
        rows.append({"Engine": f"{engine.title} {engine.version}", **figures})
    if recipe:
        values = {row.label: row.value for row in figure_rows(recipe.kind, recipe.estimate)}
        current = {"Engine": f"{recipe.engine.title} {recipe.engine.version} (this recipe)"}
        current |= {label: values[label] for label in rows[0] if label in values}
        rows.insert(0, current)
    return [{name: common.escape(text) for name, text in row.items()} for row in rows]


def draw_fallbacks(bundle: Bundle) -> None:
    recipe = bundle.recipe
    if not recipe.fallbacks:
        st.info("No other layout, device or format can run this.", icon=":material/info:")
        return
    st.dataframe(
        columns.column_frame(recipe.fallbacks, overview.fallback_columns(recipe)),
        hide_index=True,
        height="content",
        alt="What to use where this recipe cannot run",
    )
    st.caption(
        "Each fallback is planned for the same request on its own devices and in its own formats. "
        "recipe.yaml lists them too."
    )


def api_and_cli(bundle: Bundle, request: PlanRequest) -> None:
    """The same question as a request, a link, a command line, an API call."""
    page_url = (st.context.url or "http://127.0.0.1:8501/ship").split("?")[0]
    base, name = page_url.rsplit("/", 1)[0], bundle.recipe.name
    parameters, body = bundle.recipe.parameters, request.to_json()
    names = ["Request (YAML)", "JSON", "Link", "Command line", "curl", "Python", "MCP"]
    yaml, plain, link, cli, curl, python, agent = st.tabs(names)
    with yaml:
        widgets.code(to_yaml(body))
    with plain:
        widgets.code(json.dumps(body, indent=2, ensure_ascii=False))
    with link:
        st.caption(
            "Every page's URL restores the request. Deployment settings stay in this session."
        )
        if sentence := link_omissions(request):
            st.caption(common.escape(sentence))
        widgets.code(f"{page_url}?{urlencode(address.screen_link_query())}")
    with cli:
        st.caption("With the request saved as request.yaml:")
        widgets.code("\n".join(exports.command_line(parameters, name)))
    with curl:
        st.caption("Download this bundle from the API on this port:")
        widgets.code(exports.build_request_curl(base, request, parameters, name))
    with python:
        st.caption("The same with Python's standard library:")
        widgets.code(exports.python(base, request, parameters, name))
    with agent:
        st.caption(
            "Agents use the Model Context Protocol, on this server or as a local program. "
            "Client configuration:"
        )
        widgets.code(exports.agent(base))
        st.caption(
            "The call that builds this bundle. "
            "Its answer lists the files and names the resource with the zip:"
        )
        widgets.code(exports.tool_call(request, parameters))


def draw_bundle_tabs(
    bundle: Bundle, request: PlanRequest, draw_details: Callable[[], None]
) -> None:
    """Draw what the bundle holds and where each part of it is from; ``draw_details``: decisions."""
    recipe = bundle.recipe
    views = {
        "Decision": draw_details,
        "Files": lambda: draw_bundle_files(bundle),
        "Option provenance": lambda: draw_provenance(bundle),
        "Other engines": lambda: draw_other_engines(
            recipe_request(recipe), recipe.candidate, recipe
        ),
        "Fallbacks": lambda: draw_fallbacks(bundle),
        "API and CLI": lambda: api_and_cli(bundle, request),
    }
    for tab, draw in zip(
        st.tabs(list(views), key="tabs", on_change="rerun"), views.values(), strict=True
    ):
        if tab.open:
            with tab:
                draw()
