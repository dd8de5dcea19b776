"""The lower half of the recipe page: how to start it and where, its files, why each option, other engines, the same by other doors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import common
import parts
import place
import streamlit as st

from recipe_core.base.documents import to_yaml
from recipe_core.base.errors import RecipeError
from recipe_core.bundle.browse import PREVIEWED, listing, preview
from recipe_core.bundle.write import Bundle
from recipe_core.doors.serve import folders_allowed
from recipe_core.present import overview, snippets
from recipe_core.recipe import Recipe, recipe_request
from recipe_core.recipe.other_engines import OtherEngine, other_engines
from recipe_core.request.link import left_out
from recipe_core.request.schema import PlanRequest
from recipe_core.targets.by_hand import node_commands, read_addresses
from recipe_core.targets.use import TITLES, uses

BY_HAND = "by hand"
SHOWN_PX = 460


# --- where to start it ---------------------------------------------------------------------------------------------------------


def start(bundle: Bundle) -> None:
    """Every target that there is, refused ones too, and the chosen one's commands."""
    place.fill_in(bundle)
    refused = {name: made for name, made in bundle.targets.items() if isinstance(made, str)}
    titles = {BY_HAND: ":material/terminal: By hand"} | {
        name: f":material/block: {TITLES[name]}" if name in refused else TITLES[name]
        for name in bundle.targets
    }
    name = st.pills(
        "Where",
        list(titles),
        format_func=titles.get,
        key="target",
        default=BY_HAND,
        required=True,
        persist_state="session",
    )
    if name is None or name not in titles or name == BY_HAND:
        by_hand(bundle)
    elif name in refused:
        st.warning(
            f"**{TITLES[name]} is not offered.** {common.escape(refused[name])}",
            icon=":material/block:",
        )
    else:
        on_target(bundle, name)


def by_hand(bundle: Bundle) -> None:
    """The launcher and what it starts, node by node."""
    context = bundle.context
    st.caption(
        common.escape(
            f"Install with: {' '.join(context.install)}. Unpack the bundle, and in its folder:"
        )
    )
    where = place.addresses(bundle)
    if context.nodes > 1:
        st.text_input(
            "Addresses of the nodes",
            key="addresses",
            placeholder=", ".join(where),
            persist_state="session",
            max_chars=4096,
            help="With commas between, node 0 first; kept in this session, not in links",
        )
        try:
            read_addresses(st.session_state.get("addresses", ""), context.nodes)
        except RecipeError as error:
            st.error(common.escape(error), icon=":material/error:")
    for each in node_commands(context, where):
        if context.nodes > 1:
            st.markdown(f"**Node {each.node}**")
        parts.code(each.launcher)
        for name, command in each.processes:
            st.caption(f"which starts {common.escape(name)}:")
            parts.code(command)
    st.caption("Then:")
    parts.code("python launch.py bench\npython launch.py status\npython launch.py down")


def on_target(bundle: Bundle, name: str) -> None:
    """The commands of one target, and its files."""
    files: Mapping[str, str] = bundle.targets[name]
    for use in uses(files, bundle.context.name, bundle.context.kind):
        st.caption("In the bundle's folder, to start and to stop:")
        parts.code(use.start)
        parts.code(use.stop)
    if name == "monitoring":
        st.caption(
            "Rules and scraping for Prometheus, a dashboard for Grafana; thresholds are this recipe's limits and estimate."
        )
    main = next((use.path for use in uses(files, bundle.context.name, bundle.context.kind)), None)
    ordered = sorted(
        files, key=lambda path: (path.endswith("kustomization.yaml"), path != main, path)
    )
    path = st.selectbox(
        "File", ordered, key=f"file-of-{name}", format_func=lambda path: path.rpartition("/")[2]
    )
    read(files[path or ordered[0]])


def read(text: str) -> None:
    """A file's text in a frame that scrolls; the frame holds the copy button, so the keyboard reaches it."""
    with st.container(height=SHOWN_PX):
        st.code(text, language=None, line_numbers=True, wrap_lines=True)


# --- files ---------------------------------------------------------------------------------------------------------------------


def browse(bundle: Bundle) -> None:
    """Every file of the bundle in a list, and the chosen one's text."""
    left, right = st.columns([2, 3], gap="large")
    with left:
        wanted = st.text_input(
            "Find",
            key="find",
            placeholder="a name, or words inside a file",
            icon=":material/search:",
            persist_state="session",
            max_chars=200,
        )
        found = {each.path: each for each in listing(bundle.files, wanted or "")}
        if not found:
            st.info("No file holds these words.", icon=":material/search_off:")
            return
        path = st.session_state.get("file")
        st.session_state["_file"] = path if path in found else next(iter(found))
        st.caption(f"{len(found)} of {len(bundle.files)} files")
        with st.container(height=SHOWN_PX):
            path = st.radio(
                "File",
                list(found),
                key="_file",
                format_func=common.escape,
                on_change=pick_file,
                label_visibility="collapsed",
            )
    with right:
        chosen = found[path or next(iter(found))]
        text, whole = preview(bundle.files[chosen.path])
        st.markdown(f"**{common.escape(chosen.path)}**")
        st.caption(f"{chosen.about}; {chosen.size:,} bytes")
        read(text)
        if not whole:
            st.caption(f"The first {PREVIEWED:,} characters; the download has all of it.")


def pick_file() -> None:
    """Remember the file: a search that does not find it only hides it."""
    st.session_state["file"] = st.session_state["_file"]


# --- why, elsewhere, other doors -----------------------------------------------------------------------------------------------


