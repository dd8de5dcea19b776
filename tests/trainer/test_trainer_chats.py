"""What of a chat is learned, and how chats and preferences become sequences."""

# ruff: noqa: E402 - torch must be there before the trainer is imported

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.conftest import CONFIG, needs_torch

pytestmark = needs_torch
pytest.importorskip("torch")

from recipe_core.launch.training.corpus import chats, preferences
from recipe_core.trainer.chats import CHATML, Reader
from recipe_core.trainer.data import IGNORED
from recipe_core.trainer.errors import TrainError
from recipe_core.trainer.examples import Chats, Examples, Pairs, best_fit, write_examples
from recipe_core.trainer.tokenizer import get_tokenizer
from recipe_core.trainer.tokens import token_file

TALK = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Is it done?"},
    {"role": "assistant", "content": "Not yet."},
    {"role": "user", "content": "And now?"},
    {"role": "assistant", "content": "Yes."},
]
MARKED = (
    "{% for m in messages %}[{{ m['role'] }}] {% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] }}!{% endgeneration %}{% else %}{{ m['content'] }}{% endif %}\n{% endfor %}"
)
FORGETS = (  # as templates do that leave earlier thoughts out
    "{% for m in messages %}<{{ m['role'] }}>"
    "{% if not loop.last and m['role'] == 'assistant' %}…{% else %}{{ m['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lines(tmp_path_factory.mktemp("data") / "chat.jsonl", chats()[:60])


@pytest.fixture(scope="module")
def tokenizer(data: Path) -> Any:
    return get_tokenizer("data", None, (data,), 512, 256, "chat")


def lines(path: Path, records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def learned(tokenizer: Any, example: list[int]) -> tuple[str, str]:
    """The text of an example with what is not learned left out, and all of it."""
    kept = [token for token in example if token >= 0]
    every = [token if token >= 0 else -1 - token for token in example]
    return tokenizer.decode(kept), tokenizer.decode(every)


def made(tokenizer: Any, template: str, messages: Any) -> list[tuple[str, str]]:
    tokenizer.chat_template = template
    try:
        found = Reader(tokenizer).chat({"messages": messages})
    finally:
        tokenizer.chat_template = CHATML
    return [learned(tokenizer, example) for example in found]


def test_only_answers_and_their_ends_are_learned(tokenizer: Any) -> None:
    assert tokenizer.chat_template == CHATML
    [(kept, every)] = made(tokenizer, CHATML, TALK)
    assert kept == "Not yet.</s>\nYes.</s>\n"
    assert every == tokenizer.apply_chat_template(TALK, tokenize=False)
    assert every.startswith("<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\n")


def test_a_template_that_marks_answers_is_believed(tokenizer: Any) -> None:
    [(kept, every)] = made(tokenizer, MARKED, TALK)
    assert kept == "Not yet.!Yes.!"
    assert every.count("[assistant]") == 2


def test_a_template_that_forgets_makes_an_example_of_each_answer(tokenizer: Any) -> None:
    first, second = made(tokenizer, FORGETS, TALK)
    assert first == (
        "Not yet.",
        "<system>Be short.<user>Is it done?<assistant>Not yet.",
    )
    assert second[0] == "Yes."
    assert second[1].endswith("<assistant>…<user>And now?<assistant>Yes.")


def test_what_follows_the_last_answer_is_left_out(tokenizer: Any) -> None:
    [(kept, every)] = made(tokenizer, CHATML, [*TALK[:3], TALK[3]])
    assert kept == "Not yet.</s>\n"
    assert "And now?" not in every


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"text": "a"}, "line 1 is no chat that can be trained on: 'messages' is missing"),
        ({"messages": []}, "is no list of messages"),
        ({"messages": [{"role": "user", "content": 4}]}, "message 1 has no role and content"),
        ({"messages": [{"role": "user", "content": "a"}]}, "no message has the role assistant"),
    ],
)
def test_a_line_that_is_no_chat_is_named(
    tokenizer: Any, tmp_path: Path, line: Any, said: str
) -> None:
    path = lines(tmp_path / "x.jsonl", [line])
    with pytest.raises(TrainError) as error:
        list(Reader(tokenizer).examples(path, "chat"))
    assert said in str(error.value)
    assert 'A line is {"messages": [' in str(error.value)


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": TALK[:2], "chosen": [TALK[2]], "rejected": [TALK[4]]},
        {"chosen": TALK[:3], "rejected": [*TALK[:2], TALK[4]]},
    ],
    ids=["with a prompt", "with whole chats"],
)
def test_a_preference_learns_the_last_answers_alone(tokenizer: Any, record: Any) -> None:
    good, bad = (learned(tokenizer, each) for each in Reader(tokenizer).preference(record))
    assert (good[0], bad[0]) == ("Not yet.</s>\n", "Yes.</s>\n")
    assert good[1].removesuffix(good[0]) == bad[1].removesuffix(bad[0])


