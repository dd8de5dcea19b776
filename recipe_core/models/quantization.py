"""How a quantised checkpoint stores its weights."""

from __future__ import annotations

from dataclasses import dataclass

from recipe_core.models.dtypes import bytes_per_value
from recipe_core.models.tensors import Role, Stored


@dataclass(frozen=True, slots=True)
class Quantization:
    """What a quantised checkpoint stores.

    ``dtype`` for the tensors of ``roles``, the base dtype for the rest.

    ``block`` is the edge of square scale blocks (fp8 128 × 128) that a cut must respect, None when
    there is none. ``value_bytes`` is what a weight costs with its scales where the config's group
    size says so (None: what ``dtype`` costs usually). ``mixed``: the format of those of ``roles``
    that are stored otherwise than ``dtype`` (mixed precision), each with its own block. ``scheme``
    is who wrote the checkpoint and what one scale covers ("fp8/tensor",
    "compressed-tensors/channel"): engines load the same format differently by it. ``by_name``:
    whether all this is read from the checkpoint's name, not from its config. ``group``: inputs of a
    row that share a scale, where these are not all of it.
    """

    dtype: str
    roles: frozenset[Role]
    block: int | None = None
    value_bytes: float | None = None
    mixed: tuple[tuple[Role, Stored], ...] = ()
    scheme: str = ""
    by_name: bool = False
    group: int | None = None

    @property
    def others(self) -> tuple[tuple[Role, str], ...]:
        """The dtypes of ``mixed``."""
        return tuple((role, stored.dtype) for role, stored in self.mixed)

    def stored(self, role: Role) -> Stored | None:
        """The format of a role; None for one that is not quantised."""
        if role not in self.roles:
            return None
        default_format = Stored(self.dtype, self.block, self.value_bytes, self.group)
        return dict(self.mixed).get(role, default_format)

    def dtype_of(self, role: Role, base: str) -> str:
        """The stored format of a role; ``base`` for what is not quantised."""
        stored = self.stored(role)
        return stored.dtype if stored else base

    def block_of(self, role: Role) -> int | None:
        """The edge of scale blocks that a cut of this role must respect; None without any."""
        stored = self.stored(role)
        return stored.block if stored else None

    def bytes_of(self, role: Role, base: str) -> float:
        """Stored bytes per value of a role, scales included."""
        stored = self.stored(role)
        return stored.bytes_each if stored else bytes_per_value(base)

    @property
    def fingerprint(self) -> list[object]:
        return [
            self.dtype,
            sorted(self.roles),
            self.block,
            self.value_bytes,
            sorted((role, *stored.fingerprint) for role, stored in self.mixed),
            self.scheme,
            *(["by name"] if self.by_name else []),
        ]
