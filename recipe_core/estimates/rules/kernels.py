"""Kernels that a setting needs, and what the engine's release answers to them.

Questions are those of ``engines.support``: each kind of attention with the format of its cache,
and each format of the weights. A no refuses; what nobody asked lowers the probability of a start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from recipe_core.engines.spec import Engine
from recipe_core.engines.spec import engine as engine_named
from recipe_core.engines.support import (
    Answer,
    Kind,
    architectures_asked,
    releases_asked,
    support_answer,
)
from recipe_core.estimates.columns.serving import WIDE, Setting
from recipe_core.hardware.cluster import roofline
from recipe_core.models.attention import EncoderAttention, GroupedAttention, LinearAttention
from recipe_core.models.spec import CompressedAttention, LatentAttention, ModelSpec

# Kinds of attention as sentences name them.
ATTENTION = {
    "sparse-mla": "sparse latent attention",
    "compressed": "compressed attention",
    "mla": "latent attention",
    "delta": "gated delta layers",
    "kda": "delta layers with a decay per channel",
    "mamba": "Mamba-2 layers",
    "mamba1": "Mamba-1 layers",
    "conv": "short convolutions",
    "states": "state-space layers of this kind",
    "encoder": "attention of encoders",
    "gqa": "grouped-query attention",
}
# Families of models, by how their model_type begins, for each kind of recurrent layers.
STATES = {
    "delta": ("qwen3_next", "qwen3_5", "intern_s2", "minicpmv4_6"),
    "kda": ("kimi_linear",),
    "mamba": ("nemotron_h", "nemotronh", "granitemoehybrid", "mamba2", "bamba", "falcon_h1"),
    "mamba1": ("falcon_mamba", "jamba", "mamba"),
    "conv": ("lfm2",),
}
# Families whose softmax has a sink: a column of the scores without a token.
SINKS = ("gpt_oss",)
# Formats of ``scripts/engine_support/formats.yaml`` by who wrote a checkpoint ("": anyone) and its
# dtype; of several the one that the engine takes.
FORMS: dict[tuple[str, str], tuple[str, ...]] = {
    ("awq", "int4"): ("awq-g128",),
    ("gptq", "int4"): ("gptq-g128",),
    ("compressed-tensors", "int4"): ("ct-int4-g128",),
    ("compressed-tensors", "int8"): ("ct-int8-w8a8", "ct-int8-w8a16"),
    ("compressed-tensors", "fp8"): ("ct-fp8-channel",),
    ("compressed-tensors", "nvfp4"): ("ct-nvfp4",),
    ("modelopt", "fp8"): ("modelopt-fp8",),
    ("modelopt", "nvfp4"): ("modelopt-nvfp4",),
    ("quark", "mxfp4"): ("quark-mxfp4",),
    ("mxfp4", "mxfp4"): ("mxfp4",),
    ("bitsandbytes", "int4"): ("bitsandbytes-nf4",),
    ("gguf", "int4"): ("gguf-int4",),
    ("gguf", "int8"): ("gguf-int8",),
    ("fp8", "fp8"): ("fp8-tensor",),
    ("", "fp8"): ("fp8-tensor", "ct-fp8-channel"),
    ("", "fp8-block"): ("fp8-block",),
    ("", "int8"): ("ct-int8-w8a8", "ct-int8-w8a16"),
    ("", "int4"): ("awq-g128", "gptq-g128", "ct-int4-g128"),
    ("", "nvfp4"): ("modelopt-nvfp4", "ct-nvfp4"),
    ("", "mxfp4"): ("quark-mxfp4", "mxfp4"),
}
# How the names of a runtime's architectures begin.
VENDORS = {"cuda": ("sm_",), "rocm": ("gfx",), "xpu": ("xe",)}
# Letters of an engine's words that a sentence quotes.
LONGEST_WORDS = 200
# Attention that every engine has had for years: not having been asked about it says little.
PLAIN = ("gqa", "mla", "encoder")
# Time of experts in kernels that no format was tuned for: the middle of 1 and 4.8, which AWQ
# experts on Strix Halo took (kyuz0/amd-strix-halo-vllm-toolboxes#72: 36.0 tokens/s).
GENERIC_TIME = 2.2
# Time of 4-bit weights that are unpacked before every product: read, written and read in 16 bits
# ((0.56 + 2 + 2) / 0.56).
EMULATED_TIME = 8.0
# Standard deviation of the logarithm of such times: an 80 % band of a factor of 2.8 both ways.
UNTUNED_SPREAD = 0.8


@dataclass(frozen=True, slots=True)
class Known:
    """The answers on a setting's kernels.

    ``refused``: sentences of what the engine refuses. ``unknown``: of what is not known and likely
    to matter; ``unasked``: whether some answer is missing, or of another release, without more.
    ``weights``: whether the engine says that it takes the weights, ``cached`` the cache's format
    (None: it does not say). ``emulated`` and ``generic``: phrases of formats for which it has
    kernels in name only, by part.
    """

    refused: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    unasked: bool = False
    weights: bool | None = None
    cached: bool | None = None
    emulated: tuple[tuple[str, str], ...] = ()
    generic: tuple[tuple[str, str], ...] = ()

    @property
    def untuned(self) -> bool:
        """Return whether times rest on kernels that nobody tuned."""
        return bool(self.emulated or self.generic)


def kernel_support_of(setting: Setting) -> Known:
    """Return what the engine's release says of all that a setting needs."""
    device, engine = setting.cluster.device, setting.engine
    kernel_support = _ask_release(
        _kernel_release(engine),
        (device.architecture, device.title),
        *_needs_of(setting),
        setting.model.model_type,
    )
    if device.announced is None:
        return kernel_support
    doubt = f"whether {engine.title} starts on {device.title} is not known (nobody has run one)"
    return replace(kernel_support, unknown=(*kernel_support.unknown, doubt), unasked=True)


