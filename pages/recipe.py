import json
import shlex
from urllib.parse import urlencode

import common
import parts
import streamlit as st

from recipe_core import edits, units
from recipe_core.board import Board, ServingBoard, TrainingBoard
from recipe_core.bundle import bundle_files, zip_bytes
from recipe_core.documents import to_yaml
from recipe_core.errors import RecipeError
from recipe_core.recipe import Recipe, make_recipe
from recipe_core.request import PlanRequest
from recipe_core.serve import folders_allowed
from recipe_core.units import duration, gib, rate, significant, usd

BEST = ""
LISTED = 50
STEPS = ("preflight", "up", "bench")
FIGURES = {
    "output_tokens_per_s": ("Output", rate),
    "tpot_s": ("Per output token", duration),
    "ttft_s": ("First token", duration),
    "request_latency_s": ("Whole request", duration),
    "output_tokens_per_s_per_gpu": ("Output per GPU", rate),
}


@st.cache_data(max_entries=64, show_spinner=False)
def recipe_of(text: str, digest: str, may_read: bool) -> Recipe:  # noqa: ARG001 - the digest tells changed folders apart
    """The recipe of a request, cached by its JSON."""
    return make_recipe(PlanRequest.parse(json.loads(text)), folders=may_read)


@st.cache_data(max_entries=16, show_spinner=False)
def files_of(text: str, digest: str, may_read: bool) -> dict[str, bytes]:
    """The files of the bundle, for the preview."""
    return bundle_files(recipe_of(text, digest, may_read))


def option_label(board: Board, key: str) -> str:
    """A split in the list, with its figures."""
    row = board.best() if key == BEST else board.row(key)
    lead = "Best: " if key == BEST else "Pinned: " if key in common.pins() else ""
    return f"{lead}{board.label(row)} · {board.phrase(row)}"


def picker(board: Board) -> None:
    """The chosen split: the best one, a pinned one, or any that fits."""
    pinned = [key for key in common.pins() if (row := board.row(key)) is not None and board.feasible[row]]
    ranked = [board.key(int(row)) for row in board.ranked[:LISTED]]
    gone = common.chosen_is_gone(board)
    now = BEST if common.chosen_key() is None or gone else board.key(common.chosen(board))
    options = {key: option_label(board, key) for key in [BEST, *pinned, *ranked, now]}
    common.choose(
        st.selectbox,
        "Split",
        "_split",
        now,
        lambda key: edits.taken(common.request(), key) if key else {"candidate": None},
        options=list(options),
        format_func=options.get,
    )
    if gone:
        st.warning(f"The split you chose, {gone}, does not fit any more; this is the best one.", icon=":material/info:")


def expected(board: ServingBoard, estimate: dict, _: int) -> None:
    """Figures with their bands and basis, and memory by part."""
    left, right = st.columns([3, 2], gap="large")
    serving, bands, basis = estimate["serving"], estimate["bands"], estimate["basis"]
    price = estimate["cost"]["usd_per_million_output_tokens"]
    with left:
        st.header("What to expect", anchor=False)
        st.dataframe(
            {
                "Figure": [label for label, _ in FIGURES.values()],
                "Estimate": [show(serving[name]) for name, (_, show) in FIGURES.items()],
                "Likely between": [units.band(bands[name], show) for name, (_, show) in FIGURES.items()],
                "Basis": [basis[name] for name in FIGURES],
            },
            hide_index=True,
            height="content",
            column_config={"Likely between": st.column_config.TextColumn(help="Where eight of ten measured runs are expected")},
            alt="Expected figures with their bands",
        )
        cost = "unknown" if price is None else f"{usd(price)} per million output tokens, {usd(estimate['cost']['usd_per_hour'])} per hour"
        source = "" if price is None else f" ({basis['usd_per_hour']})"
        power = f"{significant(estimate['energy']['watts'])} W, {significant(estimate['energy']['watts_limit'])} W at most"
        st.caption(common.escape(f"Cost: {cost}{source}. Power of the devices: {power}."))
    with right:
        st.header(f"Memory per {board.device_title}", anchor=False)
        m = estimate["memory"]
        st.table(
            {
                "Weights": gib(m["weights_bytes"]),
                "KV cache needed": gib(m["kv_needed_bytes"]),
                "Activations": gib(m["activations_bytes"]),
                "Runtime": gib(m["runtime_bytes"]),
                "**Total**": f"**{gib(m['total_bytes'])}** of {gib(m['usable_bytes'])} usable",
                "Cache would hold": f"{m['kv_cache_tokens']:,} tokens, {m['max_concurrency']:,} requests",
            },
            border="horizontal",
            alt="Memory by part",
        )