def test_a_preference_may_be_plain_text(tokenizer: Any) -> None:
    record = {"prompt": "Is it done? ", "chosen": "Yes.", "rejected": "No."}
    good, bad = (learned(tokenizer, each) for each in Reader(tokenizer).preference(record))
    assert good == ("Yes.</s>", "Is it done? Yes.</s>")
    assert bad[0] == "No.</s>"


def test_chats_that_share_a_sequence_do_not_see_each_other(tmp_path: Path) -> None:
    """Places begin anew with each; targets are what follows within it, and no more."""
    path = tmp_path / "x.bin"
    write_examples(path, [[-2, -3, 5, 6], [-8, 9], [-4, -4, -4]])
    found = Chats(path, 6, 1, seed=0)
    assert (found.count, found.left_out) == (1, 1)
    [item] = found.item(0)
    assert item.inputs.tolist() == [1, 2, 5, 7, 0, 0]
    assert item.targets.tolist() == [IGNORED, 5, 6, 9, IGNORED, IGNORED]
    assert item.positions is not None
    assert item.positions.tolist() == [0, 1, 2, 0, 0, 1]
    alone = Chats(path, 6, 1, seed=0, packed=False)
    assert [alone.item(place)[0].positions for place in range(alone.count)] == [None, None]


def test_a_chat_has_the_same_loss_wherever_it_stands(tokenizer: Any, data: Path) -> None:
    """Together in sequences, or each alone with padding."""
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    long: dict[str, Any] = CONFIG | {"max_position_embeddings": 384}
    automatic: Any = AutoModelForCausalLM
    model = automatic.from_config(AutoConfig.for_model(**long))
    path = token_file((data,), tokenizer, data.parent / "tokens", "chat")
    totals = []
    for packed in (True, False):
        rows = Chats(path, 384, 1, seed=0, packed=packed)
        total = torch.zeros(())
        for item in (rows.item(place)[0] for place in range(rows.count)):
            places = None if item.positions is None else item.positions[None]
            with torch.no_grad():
                logits = model(item.inputs[None], position_ids=places, use_cache=False).logits[0]
            total += cross_entropy(logits, item.targets, reduction="sum", ignore_index=IGNORED)
        totals.append((rows.count, float(total)))
    assert totals[0][0] < 0.5 * totals[1][0]
    assert totals[0][1] == pytest.approx(totals[1][1], rel=1e-5)


def test_a_long_example_loses_its_end(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    write_examples(path, [[-2, 3, 4, 5, 6], [-2, -3, -4, 5]])
    found = Examples(path, 2)
    assert found.targets(0).tolist() == [3, 4]
    assert [found.learns(number) for number in range(2)] == [True, False]
    with pytest.raises(TrainError, match="no preference has an answer within 2 tokens"):
        Pairs(path, 2, 2, seed=0)


def test_sizes_fill_sequences_best_and_always_alike() -> None:
    rows = best_fit([5, 3, 8, 2, 7, 1, 4], 8)
    assert rows == [[2], [4, 5], [0, 1], [6, 3]]


@pytest.mark.parametrize("kind", ["chat", "preference"])
def test_the_sample_data_of_bundles_are_read_once_and_split_over_replicas(
    tokenizer: Any, tmp_path: Path, kind: str
) -> None:
    records = chats()[:40] if kind == "chat" else preferences()[:40]
    data = lines(tmp_path / "data.jsonl", records)
    path = token_file((data,), tokenizer, tmp_path / "tokens", kind)
    assert path == token_file((data,), tokenizer, tmp_path / "tokens", kind)
    make: Any = Chats if kind == "chat" else Pairs
    whole = make(path, 128, 8, 3).batch(2, 0, 1, 4)
    parts = [item for rank in range(2) for item in make(path, 128, 8, 3).batch(2, rank, 2, 2)]
    assert [item.inputs.tolist() for item in whole] == [item.inputs.tolist() for item in parts]
    assert make(path, 128, 8, 3).learned(2) == sum(
        int((item.targets != IGNORED).sum()) for item in whole
    )
