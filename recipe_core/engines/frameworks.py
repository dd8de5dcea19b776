"""Training frameworks as data: what they keep and exchange, and the fitted step-time numbers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from recipe_core.base.data_files import DataFile, DataRow
from recipe_core.base.errors import look_up
from recipe_core.base.provenance import Source
from recipe_core.engines.release import Cited
from recipe_core.hardware.profile import Device

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
# A fused attention kernel that a request can name.
AttentionKernel = Literal["flash2", "flash3", "cudnn"]
# A state of the training that lasts from step to step.
State = Literal["parameters", "optimizer", "master"]


class Number(Cited):
    """One number with its provenance; zero is allowed."""

    value: Amount


class KernelRates(Cited):
    """Rates of an attention kernel, of those of FlashAttention-2 on the same architecture."""

    forward: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    backward: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class KernelData(DataRow):
    """A fused attention kernel, with its rates by architecture or generation."""

    title: str
    rates: dict[str, KernelRates]

    def rates_on(self, architecture: str) -> KernelRates | None:
        """Its rates, or None where the kernel does not run or nothing is known of it."""
        return self.rates.get(architecture) or self.rates.get(architecture[:-1])


class States(DataRow):
    """Bytes per parameter of every training state.

    ``parameter`` and ``gradient`` are kept; ``transient``: a 16-bit gradient before it is added to
    ``gradient``; ``master``: a separate copy; ``gathered`` and ``reduced``: what is communicated.

    ``step`` lives only during the optimizer's step (torch's AdamW: a root, unless it is fused).
    """

    parameter: Amount
    gradient: Amount
    transient: Amount
    master: Amount
    gathered: Amount
    reduced: Amount
    step: Amount = 0.0
    source: str


class Experts(DataRow):
    """The work of a framework around the products of routed experts.

    ``exchange`` between ranks that share experts: ``standard`` is torch's all-to-all, ``kernels``
    those made for it. ``row_moves``: times that a routed row is read or written in the forward pass
    (sorted by expert, weighted, summed), and ``exchanged_moves`` more of them with an exchange; the
    backward pass twice as many. ``wait_s``: time of a layer's forward pass in which the device
    stands still, as the host reads the sizes of an exchange. ``grouped``: rate of the grouped
    products by generation, of that of others.
    """

    exchange: Literal["standard", "kernels"]
    row_moves: Number
    exchanged_moves: Number
    wait_s: Number
    grouped: Mapping[str, Number] = {}


class Compiled(DataRow):
    """The effect of compiling a model; ``always``: the framework compiles by itself."""

    always: bool = False
    elementwise_passes: Number | None = None
    launch_s: Number | None = None
    fused_norm: bool = True
    fused_gate: bool = True


class LossPieces(Cited):
    """Logits, loss and their gradients made piece by piece, never whole.

    ``use``: ``always``, there is no other way; ``needed``, where whole logits do not fit;
    ``asked``, where a request says so. A piece has a share 1 / ``count`` of a micro-batch's tokens,
    or at most ``tokens`` of them and ``vocabulary`` of the vocabulary, or, ``as_hidden``, about as
    many logits as the micro-batch has hidden values (Liger: a power of two of tokens).
    ``logit_bytes``: of each logit of a piece; left out, those of whole logits. ``hidden_bytes``: of
    each hidden value of all tokens, its gradient and copies. ``head_bytes``: of each weight of a
    trained head, its gradient while pieces add to it. ``repeats_head``: the backward pass makes the
    logits again.
    """

    use: Literal["asked", "needed", "always"] = "asked"
    count: Annotated[float, Field(ge=1)] | None = None
    tokens: Annotated[int, Field(ge=1)] | None = None
    vocabulary: Annotated[int, Field(ge=1)] | None = None
    as_hidden: bool = False
    logit_bytes: Amount | None = None
    hidden_bytes: Amount = 0.0
    head_bytes: Amount = 0.0
    repeats_head: bool = False


class Framework(DataRow):
    """The memory and the work of one framework in training.

    ``states_fp16``, ``states_fp8``: states in fp16 with loss scaling, and beside products in 8
    bits, where they differ. ``sharding``: ``fsdp`` gathers units layer by layer from shards of
    everything; ``optimizer`` keeps whole parameters up to ZeRO-2 and reduces gradients once a step.
    ``stages``: how layers are dealt to a pipeline (module `stages`). ``fused_in_8_bit``: products
    in 8 bits bring kernels (Transformer Engine's) that keep their inputs in 8 bits and neither fp32
    norms, gathered inputs nor gradients before they are added. ``casts_by_operator``: no kernel
    scales and casts what goes into them at once. ``fused_gate``: a gate's activation and its
    product with up are one kernel, which keeps its inputs only. ``mlp_in_place``: beside frozen
    weights a feed-forward block writes its gradients over what it kept. ``pieces``: how it makes
    the loss in pieces. ``context_exchange``: whether ranks that share a sequence send each other
    keys and values in turn (``ring``), gather all of them and add up what blocks give (``merged``),
    or attend over all that was gathered (``gathered``). ``activations_on_host``: where all layers
    are recomputed, their inputs wait in host memory unless a request says otherwise.
    ``reference_divided``: DPO's frozen model is divided as the trained one is; otherwise it is
    whole on every device while it computes. ``gathered_input_bytes``: what tensor parallelism adds
    to each value of the hidden state that a layer keeps. ``products``: rate of its 16-bit matrix
    products by generation, of that of Transformer Engine's. ``tensor_exposed``: time that
    tensor-parallel traffic adds, of what it takes alone (above 1: slower beside products).
    ``data_overlap``: share of the backward pass (FSDP: of both) that hides data-parallel traffic.
    ``routed_copies``: hidden states kept for each token that an expert gets. ``expert_launch_s``:
    host time of a layer's experts beside ``launch_s``; ``pipeline_launch_s``: of a layer in a
    pipeline, for each rank of tensor parallelism. ``experts``: what it does around their products;
    None where ``expert_launch_s`` and the rates were fitted with it, and the exchange is by kernels
    made for it. ``attention_slowdown`` and ``fragmentation``: its own, where they differ from all
    frameworks'. ``usual_kernel``: fused attention that it runs where none is named, by generation
    or ``any``; ``fitted_kernel``: the one that its ``attention_slowdown`` stands for.
    ``recompute_modules``: what ``selective`` recomputes in a model with experts or latent attention
    (words of `RECOMPUTED`); else ``selective_keeps`` and ``selective_recomputes``: shares of a
    layer's activations and of its forward pass. ``offloads``: states that it can move to the host
    while answers are sampled; ``sync``: how it sends weights to an engine that samples, where it
    does. ``loads_whole``: processes of a node that have the whole model in host memory before it is
    divided (``every``: unless it is frozen, as files are mapped then). ``compiled``: what compiling
    a model changes; None where it cannot be asked for; ``quantized_base``: in which QLoRA has its
    frozen weights (`quantized_bases`).
    """

    title: str
    states: States
    states_fp16: States | None = None
    states_fp8: States | None = None
    sharding: Literal["fsdp", "optimizer"]
    stages: Literal["even", "reserved", "cost"] = "even"
    fused_norm: bool
    fused_gate: bool
    pieces: LossPieces
    activations_on_host: bool = False
    mlp_in_place: bool = False
    reference_divided: bool = True
    fused_in_8_bit: bool
    casts_by_operator: bool
    gathered_input_bytes: Number
    products: Mapping[str, Number] = {}
    elementwise_passes: Number
    launch_s: Number
    tensor_exposed: Number
    data_overlap: Number
    loss_bytes: Number
    routed_copies: Number = Number(value=2.0, source="estimate", status="assumed")
    recompute_modules: tuple[str, ...] = ()
    expert_launch_s: Number = Number(value=0.0, source="estimate", status="assumed")
    pipeline_launch_s: Number = Number(value=0.0, source="estimate", status="assumed")
    experts: Experts | None = None
    attention_slowdown: Number | None = None
    usual_kernel: Mapping[str, AttentionKernel] = {"any": "flash2", "sm_10": "cudnn"}
    fitted_kernel: Mapping[str, AttentionKernel] = {"any": "flash2", "sm_10": "cudnn"}
    context_exchange: Literal["ring", "merged", "gathered"] = "ring"
    sync: WeightSync | None = None
    fragmentation: Number | None = None
    selective_keeps: Number
    selective_recomputes: Number
    offloads: tuple[State, ...] = ("parameters", "optimizer", "master")
    loads_whole: Literal["none", "one", "every"] = "none"
    compiled: Compiled | None = None
    quantized_base: str = "bitsandbytes-nf4"

    def built(self, *, compiled: bool) -> Framework:
        """The framework with a model that torch compiles, where it can, or with one as it is."""
        changes = self.compiled
        if not compiled or changes is None or changes.always:
            return self
        return self.model_copy(
            update={
                "elementwise_passes": changes.elementwise_passes or self.elementwise_passes,
                "launch_s": changes.launch_s or self.launch_s,
                "fused_norm": changes.fused_norm,
                "fused_gate": changes.fused_gate,
                "casts_by_operator": False,
            }
        )

    def kernels_on(self, architecture: str) -> tuple[AttentionKernel, AttentionKernel]:
        """The usual attention kernel on an architecture, and the one that was fitted there."""
        usual, fitted = self.usual_kernel, self.fitted_kernel
        generation = architecture[:-1]
        return usual.get(generation, usual["any"]), fitted.get(generation, fitted["any"])


class WeightSync(DataRow):
    """The way a trainer sends weights to an engine on its devices, whose cache wakes after them.

    ``sleep_level``: vLLM's; 1 keeps its weights in host memory, 2 lets them go. Beside the engine's
    weights a device has ``buffer_bytes`` and the largest tensor at ``bytes_per_value``.
    """

    sleep_level: Literal[1, 2]
    buffer_bytes: Amount
    bytes_per_value: Amount
    source: str


class Spread(DataRow):
    """The least and the most of a number that was seen."""

    low: Number
    high: Number


class Optimizer(DataRow):
    """An optimizer: what it keeps of a parameter, and its work beside reading and writing that.

    ``moments``: running means, each in the format of the master copy or, without one, of the
    parameter; ``moment_bytes``: of each where it is stored in 8 bits with scales. Of embedding and
    head ``table_moments``, where another optimizer trains them; ``wide_embedding``: the embedding's
    are not in 8 bits. ``paged``: its states are in memory that the driver moves to the host while a
    device is full.
    """

    title: str
    moments: Annotated[int, Field(ge=0, le=2)]
    moment_bytes: Amount | None = None
    table_moments: Annotated[int, Field(ge=0, le=2)] | None = None
    wide_embedding: bool = False
    rows_and_columns: bool = False
    orthogonalizes: bool = False
    paged: bool = False
    source: str
    note: str | None = None


class Calibration(DataRow):
    """Fitted and assumed numbers that all frameworks share.

    ``sustained`` is by generation (an architecture without its last digit), else by runtime.
    ``tight``: the share by which a run may exceed the memory and still be accepted, as tight.
    """

    sustained: dict[str, Number]
    sustained_fp8: dict[str, Number]
    quantize_passes: Number
    quantize_passes_by_operator: Number
    quantize_passes_by_recipe: Mapping[str, Number] = {}
    attention_launches: Number
    step_s: Number
    pipeline_exposed: Number
    straggler: Number
    attention_slowdown: Number
    ring_slowdown: Number
    fragmentation: Number
    context_bytes: Number
    communicator_bytes: Number
    reserve_bytes: Number
    imbalance: Number
    router_spread: Number
    exchange_overlap: Number
    exchange_share: Number
    host_link_bytes_per_s: Number
    host_memory_bytes_per_s: Number
    host_buffers: Number
    nvme_bytes_per_s: Number
    tight: Number

    def pace(self, device: Device, dtype: str) -> float:
        """Rate of matrix products in training, relative to the roofline of the products alone."""
        sustained = self.sustained_fp8 if dtype == "fp8" else self.sustained
        pace = sustained.get(device.architecture[:-1], sustained[device.runtime]).value
        return pace * (1.0 if device.sustained_share is None else device.sustained_share.value)


class RunFigures(DataRow):
    """Defaults of a whole run: failures, storage, restarts, power.

    ``doubted_share``: of a device that trainer and engine share, from which published rollouts ran
    out of memory for causes that no estimate has; ``doubted_start``: what a start that is in doubt
    keeps of its probability.
    """

    storage_bytes_per_s_per_node: Number
    restart_s: Number
    longest_interval_s: Number
    host_copy_bytes_per_s: Number
    loader_tokens_per_s: Number
    joules_share: Number
    beside_share_bytes: Spread
    doubted_share: Number
    doubted_start: Number
    sleeping_engine_bytes: dict[str, Number]


class TrainingData(DataRow):
    """The file ``frameworks.yaml``.

    ``not_modelled``: what published runs do and no estimate counts, and what comes of it.

    A framework over another one gives ``same_as: NAME`` and only what differs from it.
    """

    schema_version: Literal[1]
    sources: dict[str, Source]
    frameworks: dict[str, Framework]
    attention_kernels: dict[AttentionKernel, KernelData]
    optimizers: dict[str, Optimizer]
    run: RunFigures
    figures: Calibration
    not_modelled: dict[str, str]

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, value: Any) -> Any:
        entries: dict[str, dict[str, Any]] = value["frameworks"]
        return {
            **value,
            "frameworks": {name: _complete_framework(entries, name) for name in entries},
        }


def _complete_framework(entries: Mapping[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """An entry with all that it takes over; raises ValueError for an unknown ``same_as``."""
    entry = dict(entries[name])
    base = entry.pop("same_as", None)
    if base is None:
        return entry
    if base not in entries or "same_as" in entries[base]:
        raise ValueError(f"frameworks.{name}.same_as: {base!r} is no framework of its own")
    return {**entries[base], **entry}


@cache
def training_data() -> TrainingData:
    """The data this version ships."""
    path = Path(__file__).with_name("training") / "frameworks.yaml"
    return DataFile(path, "engines").read_as(TrainingData)


def framework(name: str) -> Framework:
    """A framework by its name.

    Raises:
        InputError: names the known ones.
    """
    frameworks = training_data().frameworks
    return look_up("training engine", name, frameworks, "candidate.engine")
