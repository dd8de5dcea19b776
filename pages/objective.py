import _common as common
import _widgets as widgets
import _workload as asking
import streamlit as st

from recipe_core.base.units import significant
from recipe_core.doors.serve import folders_allowed
from recipe_core.engines.spec import default_engine, engine, engine_names
from recipe_core.hardware.cluster import device
from recipe_core.request.presets import aim_of, aims
from recipe_core.request.schema import describe_field
from recipe_core.search import slos
from recipe_core.search.framework_choices import framework_choices
from recipe_core.search.measures import Measure
from recipe_core.search.plan import Plan

OPTIMIZERS = {
    "adamw": "AdamW",
    "adamw-8bit": "AdamW, 8-bit",
    "adafactor": "Adafactor",
    "muon": "Muon",
    "sgd": "SGD",
}
LIMITED = {
    False: ("tpot", "ttft", "latency", "usd", "usd_hour", "gpus"),
    True: ("wall", "usd_run", "gpus", "usd_hour"),
}
MORE_LIMITED = {False: ("output", "watts", "joules"), True: ("watts", "joules")}
PERCENTILES = {None: "Mean", 50.0: "p50", 90.0: "p90", 95.0: "p95", 99.0: "p99"}
FREE = "no limit"

request = common.request()
workload = request.workload
chip = device(request.hardware.device)
training = common.training()


def serving_details() -> None:
    """How lengths vary, prefix cache hits, and the longest request."""
    exact = workload.mode == "static"
    with st.grid(4, min_column_width=140):
        for field, label in (
            ("input_spread", "Prompt length variation"),
            ("output_spread", "Answer length variation"),
        ):
            common.edit(
                st.number_input,
                label,
                f"workload.{field}",
                optional=True,
                min_value=0.0,
                max_value=1.0,
                step=0.1,
                format="%.2f",
                disabled=exact,
                placeholder="fixed" if exact else "default (±10 %)",
            )
        common.edit(
            st.number_input,
            "Prefix cache hit rate",
            "workload.prefix_hit",
            min_value=0.0,
            max_value=0.99,
            step=0.1,
            format="%.2f",
        )
        common.edit(
            st.number_input,
            "Longest context",
            "workload.max_context",
            optional=True,
            min_value=1,
            max_value=1 << 30,
            step=1024,
            placeholder="as needed",
        )


def training_details() -> None:
    """Framework, optimizer, attention and adapters."""
    choices = framework_choices(request, folders=folders_allowed())
    labels = {choice.name: choice.label for choice in choices}
    common.edit(
        st.selectbox,
        "Framework",
        "candidate.engine",
        read=lambda value: value or "",
        write=lambda name: name or None,
        options=list(labels),
        format_func=labels.get,
        help="Automatic takes the first framework that can launch what is asked.",
    )
    with st.grid(4, min_column_width=140):
        common.edit(
            st.selectbox,
            "Optimizer",
            "workload.optimizer",
            options=list(OPTIMIZERS),
            format_func=lambda name: asking.launched(OPTIMIZERS[name], "optimizers", name),
        )
        common.edit(st.selectbox, "Attention", "workload.attention", options=["flash", "eager"])
        if workload.method in ("lora", "qlora"):
            asking.whole("Adapter rank", "lora_rank", 8)
            asking.optional("Adapter alpha", "lora_alpha", 8.0, "twice the rank", minimum=0.01)
    common.edit(
        st.toggle,
        "Chunked loss",
        "workload.fused_loss",
        read=bool,
    )


def engines() -> None:
    """Engines, cache formats and kinds of splits to evaluate."""
    current = request.options.engines
    able = [name for name in engine_names() if chip.runtime in engine(name).runtimes]
    common.edit(
        st.pills,
        f"Engines (default: {default_engine(chip.runtime).name})",
        "options.engines",
        read=list,
        write=tuple,
        optional=True,
        options=list(dict.fromkeys([*able, *current])),
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
    common.edit(st.toggle, "Include context-parallel decoding (cp)", "options.context_parallel")
    common.edit(
        st.toggle,
        "Include separate prefill pools",
        "options.disaggregated",
    )


def aim() -> None:
    """The main objective."""
    known = aims(request)
    current = aim_of(request)
    weights = [f"objective.weights.{goal}" for goal in request.objective.weights]
    common.choose(
        st.pills,
        "Optimise for",
        "_aim",
        current,
        lambda name: {**known[name].changes, **dict.fromkeys(weights)},
        options=list(known),
        format_func=lambda name: known[name].title,
        required=current is not None,
        wrap=True,
    )
    st.caption(known[current].help if current else "Several goals, weighted as the link states.")


def limit(plan: Plan, name: str) -> None:
    """A slider over round steps; each step shows how many splits keep it."""
    measure = plan.measures[name]
    field = f"objective.limits.{measure.limit}"
    current = getattr(request.objective.limits, measure.limit)
    steps = slos.limit_steps(plan, name, current)
    if not steps.steps:
        st.caption(f"{measure.title}: unknown for every split, so it cannot be limited.")
        return
    options = [FREE, *steps.steps] if measure.more_is_better else [*steps.steps, FREE]
    key = f"_{field}"
    st.session_state[key] = FREE if current is None else float(current)

    def commit() -> None:
        value = st.session_state[key]
        if value == FREE:
            common.apply({field: None})
        else:
            common.apply({field: int(value) if measure.limit == "gpus" else value})

    def label(value: float | str) -> str:
        if value == FREE:
            return FREE
        return f"{limit_text(measure, value)} · {splits(steps.count(value))}"

    st.select_slider(
        limit_title(measure),
        options,
        key=key,
        on_change=commit,
        help=describe_field(field),
        format_func=label,
    )


def splits(n: int) -> str:
    """A count of splits."""
    return f"{n:,} split" if n == 1 else f"{n:,} splits"


def limit_title(measure: Measure) -> str:
    """The measure and the direction of its limit."""
    return f"{measure.title}, at least" if measure.more_is_better else f"{measure.title}, at most"


def limit_text(measure: Measure, value: float) -> str:
    """A limit in the words of its measure."""
    return measure.show(value * measure.limit_factor)


def limits(plan: Plan) -> None:
    """All limits, the usual ones first."""
    if not training:
        common.edit(
            st.segmented_control,
            "Time limits apply to",
            "objective.limits.percentile",
            options=list(PERCENTILES)[1:],
            format_func=lambda value: PERCENTILES.get(value, f"p{significant(value)}"),
            optional=True,
        )
    with st.grid(2, gap="medium"):
        for name in LIMITED[training]:
            with st.container():
                limit(plan, name)
    if MORE_LIMITED[training]:
        with st.expander("More limits", icon=":material/tune:"):
            for name in MORE_LIMITED[training]:
                limit(plan, name)


widgets.head("What matters?")
left, right = st.columns(2, gap="large")
with left:
    st.header("Workload", anchor=False)
    asking.preset()
    if training:
        asking.training_run()
        training_details()
    else:
        asking.serving_load()
        serving_details()
        st.header("Search space", anchor=False)
        engines()
with right:
    st.header("Objective", anchor=False)
    aim()
    plan = common.planned_or_none()
    if plan is not None:
        st.header("Limits", anchor=False)
        st.caption(
            f"Limits come before the objective. {splits(int(plan.runs.sum()))} can run; each step "
            "shows how many of them also meet it and the other limits."
        )
        limits(plan)
