from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import _address as address
import _common as common
import _export as export
import _session as session
import _side_choices as side_choices
import _widgets as widgets
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.request.describe import request_summary
from recipe_core.request.shelf import (
    MAX_KEPT,
    MAX_NAME,
    Kept,
    Shelf,
    remove_from_shelf,
    rename_on_shelf,
)
from recipe_core.targets.by_hand import wrap_typed_words
from recipe_core.views import side_by_side
from recipe_core.views.charts.measured import choice_points
from recipe_core.views.exports import PICTURES
from recipe_core.views.side_by_side import NOTHING, Choice, Line

BEST = "★"


def draw_empty_shelf() -> None:
    st.info(
        "Nothing is kept yet. Press **Keep** on the decision of a plan, on a pinned layout or on "
        "a device. What you keep stays while you change model, devices, load or formats.",
        icon=":material/bookmark_add:",
    )
    address.page_link("plan.py", "To the plan", ":material/scatter_plot:")


# --- what is kept


def shelf_bar(shelf: Shelf) -> None:
    """A button for each choice that opens its name and what can be done with it."""
    with st.container(horizontal=True):
        for place, entry in enumerate(shelf):
            common.draw_opened(
                common.escape(short_name(entry.name)),
                f"choice-{place}",
                partial(draw_choice_details, shelf, place, entry),
                icon=":material/bookmark:",
            )
    st.caption(f"{len(shelf)} of at most {MAX_KEPT} choices. The link to this page holds them all.")


def short_name(name: str) -> str:
    """A name that fits beside its mark on a phone: its ends, which tell choices apart."""
    return name if len(name) <= 34 else f"{name[:12].rstrip(' ·')} … {name[-20:].lstrip(' ·')}"


def draw_choice_details(shelf: Shelf, place: int, entry: Kept) -> None:
    st.caption(common.escape(request_summary(entry.request)))
    common.seed(f"_name-{place}", entry.name)
    st.text_input(
        "Name",
        key=f"_name-{place}",
        max_chars=MAX_NAME,
        on_change=rename_choice,
        args=(shelf, place),
    )
    with st.container(horizontal=True):
        for page, label, icon in (
            ("plan.py", "Open its plan", ":material/scatter_plot:"),
            ("ship.py", "Ship it", ":material/inventory_2:"),
        ):
            if st.button(
                label,
                key=f"{page}-{place}",
                icon=icon,
                on_click=session.replace_request,
                args=(entry.request,),
                help="Makes it the request; what is kept stays",
            ):
                st.switch_page(page, query_params=address.screen_link_query())
        st.button(
            "Remove",
            key=f"remove-{place}",
            icon=":material/bookmark_remove:",
            type="tertiary",
            on_click=remove_choice,
            args=(shelf, place),
        )


def rename_choice(shelf: Shelf, place: int) -> None:
    try:
        session.put_on_shelf(
            rename_on_shelf(shelf, place, st.session_state[f"_name-{place}"] or "")
        )
    except RecipeError as error:
        session.put_on_shelf(shelf)
        st.session_state["refused"] = str(error)


def remove_choice(shelf: Shelf, place: int) -> None:
    """A choice was removed; the baseline stays the same choice where it is another."""
    base = st.session_state.get("baseline", 0)
    st.session_state["baseline"] = base - (place < base) if place != base else 0
    session.put_on_shelf(remove_from_shelf(shelf, place))


# --- what differs


def pick_baseline(choices: Sequence[Choice]) -> int:
    """The choice that differences are to; the first unless the reader chose another."""
    place = min(st.session_state.get("baseline", 0), len(choices) - 1)
    common.draw_choice(
        st.selectbox,
        "Baseline",
        "_baseline",
        place,
        lambda n: st.session_state.update({"baseline": n}),
        options=range(len(choices)),
        format_func=lambda n: choices[n].name,
        help="Differences are to this choice",
        width=420,
    )
    return place


def select_lines(lines: Sequence[Line], *, differing: bool) -> list[Line]:
    return [line for line in lines if line.differs] if differing else list(lines)


def line_cells(line: Line, *, ranges: bool) -> list[str]:
    """A line's cells as Markdown: figure, range, difference, one below the other."""
    out = []
    for cell in line.cells:
        text = common.escape(cell.text)
        parts = [f"**{BEST} {text}**" if cell.best else text]
        parts += [common.escape(cell.band)] if ranges and cell.band else []
        parts += [common.escape(cell.difference)] if cell.difference else []
        out.append("  \n".join(parts))
    return out


