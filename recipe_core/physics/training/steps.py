"""Time of a layer, forward and backward, of what goes between ranks, and of the two ends, for one micro-batch on one rank.

Products and attention go through the same roofline as serving's prompts; the backward pass does every product twice (for inputs and for
weights), attention's 2.5 times (flash attention computes its scores again: five products against two, arXiv:2307.08691). A device that
is busy for long runs slower than one that is measured alone (power): ``sustained``. 8-bit products are the device's 16-bit ones at the
ratio of their peaks (training's libraries are others than those that serve), and what goes in is cast first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipe_core.base.arrays import Float, add
from recipe_core.model.spec import Attention, LatentAttention, Layer, LinearAttention, MoeMlp
from recipe_core.physics.network import all_gather_s, dispatch_s, rank_group
from recipe_core.physics.roofline import experts_s, operator_s
from recipe_core.physics.training.activations import BYTES, recomputed_share
from recipe_core.space.training import OFFLOADS, RECOMPUTE, TrainingCases, TrainingSetting

ATTENTION_BACKWARD = 2.5
GRADIENT_BYTES = 4.0
"""Bytes of a gradient of keys and values, which ranks of a sequence add up in fp32."""
OPTIMIZER_BYTES = 30.0
"""Bytes an AdamW step moves for a parameter: gradient, master and both moments in (16), master, moments and the cast parameter out (14)."""
ORTHOGONAL_FLOPS = 30.0
"""Flops of Muon for a parameter and row: five Newton-Schulz steps of three products (Jordan et al., 2024)."""

Parts = dict[str, Float]


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds of one micro-batch by part; the backward pass without what is recomputed."""

    forward: Parts
    backward: Parts

    def scaled(self, by: Float | float) -> Work:
        """The same for ``by`` layers."""
        return Work(
            {k: v * by for k, v in self.forward.items()},
            {k: v * by for k, v in self.backward.items()},
        )

    def plus(self, other: Work) -> Work:
        """Both together."""
        return Work(_sum(self.forward, other.forward), _sum(self.backward, other.backward))


def _sum(a: Parts, b: Parts) -> Parts:
    return {
        name: np.asarray(a.get(name, 0.0) + b.get(name, 0.0), dtype=float) for name in {**a, **b}
    }


def _product(
    setting: TrainingSetting,
    rows: Float,
    inputs: Float | float,
    outputs: Float | float,
    dtype: str | None = None,
) -> Float:
    """A product of ``rows × inputs`` with ``inputs × outputs`` weights, and casting what goes in where it runs in 8 bits."""
    device = setting.cluster.device
    used = dtype or setting.precision
    peaks = device.peak_flops_per_s
    half = "bf16" if "bf16" in peaks else "fp16"
    narrow = used == "fp8" and "fp8" in peaks
    faster = peaks["fp8"].value / peaks[half].value if narrow else 1.0  # type: ignore[index]
    moved = (1.0 if narrow else BYTES) * (inputs * outputs + rows * inputs) + BYTES * rows * outputs
    seconds = operator_s(
        device, "gemm", used if not narrow else half, 2 * rows * inputs * outputs / faster, moved
    ) / setting.pace(used)
    if narrow:
        calibration = setting.calibration
        passes = (
            calibration.quantize_passes_by_operator
            if setting.framework.casts_by_operator
            else calibration.quantize_passes
        )
        cast = passes.value * 1.5 * BYTES * rows * inputs
        seconds = seconds + operator_s(device, "elementwise", half, rows * inputs, cast, 1.0)
    return seconds


def _mixer(setting: TrainingSetting, cases: TrainingCases, rows: Float, a: Attention) -> Parts:
    """Forward seconds of projections and of attention."""
    hidden, device = float(setting.model.hidden), setting.cluster.device
    heads = a.heads / cases.tp
    if isinstance(a, LinearAttention):
        wide = rows * a.state_values / cases.tp
        state = operator_s(
            device, "elementwise", "bf16", 4 * wide, BYTES * 4 * rows * a.in_columns / cases.tp, 4.0
        )
        return {
            "matmul": _product(setting, rows, hidden, a.in_columns / cases.tp)
            + _product(setting, rows, heads * a.v_head_dim, hidden),
            "attention": state,
        }
    if isinstance(a, LatentAttention):
        latent = float(a.kv_lora_rank + a.rope_head_dim + (a.q_lora_rank or 0))
        up = _product(setting, rows, float(a.q_lora_rank or hidden), heads * a.head_dim)
        projected = (
            _product(setting, rows, hidden, latent)
            + up
            + _product(
                setting, rows, float(a.kv_lora_rank), heads * (a.nope_head_dim + a.v_head_dim)
            )
        )
    else:
        kv = np.maximum(a.kv_heads / cases.tp, 1.0) * (a.head_dim + a.v_head_dim)
        projected = _product(setting, rows, hidden, heads * a.head_dim + kv)
    projected = projected + _product(setting, rows, heads * a.v_head_dim, hidden)
    seen = setting.seen(cases.sequence_length, a.window)
    wide = heads * (a.head_dim + a.v_head_dim)
    moved = BYTES * rows * 2 * wide
    if setting.flash:
        scores = operator_s(device, "attention_prefill", "bf16", 2 * rows * seen * wide, moved)
        scores = scores * setting.calibration.attention_slowdown.value / setting.pace("bf16")
        scores = scores * (1 + setting.calibration.ring_slowdown.value * np.log2(cases.cp))
    else:  # all pairs, the masked ones too; scores are written, read for the softmax, written, and read again
        pairs = rows * cases.sequence_length * heads
        scores = operator_s(
            device,
            "gemm",
            "bf16",
            2 * pairs * (a.head_dim + a.v_head_dim),
            moved + 4 * BYTES * pairs,
            4.0,
        )
    return {"matmul": projected, "attention": scores}


