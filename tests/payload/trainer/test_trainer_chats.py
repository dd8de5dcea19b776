"""What of a chat is learned, and how chats and preferences become sequences."""

# ruff: noqa: E402 - torch must be there before the trainer is imported

import json

import pytest

from tests.fixtures.refusals import refusal
from tests.fixtures.rows import table
from tests.payload.trainer.conftest import CONFIG, needs_torch

pytestmark = needs_torch
torch = pytest.importorskip("torch")

from recipe_core.launch.training.sources import sample_chats, sample_preferences
from recipe_core.payload.trainer.data import IGNORED
from recipe_core.payload.trainer.errors import TrainError
from recipe_core.payload.trainer.examples import Chats, Examples, Pairs, best_fit, write_examples
from recipe_core.payload.trainer.tokens import CHATML, Reader, get_tokenizer, token_file

TALK, MARKED, FORGETS = (table("trainer", name) for name in ("talk", "marked", "forgets"))


def lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return lines(tmp_path_factory.mktemp("data") / "chat.jsonl", sample_chats()[:60])


@pytest.fixture(scope="module")
def tokenizer(data):
    return get_tokenizer("data", None, (data,), 512, 256, "chat")


def learned(tokenizer, example):
    """The text of an example with what is not learned left out, and all of it."""
    kept = [token for token in example if token >= 0]
    every = [token if token >= 0 else -1 - token for token in example]
    return tokenizer.decode(kept), tokenizer.decode(every)


def made(tokenizer, template, messages=TALK):
    tokenizer.chat_template = template
    try:
        found = Reader(tokenizer).chat({"messages": messages})
    finally:
        tokenizer.chat_template = CHATML
    return [learned(tokenizer, example) for example in found]


def test_only_answers_and_their_ends_are_learned(tokenizer):
    assert tokenizer.chat_template == CHATML
    [(kept, every)] = made(tokenizer, CHATML)
    assert kept == "Not yet.</s>\nYes.</s>\n"
    assert every == tokenizer.apply_chat_template(TALK, tokenize=False)
    assert every.startswith("<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\n")
    [(kept, every)] = made(tokenizer, CHATML, TALK[:4])  # what follows the last answer is left out
    assert (kept, "And now?" in every) == ("Not yet.</s>\n", False)
    # a template that marks answers is believed, and one that forgets makes several
    [(kept, every)] = made(tokenizer, MARKED)
    assert (kept, every.count("[assistant]")) == ("Not yet.!Yes.!", 2)
    first, second = made(tokenizer, FORGETS)
    assert first == ("Not yet.", "<system>Be short.<user>Is it done?<assistant>Not yet.")
    assert second[0] == "Yes."
    assert second[1].endswith("<assistant>…<user>And now?<assistant>Yes.")


def test_a_line_that_is_no_chat_is_named(tokenizer, tmp_path):
    for words, line in table("trainer", "wrong_chats"):
        path = lines(tmp_path / "x.jsonl", [line])
        read = Reader(tokenizer).examples(path, "chat")
        error = str(refusal(list, read, kind=TrainError))
        assert words in error
        assert 'A line is {"messages": [' in error


def test_a_preference_learns_the_last_answers_alone(tokenizer):
    """With a prompt, with whole chats, or of plain text."""
    for record in (
        {"prompt": TALK[:2], "chosen": [TALK[2]], "rejected": [TALK[4]]},
        {"chosen": TALK[:3], "rejected": [*TALK[:2], TALK[4]]},
    ):
        good, bad = (learned(tokenizer, each) for each in Reader(tokenizer).preference(record))
        assert (good[0], bad[0]) == ("Not yet.</s>\n", "Yes.</s>\n")
        assert good[1].removesuffix(good[0]) == bad[1].removesuffix(bad[0])
    plain = {"prompt": "Is it done? ", "chosen": "Yes.", "rejected": "No."}
    good, bad = (learned(tokenizer, each) for each in Reader(tokenizer).preference(plain))
    assert good == ("Yes.</s>", "Is it done? Yes.</s>")
    assert bad[0] == "No.</s>"


def test_chats_that_share_a_sequence_do_not_see_each_other(tmp_path):
    """Places begin anew with each; targets are what follows within it, and no more."""
    path = tmp_path / "x.bin"
    write_examples(path, [[-2, -3, 5, 6], [-8, 9], [-4, -4, -4]])
    found = Chats(path, 6, 1, seed=0)
    assert (found.count, found.left_out) == (1, 1)
    [item] = found.item(0)
    assert item.inputs.tolist() == [1, 2, 5, 7, 0, 0]
    assert item.targets.tolist() == [IGNORED, 5, 6, 9, IGNORED, IGNORED]
    assert item.positions.tolist() == [0, 1, 2, 0, 0, 1]
    alone = Chats(path, 6, 1, seed=0, packed=False)
    assert [alone.item(place)[0].positions for place in range(alone.count)] == [None, None]
    assert best_fit([5, 3, 8, 2, 7, 1, 4], 8) == [[2], [4, 5], [0, 1], [6, 3]]
    # a long example loses its end
    path = tmp_path / "long.bin"
    write_examples(path, [[-2, 3, 4, 5, 6], [-2, -3, -4, 5]])
    found = Examples(path, 2)
    assert found.targets(0).tolist() == [3, 4]
    assert [found.learns(number) for number in range(2)] == [True, False]
    with pytest.raises(TrainError, match="no preference has an answer within 2 tokens"):
        Pairs(path, 2, 2, seed=0)


def test_a_chat_has_the_same_loss_wherever_it_stands(tokenizer, data):
    """Together in sequences, or each alone with padding."""
    from torch.nn.functional import cross_entropy
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(**CONFIG | {"max_position_embeddings": 384})
    model = AutoModelForCausalLM.from_config(config)
    path = token_file((data,), tokenizer, data.parent / "tokens", "chat")
    counts, losses = [], []
    for packed in (True, False):
        rows = Chats(path, 384, 1, seed=0, packed=packed)
        total = torch.zeros(())
        for item in (rows.item(place)[0] for place in range(rows.count)):
            places = None if item.positions is None else item.positions[None]
            with torch.no_grad():
                logits = model(item.inputs[None], position_ids=places, use_cache=False).logits[0]
            total += cross_entropy(logits, item.targets, reduction="sum", ignore_index=IGNORED)
        counts.append(rows.count)
        losses.append(float(total))
    assert counts[0] < 0.5 * counts[1]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("kind", ["chat", "preference"])
def test_the_sample_data_of_bundles_are_read_once_and_split_over_replicas(
    tokenizer, tmp_path, kind
):
    records, make = {"chat": (sample_chats, Chats), "preference": (sample_preferences, Pairs)}[kind]
    data = lines(tmp_path / "data.jsonl", records()[:40])
    path = token_file((data,), tokenizer, tmp_path / "tokens", kind)
    assert path == token_file((data,), tokenizer, tmp_path / "tokens", kind)
    found = make(path, 128, 8, 3)
    whole = found.batch(2, 0, 1, 4)
    parts = [item for rank in range(2) for item in make(path, 128, 8, 3).batch(2, rank, 2, 2)]
    assert [item.inputs.tolist() for item in whole] == [item.inputs.tolist() for item in parts]
    assert found.learned(2) == sum(int((item.targets != IGNORED).sum()) for item in whole)
