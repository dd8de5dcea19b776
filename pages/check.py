import json
from typing import Any

import _address as address
import _check_answer as verdicts
import _common as common
import _numbers as numbers
import _session as session
import _widgets as widgets
import streamlit as st

from recipe_core.base.errors import RecipeError
from recipe_core.base.units import chance_text, gib, seconds_text, share_text, token_rate_text
from recipe_core.calibration.place import calibration_stamp
from recipe_core.commands.carry import plan_request_of
from recipe_core.commands.words import MAX_CHARACTERS
from recipe_core.doors.serve import folders_allowed
from recipe_core.engines.spec import engine
from recipe_core.estimates.serving.results import MEMORY, memory_parts
from recipe_core.hardware.cluster import device_names
from recipe_core.plans.remedies import change_label
from recipe_core.request.describe import hardware_name
from recipe_core.request.metrics import column_metric
from recipe_core.request.serving_workload import ServingWorkload
from recipe_core.request.split_key import split_degrees_text
from recipe_core.views.commands import changed_lines, idle_devices_text, memory_meant, words_text
from recipe_core.views.glossary import term_help
from recipe_core.views.verdict import changed_figures

EXAMPLES = {
    "vLLM on half the node": "vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 40960",
    "SGLang with a misspelt option": (
        "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-70B-Instruct "
        "--tp 4 --mem-fraction-statik 0.9"
    ),
    "vLLM in Docker": (
        "docker run --gpus all --ipc=host vllm/vllm-openai:latest "
        "--model meta-llama/Llama-3.1-70B-Instruct -tp 2"
    ),
}
LOOK = {
    "fits": (st.success, ":material/check_circle:", "It starts and sustains the load."),
    "tight": (st.warning, ":material/warning:", "It starts, but headroom is small."),
    "uncertain": (st.warning, ":material/contact_support:", "It may not start."),
    "cannot start": (st.error, ":material/block:", "It cannot start."),
    "unknown": (st.info, ":material/help:", "It cannot be judged."),
}
PLAN_PAGE = "plan.py"
"""The page that shows the plan of a request."""
LEVELS = {
    "error": ":material/block: refused",
    "warning": ":material/warning: not as intended",
    "note": ":material/info: note",
}


def draw_ground() -> str:
    """Show what commands are judged by (JSON): the request's hardware and, serving, load."""
    r = session.request()
    out: dict[str, Any] = {
        "hardware": r.hardware.device,
        "gpus": r.hardware.per_node,
        "nodes": r.hardware.nodes,
    }
    if isinstance(r.workload, ServingWorkload):
        out |= {
            "input_tokens": r.workload.input_tokens,
            "output_tokens": r.workload.output_tokens,
            "optimize": r.objective.optimize,
        }
        out |= {"concurrency": r.workload.concurrency} if r.workload.concurrency else {}
    if release := (st.session_state.get("engine_version") or "").strip():
        out["engine_version"] = release
    return json.dumps(out)


def draw_examples() -> None:
    """Commands to try, a click each."""
    with st.container(horizontal=True):
        for n, (title, text) in enumerate(EXAMPLES.items()):
            st.button(
                title,
                key=f"example-{n}",
                icon=":material/lightbulb:",
                on_click=st.session_state.update,
                args=({"command": text},),
            )


def ask_command() -> str:
    if not (st.session_state.get("command") or "").strip():
        draw_examples()
    text = st.text_area(
        "Command",
        key="command",
        height=130,
        max_chars=MAX_CHARACTERS,
        persist_state="session",
        placeholder="vllm serve …, python -m sglang.launch_server …, trtllm-serve …, docker run … "
        "or a script that starts one of them",
    )
    chip, per_node, nodes, release, go = st.columns([3, 1, 1, 1, 1], vertical_alignment="bottom")
    with chip:
        common.pick_device(
            st.selectbox, "Device", device_names(), lambda chip: chip.title, help=None
        )
    with per_node:
        numbers.draw_number("Devices per node", "hardware.per_node", help=None)
    with nodes:
        numbers.draw_number("Nodes", "hardware.nodes", help=None)
    release.text_input(
        "Engine release",
        key="engine_version",
        max_chars=32,
        persist_state="session",
        placeholder="by the image",
    )
    go.button(
        "Check",
        key="check",
        type="primary",
        icon=":material/fact_check:",
        width="stretch",
        shortcut="Ctrl+Enter",
    )
    return (text or "").strip()


