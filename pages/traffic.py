import _common as common
import _numbers as numbers
import _panels as panel
import _planned as planned
import _session as session
import _whole_run as whole
import _widgets as widgets
import _workload as asking
import streamlit as st

from recipe_core.base.numbers import number_text
from recipe_core.doors.serve import folders_allowed
from recipe_core.engines.frameworks import training_data
from recipe_core.engines.spec import default_engine, engine, engine_names
from recipe_core.hardware.cluster import device_profile
from recipe_core.plans.plan import Plan
from recipe_core.plans.plans import count_keeping
from recipe_core.plans.splits import is_known
from recipe_core.plans.training_settings import framework_choices, framework_limits
from recipe_core.request.describe import lengths_text
from recipe_core.request.metrics import Limit, limits_by_name, metrics_of
from recipe_core.views.glossary import field_help
from recipe_core.views.verdict import further_goals_text

ATTENTION = {
    "flash": "fused, the framework's choice",
    "flash2": "FlashAttention-2",
    "flash3": "FlashAttention-3",
    "cudnn": "cuDNN",
    "eager": "eager",
}
OPTIMIZERS = {name: optimizer.title for name, optimizer in training_data().optimizers.items()}
FREE = "no limit"

request = session.request()
workload = request.workload
chip = device_profile(request.hardware.device)
training = session.asks_for_training()
METRICS = metrics_of("training" if training else "closed")


def serving_details() -> None:
    """Ask how lengths vary, prefix cache hits, and other loads."""
    exact, shapes = workload.mode == "static", (workload.input_lengths, workload.output_lengths)
    asking.draw_variation()
    with numbers.group_boxes("details"), st.grid(4, min_column_width=140):
        for field, label in (
            ("input_spread", "Prompt variation"),
            ("output_spread", "Answer variation"),
        ):
            if not any(shapes):
                asking.draw_optional_number(
                    label, field, "fixed" if exact else "default (±10 %)", disabled=exact
                )
        asking.draw_workload_number("Prefix cache hit rate", "prefix_hit")
    with numbers.group_boxes("loads"):
        asking.several_loads()


def draw_adapters() -> None:
    if workload.rollout is not None:
        common.edit(
            st.toggle,
            "Adapters only",
            "workload.adapters",
            read=bool,
            write=lambda ticked: "lora" if ticked else None,
        )
    if workload.method in ("lora", "qlora") or workload.adapters:
        asking.draw_workload_number("Adapter rank", "lora_rank")
        asking.draw_optional_number("Adapter alpha", "lora_alpha", "twice the rank")
        common.edit(st.selectbox, "Adapters on", "workload.lora_targets", options=asking.TARGETS)


def draw_node_file(label: str, field: str, placeholder: str) -> None:
    """A file on the nodes that run, by its absolute path."""
    common.edit(
        st.text_input,
        label,
        field,
        read=lambda value: value or "",
        write=lambda text: text.strip() or None,
        placeholder=placeholder,
        max_chars=512,
        autocomplete="off",
    )


def draw_rollout_details() -> None:
    """Ask which engine samples answers, where, and what rewards them."""
    with st.grid(3, min_column_width=140):
        common.edit(st.selectbox, "Sampled by", "workload.rollout.engine", options=asking.SAMPLERS)
        common.draw_choice(
            st.selectbox,
            "Sampled on",
            "_workload.rollout.placement",
            workload.rollout.placement,
            lambda place: {
                "workload.rollout.placement": place,
                "workload.rollout.devices": max(request.hardware.devices // 2, 1)
                if place == "apart"
                else None,
            },
            options=asking.PLACEMENTS,
        )
        common.edit(st.selectbox, "Rewarded by", "workload.rollout.reward", options=asking.REWARDS)
    if workload.rollout.placement == "apart":
        with numbers.group_boxes("rollout"):
            asking.draw_optional_number("Devices that sample", "rollout.devices", "how many")
    draw_node_file("Reward file", "workload.rollout.reward_file", "the bundle's own rule")


def training_details() -> None:
    """Framework, optimizer, attention and adapters."""
    common.edit(
        st.selectbox,
        "Framework",
        "candidate.engine",
        read=lambda value: value or "",
        write=lambda name: name or None,
        options=framework_choices(),
        help="Automatic takes the first framework that can launch what is asked.",
    )
    if limits := framework_limits(request, folders=folders_allowed()):
        st.caption(common.escape(limits))
    with numbers.group_boxes("training"), st.grid(4, min_column_width=140):
        common.edit(
            st.selectbox,
            "Optimizer",
            "workload.optimizer",
            options=list(OPTIMIZERS),
            format_func=lambda name: asking.launch_choice_text(
                OPTIMIZERS[name], "optimizers", name
            ),
        )
        common.edit(
            st.selectbox,
            "Attention",
            "workload.attention",
            options=list(ATTENTION),
            format_func=lambda name: asking.launch_choice_text(ATTENTION[name], "attention", name),
        )
        common.edit(
            st.selectbox,
            "Data",
            "workload.data_format",
            read=lambda value: value or "",
            write=lambda name: name or None,
            options=asking.DATA,
        )
        draw_adapters()
    draw_node_file("Data file", "workload.data", "a sample that the bundle brings")
    if workload.rollout is not None:
        draw_rollout_details()
    common.edit(
        st.toggle,
        "Chunked loss",
        "workload.fused_loss",
        read=bool,
    )


def pick_engines() -> None:
    current = request.options.engines
    able = [name for name in engine_names() if chip.runtime in engine(name).runtimes]
    common.edit(
        st.pills,
        f"Engines (usual: {default_engine(chip.runtime).title})",
        "options.engines",
        read=list,
        write=tuple,
        optional=True,
        options={name: engine(name).title for name in dict.fromkeys([*able, *current])},
        selection_mode="multi",
        wrap=True,
    )
    common.edit(
        st.pills,
        "KV cache formats",
        "options.kv_dtypes",
        read=list,
        write=tuple,
        options=list(dict.fromkeys(["auto", *chip.kv_dtypes, *request.options.kv_dtypes])),
        selection_mode="multi",
        wrap=True,
    )
    if any(engine(name).batcher for name in current):
        windows()
    common.edit(st.toggle, "Include context-parallel decoding (CP)", "options.context_parallel")
    common.edit(
        st.toggle,
        "Include separate prefill pools",
        "options.disaggregated",
    )


WINDOWS_MS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)