def support_by_release(setting: Setting) -> dict[tuple[str, str], Known]:
    """Return what releases of the engine say of what a setting needs, by release and architecture.

    All that were asked, oldest first, and all architectures of the device's vendor; of an engine
    that wraps another the one release that it comes with, under the wrapper's own name. Sentences
    name no release and no device. Empty where the engine was not asked.
    """
    engine, device = setting.engine, setting.cluster.device
    name, own_release = _release_of(engine)
    releases = releases_asked(name)
    if engine.wraps:
        releases = tuple(release for release in releases if release == own_release)
    attention, weights = _needs_of(setting)
    return {
        (engine.version if engine.wraps else release, architecture): _ask_release(
            (name, release, engine.title),
            (architecture, "this device"),
            attention,
            weights,
            setting.model.model_type,
        )
        for release in releases
        for architecture in architectures_asked(name, release)
        if architecture.startswith(VENDORS.get(device.runtime, ("-",)))
    }


def untuned_support(setting: Setting) -> Known:
    """Return the answers on a setting, without kernels that measured runs of the device prove."""
    kernel_support = kernel_support_of(setting)
    status = roofline(setting.cluster.device, "gemm", setting.model.dtype).status
    if kernel_support.untuned and status in ("fitted", "measured"):
        return replace(kernel_support, emulated=(), generic=())
    return kernel_support


def untuned_time(setting: Setting, part: str, dtype: str) -> float:
    """Time of products of a part ("dense", "experts") over that of kernels made for its format.

    1 where the device's rates are fitted to measured runs, whichever kernels these took.
    """
    query = (*_release_of(setting.engine), setting.cluster.device.architecture)
    time = _untuned_time(query, part, _checkpoint_writer(setting), dtype)
    return 1.0 if time == 1.0 or untuned_support(setting).untuned is False else time


@lru_cache(4096)
def _untuned_time(query: tuple[str, str, str], part: str, writer: str, dtype: str) -> float:
    """The same, by what the release answers alone."""
    reply = reply_on_weights(query, part, dtype, writer)
    if reply is None or reply.verdict != "yes":
        return 1.0
    if reply.emulates:
        return EMULATED_TIME
    return GENERIC_TIME if reply.generic else 1.0


def reply_on_weights(
    query: tuple[str, str, str], part: str, dtype: str, writer: str
) -> Answer | None:
    """Return what a release says of weights of a part ("dense", "experts") on an architecture.

    Of several ways to store a format the best answer, and none where all that were asked are
    refused but not all were asked. ``query``: engine, release, architecture.
    """
    replies = [
        support_answer(*query, "weights", f"{part} {form}") for form in _forms(writer, dtype)
    ]
    best = min((reply for reply in replies if reply is not None), key=_reply_rank, default=None)
    return None if best is not None and best.verdict == "no" and None in replies else best


