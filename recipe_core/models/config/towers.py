"""Reading the towers of a multimodal ``config.json``: sizes by their fields, the rest by family.

``towers.yaml`` has what configs leave out: defaults of a family, and the matrices around its
layers. A tower of another family is counted by its sizes, with a projector of two matrices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from recipe_core.base.data_files import DataFile
from recipe_core.base.errors import ModelError
from recipe_core.base.provenance import Source
from recipe_core.models.config.fields import MAX_LAYERS, MAX_WIDTH, Config, Reader
from recipe_core.models.spec import NO_TOWER
from recipe_core.models.towers import PARTS, Modality, Tower

# Objects of a config that describe a tower, by what it reads.
_PLACES: dict[Modality, tuple[str, ...]] = {
    "image": ("vision_config", "vision_tower_config", "visual", "vision_encoder"),
    "audio": ("audio_config", "sound_config", "audio_encoder"),
}
_NESTED = ("thinker_config", "encoder_config")
_LAYERS = (
    "num_hidden_layers",
    "depth",
    "encoder_layers",
    "vt_num_hidden_layers",
    "num_layers",
    "layers",
)
_HIDDEN = ("vt_hidden_size", "embed_dim", "d_model", "hidden_size", "width")
_HEADS = ("num_attention_heads", "num_heads", "encoder_attention_heads", "vt_num_attention_heads")
_INTERMEDIATE = ("intermediate_size", "encoder_ffn_dim", "vt_intermediate_size")
_MERGE = ("spatial_merge_size", "merge_kernel_size", "merge_size", "pooling_kernel_size")
_OUT = ("out_hidden_size", "output_proj_dims", "output_dim", "text_hidden_size")
# Fields of a tower that may stand at the top of the config.
_OUTER = ("spatial_merge_size", "mm_tokens_per_image", "projector_hidden_size")
_MAX_ITEM = 1 << 24

# A whole number, or a name: ``hidden``, ``inner`` (of attention), ``mlp``, ``patch`` (values of
# one), ``group`` (positions of a token, side by side), ``grid`` (patches of an image of the
# configured size), ``out`` (what the projector hands on), ``text`` (the language model's), or a
# field of the config.
Width = int | str
# A tensor by its dimensions.
Weights = tuple[Width, ...]


class Family(BaseModel):
    """A family of ``types``; ``defaults`` are fields that its configs leave out.

    ``gated``: three matrices in the feed-forward instead of two. ``bias``: attention and
    feed-forward have biases. ``layer``: further tensors of each layer. ``norms``: vectors of the
    hidden width in each layer. ``embedding``, ``projector``: the tensors around them.
    ``copies``: the field that lists where further projectors branch off. ``ignores``: fields of a
    config that mean something else here. ``mlp``: the field with the width of the feed-forward,
    where it is not the usual one. ``positions``: those of a
    token, where not the square of the merge. ``item_tokens``, ``repeats``, ``sharded``: as a tower
    has them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    types: Annotated[tuple[str, ...], Field(min_length=1)]
    source: str
    modality: Literal["image", "audio"] = "image"
    defaults: dict[str, Any] = {}
    gated: bool = False
    bias: bool = True
    layer: tuple[Weights, ...] = ()
    norms: Annotated[int, Field(ge=0)] = 4
    embedding: tuple[Weights, ...] = (("patch", "hidden"), ("hidden",))
    projector: tuple[Weights, ...] = (("group", "text"), ("text", "text"))
    copies: str | None = None
    ignores: tuple[str, ...] = ()
    mlp: str | None = None
    positions: Annotated[float, Field(gt=0)] | None = None
    item_tokens: Annotated[int, Field(gt=0)] = 4096
    repeats: Annotated[int, Field(gt=0)] = 1
    sharded: bool = True