def draw_command_cards(answer: dict[str, Any]) -> None:
    """Show the command's own layout; of its memory both figures, and which is which."""
    estimate = answer["estimate"]
    m, serving, cost = estimate["memory"], estimate.get("serving"), estimate.get("cost")
    with st.grid(5, min_column_width=190):
        parts = ", ".join(
            f"{MEMORY[name].lower()} {gib(value)}" for name, value in memory_parts(m).items()
        )
        st.metric(
            "Memory for the load",
            gib(m["total_bytes"]),
            border=True,
            help=f"Per device, of {gib(m['usable_bytes'])} usable: {parts}",
        )
        st.metric(
            "Memory to start",
            gib(answer["start_bytes"]),
            border=True,
            help="Per device, with the cache of one request of the longest length. "
            + term_help("context"),
        )
        if serving:
            for name in ("output_tokens_per_s", "tpot_s", "usd_per_million_output_tokens"):
                metric, value = column_metric(name), (serving | (cost or {})).get(name)
                text = "no price" if value is None else metric.show(value)
                st.metric(metric.head, text, border=True, help=metric.help)
    st.caption(common.escape(memory_meant(answer)))


def draw_findings(answer: dict[str, Any]) -> None:
    icon = ":material/contact_support:" if answer["verdict"] == "uncertain" else ":material/block:"
    for reason in answer.get("reasons", []):
        st.markdown(f"{icon} {common.escape(reason)}")
    if idle := idle_devices_text(answer.get("waste", {})):
        st.markdown(f":material/delete_sweep: {common.escape(idle)}.")
    if answer["findings"]:
        st.header("Findings", anchor=False)
        common.draw_cells(
            {
                "Level": [LEVELS[finding["level"]] for finding in answer["findings"]],
                "Option": [
                    common.escape(finding.get("option") or "") for finding in answer["findings"]
                ],
                "Finding": [common.escape(finding["message"]) for finding in answer["findings"]],
                "What to do": [
                    common.escape(finding.get("hint") or "") for finding in answer["findings"]
                ],
            },
            "Findings in the command",
        )


def draw_better_layout(answer: dict[str, Any]) -> None:
    """The best layout of the same engine on the same devices, and its commands."""
    draw_corrections(answer)
    offer = answer["better"]
    if offer is None:
        draw_no_better(answer)
        return
    gain = "" if offer.get("gain") is None else f", {share_text(offer['gain'], signed=True)}"
    serving = offer["estimate"]["serving"]
    st.header("A better layout", anchor=False)
    speed, tpot = token_rate_text(serving["output_tokens_per_s"]), seconds_text(serving["tpot_s"])
    figures = f"{speed}, {tpot} per token"
    degrees = common.escape(split_degrees_text(offer["candidate"]))
    st.markdown(f"**{degrees}**{gain}: {common.escape(figures)}")
    several_nodes = len({command["node"] for command in offer["commands"]}) > 1
    for command in offer["commands"]:
        if several_nodes:
            st.caption(f"On node {command['node']}:")
        draw_changed_command(command, with_difference=not several_nodes)
        for name, text in command["files"].items():
            st.caption(f"with {common.escape(name)}:")
            widgets.code(text)
    if not offer["commands"]:
        st.info(common.escape(offer["why_no_command"]), icon=":material/info:")


