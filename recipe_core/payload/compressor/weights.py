"""Weights made smaller: set to zero (by magnitude or Wanda), or rounded to compressed-tensors."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .errors import CompressError
from .job import Options
from .models import copy_tokenizer, decoder_layers, matrices


def block_influence(model: Any, batches: Sequence[Sequence[int]]) -> list[float]:
    """Per layer, 1 - cosine of what a token is before and after it (arXiv:2403.03853, eq. 1)."""
    sums = torch.zeros(len(decoder_layers(model)), dtype=torch.float64)
    count = 0
    with torch.inference_mode():
        for batch in batches:
            rows = torch.tensor([list(batch)], device=model.device)
            # the last of the states is behind the final norm: layers are looked at by hooks
            states = _record_layer_states(model, rows)
            sums += torch.tensor(
                [
                    float(1 - torch.cosine_similarity(before, after, dim=-1).double().mean())
                    for before, after in states
                ]
            )
            count += 1
    influence: list[float] = (sums / count).tolist()
    return influence


def _record_layer_states(model: Any, rows: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What every layer reads and says."""
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def hook(_: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any], out: Any) -> None:
        before = inputs[0] if inputs else keywords["hidden_states"]
        pairs.append((before.float(), (out[0] if isinstance(out, tuple) else out).float()))

    handles = [
        layer.register_forward_hook(hook, with_kwargs=True) for layer in decoder_layers(model)
    ]
    model(rows, use_cache=False)
    for handle in handles:
        handle.remove()
    return pairs


def remove_layers(model: Any, batches: Sequence[Sequence[int]], removed: float) -> list[int]:
    """Take out the share of layers with the least influence, one at least; their old numbers.

    Raises:
        CompressError: where no layer would be left.
    """
    layers, config = decoder_layers(model), model.config.get_text_config()
    count = max(1, round(len(layers) * removed))
    if count >= len(layers):
        message = f"options.removed takes {count} of {len(layers)} layers."
        raise CompressError(message, hint="Use a smaller share.")
    influence = block_influence(model, batches)
    gone = sorted(sorted(range(len(layers)), key=influence.__getitem__)[:count])
    remaining_indexes = [index for index in range(len(layers)) if index not in gone]
    remaining = [layers[index] for index in remaining_indexes]
    while len(layers):
        del layers[-1]
    for number, layer in enumerate(remaining):
        holder: Any
        for holder in layer.modules():
            if hasattr(holder, "layer_idx"):
                holder.layer_idx = number
        layers.append(layer)
    config.num_hidden_layers = len(remaining_indexes)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[index] for index in remaining_indexes]
    return gone


def low_rank(model: Any, removed: float, ignore: Sequence[str]) -> None:
    """Matrices in the layers as the nearest of rank r, by singular values (Eckart-Young).

    r (m + n) = (1 - removed) m n. The product is stored: no engine reads the factors of a plain
    checkpoint, so that accuracy is that of the factors, and bytes are those of the base.
    """
    with torch.no_grad():
        for _, matrix in matrices(decoder_layers(model), ignore):
            outputs, inputs = matrix.weight.shape
            rank = max(1, int((1 - removed) * outputs * inputs / (outputs + inputs)))
            u, values, vh = torch.linalg.svd(matrix.weight.float(), full_matrices=False)
            product = u[:, :rank] * values[:rank] @ vh[:rank]
            matrix.weight.copy_(product.to(matrix.weight.dtype))


# Per matrix of a layer, what it read: tokens × inputs, of one sample.
Inputs = dict[str, torch.Tensor]


class _Reached(Exception):  # noqa: N818 - ends a forward pass, and is no error
    """The first layer was reached."""