def draw_choice_table(
    lines: Sequence[Line],
    choices: Sequence[Choice],
    *,
    ranges: bool,
    alt: str,
    of_what: str = "Figure",
) -> None:
    """Lines as a table, a column for each choice; ``of_what`` heads the column of titles."""
    columns = [line_cells(line, ranges=ranges) for line in lines]
    # names of choices hold no such space, so that none is taken for this column
    out = {f"{of_what}\u00a0": [common.escape(line.title) for line in lines]}
    for n, choice in enumerate(choices):
        out[common.escape(choice.name)] = [column[n] for column in columns]
    common.draw_cells(out, alt)


def draw_differences(choices: Sequence[Choice]) -> int:
    several = len(choices) > 1
    baseline, differing = 0, False
    with st.container(horizontal=True, vertical_alignment="bottom"):
        if several:
            baseline = pick_baseline(choices)
            differing = st.toggle(
                "Hide what is the same", value=True, key="differing", persist_state="session"
            )
        ranges = st.toggle(
            "Ranges",
            value=True,
            key="ranges",
            persist_state="session",
            help="Where eight of ten measured runs are expected",
        )
    facts = side_by_side.compare_facts(choices)
    chances = side_by_side.chances(choices, baseline)
    lines = [*facts, *([chances] if chances else [])]
    lines += side_by_side.compare_figures(choices, baseline)
    for sentence in side_by_side.cautions(choices):
        st.warning(common.escape(sentence), icon=":material/compare:")
    draw_choice_table(
        select_lines(lines, differing=differing),
        choices,
        ranges=ranges,
        alt=f"{len(choices)} choices side by side",
    )
    same = [line for line in lines if not line.differs] if differing else []
    if same:
        listed = "; ".join(f"{line.title}: {line.cells[0].text}" for line in same)
        st.caption(common.escape(f"The same for all: {listed}."))
    if several:
        st.caption(
            f"{BEST} is the best figure of those that hold their load within their limits. "
            "Differences are to the baseline."
        )
    return baseline


def draw_choice_exports(choices: Sequence[Choice]) -> None:
    with st.container(horizontal=True):
        export.table_buttons("side", "side-by-side", lambda: side_by_side.choices_frame(choices))


def draw_choice_chart(choices: Sequence[Choice], baseline: int) -> None:
    titles = list(side_by_side.measures(choices))
    if not titles:
        return
    st.header("One figure", anchor=False)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        title = st.selectbox(
            "Measure", titles, key="side-measure", persist_state="session", width=420
        )
        about = "What the camera of the chart saves"
        kind = common.pick_one("Image", PICTURES, "side-image", format_func=str.upper, help=about)
    title = title if title in titles else titles[0]
    figure = choice_points(choices, title, baseline, dark=common.dark())
    st.plotly_chart(
        figure,
        key="side-chart",
        config={"toImageButtonOptions": {"format": kind, "filename": "side-by-side"}},
        alt=f"{title} of {len(choices)} choices",
    )


def draw_choice_commands(choices: Sequence[Choice]) -> None:
    """Show how the commands that start them differ: option by option for those of one engine."""
    st.header("Commands", anchor=False)
    words, refused = side_choices.choice_commands(choices)
    for name, reason in refused.items():
        st.warning(f"**{common.escape(name)}:** {common.escape(reason)}", icon=":material/block:")
    places = [n for n, command in enumerate(words) if command]
    groups = side_by_side.by_engine([choices[n] for n in places])
    several = {engine: group for engine, group in groups.items() if len(group) > 1}
    for engine, group in several.items():
        st.markdown(f"**{common.escape(engine)}**")
        draw_option_differences(group, [words[choices.index(choice)] for choice in group])
    if len(groups) > 1:
        st.caption(
            "Options are compared between choices of one engine; another has other names for them."
        )
    if places:
        with st.expander("Whole commands", icon=":material/terminal:", expanded=not several):
            for n in places:
                st.caption(common.escape(choices[n].name))
                widgets.code(wrap_typed_words(words[n]))


def draw_option_differences(choices: Sequence[Choice], words: Sequence[Sequence[str]]) -> None:
    lines = side_by_side.command_lines(words)
    differing = [line for line in lines if line.differs]
    if not differing:
        st.caption("They start by the same command.")
        return
    alt = "Options that differ between the commands"
    draw_choice_table(differing, choices, ranges=False, alt=alt, of_what="Option")
    st.caption(
        f"Of the first process of each; {len(lines) - len(differing)} more are the same. "
        f"{NOTHING}: the command does not have it."
    )


st.title("Compare", anchor=False)
kept_choices = session.shelf()
if kept_choices:
    shelf_bar(kept_choices)
    answers = side_choices.evaluate_shelf(kept_choices)
    if len(answers) == 1:
        st.info("Keep another to see what differs.", icon=":material/bookmark_add:")
    base = draw_differences(answers)
    draw_choice_exports(answers)
    draw_choice_chart(answers, base)
    draw_choice_commands(answers)
    address.page_link("fleet.py", "Place several models as a fleet", ":material/dns:")
else:
    draw_empty_shelf()