def reply_on_format(engine: Engine, architecture: str, dtype: str, writer: str) -> Answer | None:
    """Return what the engine that has the kernels says of dense weights, at its own release."""
    return reply_on_weights((*_release_of(engine), architecture), "dense", dtype, writer)


def replies_on_cuts(setting: Setting, part: str, dtype: str) -> list[Answer]:
    """Return what the release says of a rank's share that cuts a group of a format; best first."""
    name, release, _ = _kernel_release(setting.engine)
    architecture = setting.cluster.device.architecture
    replies = (
        support_answer(name, release, architecture, "cut", f"{part} {form}")
        for form in _forms(_checkpoint_writer(setting), dtype)
    )
    return sorted((reply for reply in replies if reply is not None), key=_reply_rank)


def _kernel_release(engine: Engine) -> tuple[str, str, str]:
    """The engine that has the kernels, its release, and the engine as a title."""
    name, release = _release_of(engine)
    return name, release, f"{engine.title} {engine.version if engine.wraps else release}"


def _release_of(engine: Engine) -> tuple[str, str]:
    if engine.wraps:
        return engine.wraps, engine.wrapped_version or engine_named(engine.wraps).version
    return engine.name, engine.as_of or engine.version


def _reply_rank(reply: Answer) -> int:
    return ("yes", "unknown", "no").index(reply.verdict) + reply.emulates


def _cache_name(setting: Setting) -> str:
    if setting.kv_dtype in WIDE:
        return "auto"
    return "fp8" if setting.kv_dtype.startswith("fp8") else setting.kv_dtype


def _checkpoint_writer(setting: Setting) -> str:
    """Return who wrote the checkpoint that holds the weights; "" where it is not known."""
    stored = setting.model.quantization
    if stored is None or setting.weight_dtype != stored.dtype:
        return ""
    return stored.scheme.split("/")[0]


def _needs_of(
    setting: Setting,
) -> tuple[tuple[str, ...], tuple[tuple[str, str, str], ...]]:
    """Kinds of attention with their caches, and formats, that the engine needs kernels for."""
    attention, weights = _kernel_needs(setting.model, setting.weight_dtype)
    if not (setting.caches or setting.model.is_encoder):
        attention = ()
    cache_name = _cache_name(setting)
    return tuple(f"{kind} {cache_name}" for kind in attention), weights


def _kernel_needs(
    model: ModelSpec, weight_dtype: str
) -> tuple[tuple[str, ...], tuple[tuple[str, str, str], ...]]:
    """Kinds of attention of a model, and part, format and writer of its quantised matrices."""
    attention = dict.fromkeys(_attention_subjects(model))
    if any(kind == "compressed" for kind in attention):  # asked together with its weights
        return tuple(attention), ()
    weights = dict.fromkeys(_quantised_matrices(model, weight_dtype))
    return tuple(attention), tuple(weights)


def _attention_subjects(model: ModelSpec) -> Iterator[str]:
    """Kinds of attention of a model, with the width of heads where kernels depend on it."""
    sinks = " sinks" if model.model_type.startswith(SINKS) else ""
    for mixer, _ in model.mixers:
        if isinstance(mixer, EncoderAttention):
            yield "encoder 64"
        elif isinstance(mixer, CompressedAttention):
            yield "compressed"
        elif isinstance(mixer, LatentAttention):
            yield "sparse-mla" if mixer.index_heads or mixer.attends else "mla"
        elif isinstance(mixer, LinearAttention):
            yield _state_kind(model.model_type)
        elif isinstance(mixer, GroupedAttention):
            yield f"gqa {mixer.head_dim}{sinks}"


def _state_kind(model_type: str) -> str:
    family = model_type.casefold()
    return next((kind for kind, names in STATES.items() if family.startswith(names)), "states")


def _quantised_matrices(model: ModelSpec, weight_dtype: str) -> Iterator[tuple[str, str, str]]:
    """Part, format and writer of all quantised matrices, loaded in ``weight_dtype``."""
    stored = model.quantization
    is_stored = stored is not None and stored.dtype == weight_dtype
    writer = stored.scheme.split("/")[0] if is_stored and stored is not None else ""
    for role in model.matrix_roles:
        dtype = (
            stored.dtype_of(role, model.dtype) if is_stored and stored is not None else weight_dtype
        )
        if dtype not in WIDE:
            yield "experts" if role == "experts" else "dense", dtype, writer


