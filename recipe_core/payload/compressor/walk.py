"""A decoder layer by layer: what each matrix reads, after those before it have changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from .models import decoder_layers, matrices

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
