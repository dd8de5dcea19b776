"""Logits that exist at once, and what a loss in pieces holds beside them.

Whole logits are those of a micro-batch's tokens. In pieces they are those of one piece
(`LossPieces`): a share of the tokens, or a tile of tokens and vocabulary of fixed size. While
pieces run, gradients of hidden states wait for all tokens, and those of a trained head for all
pieces.
"""

from __future__ import annotations

import numpy as np

from recipe_core.base.arrays import Bool, Float
from recipe_core.engines.frameworks import LossPieces
from recipe_core.estimates.columns.training import TrainingCases, TrainingSetting

# Bytes per logit from which a loss is not one compiled kernel: an fp32 copy and its gradient.
FP32_LOSS = 8.0


def in_pieces(setting: TrainingSetting, cases: TrainingCases) -> Bool:
    """Where the loss is made in pieces, one per case."""
    always = setting.framework.pieces.use == "always"
    return np.asarray((cases.fused_loss > 0) | always)


def logits_at_once(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Logits that a rank of the last stage has at once (one per case)."""
    vocabulary = setting.model.vocabulary / cases.tp
    rows, columns = _piece_shape(setting, cases.tokens, vocabulary)
    chunked = in_pieces(setting, cases)
    # each layer of multi-token prediction has logits of its own
    all_logits = (1 + setting.mtp_layers) * cases.tokens * vocabulary
    return np.where(chunked, rows * columns, all_logits)


def _piece_shape(setting: TrainingSetting, tokens: Float, vocabulary: Float) -> tuple[Float, Float]:
    pieces = setting.framework.pieces
    rows = tokens / (pieces.count or 1.0)
    if pieces.as_hidden:
        share = np.ceil(tokens / np.ceil(vocabulary / setting.model.hidden))
        rows = 2.0 ** np.ceil(np.log2(np.maximum(share, 1.0)))
    rows = np.minimum(rows, tokens if pieces.tokens is None else pieces.tokens)
    rows = np.minimum(rows, tokens)
    columns = np.minimum(vocabulary, pieces.vocabulary or np.inf)
    return rows, columns


def logit_bytes(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Bytes of each logit that exists, with its gradient and copies (one per case)."""
    full_bytes, piece_bytes = (
        setting.framework.loss_bytes.value,
        setting.framework.pieces.logit_bytes,
    )
    return np.where(
        in_pieces(setting, cases), full_bytes if piece_bytes is None else piece_bytes, full_bytes
    )


def is_eager(setting: TrainingSetting, cases: TrainingCases) -> Bool:
    """Where fp32 copies of the logits are made one operator after the other, one per case."""
    return np.asarray(logit_bytes(setting, cases) >= FP32_LOSS)


def hidden_gradient_bytes(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Bytes of gradients and copies of hidden states that pieces keep for all tokens, by case."""
    size = setting.framework.pieces.hidden_bytes * setting.model.hidden
    return np.where(in_pieces(setting, cases), size * cases.tokens, 0.0)


def head_gradient_bytes(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Bytes of a rank's gradient of a trained head that pieces add to (one per case)."""
    pieces, model = setting.framework.pieces, setting.model
    size = 0.0 if setting.frozen else pieces.head_bytes * model.vocabulary * model.hidden
    return np.where(in_pieces(setting, cases), size / cases.tp, 0.0)


def head_products(setting: TrainingSetting, cases: TrainingCases) -> Float:
    """Products of the head's size in the backward pass (one per case).

    For the gradients of its inputs and of its weights, if they are trained, and to make the logits
    of a piece again.
    """
    trained = 1.0 if setting.frozen else 2.0
    again = in_pieces(setting, cases) & setting.framework.pieces.repeats_head
    return np.where(again, trained + 1.0, trained)


def pieces_text(pieces: LossPieces) -> str:
    """Says how large the pieces are, for a note."""
    if pieces.count is not None:
        return f"{pieces.count:.0f} chunks"
    if pieces.tokens is not None:
        return f"chunks of {pieces.tokens:,} tokens"
    return "chunks"
