"""How a quantised checkpoint stores its weights."""

from __future__ import annotations

from dataclasses import dataclass

from recipe_core.model.dtypes import bytes_per_value
from recipe_core.model.tensors import Role


@dataclass(frozen=True, slots=True)
class Quantization:
    """What a quantised checkpoint stores.

    ``dtype`` for the tensors of ``roles``, the base dtype for the rest.

    ``block`` is the edge of square scale blocks (fp8 128 × 128) that a cut must respect, None when
    there is none. ``value_bytes`` is what a weight costs with its scales where the config's group
    size says so (None: what ``dtype`` costs usually). ``others`` are roles of ``roles`` that are
    stored in another format than ``dtype`` (mixed precision). ``scheme`` is who wrote the
    checkpoint and what one scale covers ("fp8/tensor", "compressed-tensors/channel"): engines load
    the same format differently by it.
    """

    dtype: str
    roles: frozenset[Role]
    block: int | None = None
    value_bytes: float | None = None
    others: tuple[tuple[Role, str], ...] = ()
    scheme: str = ""

    def dtype_of(self, role: Role, base: str) -> str:
        """The stored format of a role; ``base`` for what is not quantised."""
        return dict(self.others).get(role, self.dtype) if role in self.roles else base

    def bytes_of(self, role: Role, base: str) -> float:
        """Stored bytes per value of a role, scales included."""
        dtype = self.dtype_of(role, base)
        if self.value_bytes is not None and role in self.roles and dtype == self.dtype:
            return self.value_bytes
        return bytes_per_value(dtype)

    @property
    def fingerprint(self) -> list[object]:
        """Everything above in a form that JSON can hold."""
        return [
            self.dtype,
            sorted(self.roles),
            self.block,
            self.value_bytes,
            sorted(self.others),
            self.scheme,
        ]