def draw_changed_command(command: dict[str, Any], *, with_difference: bool = True) -> None:
    """The words that change, and the whole new command to copy."""
    lines = changed_lines(command["difference"]) if with_difference else []
    if lines:
        widgets.code("\n".join(lines))
    widgets.code(command["command"])


def draw_corrections(answer: dict[str, Any]) -> None:
    """The command itself with the fewest words changed so that it starts."""
    changes = [change for change in answer["changes"] if "options" in change]
    if changes:
        st.header("The same command, corrected", anchor=False)
    for change in changes:
        chance = chance_text(change["start_probability"])
        text = f"It starts {words_text(change)}, with a probability of {chance}."
        st.markdown(f":material/build: {common.escape(text)}")
        if "command" in change:
            draw_changed_command(change)


def draw_no_better(answer: dict[str, Any]) -> None:
    starts = answer["ok"] is not False or any("options" in change for change in answer["changes"])
    st.caption(
        "No other layout on these devices is more than 2 % better."
        if starts
        else "No other layout on these devices can run it."
    )
    for change in answer["changes"]:
        if "options" in change:
            continue
        text = f"{change_label(change['set'])}: then {split_degrees_text(change['candidate'])} fits"
        st.markdown(f":material/build: {common.escape(text)}")


def open_as_plan(answer: dict[str, Any]) -> None:
    """A way on to the plan of what the command starts, with all that it states."""
    if "estimate" not in answer:
        return
    changes = plan_request_of(answer, session.request())
    clicked = common.edit_button(
        "Open as plan",
        "to-builder",
        changes,
        ":material/scatter_plot:",
        help="Every layout of this model, with the command's engine, formats, longest context, "
        "limits and devices. The command's own layout is selected.",
    )
    if clicked:
        st.switch_page(PLAN_PAGE, query_params=address.screen_link_query())


def draw_command_verdict(answer: dict[str, Any]) -> None:
    draw, icon, verdict = LOOK[answer["verdict"]]
    facts = [
        answer["model"] or "no model",
        f"{engine(answer['engine']['name']).title} {answer['engine']['version']}",
        *([split_degrees_text(answer["candidate"])] if "candidate" in answer else []),
        hardware_name(session.request().hardware),
    ]
    draw(f"**{verdict}** {common.escape(' · '.join(facts))}", icon=icon)
    if "error" in answer:
        hint = answer["error"]["hint"]
        st.markdown(common.escape(f"{answer['error']['message']} {hint or ''}"))
    if "estimate" in answer:
        if answer["ok"] is False:
            st.caption("What its layout would deliver:")
        draw_command_cards(answer)
        if changed := changed_figures(answer["estimate"]):
            st.caption(f":material/tune: {common.escape(f'Calibrated by own runs. {changed}.')}")
    findings_column, better_column = st.columns(2, gap="large")
    with findings_column:
        draw_findings(answer)
    with better_column:
        if "better" in answer:
            draw_better_layout(answer)
    open_as_plan(answer)


st.title("Does my command work?", anchor=False)
st.caption(
    "Paste a command that starts vLLM, SGLang or TensorRT-LLM. "
    "Does it start, what does it waste, and is there a better layout? "
    "It is parsed, never run."
)
text = ask_command()
if not text:
    st.info("Paste a command or pick an example.", icon=":material/content_paste:")
else:
    try:
        draw_command_verdict(
            verdicts.judge_text(text, draw_ground(), folders_allowed(), calibration_stamp())
        )
    except RecipeError as error:
        st.error(common.escape(error), icon=":material/error:")
workload = session.request().workload
if isinstance(workload, ServingWorkload):
    # what Ground assumes where the request's load is none of concurrent requests
    load = workload.concurrency or 64
    st.caption(
        f"Judged with {workload.input_tokens:,} input tokens, {workload.output_tokens:,} output "
        f"tokens and {load:,} users at once. Change them under Traffic and limits."
    )