def windows() -> None:
    """Ask how long a request may wait for others to fill a batch."""
    windows_ms = request.options.batch_windows_ms
    common.edit(
        st.pills,
        "Batching windows",
        "options.batch_windows_ms",
        read=list,
        write=tuple,
        optional=True,
        options=sorted({*WINDOWS_MS, *windows_ms}),
        format_func=lambda ms: f"{ms:g} ms",
        selection_mode="multi",
        wrap=True,
    )


def draw_limit(plan: Plan | None, name: str) -> None:
    """A limit as a box and a slider on one value, and how many splits keep it.

    The slider's steps are always the same; a value that was typed between two of them is a step
    until another is chosen.
    """
    limit = limits_by_name()[METRICS[name].limit or ""]
    limit_value = getattr(request.objective.limits, limit.name)
    unit, scale = limit.unit.symbol, limit.scale
    now = None if limit_value is None else numbers.scaled(limit_value, scale)
    title = limit_title(limit)
    field = f"objective.limits.{limit.name}"

    def moved() -> None:
        value = st.session_state[f"_{field}_slider"]
        session.apply_changes({field: None if value == FREE else numbers.scaled(value, 1 / scale)})

    steps = limit.steps_up_to(most_devices(), limit_value)
    shown = [numbers.scaled(step, scale) for step in steps]
    with st.container(key=f"limit-{name}", gap="xsmall"):
        st.markdown(f":small[{title}]", help=field_help(field))
        with st.container(horizontal=True, vertical_alignment="center"):
            numbers.draw_number(
                title,
                field,
                scale=scale,
                optional=True,
                unit=unit,
                placeholder=FREE,
                label_visibility="collapsed",
                width=110,
            )
            common.seed(f"_{field}_slider", FREE if now is None else now)
            st.select_slider(
                f"{title}, slider",
                [FREE, *shown] if limit.at_least else [*shown, FREE],
                key=f"_{field}_slider",
                on_change=moved,
                format_func=lambda value: value if value == FREE else with_unit(value, unit),
                label_visibility="collapsed",
            )
        st.caption(kept_layouts_text(plan, name, limit_value))


def with_unit(value: float, unit: str) -> str:
    return f"${number_text(value)}" if unit == "$" else f"{number_text(value)} {unit}".strip()


def most_devices() -> int:
    return max(place.devices for place in (request.hardware, *request.options.hardware))


def kept_layouts_text(plan: Plan | None, name: str, limit_value: float | None) -> str:
    """Return how many splits keep the limit and all others, in one line in every state."""
    if session.hardware_is_open():
        return "Layouts are counted once hardware is chosen."
    if plan is None:
        return "Not counted: the request has no answer."
    if not is_known(plan, name):
        return "Unknown for every layout, so none keeps a limit on it."
    running, n = int(plan.runs.sum()), count_keeping(plan, name, limit_value)
    if limit_value is None:
        return f"{layouts_text(n)} without this limit"
    return f"{n:,} of {layouts_text(running)} keep{'s' if n == 1 else ''} it"


def layouts_text(n: int) -> str:
    return f"{n:,} layout" if n == 1 else f"{n:,} layouts"


def limit_title(limit: Limit) -> str:
    """The metric, the direction of its limit, and the unit."""
    unit = f" ({limit.unit.symbol})" if limit.unit.symbol else ""
    return f"{limit.metric.title}, {limit.direction}{unit}"


def draw_limits(plan: Plan | None) -> None:
    """The other limits with how many layouts keep each, and what times and accuracy are of."""
    if not training:
        asking.draw_percentile()
        common.edit(
            st.selectbox,
            "Accuracy is of",
            "objective.accuracy_of",
            options=asking.JUDGED_ON,
            width=250,
        )
    with numbers.group_boxes("limits"), st.grid(2, min_column_width=250):
        for name, metric in METRICS.items():
            if metric.limit and metric.limit not in panel.FIRST_LIMITS[training]:
                draw_limit(plan, name)


widgets.draw_page_head("Traffic and limits")
traffic_column, limits_column = st.columns(2, gap="large")
with traffic_column:
    panel.draw_load()
    st.caption(common.escape(f"{lengths_text(session.asked().workload)}."))
    with st.expander("Lengths and more", key="more-traffic", icon=":material/tune:"):
        panel.draw_lengths()
        if training:
            training_details()
            whole.whole_run()
        else:
            asking.media()
            serving_details()
with limits_column:
    # what is drawn while a plan is made must not move what stands below
    with st.container(key="counted"):
        plan = None if session.hardware_is_open() else planned.planned_or_none()
    panel.draw_first_limits()
    st.caption(common.escape(f"{further_goals_text(session.asked())}."))
    with st.expander("More limits", icon=":material/tune:", key="more-limits"):
        panel.draw_further_goals()
        draw_limits(plan)
        if not training:
            st.markdown("**Engines and formats to search**")
            pick_engines()