def _forms(writer: str, dtype: str) -> tuple[str, ...]:
    return FORMS.get((writer, dtype)) or FORMS.get(("", dtype), ())


@lru_cache(4096)
def _ask_release(
    engine: tuple[str, str, str],
    device: tuple[str, str],
    attention: tuple[str, ...],
    weights: tuple[tuple[str, str, str], ...],
    model_type: str,
) -> Known:
    asking = _Asking(*engine, *device)
    asking.whole("build", "code", "")
    asking.whole("model", model_type, f" with {model_type}")
    asking.attention(attention)
    for part, dtype, writer in weights:
        asking.weights(part, dtype, writer)
    return asking.known


def _shorten_quote(words: str) -> str:
    return words if len(words) <= LONGEST_WORDS else f"{words[:LONGEST_WORDS].rstrip()} …"


class _Asking:
    """Questions to one release about one device, and what they add up to."""

    def __init__(self, name: str, release: str, title: str, architecture: str, shown: str) -> None:
        self.asked = name, release, architecture
        self.title, self.shown = title, shown
        self.known = Known()

    def _ask(self, kind: Kind, subject: str) -> Answer | None:
        return support_answer(*self.asked, kind, subject)

    def _add(self, **marks: Any) -> None:
        """Add to sentences and set marks; a refusal stays one."""
        for name, value in marks.items():
            current = getattr(self.known, name)
            if isinstance(current, tuple):
                value = (*current, value)
            elif current is False and name in ("weights", "cached"):
                continue
            self.known = replace(self.known, **{name: value})

    def whole(self, kind: Kind, subject: str, with_model: str) -> None:
        """Ask whether the release starts at all, or with a family of models."""
        reply = self._ask(kind, subject)
        if reply is None or reply.verdict == "yes":
            return
        started = f"{self.title}{with_model} on {self.shown}"
        if reply.verdict == "no":
            self._add(refused=f"{started} does not start (“{_shorten_quote(reply.words)}”)")
        else:
            self._add(unknown=f"whether {started} starts is not known ({reply.words})")

    def attention(self, subjects: Iterable[str]) -> None:
        """Ask about kinds of attention, each with the format of its cache."""
        for subject in subjects:
            kind, width, cache_name = _split_subject(subject)
            mixer_text = f"{ATTENTION[kind]}{width} with {cache_name} on {self.shown}"
            usual = kind in PLAIN and "sinks" not in subject
            reply = self._ask("attention", subject)
            if reply is not None and reply.verdict == "no":
                self._add(
                    refused=(
                        f"{self.title} does not run {mixer_text} (“{_shorten_quote(reply.words)}”)"
                    ),
                    cached=False,
                )
            elif reply is not None and reply.verdict == "yes":
                self._add(cached=True)
                if not reply.from_table:
                    self._add(unasked=True)
            else:
                self._add(unasked=True)
                words = f" ({reply.words})" if reply is not None and reply.words else ""
                if not usual:
                    self._add(unknown=f"whether {self.title} runs {mixer_text} is not known{words}")

    def weights(self, part: str, dtype: str, writer: str) -> None:
        """Ask about a format of dense layers or of experts."""
        reply = reply_on_weights(self.asked, part, dtype, writer)
        if reply is None:
            return
        matrices = "experts" if part == "experts" else "weights"
        format_text = f"{dtype} {matrices}{f' of {writer}' if writer else ''} on {self.shown}"
        if reply.verdict == "no":
            self._add(
                refused=(
                    f"{self.title} does not load {format_text} (“{_shorten_quote(reply.words)}”)"
                ),
                weights=False,
            )
        elif reply.verdict == "unknown" and not reply.from_table:
            self._add(
                unasked=True,
                unknown=f"whether {self.title} loads {format_text} is not known ({reply.words})",
            )
        elif reply.verdict == "unknown" or not reply.from_table:
            self._add(unasked=True)
        if reply.verdict == "yes":
            self._add(weights=True)
            if reply.emulates:
                self._add(emulated=(part, format_text))
            elif reply.generic:
                self._add(generic=(part, format_text))


def _split_subject(subject: str) -> tuple[str, str, str]:
    """Kind, width in words and cache in words of a subject of attention."""
    kind, *rest, cache_name = subject.split(" ")
    width = f" (heads of {rest[0]}{', with sinks' if 'sinks' in rest else ''})" if rest else ""
    return kind, width, "a 16-bit cache" if cache_name == "auto" else f"an {cache_name} cache"