def commands(files: dict[str, bytes]) -> None:
    """What the bundle starts, one command a process."""
    launch = json.loads(files["launch.json"])
    st.header("What it starts", anchor=False)
    st.caption(f"Install with: {launch['engine']['install']}. launch.py fills in model, host and port.")
    for process in launch["processes"]:
        parts.code(shlex.join(process["argv"]))


def download(recipe: Recipe, files: dict[str, bytes]) -> None:
    """The bundle as a zip, built on click, and its files to look at."""
    st.header("Bundle", anchor=False)
    left, right = st.columns([2, 3], gap="large")
    with left:
        st.download_button(
            "Download bundle",
            lambda: zip_bytes(recipe),
            file_name=f"{recipe.name}.zip",
            mime="application/zip",
            on_click="ignore",
            type=common.main_button(),
            icon=":material/download:",
            key="download",
        )
        parts.code(
            "\n".join([f"unzip {recipe.name}.zip -d {recipe.name}", f"cd {recipe.name}", *(f"python launch.py {step}" for step in STEPS)]),
        )
    with right:
        name = st.selectbox("Look into a file", list(files), index=None, key="file", placeholder=f"{len(files)} files")
        if name:
            parts.code(files[name].decode())


def reproduce() -> None:
    """The request, and the same answer through the other doors."""
    body = common.request().to_json()
    here = (st.context.url or "http://127.0.0.1:8501/recipe").split("?")[0]
    st.header("The same by other doors", anchor=False)
    yaml, cli, api, link = st.tabs(["Request (YAML)", "Command line", "API", "Link"])
    with yaml:
        parts.code(to_yaml(body))
    with cli:
        st.caption("With the request saved as request.yaml:")
        parts.code("recipe plan request.yaml --top 5\nrecipe build request.yaml -o bundle.zip")
    with api:
        words = [
            "curl",
            "-s",
            f"{here.rsplit('/', 1)[0]}/api/v1/plan",
            "-H",
            "content-type: application/json",
            "-d",
            json.dumps(body, ensure_ascii=False),
        ]
        parts.code(shlex.join(words))
    with link:
        st.caption("The address of every page is a link to all that is on it.")
        parts.code(f"{here}?{urlencode(common.link())}")


def wanted(board: Board, row: int) -> PlanRequest:
    """The request with the split of a row as its candidate."""
    stated = common.request().candidate.model_dump(exclude_none=True) if common.request().candidate else {}
    changes = edits.taken(common.request(), board.key(row))
    return edits.change(common.request(), changes | {"candidate": stated | changes["candidate"]})


def bundle(board: Board, row: int) -> None:
    """The bundle of a split, what to expect of it, and what it starts; or why it cannot be built."""
    key = (json.dumps(wanted(board, row).to_json()), common.model().digest, folders_allowed())
    estimate = board.estimate(row)
    for note in estimate["notes"]:
        st.info(common.escape(note), icon=":material/info:")
    expect = expected_training if isinstance(board, TrainingBoard) else expected
    try:
        recipe, files = recipe_of(*key), files_of(*key)
    except RecipeError as error:
        st.error(f"**This split cannot be built yet.** {common.escape(error)}", icon=":material/block:")
        one = common.request().hardware.per_node
        if board.raw("gpus")[row] > one:
            fewer = {"objective.limits.gpus": one, "candidate": None}
            st.button(f"Only splits of at most {one} devices, one node", key="one-node", on_click=common.apply, args=(fewer,))
        expect(board, estimate, row)
    else:
        download(recipe, files)
        expect(board, estimate, row)
        commands(files)


def expected_training(board: TrainingBoard, estimate: dict, row: int) -> None:
    """Figures with their bands, and memory of the fullest stage."""
    names = [name for name in board.measures if board.known(name)]
    left, right = st.columns([3, 2], gap="large")
    with left:
        st.header("What to expect", anchor=False)
        st.dataframe(
            {
                "Figure": [board.measures[name].title for name in names],
                "Estimate": [board.text(name, row) for name in names],
                "Likely between": [board.band(name, row) or "" for name in names],
            },
            hide_index=True,
            height="content",
            alt="Expected figures with their bands",
        )
    with right:
        st.header(f"Memory per {board.device_title}", anchor=False)
        m = estimate["memory"]
        rows = {name: gib(m[f"{part}_bytes"]) for part, name in board.parts.items() if m[f"{part}_bytes"] > 0}
        total = f"**{gib(m['total_bytes'])}** of {gib(m['usable_bytes'])} usable"
        st.table(rows | {"**Total**": total}, border="horizontal", alt="Memory by part")


parts.head("Take it")
board = common.board_or_none()
if board is not None and board.best() is not None:
    picker(board)
    bundle(board, common.chosen(board))
    reproduce()
elif board is not None:
    st.page_link("compare.py", label="See why nothing fits", icon=":material/help:", query_params=common.link())
