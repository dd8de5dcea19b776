"""Meanings of an engine's options for a candidate: degrees, number formats and limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ValidationError

from recipe_core.base.documents import parse_json
from recipe_core.base.errors import InputError
from recipe_core.base.problems import first_problem
from recipe_core.base.types import Task
from recipe_core.commands.arguments import Arguments
from recipe_core.commands.findings import Level
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


class Meant:
    """A command's candidate (fields that it leaves open are missing), and what else it says.

    What is wrong with it goes to the findings of its arguments, in the order in which it is read.

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

    def __init__(self, arguments: Arguments, env: Mapping[str, str] | None = None) -> None:
        self.engine, self.env, self.findings = arguments.engine, env or {}, arguments.findings
        self.arguments, self.grammar = arguments, grammars()[arguments.engine]
        self.spec = engine(arguments.engine)
        self.by_meaning = self._by_meaning()
        self.candidate: dict[str, Any] = {}
        self.model = self._model()
        self.unstated: list[str] = []
        self.attention_dp = False
        self._read_degrees()
        self.shares_experts = bool(self._value("all_experts"))
        self._read_experts()
        for meaning in _AS_STATED:
            self._set(meaning, self._limit(meaning))
        names = {*arguments.values, *arguments.open}
        self.usual = {
            name: usual
            for name, usual in USUAL.items()
            if name in self.by_meaning and self.by_meaning[name] not in names
        }
        self.stored: tuple[str, tuple[str, ...]] | None = None
        self._read_dtypes()
        automatic, values = self.grammar.automatic, arguments.values
        fitted = automatic.options if automatic else ()
        self.left_to_engine = [n for n in fitted if automatic and automatic.leaves(n, values)]
        self.max_context = self._context()
        self._read_slots()
        self.nodes: int | None = self._value("nodes")
        self.chunked = self._value("chunked_prefill") is not False
        self.task: Task | None = self._value("converted") or self._value("task")
        self.balanced = bool(self._value("balanced_experts"))
        self.config = self._config()
        self.draft = self._draft()
        self.without = self._without()
        self.whole_encoders = self._value("encoder_mode") == "data"
        if self._value("eager"):
            self.candidate["eager"] = True
        self.kv_offload, counted = requested_offload(self.grammar.offload, values, self.env)
        self.own_options = {n: value for n, value in values.items() if n not in counted}
        self._check_uncounted()

    @property
    def devices(self) -> int | None:
        """Devices that the split uses; None where a degree is left open."""
        tp, pp, dp = (self.candidate.get(name) for name in ("tp", "pp", "dp"))
        return tp * pp * dp if tp and pp and dp else None

    def _by_meaning(self) -> dict[Meaning, str]:
        """The option with each meaning: of several the first that the command states."""
        names = {*self.arguments.values, *self.arguments.open}
        out: dict[Meaning, str] = {}
        for name, meaning in self.grammar.means.items():
            if meaning not in out or (name in names and out[meaning] not in names):
                out[meaning] = name
        return out

    def _say(self, level: Level, code: str, meaning: Meaning, message: str) -> None:
        """Say something after the flag with a meaning."""
        flag = self._flag(self.by_meaning[meaning])
        self.findings.say(level, code, f"{flag} {message}", option=flag)

    def _flag(self, name: str) -> str:
        """The flag of an option; one that the release lacks as the pinned one has it."""
        tables = self.arguments.table, self.spec.options
        return next(table.by_name[name].flag for table in tables if name in table.by_name)

    def _value(self, meaning: Meaning) -> Any:
        """The value of the option with a meaning, in this project's words; None for none."""
        name = self.by_meaning.get(meaning, "")
        value, words = self.arguments.values.get(name), self.grammar.words.get(name)
        if value is None or words is None:
            return value
        if value not in words:
            self._say("note", "unmodelled", meaning, f"{value} is not in the estimate.")
        return words.get(value)

    def _is_open(self, meaning: Meaning) -> bool:
        return self.by_meaning.get(meaning) in self.arguments.open

    def _model(self) -> str | None:
        model, words = self._value("model"), self.arguments.positional
        for word in (words if model is not None else words[1:])[:8]:
            message = f"the word {word[:80]!r} belongs to no option."
            self.findings.say(self.arguments.refusal, "stray", message)
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
            name = self.by_meaning.get(field_name)
            flag = self._flag(name) if name else field_name
            message = f"{flag} {value}: {first_problem(error).message}."
            self.findings.say("error", "range", message, option=flag)
        else:
            self.candidate[field_name] = value

    def _read_degrees(self) -> None:
        """Degrees that are not given are 1; those left open are chosen.

        SGLang counts ranks of data-parallel attention within tp; here tp is that of one rank.
        """
        for meaning in ("tp", "pp", "dp"):
            if not self._is_open(meaning):
                degree = _degree(self._value(meaning))
                self.unstated += [meaning] if degree is None else []
                self._set(meaning, 1 if degree is None else degree)
        ranks = self._value("attention_dp") or 1
        if self._value("attention_dp_switch") and ranks == 1:
            ranks = self.candidate.pop("dp", 1)
            self.candidate["dp"] = 1
        tp, dp = self.candidate.get("tp"), self.candidate.get("dp", 1)
        if ranks <= 1 or tp is None:
            return
        if dp > 1:
            message = f"{ranks} does not go with {self._flag(self.by_meaning['dp'])} {dp}."
            self._say("error", "attention-dp", "attention_dp", message)
        elif tp % ranks:
            flag = self._flag(self.by_meaning["attention_dp"])
            message = f"{ranks} ranks of data-parallel attention are not a divisor of"
            message = f"{message} {self._flag(self.by_meaning['tp'])} {tp}."
            self.findings.say("error", "attention-dp", message, option=flag)
        else:
            self.candidate |= {"tp": tp // ranks, "dp": ranks}
            self.attention_dp = True

    def _read_experts(self) -> None:
        tp, dp = self.candidate.get("tp"), self.candidate.get("dp")
        if self.shares_experts:
            if tp and dp:
                self.candidate["ep"] = tp * dp
        elif not self._is_open("ep"):
            self._set("ep", self._value("ep") or 1)
            self.shares_experts = self.candidate.get("ep", 1) > 1

    def _limit(self, meaning: Meaning) -> Any:
        """A value as it stands; ranks of data-parallel attention divide limits that they share."""
        value = self._value(meaning)
        if meaning == "max_batched_tokens" and value == -1:
            message = "-1 (prompts in one piece) is not in the estimate."
            self._say("note", "unmodelled", meaning, message)
            return None
        shared = self.attention_dp and meaning in ("max_num_seqs", "max_batched_tokens")
        if shared and isinstance(value, int) and value > 0:
            return max(value // self.candidate["dp"], 1)
        return value

    def _read_dtypes(self) -> None:
        quantization = self._value("quantization")
        if quantization is not None:
            word = str(self.arguments.values[self.by_meaning["quantization"]])
            online = isinstance(quantization, str)
            self.stored = word, (word,) if online else tuple(quantization)
            self._set("weight_dtype", quantization if online else None)
        elif (dtype := self._value("dtype")) not in (None, "auto"):
            self._set("weight_dtype", dtype)
        self._set("kv_dtype", self._value("kv_dtype"))

    def _context(self) -> int | Literal["auto"] | None:
        context = self._value("max_context")
        if context in ("auto", -1) or self.by_meaning.get("max_context") in self.left_to_engine:
            return "auto"
        if isinstance(context, int) and not 0 < context <= MAX_CONTEXT:
            self._say("error", "range", "max_context", f"{context} is not a number of tokens.")
            return None
        return context if isinstance(context, int) else None

    def _read_slots(self) -> None:
        """Places for requests that share the tokens of the context."""
        slots, values = self.grammar.slots, self.arguments.values
        if slots is None or slots.count in self.arguments.open:
            return
        count = values.get(slots.count)
        if not isinstance(count, int) or count < 1:
            self.candidate["max_num_seqs"] = slots.usual
        elif isinstance(self.max_context, int) and not values.get(slots.shared):
            self.max_context = max(self.max_context // count, 1)

    def _config(self) -> dict[str, Any]:
        value = self._value("config")
        if isinstance(value, str):
            try:
                value = parse_json(value)
            except InputError:
                self._say("note", "unmodelled", "config", "is not JSON and is ignored.")
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

    def _check_uncounted(self) -> None:
        """Say which options and variables are not in the estimate."""
        uncounted = [
            (self._flag(name), self._flag(name), row)
            for name, value in self.own_options.items()
            if (row := self.grammar.unmodelled.get(name)) and str(value) not in row.unless
        ]
        uncounted += [
            (name, f"{name}={self.env[name]}", row)
            for name, row in self.grammar.variables.items()
            if name in self.env and self.env[name] not in row.unless
        ]
        for name, words, row in uncounted:
            message = uncounted_sentence(words, row)
            self.findings.say("note", "unmodelled", message, option=name)

    def settle(self, model: ModelSpec) -> None:
        """Settle what depends on the model: formats, cut experts, context."""
        candidate = self.candidate
        self._settle_weights(model)
        candidate |= self.usual
        tp, dp, ep = (candidate.get(name) for name in ("tp", "dp", "ep"))
        together = self.attention_dp or self.spec.split.data_parallel == "engine"
        if together and model.is_moe and tp and dp and dp > 1 and ep == 1:
            candidate["ep"] = tp * dp
            message = f"experts are cut over all {tp * dp} ranks; the estimate shares them"
            self.findings.say("note", "cut-experts", f"{message} (EP {tp * dp}).")
        if not isinstance(self.max_context, int) or self.max_context <= model.max_context:
            return
        switches = self.grammar.longer_context
        if any(self.env.get(name, "0").casefold() in ("1", "true") for name in switches):
            self.config = {"max_position_embeddings": self.max_context, **self.config}
            message = f"requests may be longer than the {model.max_context:,} tokens"
            self.findings.say("warning", "long-context", f"{message} {model.name} was made for.")

    def _settle_weights(self, model: ModelSpec) -> None:
        """Keep a quantised checkpoint as it is: options name what it holds."""
        if model.quantization is None:
            if self.stored is not None and self.candidate.get("weight_dtype") is None:
                message = f"{self.stored[0]} expects quantised weights"
                message = f"{message}; {model.name} stores {model.weight_dtype}."
                self.findings.say("error", "checkpoint", message)
            return
        self.candidate.pop("weight_dtype", None)
        writer = model.quantization.scheme.split("/")[0]
        if self.stored is not None and writer and writer not in self.stored[1]:
            weights = f"the {model.weight_dtype} weights of {model.name}, which {writer} wrote"
            message = f"{self.stored[0]} does not load {weights}."
            self.findings.say("error", "checkpoint", message, "Leave the quantisation out.")

    def served_task(self, model: ModelSpec) -> Task:
        """Return what a server is for: as its command says, else what the model is made for.

        An engine that makes no text embeds whatever model it gets.
        """
        pooled: Task = "embed" if model.generates else model.task
        if "generate" not in self.spec.tasks:
            return pooled
        if self.task is None or (self.task == "embed" and not model.generates):
            return model.task
        return self.task


def _degree(value: Any) -> Any:
    """A degree that an option states, also as the shares of its devices (``3,1``); else None."""
    if not isinstance(value, str):
        return value
    shares = [share for share in value.split(",") if share.strip(" 0.")]
    return len(shares) if value.replace(",", "").replace(".", "").strip().isdecimal() else None