def layer_by_layer(
    model: Any,
    batches: Sequence[Sequence[int]],
    look: Callable[[str, torch.Tensor], None],
    change: Callable[[int, nn.Module], None],
) -> None:
    """For every layer: show what its matrices read, change it, and go on with what it now says.

    As Wanda and GPTQ do (arXiv:2306.11695, arXiv:2210.17323), so that a layer is fitted to the
    errors of those before it. ``look`` gets a matrix's name and its input (tokens × inputs) sample
    by sample; ``change`` then gets the layer. Activations of all samples are kept: samples × tokens
    × hidden values.
    """
    layers = decoder_layers(model)
    states, arguments = _first_inputs(model, batches)
    for index, layer in enumerate(layers):
        handles = [
            matrix.register_forward_pre_hook(
                lambda _, inputs, name=name: look(name, inputs[0].flatten(0, -2))
            )
            for name, matrix in matrices(layer)
        ]
        for state in states:
            layer(state, **arguments[index])
        for handle in handles:
            handle.remove()
        change(index, layer)
        states = [_unwrap_hidden_states(layer(state, **arguments[index])) for state in states]


def _first_inputs(
    model: Any, batches: Sequence[Sequence[int]]
) -> tuple[list[torch.Tensor], list[dict[str, Any]]]:
    """What the first layer reads of each sample, and the other arguments of every layer.

    Samples are equally long, so that masks and positions are those of any of them.
    """
    layers = decoder_layers(model)
    arguments: list[dict[str, Any]] = [{} for _ in layers]
    states: list[torch.Tensor] = []

    def keep(index: int) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(_: nn.Module, __: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            arguments[index] = keywords | {"past_key_values": None, "use_cache": False}

        return hook

    def first(_: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        states.append(inputs[0] if inputs else keywords["hidden_states"])
        raise _Reached

    handles = [
        layer.register_forward_pre_hook(keep(index), with_kwargs=True)
        for index, layer in enumerate(layers)
    ]
    model(_token_row(model, batches[0]), use_cache=False)
    for handle in handles:
        handle.remove()
    stop = layers[0].register_forward_pre_hook(first, with_kwargs=True)
    for batch in batches:
        try:
            model(_token_row(model, batch), use_cache=False)
        except _Reached:
            continue
    stop.remove()
    for layer_arguments in arguments:
        layer_arguments.pop("hidden_states", None)
    return states, arguments


def _token_row(model: Any, tokens: Sequence[int]) -> torch.Tensor:
    return torch.tensor([list(tokens)], device=model.device)


def _unwrap_hidden_states(out: Any) -> torch.Tensor:
    """Hidden states, which some layers return in a tuple."""
    states: torch.Tensor = out[0] if isinstance(out, tuple) else out
    return states


PRUNING_METHODS = ("wanda", "magnitude")


def prune(
    model: Any,
    batches: Sequence[Sequence[int]],
    *,
    method: str,
    removed: float,
    block: int | None,
    ignore: Sequence[str],
) -> None:
    """Set weights of all matrices in the layers to zero.

    magnitude: the smallest go. wanda: those with the smallest |weight| × norm of their input over
    the samples (arXiv:2306.11695, equation 1), compared within an output. block: ``removed`` of
    every so many neighbours go (4 and 0.5: 2:4); None: anywhere in a row.
    """
    squares: dict[str, torch.Tensor] = {}

    def look(name: str, inputs: torch.Tensor) -> None:
        squares[name] = squares.get(name, 0) + inputs.float().square().sum(0)

    def change(_: int, layer: nn.Module) -> None:
        for name, matrix in matrices(layer, ignore):
            score = matrix.weight.float().abs()
            if method == "wanda":
                score *= squares[name].sqrt()
            matrix.weight[smallest(score, removed, block)] = 0
        squares.clear()

    with torch.no_grad():
        layer_by_layer(model, batches, look, change)


def smallest(score: torch.Tensor, removed: float, block: int | None) -> torch.Tensor:
    """True where a share ``removed`` of each row, or of each block of it, scores least.

    Columns that fill no block stay.
    """
    width = block or score.shape[1]
    full = score.shape[1] // width * width
    grouped = score[:, :full].reshape(score.shape[0], -1, width)
    order = grouped.argsort(-1)[..., : round(width * removed)]
    mask = torch.zeros_like(score, dtype=torch.bool)
    mask[:, :full] = torch.zeros_like(grouped, dtype=torch.bool).scatter(-1, order, True).flatten(1)
    return mask


# Preset schemes of compressed-tensors by technique; those of weights alone drop activations.
SCHEMES: dict[str, str] = {
    "fp8_w8a8": "FP8_DYNAMIC",
    "fp8_weight_only": "FP8_DYNAMIC",
    "int8_w8a8": "INT8",
    "int8_weight_only": "INT8",
    "int4_weight_only": "W4A16",
    "int3_weight_only": "W3A16",
    "int2_weight_only": "W2A16",
}
ROUNDING_METHODS = ("rtn",)


def quantize_matrices(model: Any, technique: str, options: Options) -> Any:
    """Round the matrices of ``model`` to nearest in place; returns what compresses and saves it.

    Scales are from the largest magnitude of an output or group; activations are quantised as they
    come (dynamic).

    Raises:
        CompressError: where compressed-tensors is missing, or groups do not fill rows.
    """
    try:
        from compressed_tensors.compressors import ModelCompressor
        from compressed_tensors.quantization import (
            QuantizationConfig,
            QuantizationStatus,
            apply_quantization_config,
        )
    except ImportError:
        hint = "pip install compressed-tensors"
        raise CompressError("compressed-tensors is not installed.", hint=hint) from None
    scheme = _build_quantization_scheme(technique, options)
    _check_groups(model, scheme.weights, options)
    ignore = [f"re:.*{re.escape(name)}$" for name in options.ignore]
    config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=ignore)
    with _hide_progress_bars():
        apply_quantization_config(model, config, show_progress=False)
        for _, module in matrices(model):
            if getattr(module, "quantization_scheme", None) is not None:
                set_scales(module, scheme.weights)
                module.quantization_status = QuantizationStatus.FROZEN
        compressor = ModelCompressor.from_pretrained_model(model)
        compressor.compress_model(model)
    return compressor


def save_quantized(model: Any, compressor: Any, source: Path, folder: Path) -> None:
    """Write what `quantize_matrices` returned, with the scheme in ``config.json``."""
    model.save_pretrained(folder)
    compressor.update_config(str(folder))
    copy_tokenizer(source, folder)


def _build_quantization_scheme(technique: str, options: Options) -> Any:
    from compressed_tensors.quantization import preset_name_to_scheme

    scheme = preset_name_to_scheme(SCHEMES[technique], ["Linear"])
    if technique.endswith("weight_only"):
        scheme.input_activations = None
    changes: dict[str, Any] = {}
    if options.group is not None:
        if scheme.weights.group_size is None:
            message = f"options.group is {options.group}, and {technique} has no groups."
            raise CompressError(message, hint="Leave it out.")
        changes["group_size"] = options.group
    if not options.symmetric:
        changes["symmetric"] = False
    scheme.weights = scheme.weights.model_copy(update=changes)
    return scheme


def _check_groups(model: Any, args: Any, options: Options) -> None:
    group = args.group_size
    for name, matrix in matrices(model, options.ignore):
        if group and matrix.in_features % group:
            hint = f"Set options.group to a number that divides {matrix.in_features}."
            message = (
                f"{name} has {matrix.in_features} inputs, which groups of {group} do not fill."
            )
            raise CompressError(message, hint=hint)


def set_scales(module: Any, args: Any) -> None:
    """Fill in scales and zero points of a matrix's weights, by their ranges."""
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    weight = module.weight.detach()
    tensor_scale = None
    if hasattr(module, "weight_global_scale"):
        tensor_scale = generate_gparam(weight.amin(), weight.amax())
        module.weight_global_scale.data.copy_(tensor_scale)
    grouped = weight.unflatten(-1, (-1, args.group_size or weight.shape[-1]))
    scale, zero = calculate_qparams(
        grouped.amin(-1), grouped.amax(-1), args, global_scale=tensor_scale
    )
    module.weight_scale.data.copy_(scale)
    if hasattr(module, "weight_zero_point"):
        module.weight_zero_point.data.copy_(zero)


@contextlib.contextmanager
def _hide_progress_bars() -> Iterator[None]:
    """compressed-tensors draws progress bars, which say nothing in a log."""
    from compressed_tensors.compressors.model_compressors import model_compressor

    bars = model_compressor.tqdm
    model_compressor.tqdm = lambda modules, **_: modules
    try:
        yield
    finally:
        model_compressor.tqdm = bars
