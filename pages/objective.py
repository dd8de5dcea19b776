import common
import streamlit as st

from recipe_core import query
from recipe_core.engines.spec import default_engine, engine, engine_names
from recipe_core.hardware.catalog import device

PRESETS = {
    "Chat": {"mode": "closed", "input_tokens": 1024, "output_tokens": 256, "concurrency": 64, "prefix_hit": 0.0},
    "RAG": {"mode": "closed", "input_tokens": 6144, "output_tokens": 512, "concurrency": 32, "prefix_hit": 0.2},
    "Code": {"mode": "closed", "input_tokens": 3072, "output_tokens": 768, "concurrency": 32, "prefix_hit": 0.5},
    "Batch": {"mode": "offline", "input_tokens": 2048, "output_tokens": 512, "requests": 10_000, "prefix_hit": 0.0},
}
MODES = {"closed": "Closed loop", "open": "Open loop", "static": "Static batch", "offline": "Offline queue"}
MODES_MEAN = {
    "closed": "A fixed number of requests is in flight; each answer brings the next request.",
    "open": "Requests arrive at a rate, whether or not earlier ones are done.",
    "static": "One batch of exact lengths, start to end, as benchmarks run it.",
    "offline": "All requests are queued at once; only the finish matters.",
}
LIMITS = {
    "ttft_ms": ("Time to first token (ms)", 50.0),
    "tpot_ms": ("Time per output token (ms)", 5.0),
    "request_latency_ms": ("Request latency (ms)", 500.0),
    "usd_per_hour": ("Cost ($ per hour)", 1.0),
    "gpus": ("GPUs", 1),
}

workload = common.request().workload
chip = device(common.request().hardware.device)


def choose_preset() -> None:
    """Lengths and load of a preset."""
    name = st.session_state["_preset"]
    if name:
        common.apply({f"workload.{field}": value for field, value in PRESETS[name].items()} | {"workload.max_context": None})


def of_preset() -> str | None:
    """The preset whose numbers the request has now."""
    stated = workload.model_dump()
    return next((name for name, values in PRESETS.items() if all(stated[field] == value for field, value in values.items())), None)


def choose_engines() -> None:
    """The engines to compare; none chosen means the usual one for the device."""
    common.apply({"options.engines": tuple(st.session_state["_engines"])})


common.head("What matters?")
left, right = st.columns(2, gap="large")
with left:
    st.subheader("Workload", anchor=False)
    st.session_state["_preset"] = of_preset()
    st.pills("Start from", list(PRESETS), key="_preset", on_change=choose_preset, help="Fills lengths and load with usual values.")
    common.edit(st.segmented_control, "How requests come", "workload.mode", options=list(MODES), format_func=MODES.get, required=True)
    st.caption(MODES_MEAN[workload.mode])
    load, prompt, answer = st.columns(3)
    with load:
        if workload.mode == "open":
            common.edit(
                st.number_input, "Requests per second", "workload.request_rate", read=float, min_value=0.001, step=0.5, format="%.3f"
            )
        else:
            names = {"closed": "Requests in flight", "static": "Batch size", "offline": "Requests"}
            common.edit(
                st.number_input, names[workload.mode], f"workload.{query.LOAD[workload.mode]}", min_value=1, max_value=1 << 20, step=1
            )
    with prompt:
        common.edit(
            st.number_input,
            "Input tokens",
            "workload.input_tokens",
            min_value=1,
            max_value=1 << 30,
            step=256,
            help="Mean length of a prompt",
        )
    with answer:
        common.edit(
            st.number_input,
            "Output tokens",
            "workload.output_tokens",
            min_value=1,
            max_value=1 << 30,
            step=64,
            help="Mean length of an answer",
        )
    hit, longest = st.columns(2)
    with hit:
        common.edit(
            st.number_input,
            "Prefix cache hits",
            "workload.prefix_hit",
            min_value=0.0,
            max_value=0.99,
            step=0.1,
            format="%.2f",
            help="Share of a prompt's tokens that are already in the cache",
        )
    with longest:
        common.edit(
            st.number_input,
            "Longest context (tokens)",
            "workload.max_context",
            optional=True,
            min_value=1,
            max_value=1 << 30,
            step=1024,
            placeholder="as long as needed",
            help="The longest request that the engine is told to accept; empty: input and output, rounded up",
        )
    st.subheader("What may vary", anchor=False)
    runs = [name for name in engine_names() if chip.runtime in engine(name).runtimes]
    stated = common.request().options.engines
    st.session_state["_engines"] = list(stated)
    st.pills(
        f"Engines (none chosen: {default_engine(chip.runtime).name})",
        list(dict.fromkeys([*runs, *stated])),
        selection_mode="multi",
        key="_engines",
        format_func=lambda name: engine(name).name,
        on_change=choose_engines,
        help="Each chosen engine is judged",
    )
    for field, label, dtypes in (("weight_dtypes", "Weight formats", chip.weight_dtypes), ("kv_dtypes", "Cache formats", chip.kv_dtypes)):
        now = getattr(common.request().options, field)
        common.edit(
            st.pills,
            label,
            f"options.{field}",
            read=list,
            write=tuple,
            options=list(dict.fromkeys(["auto", *dtypes, *now])),
            selection_mode="multi",
            wrap=True,
            help="Each chosen format is judged; auto is the checkpoint's own",
        )
with right:
    st.subheader("Objective", anchor=False)
    common.edit(
        st.pills, "Optimise", "objective.optimize", options=list(common.GOALS), format_func=common.GOALS.get, required=True, wrap=True
    )
    st.caption("Limits come first; empty means no limit. They apply to means.")
    with st.grid(2):
        for name, (label, step) in LIMITS.items():
            common.edit(
                st.number_input,
                label,
                f"objective.limits.{name}",
                read=lambda value, step=step: None if value is None else type(step)(value),
                optional=True,
                min_value=1 if isinstance(step, int) else 0.001,
                step=step,
                format="%d" if isinstance(step, int) else "%.6g",
                placeholder="no limit",
            )