def why(bundle: Bundle) -> None:
    """What set each field, option and variable."""
    rows = overview.origins(bundle.recipe)
    st.dataframe(
        {
            "Kind": [row.kind for row in rows],
            "Option": [row.name for row in rows],
            "Value": [row.value for row in rows],
            "Set by": [row.layer for row in rows],
            "Why": [row.why for row in rows],
        },
        hide_index=True,
        height="content" if len(rows) < 12 else SHOWN_PX,
        column_config={"Option": st.column_config.TextColumn(pinned=True)},
        alt=f"{len(rows)} options with the layer that set each",
    )
    st.caption(
        "Later layers win: base, model, architecture, device, objective, user. What is still ${…} is filled when it is started."
    )


@st.cache_data(max_entries=64, show_spinner="Trying other engines")
def _others(text: str, candidate: str, digest: str, may_read: bool) -> list[OtherEngine]:  # noqa: ARG001 - the digest tells folders apart
    return other_engines(
        PlanRequest.parse(json.loads(text)), json.loads(candidate), folders=may_read
    )


def engines(request: PlanRequest, candidate: Mapping[str, Any], own: Recipe | None = None) -> None:
    """The same split on every other engine: what it would be, one click to take it, or why not; ``own``: the recipe to compare with."""
    found = _others(
        json.dumps(request.to_json()),
        json.dumps(candidate),
        common.model().digest,
        folders_allowed(),
    )
    able, unable = (
        [each for each in found if not each.reasons],
        [each for each in found if each.reasons],
    )
    if able:
        rows = [
            {"Engine": f"{each.title} {each.version}"}
            | {row.label: row.value for row in each.figures}
            for each in able
        ]
        if own:
            values = {row.label: row.value for row in overview.expected(own)}
            mine = {"Engine": f"{own.engine.title} {own.engine.version} (this recipe)"}
            rows.insert(0, mine | {label: values[label] for label in rows[0] if label in values})
        st.table(
            [{name: common.escape(text) for name, text in row.items()} for row in rows],
            border="horizontal",
            hide_index=True,
            alt="The same split on other engines",
        )
        with st.container(horizontal=True):
            for each in able:
                st.button(
                    f"Use {each.title}",
                    key=f"use-{each.name}",
                    icon=":material/swap_horiz:",
                    on_click=common.apply,
                    args=(each.changes,),
                )
    else:
        st.info("No other engine starts this split.", icon=":material/info:")
    if unable:
        st.markdown("**Not on these**")
        st.table(
            {
                "Engine": [common.escape(f"{each.title} {each.version}") for each in unable],
                "Why not": [common.escape("; ".join(each.reasons)) for each in unable],
            },
            border="horizontal",
            hide_index=True,
            alt="Engines that cannot run this split",
        )


def elsewhere(bundle: Bundle) -> None:
    """The recipe's fallbacks, which travel in the bundle."""
    rows = overview.fallback_rows(bundle.recipe)
    if not rows:
        st.info("No other split, device or format can run this.", icon=":material/info:")
        return
    st.dataframe(
        rows, hide_index=True, height="content", alt="What to use where this recipe cannot run"
    )
    st.caption(
        "Each was planned for the same request, on the devices and in the formats it names. They are in recipe.yaml too."
    )


def doors(bundle: Bundle, request: PlanRequest) -> None:
    """The same question as a request, a link, a command line, an API call."""
    here = (st.context.url or "http://127.0.0.1:8501/recipe").split("?")[0]
    base, name, at = here.rsplit("/", 1)[0], bundle.recipe.name, bundle.recipe.parameters
    body = request.to_json()
    names = ["Request (YAML)", "JSON", "Link", "Command line", "curl", "Python", "MCP"]
    yaml, plain, link, cli, curl, python, agent = st.tabs(names)
    with yaml:
        parts.code(to_yaml(body))
    with plain:
        parts.code(json.dumps(body, indent=2, ensure_ascii=False))
    with link:
        st.caption(
            "The address of every page is a link to all that is on it, but for what was filled in for your place."
        )
        if sentence := left_out(request):
            st.caption(common.escape(sentence))
        parts.code(f"{here}?{urlencode(common.link())}")
    with cli:
        st.caption("With the request saved as request.yaml:")
        parts.code("\n".join(snippets.command_line(at, name)))
    with curl:
        st.caption("The bundle as the button gives it, from the API on this port:")
        parts.code(snippets.curl(base, request, at, name))
    with python:
        st.caption("The same by Python's standard library:")
        parts.code(snippets.python(base, request, at, name))
    with agent:
        st.caption(
            "Agents ask by the Model Context Protocol: this server, or a program of their own. What a client is configured with:"
        )
        parts.code(snippets.agent(base))
        st.caption(
            "The call that builds this bundle; the answer lists its files and names the resource that is the zip:"
        )
        parts.code(snippets.tool_call(request, at))


def show(bundle: Bundle, request: PlanRequest) -> None:
    """The tabs; only the open one is drawn."""
    views = {
        "Start it": lambda: start(bundle),
        "Files": lambda: browse(bundle),
        "Why each option": lambda: why(bundle),
        "Other engines": lambda: engines(
            recipe_request(bundle.recipe), bundle.recipe.candidate, bundle.recipe
        ),
        "Where it cannot run": lambda: elsewhere(bundle),
        "Other doors": lambda: doors(bundle, request),
    }
    for tab, draw in zip(
        st.tabs(list(views), key="handout", on_change="rerun"), views.values(), strict=True
    ):
        if tab.open:
            with tab:
                draw()
