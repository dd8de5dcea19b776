"""Meanings of an engine's options for a candidate: degrees, number formats and limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ValidationError

from recipe_core.base.documents import parse_json
from recipe_core.base.errors import InputError
from recipe_core.base.problems import first_problem
from recipe_core.base.types import Task
from recipe_core.commands.arguments import Arguments, Finding, Level
from recipe_core.commands.kv_offload import requested_offload
from recipe_core.engines.grammar import grammars
from recipe_core.engines.options import OPTIONS, USUAL, Meaning
from recipe_core.engines.spec import engine
from recipe_core.estimates.rules.own_options import uncounted_sentence
from recipe_core.models.config.fields import MAX_CONTEXT
from recipe_core.models.spec import ModelSpec
from recipe_core.models.towers import MODALITIES, THROUGH, Modality
from recipe_core.request.candidate import CandidateRequest

_AS_STATED = ("cp", *(option.name for option in OPTIONS))


@dataclass(slots=True)
class Meant:
    """A command's candidate (fields that it leaves open are missing), and what else it says.

    ``max_context``: tokens of the longest request, "auto" for as many as fit, None for the model's
    own. ``config``: fields of the model's config that are replaced. ``draft``: tokens drafted per
    step and how, where decoding is speculative. ``stored``: the quantisation that the command
    names, and who may have written quantised weights that it loads. ``attention_dp``: whether
    attention is data-parallel within the tensor-parallel ranks. ``usual``: fields that it
    leaves at the engine's default. ``task``: what the server is started for, where it is said;
    ``embed`` stands for scores too where the model is made for these. ``without``: modalities whose
    towers it does not load. ``whole_encoders``: whether each rank holds the others whole.
    ``unstated``: degrees that it does not state, which are 1. ``left_to_engine``: options that the
    engine fits to the memory. ``kv_offload``: the tiers below the devices' cache that it asks for.
    ``own_options``: values by option that may change an estimate besides the split.
    """

    engine: str
    model: str | None = None
    candidate: dict[str, Any] = field(default_factory=dict)
    max_context: int | Literal["auto"] | None = None
    nodes: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    draft: dict[str, Any] | None = None
    stored: tuple[str, tuple[str, ...]] | None = None
    attention_dp: bool = False
    usual: dict[str, float] = field(default_factory=dict)
    unstated: tuple[str, ...] = ()
    left_to_engine: tuple[str, ...] = ()
    chunked: bool = True
    task: Task | None = None
    shares_experts: bool = False
    balanced: bool = False
    without: tuple[Modality, ...] = ()
    whole_encoders: bool = False
    kv_offload: dict[str, Any] | None = None
    own_options: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def say(
        self, level: Level, code: str, option: str | None, message: str, hint: str | None = None
    ) -> None:
        self.findings.append(Finding(level, code, option, message, hint))

    @property
    def devices(self) -> int | None:
        """Devices that the split uses; None where a degree is left open."""
        tp, pp, dp = (self.candidate.get(name) for name in ("tp", "pp", "dp"))
        return tp * pp * dp if tp and pp and dp else None


def meaning_of(arguments: Arguments, env: Mapping[str, str] | None = None) -> Meant:
    return _Reading(arguments, env or {}).meant()


class _Reading:
    def __init__(self, arguments: Arguments, env: Mapping[str, str]) -> None:
        self.arguments, self.grammar = arguments, grammars()[arguments.engine]
        self.env = env
        self.by_meaning = self._by_meaning()
        self.out = Meant(arguments.engine)
        self.ranks = 1  # of data-parallel attention within tp

    def _by_meaning(self) -> dict[Meaning, str]:
        """The option with each meaning: of several the first that the command states."""
        values = {**self.arguments.values, **self.arguments.open}
        out: dict[Meaning, str] = {}
        for name, meaning in self.grammar.means.items():
            if meaning not in out or (name in values and out[meaning] not in values):
                out[meaning] = name
        return out

    def meant(self) -> Meant:
        out = self.out
        out.model = self._model()
        self._degrees()
        for meaning in _AS_STATED:
            self._set(meaning, self._limit(meaning))
        out.usual = {
            name: usual
            for name, usual in USUAL.items()
            if name in self.by_meaning and self._value(name) is None and not self._is_open(name)
        }
        self._dtypes()
        out.left_to_engine = self._left_to_engine()
        out.max_context = self._context()
        self._slots()
        out.nodes = self._value("nodes")
        out.chunked = self._value("chunked_prefill") is not False
        out.task = self._value("converted") or self._value("task")
        out.balanced = bool(self._value("balanced_experts"))
        out.config = self._config()
        out.draft = self._draft()
        out.without = self._without()
        out.whole_encoders = self._value("encoder_mode") == "data"
        if self._value("eager"):
            out.candidate["eager"] = True
        self._unmodelled()
        return out

    def _flag(self, meaning: Meaning) -> str:
        return self._flag_of(self.by_meaning[meaning])

    def _flag_of(self, name: str) -> str:
        """The flag of an option; one that the release lacks as the pinned one has it."""
        tables = self.arguments.judged.table, engine(self.arguments.engine).options
        return next(table.by_name[name].flag for table in tables if name in table.by_name)

    def _value(self, meaning: Meaning) -> Any:
        """The value of the option with a meaning, in this project's words; None for none."""
        name = self.by_meaning.get(meaning)
        value = self.arguments.values.get(name) if name else None
        words = self.grammar.words.get(name or "")
        if value is None or words is None:
            return value
        if value in words:
            return words[value]
        flag = self._flag(meaning)
        self.out.say("note", "unmodelled", flag, f"{flag} {value} is not in the estimate.")
        return None

    def _context(self) -> int | Literal["auto"] | None:
        context = self._value("max_context")
        if context in ("auto", -1) or self.by_meaning.get("max_context") in self.out.left_to_engine:
            return "auto"
        if isinstance(context, int) and not 0 < context <= MAX_CONTEXT:
            flag = self._flag("max_context")
            message = f"{flag} {context} is not a number of tokens."
            self.out.say("error", "range", flag, message)
            return None
        return context if isinstance(context, int) else None

    def _left_to_engine(self) -> tuple[str, ...]:
        automatic, values = self.grammar.automatic, self.arguments.values
        if automatic is None:
            return ()
        return tuple(name for name in automatic.options if automatic.leaves(name, values))

    def _slots(self) -> None:
        """Places for requests that share the tokens of the context."""
        slots, values = self.grammar.slots, self.arguments.values
        if slots is None or slots.count in self.arguments.open:
            return
        count = values.get(slots.count)
        if not isinstance(count, int) or count < 1:
            self.out.candidate["max_num_seqs"] = slots.usual
        elif isinstance(self.out.max_context, int) and not values.get(slots.shared):
            self.out.max_context = max(self.out.max_context // count, 1)

    def _limit(self, meaning: Meaning) -> Any:
        """A value as it stands; ranks of data-parallel attention divide limits that they share."""
        value = self._value(meaning)
        if meaning == "max_batched_tokens" and value == -1:
            flag = self._flag(meaning)
            message = f"{flag} -1 (prompts in one piece) is not in the estimate."
            self.out.say("note", "unmodelled", flag, message)
            return None
        shared = self.ranks > 1 and meaning in ("max_num_seqs", "max_batched_tokens")
        if shared and isinstance(value, int) and value > 0:
            return max(value // self.ranks, 1)
        return value

    def _is_open(self, meaning: Meaning) -> bool:
        return self.by_meaning.get(meaning) in self.arguments.open

    def _model(self) -> str | None:
        model = self._value("model")
        words = self.arguments.positional
        stray = words if model is not None else words[1:]
        for word in stray[:8]:
            message = f"the word {word[:80]!r} belongs to no option."
            self.out.say(self.arguments.refusal, "stray", None, message)
        if model is None and self._is_open("model"):
            return self.arguments.open[self.by_meaning["model"]]
        if model is None and words:
            model = words[0]
        return model if isinstance(model, str) else None

    def _set(self, field_name: str, value: Any) -> None:
        """Set a field of the candidate, unless its value is one that the field cannot have."""
        if value is None:
            return
        try:
            CandidateRequest.model_validate({field_name: value})
        except ValidationError as error:
            flag = self._flag(field_name) if field_name in self.by_meaning else field_name
            why = first_problem(error).message
            self.out.say("error", "range", flag, f"{flag} {value}: {why}.")
            return
        self.out.candidate[field_name] = value

    def _degrees(self) -> None:
        """Degrees that are not given are 1; those left open are chosen."""
        for meaning in ("tp", "pp", "dp"):
            if not self._is_open(meaning):
                degree = _degree(self._value(meaning))
                if degree is None:
                    self.out.unstated = (*self.out.unstated, meaning)
                self._set(meaning, 1 if degree is None else degree)
        self._attention_dp()
        tp, dp = self.out.candidate.get("tp"), self.out.candidate.get("dp")
        self.out.shares_experts = bool(self._value("all_experts"))
        if self.out.shares_experts:
            if tp and dp:
                self.out.candidate["ep"] = tp * dp
        elif not self._is_open("ep"):
            self._set("ep", self._value("ep") or 1)
            self.out.shares_experts = self.out.candidate.get("ep", 1) > 1

    def _attention_dp(self) -> None:
        """SGLang counts ranks of data-parallel attention within tp; here tp is that of one rank."""
        candidate = self.out.candidate
        ranks = self._value("attention_dp") or 1
        if self._value("attention_dp_switch") and ranks == 1:
            ranks = candidate.pop("dp", 1)
            candidate["dp"] = 1
        tp = candidate.get("tp")
        if ranks <= 1 or tp is None:
            return
        flag = self._flag("attention_dp")
        if candidate.get("dp", 1) > 1:
            message = f"{flag} {ranks} does not go with {self._flag('dp')} {candidate['dp']}."
            self.out.say("error", "attention-dp", flag, message)
        elif tp % ranks:
            message = f"{ranks} ranks of data-parallel attention are not a divisor of"
            self.out.say("error", "attention-dp", flag, f"{message} {self._flag('tp')} {tp}.")
        else:
            candidate |= {"tp": tp // ranks, "dp": ranks}
            self.out.attention_dp, self.ranks = True, ranks

    def _dtypes(self) -> None:
        quantization = self._value("quantization")
        if quantization is not None:
            word = str(self.arguments.values[self.by_meaning["quantization"]])
            online = isinstance(quantization, str)
            self.out.stored = word, (word,) if online else tuple(quantization)
            self._set("weight_dtype", quantization if online else None)
        elif (dtype := self._value("dtype")) not in (None, "auto"):
            self._set("weight_dtype", dtype)
        self._set("kv_dtype", self._value("kv_dtype"))

    def _config(self) -> dict[str, Any]:
        value = self._value("config")
        if isinstance(value, str):
            try:
                value = parse_json(value)
            except InputError:
                flag = self._flag("config")
                message = f"{flag} is not JSON and is ignored."
                self.out.say("note", "unmodelled", flag, message)
        return value if isinstance(value, dict) else {}

    def _draft(self) -> dict[str, Any] | None:
        """Tokens drafted per step, method and checkpoint, from one JSON option or several."""
        value = self._value("speculative")
        config = value if isinstance(value, Mapping) else {}
        tokens = config.get("num_speculative_tokens", self._value("draft_tokens"))
        by_option = self.arguments.values.get(self.by_meaning.get("draft_method", ""))
        method = config.get("method") or by_option
        if tokens is None and method is None:
            return None
        words = self.grammar.words.get("draft_method", {})
        draft = {"tokens": tokens, "method": words.get(str(method).casefold())}
        if model := config.get("model") or self._value("draft_model"):
            draft["model"] = str(model)
        return draft

    def _without(self) -> tuple[Modality, ...]:
        """Modalities whose tower is not loaded: of a limit of 0 for all that goes through it."""
        if self._value("text_only"):
            return MODALITIES
        limits = self._value("media_limits")
        if not isinstance(limits, Mapping):
            return ()
        counts = {
            name: limit.get("count", 1) if isinstance(limit, Mapping) else limit
            for name, limit in limits.items()
        }
        return tuple(
            modality
            for modality in MODALITIES
            if all(counts.get(name) in (0, "0") for name in THROUGH[modality])
        )

    def _unmodelled(self) -> None:
        values = self.arguments.values
        self.out.kv_offload, modelled = requested_offload(self.grammar.offload, values, self.env)
        self.out.own_options = {
            name: value for name, value in values.items() if name not in modelled
        }
        for name, value in self.out.own_options.items():
            row = self.grammar.unmodelled.get(name)
            if row is not None and str(value) not in row.unless:
                flag = self._flag_of(name)
                self.out.say("note", "unmodelled", flag, uncounted_sentence(flag, row))
        for name, row in self.grammar.variables.items():
            if name in self.env and self.env[name] not in row.unless:
                self.out.say(
                    "note", "unmodelled", name, uncounted_sentence(f"{name}={self.env[name]}", row)
                )


def _degree(value: Any) -> Any:
    """A degree that an option states, also as the shares of its devices (``3,1``); else None."""
    if not isinstance(value, str):
        return value
    shares = [share for share in value.split(",") if share.strip(" 0.")]
    return len(shares) if value.replace(",", "").replace(".", "").strip().isdecimal() else None


def settle(meant: Meant, model: ModelSpec, env: Mapping[str, str]) -> None:
    """Settle what depends on the model: formats its checkpoint decides, cut experts, context."""
    candidate = meant.candidate
    _settle_weights(meant, model)
    candidate |= meant.usual
    tp, dp, ep = (candidate.get(name) for name in ("tp", "dp", "ep"))
    together = meant.attention_dp or engine(meant.engine).split.data_parallel == "engine"
    if together and model.is_moe and tp and dp and dp > 1 and ep == 1:
        candidate["ep"] = tp * dp
        message = f"experts are cut over all {tp * dp} ranks; the estimate shares them"
        meant.say("note", "cut-experts", None, f"{message} (ep {tp * dp}).")
    if meant.max_context is None or meant.max_context == "auto":
        return
    switches = grammars()[meant.engine].longer_context
    allowed = any(env.get(name, "0").casefold() in ("1", "true") for name in switches)
    if allowed and meant.max_context > model.max_context:
        meant.config = {"max_position_embeddings": meant.max_context, **meant.config}
        message = f"requests may be longer than the {model.max_context:,} tokens"
        meant.say("warning", "long-context", None, f"{message} {model.name} was made for.")


def _settle_weights(meant: Meant, model: ModelSpec) -> None:
    """Keep a quantised checkpoint as it is: options name what it holds, or concern activations."""
    if model.quantization is None:
        if meant.stored is not None and meant.candidate.get("weight_dtype") is None:
            message = f"{meant.stored[0]} expects quantised weights"
            stored = f"{model.name} stores {model.weight_dtype}"
            meant.say("error", "checkpoint", None, f"{message}; {stored}.")
        return
    meant.candidate.pop("weight_dtype", None)
    writer = model.quantization.scheme.split("/")[0]
    if meant.stored is not None and writer and writer not in meant.stored[1]:
        weights = f"the {model.weight_dtype} weights of {model.name}, which {writer} wrote"
        message = f"{meant.stored[0]} does not load {weights}."
        meant.say("error", "checkpoint", None, message, "Leave the quantisation out.")


def served_task(meant: Meant, model: ModelSpec) -> Task:
    """Return what a server is for: as its command says, else what the model is made for.

    An engine that makes no text embeds whatever model it gets.
    """
    pooled: Task = "embed" if model.generates else model.task
    if "generate" not in engine(meant.engine).tasks:
        return pooled
    if meant.task is None or (meant.task == "embed" and not model.generates):
        return model.task
    return meant.task
