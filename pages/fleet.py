from collections.abc import Mapping
from dataclasses import replace

import _common as common
import _fleet_answer as answers
import _fleet_document as documents
import _fleet_result as result
import _fleet_what_if as what_if
import _session as session
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.base.texts import quote_markdown

EDITOR, UPLOAD, ADD = "fleet-editor", "fleet-upload", "fleet-add"
KINDS = ["yaml", "yml", "json", "csv", "txt"]
EDITOR_PX = 420


# --- the document


def draw_ways_in() -> None:
    """Draw what a fleet may start from, and the way back from the last change."""
    reason = documents.why_no_start()
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            "Start from this plan",
            key="fleet-start",
            icon=":material/scatter_plot:",
            on_click=documents.start_from_plan,
            disabled=reason is not None,
            help=reason or "Its model, and its hardware as a pool",
        )
        if undo := documents.undo_label():
            st.button(
                common.escape(f"Take back: {undo}"),
                key="fleet-undo",
                icon=":material/undo:",
                on_click=documents.take_back,
            )


def draw_document() -> None:
    """The document as text, and files that it is read from."""
    text, _ = st.session_state.get(documents.REFUSED) or (documents.current_text(), None)
    common.seed(EDITOR, text)
    text_column, side_column = st.columns([3, 2], gap="large")
    with text_column:
        st.text_area("The fleet as YAML", key=EDITOR, on_change=take_editor, height=EDITOR_PX)
        st.download_button(
            "Download",
            documents.current_text(),
            file_name=documents.NAME,
            mime="application/yaml",
            on_click="ignore",
            icon=":material/download:",
            key="fleet-download",
        )
    with side_column:
        st.file_uploader(
            "Your fleet.yaml, or an inventory of your machines",
            type=KINDS,
            key=UPLOAD,
            on_change=take_upload,
            max_upload_size=4,
            help="What kubectl get nodes -o json, sinfo, SkyPilot, Kueue or OpenCost say, or a CSV "
            "of machines with a column device: its machines become pools; nothing of it runs.",
        )
        for note in st.session_state.get(documents.NOTES) or []:
            st.caption(quote_markdown(note))
        draw_add()
        st.caption("It stays in this session, and is not part of links: download it to keep it.")


def draw_document_error(error: RecipeError) -> None:
    """Say which field is wrong and what fixes it, as the document names it."""
    field = f"**{quote_markdown(error.field)}** " if error.field else ""
    hint = f" {quote_markdown(error.hint)}" if error.hint else ""
    st.error(f"{field}{quote_markdown(error.message)}{hint}", icon=":material/block:")
    st.caption("The fleet before stays in effect.")


def take_editor() -> None:
    text = st.session_state[EDITOR] or ""
    if text.strip() and text != documents.current_text():
        documents.take_text(text, "the edit")


def take_upload() -> None:
    if (file := st.session_state[UPLOAD]) is not None:
        documents.take_file(file.getvalue(), file.name)


def draw_add() -> None:
    """Add the session's plan, or a choice that is kept, to the fleet."""
    requests = {"This plan": session.request()}
    requests |= {entry.name: entry.request for entry in session.shelf()}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        name = st.selectbox("Add a model", list(requests), key=ADD, width=260)
        st.button(
            "Add",
            key="fleet-add-it",
            icon=":material/add:",
            on_click=documents.add_request,
            args=(requests[name or "This plan"],),
        )


# --- the answer


@st.fragment(run_every=0.5)
def follow_placing(tasks: Mapping[str, answers.Question]) -> None:
    """Say how far it is, with a way to end it; the page around stays usable."""
    for title, question in tasks.items():
        task = answers.running_tasks().get(question)
        if task is None or task.is_over:
            st.rerun()
        stage = f": {task.stage.removeprefix('placing: ')}" if task.stage else ""
        with st.container(horizontal=True, vertical_alignment="center"):
            text = f"{common.escape(title)}{stage}; the page stays usable meanwhile"
            st.progress(task.share, text=text)
            st.button(
                "Cancel",
                key=f"fleet-cancel-{title}",
                icon=":material/close:",
                on_click=answers.cancel_placing,
                args=(question,),
            )


def draw_answer() -> None:
    """Ask for the fleet, for changes that are tried and for files; draw what is there of it."""
    question = answers.fleet_question(documents.current_fleet(), documents.current_month())
    files = replace(question, files=True)
    questions = {"Placing the fleet": question}
    questions |= {f"Placing: {name}": tried for name, tried in what_if.tried_questions().items()}
    if st.session_state.get(result.WANTED) == files and answers.find_answer(question) is not None:
        questions["Making all files"] = files
    answers.keep_only(questions.values())
    running = {
        title: open_question
        for title, open_question in questions.items()
        if answers.placing(open_question)
    }
    with st.container(key="fleet-running"):
        if running:
            follow_placing(running)
    if (answered := answers.find_answer(question)) is None:
        if not running:
            what_if.draw_missing(question)
        return
    result.draw_headline(answered.answer)
    result.draw_racks(answered.answer)
    what_if.draw_what_if(answered.answer)
    result.draw_tables(answered.answer)
    result.draw_money(answered.answer)
    if answered.moves is not None:
        result.draw_moves(answered.moves)
    result.draw_downloads(answered, files)


st.title("Fleet", anchor=False)
st.caption(
    "Many models on owned and rented machines: who runs where, on what part of which device, "
    "what is rented, and what each team pays."
)
draw_ways_in()
if documents.is_example():
    st.caption("This is an example. Start from your plan, or open the document and write your own.")
common.draw_opened(
    "The fleet: models, pools and limits",
    "fleet-document",
    draw_document,
    part=st.expander,
    icon=":material/edit_note:",
)
if refused := st.session_state.get(documents.REFUSED):
    draw_document_error(refused[1])
try:
    draw_answer()
except RecipeError as error:
    st.error(common.escape(error), icon=":material/error:")