class _Families(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    sources: dict[str, Source]
    families: tuple[Family, ...]


@cache
def _tower_families() -> dict[tuple[str, str], Family]:
    """Families by what their tower reads, and by model type."""
    file = DataFile(Path(__file__).with_name("towers.yaml"), "towers", ModelError)
    listed = file.read_as(_Families)
    return {(family.modality, name): family for family in listed.families for name in family.types}


def _tower_family(config: Config, part: Config, modality: Modality) -> Family | None:
    """The family of a tower: by both types, by that of the whole config, else by its own."""
    outer, inner = str(config.get("model_type")), str(part.get("model_type"))
    types = (f"{outer}/{inner}", outer, inner)
    families = (_tower_families().get((modality, name)) for name in types)
    return next((family for family in families if family is not None), None)


def read_towers(
    config: Config, text_hidden: int, field: str, notes: list[str]
) -> tuple[Tower, ...]:
    """The towers of a config, and a note about each that is not or not wholly counted.

    Raises:
        ModelError: for a size that is no whole number within limits.
    """
    out = []
    for modality, name, part in _tower_parts(config):
        if (
            tower := _read_tower(config, part, modality, text_hidden, f"{field}.{name}", notes)
        ) is None:
            notes.append(f"The {PARTS[modality]} {NO_TOWER}")
        else:
            out.append(tower)
    return tuple(out)


def _tower_parts(config: Config) -> Iterator[tuple[Modality, str, Mapping[str, Any]]]:
    """Objects that describe a tower, at the top or in the object that holds all encoders."""
    outer = [config, *(config[name] for name in _NESTED if isinstance(config.get(name), Mapping))]
    for modality, names in _PLACES.items():
        for level in outer:
            name = next((n for n in names if isinstance(level.get(n), Mapping)), None)
            if name is not None:
                yield modality, name, level[name]
                break


def _read_tower(
    config: Config,
    part: Mapping[str, Any],
    modality: Modality,
    text_hidden: int,
    field: str,
    notes: list[str],
) -> Tower | None:
    """One tower; None where its config has neither sizes nor a family that knows them."""
    family = _tower_family(config, part, modality)
    if family is None:
        kind = str(part.get("model_type") or config.get("model_type") or "of no named type")
        family = Family(types=("other",), source="sizes", modality=modality)
        notes.append(
            f"The {PARTS[modality]} ({kind}) is counted by its sizes; its projector is assumed."
        )
    outer = {key: config[key] for key in _OUTER if key in config}
    fields = {
        key: value
        for key, value in (*outer.items(), *part.items())
        if value is not None and key not in family.ignores
    }
    read = Reader({**family.defaults, **fields}, field)
    if not read.has(*_HIDDEN) or not any(read.config.get(n) is not None for n in _LAYERS):
        notes[:] = [note for note in notes if "its projector is assumed" not in note]
        return None
    return _Sizes(read, family, text_hidden).tower(modality)


class _Sizes:
    """The widths of a tower by name."""

    def __init__(self, read: Reader, family: Family, text_hidden: int) -> None:
        self.read, self.family = read, family
        self.hidden = read.whole(_HIDDEN, MAX_WIDTH)
        self.layers = read.whole(_LAYERS, MAX_LAYERS, minimum=0)
        self.heads = read.whole(_HEADS, MAX_WIDTH, default=max(self.hidden // 64, 1))
        ratio = read.number("mlp_ratio", 64.0) if read.has("mlp_ratio") else 4.0
        default = round(self.hidden * ratio)
        names = (family.mlp,) if family.mlp else _INTERMEDIATE
        self.mlp = read.whole(names, MAX_WIDTH, default=default)
        head = read.whole(("head_dim",), MAX_WIDTH, default=max(self.hidden // self.heads, 1))
        self.inner = read.whole(("qkv_hidden_size",), MAX_WIDTH, default=self.heads * head)
        kv_heads = read.whole(("num_key_value_heads",), MAX_WIDTH, default=self.heads)
        self.shared = self.inner * min(kv_heads, self.heads) // self.heads
        patch = self._edge("patch_size", 1)
        merge = self._merge()
        self.positions = float(family.positions or merge * merge)
        grid = self._edge("image_size", patch) // patch
        channels = read.whole(("in_channels", "num_channels"), 1 << 10, default=3)
        depth = self._edge("temporal_patch_size", 1)
        self.widths = {
            "hidden": self.hidden,
            "inner": self.inner,
            "mlp": self.mlp,
            "patch": channels * patch * patch * depth,
            "group": self.hidden * merge * merge,
            "grid": grid * grid,
            "text": text_hidden,
            "out": read.whole(_OUT, MAX_WIDTH, default=text_hidden),
        }

    def _edge(self, name: str, default: int) -> int:
        """One edge of a square field: a number, or the first of a list."""
        value = self.read.config.get(name)
        if isinstance(value, list | tuple) and value:
            return Reader({name: value[0]}, self.read.field).whole((name,), MAX_WIDTH)
        return self.read.whole((name,), MAX_WIDTH, default=default)

    def _merge(self) -> int:
        """Patches along an edge that become a token."""
        name = next((n for n in _MERGE if self.read.config.get(n) is not None), _MERGE[0])
        return self._edge(name, 1)

    def _numel(self, weights: Weights) -> int:
        out = 1
        for width in weights:
            if isinstance(width, int):
                out *= width
            elif width in self.widths:
                out *= self.widths[width]
            else:
                out *= self.read.whole((width,), 1 << 24)
        return out

    def tower(self, modality: Modality) -> Tower:
        """The tower of these widths."""
        family, hidden = self.family, self.hidden
        matrices = 3 if family.gated else 2
        attention = 2 * hidden * (self.inner + self.shared)
        layer = attention + matrices * hidden * self.mlp + family.norms * hidden
        if family.bias:
            layer += self.inner + 2 * self.shared + hidden
            layer += (matrices - 1) * self.mlp + hidden
        layer += sum(map(self._numel, family.layer))
        branches = self.read.config.get(family.copies or "")
        copies = 1 + (len(branches) if isinstance(branches, list | tuple) else 0)
        tokens = self.read.whole(
            ("mm_tokens_per_image", "image_seq_length"), _MAX_ITEM, default=family.item_tokens
        )
        return Tower(
            modality=modality,
            hidden=hidden,
            layers=self.layers,
            heads=self.heads,
            intermediate=self.mlp,
            layer_weights=layer,
            embedding_weights=sum(map(self._numel, family.embedding)),
            projector_weights=copies * sum(map(self._numel, family.projector)),
            positions=self.positions,
            outputs=copies
            * self.widths["out" if any("out" in part for part in family.projector) else "text"],
            patch=self.widths["patch"] if modality == "image" else 0,
            item_tokens=tokens,
            repeats=family.repeats,
            sharded=family.sharded,
        )
