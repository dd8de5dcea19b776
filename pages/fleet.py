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
from recipe_core.doors.background import Background
from recipe_core.fleets.answer import FleetAnswer
from recipe_core.request.describe import hardware_name, model_name

EDITOR, UPLOAD, ADD = "fleet-editor", "fleet-upload", "fleet-add"
INVENTORY = "fleet-inventory"
INVENTORIES = ["json", "csv", "txt", "yaml", "yml"]
KINDS = ["yaml", "yml", "json"]
EDITOR_PX = 420
PROGRESS = {
    "answer": "Placing the fleet",
    "moves": "Planning the moves from today",
    "folder": "Making all files",
}


# --- the document


def draw_ways_in() -> None:
    """Draw what a fleet may start from, and the way back from the last change."""
    reason = documents.why_no_start()
    plan_words = f"{model_name(session.request())} on {hardware_name(session.request().hardware)}"
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            "Start from this plan",
            key="fleet-start",
            icon=":material/scatter_plot:",
            on_click=documents.start_from_plan,
            disabled=reason is not None,
            help=reason or common.escape(f"One model, one pool: {plan_words}"),
        )
        st.button(
            "Example",
            key="fleet-example",
            icon=":material/lightbulb:",
            on_click=documents.show_example,
            disabled=documents.is_example(),
        )
        if undo := documents.undo_label():
            st.button(
                common.escape(f"Take back: {undo}"),
                key="fleet-undo",
                icon=":material/undo:",
                on_click=documents.take_back,
            )


def draw_document() -> None:
    """The document as text, beside what is wrong with it, and files that it is read from."""
    text, error = st.session_state.get(documents.REFUSED) or (documents.current_text(), None)
    common.seed(EDITOR, text)
    text_column, side_column = st.columns([3, 2], gap="large")
    with text_column:
        st.text_area("The fleet as YAML", key=EDITOR, on_change=take_editor, height=EDITOR_PX)
        with st.container(horizontal=True):
            st.button(
                "Use this text", key="fleet-use", icon=":material/check:", on_click=take_editor
            )
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
        if error is not None:
            draw_document_error(error)
        st.file_uploader(
            "Your fleet.yaml", type=KINDS, key=UPLOAD, on_change=take_file, max_upload_size=4
        )
        draw_inventory()
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


def take_file() -> None:
    if (file := st.session_state[UPLOAD]) is not None:
        try:
            documents.take_text(file.getvalue().decode(), "the upload")
        except UnicodeDecodeError:
            st.session_state["refused"] = f"{file.name} is not UTF-8 text."


def draw_inventory() -> None:
    """Read the pools from what a cluster or a table lists."""
    st.file_uploader(
        "Your machines, from an inventory",
        type=INVENTORIES,
        key=INVENTORY,
        on_change=take_machines,
        max_upload_size=4,
        help="What kubectl get nodes -o json, sinfo, SkyPilot, Kueue or OpenCost say, or a CSV of "
        "machines with a column device. Its machines become pools; nothing of it runs.",
    )
    for note in st.session_state.get(documents.NOTES) or []:
        st.caption(quote_markdown(note))


def take_machines() -> None:
    if (file := st.session_state[INVENTORY]) is None:
        return
    try:
        documents.take_inventory(file.getvalue().decode(), file.name)
    except UnicodeDecodeError:
        st.session_state["refused"] = f"{file.name} is not UTF-8 text."
    except RecipeError as error:
        st.session_state["refused"] = f"{error.message} {error.hint or ''}".strip()


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
def follow_placing(tasks: list[tuple[answers.Question, Background]]) -> None:
    """Say how far it is, with a way to end it; the page around stays usable."""
    if any(task.is_over or question not in answers.running_tasks() for question, task in tasks):
        st.rerun()
    for question, task in tasks:
        text = "Placing the change" if question.changes else PROGRESS[question.part]
        with st.container(horizontal=True, vertical_alignment="center"):
            st.progress(task.share, text=f"{text}; the page stays usable meanwhile")
            st.button(
                "Cancel",
                key=f"fleet-cancel-{question.part}-{question.changes}",
                icon=":material/close:",
                on_click=answers.cancel_placing,
                args=(question,),
            )


def asked_questions(question: answers.Question) -> list[answers.Question]:
    """Everything that the page asks: the fleet, changes that are tried, and what follows from it.

    What follows from an answer is asked once that is there.
    """
    out = [question, *what_if.tried_questions().values()]
    if answers.find_placed(question) is None:
        return out
    folder = replace(question, part="folder")
    moves = [replace(question, part="moves")] if documents.current_fleet().today else []
    return [*out, *moves, *([folder] if st.session_state.get(result.WANTED) == folder else [])]


def draw_answer() -> None:
    question = answers.fleet_question(documents.current_fleet(), documents.current_month())
    if not answers.is_calculated(question):
        answers.placing(question)  # what follows from it is then asked in this run
    questions = asked_questions(question)
    answers.keep_only(questions)
    running = [
        (open_question, task)
        for open_question in questions
        if not answers.is_calculated(open_question)
        and (task := answers.placing(open_question)) is not None
    ]
    with st.container(key="fleet-running"):
        if running:
            follow_placing(running)
    answer = answers.find_placed(question)
    if answer is not None:
        draw_placed(answer, question)
    elif not running:
        what_if.draw_missing(question)


def draw_placed(answer: FleetAnswer, question: answers.Question) -> None:
    result.draw_headline(answer)
    result.draw_racks(answer)
    what_if.draw_what_if(answer)
    result.draw_tables(answer)
    result.draw_money(answer)
    if answer.request.today:
        moves = replace(question, part="moves")
        if (steps := answers.find_moves(moves)) is not None:
            result.draw_moves(steps)
        elif moves in answers.ended_questions():
            what_if.draw_missing(moves)
    result.draw_downloads(answer, replace(question, part="folder"))


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
if st.session_state.get(documents.REFUSED) and not st.session_state.get("fleet-document"):
    draw_document_error(st.session_state[documents.REFUSED][1])
try:
    draw_answer()
except RecipeError as error:
    st.error(common.escape(error), icon=":material/error:")