def _elementwise(
    setting: TrainingSetting, cases: TrainingCases, rows: Float, layer: Layer
) -> Float:
    """Norms and residuals (cut by sequence parallelism), rotary embedding, activation."""
    hidden, a = setting.model.hidden, layer.attention
    halves = (a is not None) + (layer.mlp is not None)
    values = 5.0 * halves * hidden / cases.norm_share
    if a is not None:
        values = values + 2.0 * (a.heads * a.head_dim + a.kv_heads * a.head_dim) / cases.tp
    if layer.mlp is not None and not isinstance(layer.mlp, MoeMlp):
        values = values + (3.0 if layer.mlp.gated else 2.0) * layer.mlp.intermediate / cases.tp
    moved = setting.framework.elementwise_passes.value * BYTES * rows * values
    return operator_s(setting.cluster.device, "elementwise", "bf16", rows * values, moved, 4.0)


def _experts(
    setting: TrainingSetting, cases: TrainingCases, rows: Float, m: MoeMlp
) -> tuple[Float, Float]:
    """Forward seconds of router, routed and shared experts; and of bringing tokens to them and back (all wait for the fullest rank)."""
    hidden, device = float(setting.model.hidden), setting.cluster.device
    inside = m.expert_hidden(setting.model.hidden)
    share, shared = rows / cases.tp, cases.ep > 1
    here = (
        np.where(shared, share, rows)
        * m.top_k
        * np.where(shared, setting.calibration.imbalance.value, 1.0)
    )
    width = np.where(shared, m.intermediate, m.intermediate / cases.tp)
    weights = m.experts / np.where(shared, cases.ep, 1) * m.matrices * inside * width * BYTES
    moved = BYTES * here * (2 * inside + m.matrices * width)
    seconds = experts_s(
        device,
        setting.precision,
        2 * here * m.matrices * inside * width,
        weights,
        moved,
        np.asarray(here, dtype=float),
    )
    seconds = seconds / setting.pace(setting.precision) + _product(
        setting, rows, hidden, float(m.experts), "bf16"
    )
    if m.shared_intermediate:
        wide = m.shared_intermediate / cases.tp
        seconds = (
            seconds
            + _product(setting, rows, hidden, (m.matrices - 1) * wide)
            + _product(setting, rows, wide, hidden)
        )
    group = rank_group(setting.cluster, cases, cases.ep)
    exchange = 2 * dispatch_s(setting.cluster, group, share, m.top_k, BYTES * inside)
    return seconds, np.where(shared, exchange, 0.0)


def layer_work(setting: TrainingSetting, cases: TrainingCases, layer: Layer) -> Work:
    """One layer on one micro-batch."""
    rows, hidden, cluster = cases.tokens, setting.model.hidden, setting.cluster
    nothing = np.zeros(len(cases))
    forward: Parts = {
        "matmul": nothing,
        "attention": nothing,
        "elementwise": _elementwise(setting, cases, rows, layer),
        "experts": nothing,
    }
    if layer.attention is not None:
        forward |= _mixer(setting, cases, rows, layer.attention)
    exchange = nothing
    if isinstance(layer.mlp, MoeMlp):
        forward["experts"], exchange = _experts(setting, cases, rows, layer.mlp)
    elif layer.mlp is not None:
        width = layer.mlp.intermediate / cases.tp
        product = _product(setting, rows, hidden, (layer.mlp.matrices - 1) * width) + _product(
            setting, rows, width, hidden
        )
        forward["matmul"] = forward["matmul"] + product
    halves = (layer.attention is not None) + (layer.mlp is not None)
    data = BYTES * rows * hidden
    reduce_s = (
        2
        * all_gather_s(cluster, rank_group(setting.cluster, cases, cases.tp), data)
        * setting.framework.tensor_exposed.value
    )
    forward["tensor_parallel"] = np.where(cases.tp > 1, halves * reduce_s, 0.0)
    forward["expert_parallel"] = exchange
    forward["context_parallel"] = _ring(setting, cases, layer, BYTES, forward["attention"])
    trained = 1.0 if setting.frozen else 2.0  # frozen weights have no gradients
    backward = {
        "matmul": trained * forward["matmul"],
        "attention": ATTENTION_BACKWARD * forward["attention"],
        "elementwise": 2 * forward["elementwise"],
        "experts": trained * forward["experts"],
        "tensor_parallel": forward["tensor_parallel"],
        "expert_parallel": exchange,
        "context_parallel": _ring(
            setting, cases, layer, BYTES + GRADIENT_BYTES, ATTENTION_BACKWARD * forward["attention"]
        ),
    }
    return Work(forward, backward)


