"""Ask a deployment for completions whose outputs are compared: text, tokens, log-probabilities."""

from __future__ import annotations

import http.client
import json
import math
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from recipe_core.base.documents import parse_json
from recipe_core.base.errors import RecipeError
from recipe_core.calibration.trials.deployment import Deployment, TrialError
from recipe_core.engines.trials import Reproducibility
from recipe_core.payload.launcher.api import api_headers, refusal
from recipe_core.payload.launcher.load import Prompts

TIMEOUT_S = 600.0
# Bytes of an answer that are read at most.
MOST_BYTES = 16 << 20
# Words of the prompts, in turns: short and long ones take different kernels.
LENGTHS = (8, 24, 64, 160)
_WORD = re.compile(r"\s*\S+")


@dataclass(frozen=True, slots=True)
class Answer:
    """One completion.

    ``tokens``: the engine's own where ``exact``, else the words of its text. ``logprobs``: natural
    logarithms of the tokens' probabilities, ``top`` those of the likeliest alternatives by token;
    both empty where the engine tells none.
    """

    text: str
    tokens: tuple[str, ...]
    exact: bool
    logprobs: tuple[float | None, ...] = ()
    top: tuple[Mapping[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Questions:
    """Prompts with a seed each, and how many tokens are asked for."""

    prompts: tuple[str, ...]
    tokens: int

    @classmethod
    def of(cls, count: int, tokens: int, longest_words: int) -> Questions:
        """``count`` prompts of common words, the same in every run, of lengths in turns."""
        lengths = [min(words, max(longest_words, 1)) for words in LENGTHS]
        texts = (Prompts(lengths[i % len(lengths)], seed=7).text(i) for i in range(count))
        return cls(tuple(texts), tokens)


@dataclass(frozen=True, slots=True)
class Asker:
    """Asks a running deployment as its engine can be asked."""

    deployment: Deployment
    engine: Reproducibility

    def greedy(self, questions: Questions, at_once: int = 1) -> list[Answer]:
        return self._ask(questions, self.engine.greedy, at_once)

    def sampled(self, questions: Questions, at_once: int = 1) -> list[Answer]:
        return self._ask(questions, self.engine.sampled, at_once, seeded=True)

    def read(self, questions: Questions) -> list[Answer]:
        """The prompts themselves as the model reads them: their tokens' log-probabilities.

        Empty where the engine does not tell.
        """
        if not (self.engine.echo and self.engine.most_logprobs):
            return []
        return self._ask(
            Questions(questions.prompts, 1), {**self.engine.greedy, "echo": True}, at_once=1
        )

    def _ask(
        self, questions: Questions, fields: Mapping[str, Any], at_once: int, seeded: bool = False
    ) -> list[Answer]:
        bodies = [
            self._body(prompt, questions.tokens, {**fields, **({"seed": seed} if seeded else {})})
            for seed, prompt in enumerate(questions.prompts, 1)
        ]
        send = partial(_request_completion, self.deployment)
        if at_once <= 1:
            return [send(body) for body in bodies]
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(send, bodies))

    def _body(self, prompt: str, tokens: int, fields: Mapping[str, Any]) -> dict[str, Any]:
        """A request: the recipe's own fields over the plain ones, and what is compared over all."""
        api, engine = self.deployment.api, self.engine
        question: dict[str, Any] = {"prompt": prompt}
        if api.path.endswith("/chat/completions"):
            question = {"messages": [{"role": "user", "content": prompt}]}
        plain = {"model": api.model, **question, "max_tokens": tokens, "stream": False}
        logprobs = {"logprobs": engine.most_logprobs} if engine.most_logprobs else {}
        body = {**plain, **api.body, **logprobs, **engine.ids, **fields}
        return {
            name: value
            for name, value in body.items()
            if value is not None and name not in engine.refuses
        }


def _request_completion(deployment: Deployment, body: Mapping[str, Any]) -> Answer:
    environment = {**os.environ, **deployment.key}
    connection = http.client.HTTPConnection(deployment.host, deployment.port, timeout=TIMEOUT_S)
    try:
        connection.request(
            "POST",
            deployment.api.path,
            json.dumps(body).encode(),
            {"Content-Type": "application/json", **api_headers(deployment.api, environment)},
        )
        response = connection.getresponse()
        data = response.read(MOST_BYTES + 1)
    except (OSError, http.client.HTTPException) as error:
        raise TrialError(f"a request failed: {type(error).__name__}: {error}.") from None
    finally:
        connection.close()
    text = data.decode("utf-8", errors="replace")
    if response.status != 200 or len(data) > MOST_BYTES:
        refused = refusal(deployment.api, response.status, text[:300], environment)
        raise TrialError(f"the server answered {refused.message}.", hint=refused.hint)
    try:
        return read_answer(parse_json(text, "the server's answer"))
    except RecipeError as error:
        raise TrialError(f"the server's answer cannot be read: {error.message}") from None


def read_answer(value: Any) -> Answer:
    """A completion (or chat completion) as an OpenAI-compatible server answers it.

    Raises:
        TrialError: for what is none.
    """
    try:
        choice = value["choices"][0]
        text = choice.get("text")
        text = str(choice["message"]["content"] or "") if text is None else str(text)
    except (KeyError, IndexError, TypeError, AttributeError):
        raise TrialError("the server answered no completion.") from None
    report = choice.get("logprobs")
    columns: Mapping[str, Any] = report if isinstance(report, Mapping) else {}
    tokens, ids = columns.get("tokens") or (), choice.get("token_ids") or ()
    names = ids if ids and len(tokens) in (0, len(ids)) else tokens
    if not names:
        return Answer(text, tuple(_WORD.findall(text)), exact=False)
    logprobs = columns.get("token_logprobs") or ()
    if not tokens or len(logprobs) != len(names):
        return Answer(text, tuple(map(str, names)), exact=True)
    top = tuple(map(_parse_top_logprobs, columns.get("top_logprobs") or ()))
    return Answer(text, tuple(map(str, names)), True, tuple(map(_finite_logprob, logprobs)), top)


def _parse_top_logprobs(value: Any) -> dict[str, float]:
    items = value.items() if isinstance(value, Mapping) else ()
    pairs = ((str(token), _finite_logprob(logprob)) for token, logprob in items)
    return {token: logprob for token, logprob in pairs if logprob is not None}


def _finite_logprob(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
