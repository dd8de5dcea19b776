"""The feed-forward half of a layer: dense, or routed experts with what runs beside them."""

from __future__ import annotations

from dataclasses import dataclass

from recipe_core.models.tensors import Matrix, Tensor, projections, tensor


def _mlp_matrices(hidden: int, intermediate: int, matrices: int) -> tuple[Matrix, Matrix]:
    """Up (with the gate, where there is one) and down."""
    return Matrix((matrices - 1) * intermediate, hidden), Matrix(
        hidden, intermediate, cuts_inputs=True
    )


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """A feed-forward block; gated ones have three matrices (SwiGLU), others two."""

    intermediate: int
    gated: bool = True

    @property
    def matrices(self) -> int:
        """Return how many ``hidden × intermediate`` matrices there are."""
        return 3 if self.gated else 2

    def tensors(self, hidden: int) -> list[Tensor]:
        return [
            projections(
                "mlp", "linear", "tensor", *_mlp_matrices(hidden, self.intermediate, self.matrices)
            )
        ]


@dataclass(frozen=True, slots=True)
class MoeMlp:
    """Routed experts (``top_k`` of ``experts`` per token) plus a shared part that every token uses.

    ``shared_intermediate`` is the width of all shared experts, or of a dense block beside the
    experts. ``latent`` > 0: routed experts work in a space of that width, reached by one projection
    down and one up (Nemotron-3 latent MoE); the router and the shared part don't. ``bias``: routed
    experts add a bias after each projection (gpt-oss).
    """

    experts: int
    top_k: int
    intermediate: int
    shared_intermediate: int = 0
    gated: bool = True
    latent: int = 0
    bias: bool = False

    @property
    def matrices(self) -> int:
        """Return how many ``hidden × intermediate`` matrices an expert has."""
        return 3 if self.gated else 2

    def expert_hidden(self, hidden: int) -> int:
        return self.latent or hidden

    def tensors(self, hidden: int) -> list[Tensor]:
        """Router (replicated), routed experts, the shared part and the latent's projections."""
        per_expert = self.matrices * self.expert_hidden(hidden) * self.intermediate
        out = [
            tensor("moe.router", hidden * self.experts, "router", "replicated"),
            tensor(
                "moe.experts",
                per_expert * self.experts,
                "experts",
                "experts",
                self.top_k / self.experts,
            ),
        ]
        if self.shared_intermediate:
            out.append(
                projections(
                    "moe.shared",
                    "shared",
                    "tensor",
                    *_mlp_matrices(hidden, self.shared_intermediate, self.matrices),
                )
            )
        if self.latent:
            out.append(
                projections(
                    "moe.latent",
                    "linear",
                    "replicated",
                    Matrix(self.latent, hidden),
                    Matrix(hidden, self.latent),
                )
            )
        if self.bias:
            widths = (self.matrices - 1) * self.intermediate + self.expert_hidden(hidden)
            out.append(
                tensor(
                    "moe.bias", widths * self.experts, "norm", "experts", self.top_k / self.experts
                )
            )
        return out


Mlp = DenseMlp | MoeMlp