def _ring(
    setting: TrainingSetting, cases: TrainingCases, layer: Layer, value_bytes: float, hides: Float
) -> Float:
    """Keys and values (backward: their gradients too) that go round the ranks of a sequence, beyond what attention hides.

    Of cp hops' blocks each is computed while the next one travels, so attention hides what fits beside (cp - 1)/cp of it; the last hop has
    nothing beside it (ring attention, arXiv:2310.01889).
    """
    a = layer.attention
    if a is None or isinstance(a, LinearAttention) or not (cases.cp > 1).any():
        return np.zeros(len(cases))
    data = (
        value_bytes
        * cases.tokens
        * cases.cp
        * np.maximum(a.kv_heads / cases.tp, 1.0)
        * (a.head_dim + a.v_head_dim)
    )
    seconds = all_gather_s(
        setting.cluster, rank_group(setting.cluster, cases, cases.cp, cases.tp), data
    )
    hops = np.maximum(cases.cp - 1, 1)
    return np.where(
        cases.cp > 1, np.maximum(seconds - hides * hops / cases.cp, 0.0) + seconds / hops, 0.0
    )


def ends_work(setting: TrainingSetting, cases: TrainingCases) -> tuple[Work, Work]:
    """Looking tokens up, on the first stage; head and loss, on the last."""
    rows, hidden, device = cases.tokens, float(setting.model.hidden), setting.cluster.device
    lookup = operator_s(device, "elementwise", "bf16", 0 * rows, 2 * BYTES * rows * hidden)
    width = setting.model.vocabulary / cases.tp
    head = _product(setting, rows, hidden, width, "bf16")
    loss = operator_s(
        device,
        "elementwise",
        "bf16",
        rows * width,
        0.5 * setting.framework.loss_bytes.value * rows * width,
        3.0,
    )
    trained = 1.0 if setting.frozen else 2.0
    return Work({"embedding": lookup}, {"embedding": lookup}), Work(
        {"head": head, "loss": loss}, {"head": trained * head, "loss": loss}
    )


def recomputed(setting: TrainingSetting, cases: TrainingCases, work: Work) -> Float:
    """Seconds of the forward pass that the backward pass repeats."""
    forward = add(work.forward.values())
    some = setting.framework.selective_recomputes.value * forward
    if not setting.flash:
        some = np.maximum(some, work.forward["attention"])
    return recomputed_share(setting, cases) * np.select(
        [cases.recompute == RECOMPUTE.index("full"), cases.recompute == 1], [forward, some], 0.0
    )


def optimizer_s(setting: TrainingSetting, cases: TrainingCases, trained: Float) -> Float:
    """Seconds of the optimizer on the parameters that a rank updates (``trained``, divided already)."""
    state = setting.optimizer.state_bytes
    moved = trained * (OPTIMIZER_BYTES - 2 * (8 - state))
    seconds = operator_s(setting.cluster.device, "elementwise", "fp32", 12 * trained, moved, 8.0)
    if setting.optimizer.orthogonalizes:
        flops = ORTHOGONAL_FLOPS * setting.model.hidden * trained
        seconds = seconds + operator_s(setting.cluster.device, "gemm", "bf16", flops, moved)
    return np.where(cases.offload > 0, _offloaded_s(setting, cases, trained, moved), seconds)


def _offloaded_s(
    setting: TrainingSetting, cases: TrainingCases, trained: Float, moved: Float
) -> Float:
    """Seconds of an update on the host: gradients down and parameters up, the host's memory, and its disks where states live there.

    Each is one device's share of its node, one after the other (ZeRO-Offload, arXiv:2101.06840, without its delayed update).
    """
    calibration = setting.calibration
    links = (
        (setting.states.reduced + setting.states.gathered)
        * trained
        / calibration.host_link_bytes_per_s.value
    )
    kept = 2 * (setting.states.master + setting.optimizer.state_bytes) * trained  # read and written
    disks = np.where(
        cases.offload == OFFLOADS.index("optimizer-nvme"),
        kept / calibration.nvme_bytes_per_s.value,
        0.0,
    )
    return links + moved / calibration.host_memory_bytes_per_s.value + disks
