"""Embeddings → standardised similarity on torch tensors, with a gradient in 10 operations instead of autograd's 44.

Each of them is a kernel of a training step on a GPU, and the forest loss itself is one to three. There both directions
are 9 kernels, in place of 31 (``solvers/cuda/similarity.py``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from diffclust import similarity
from diffclust.bindings.torch_operators import is_plain
from diffclust.validation import check_embeddings


def standardized_distances(embeddings: Tensor) -> Tensor:
    """``standardize(negative_squared_distances(embeddings))``: the same value and gradient, to rounding."""
    by_hand = (
        is_plain(embeddings)
        and embeddings.requires_grad
        and torch.is_grad_enabled()
        and forward_ad.unpack_dual(embeddings).tangent is None
    )
    return _StandardizedDistances.apply(check_embeddings(embeddings)) if by_hand else _by_autograd(embeddings)


def _by_autograd(embeddings: Tensor) -> Tensor:
    return similarity.standardize(similarity.negative_squared_distances(embeddings))


class _StandardizedDistances(torch.autograd.Function):
    """s = (h - mean(h)) / std(h) with h_ij = -|x_i - x_j|² / 2: standardised, the half makes no difference."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor) -> Tensor:
        if kernels := similarity.kernels_for(embeddings):
            x = (embeddings - embeddings.mean(-2, keepdim=True)).contiguous()  # kernels read its rows in turn
            s, scale = kernels.standardize(_multiply(x, x.mT))
        else:
            x, half = similarity._half_distances(embeddings)
            half.diagonal(0, -2, -1).zero_()
            s, scale = similarity._standardize(half)
        ctx.save_for_backward(embeddings, x, s, scale)
        return s

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        """dx_i = Σ_j W_ij (x_j - x_i) with W = (G - mean(G) - s mean(G ∘ s)) / std(h)."""
        # G is the cotangent + its transpose. W is symmetric, so these sum to zero and need no centring.
        embeddings, x, s, scale = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: the gradient is to be differentiated
            alias = embeddings.view_as(embeddings)  # whose hooks, if there are any, run once
            return torch.autograd.grad(_by_autograd(alias), alias, cotangent, create_graph=True)[0]
        if kernels := similarity.kernels_for(embeddings):
            return kernels.gradient(cotangent, s, x, scale, _multiply)
        w = cotangent + cotangent.mT
        w -= w.mean((-1, -2), keepdim=True)
        w.addcmul_(s, (w * s).mean((-1, -2), keepdim=True), value=-1.0)
        gradient = _multiply(w, x)
        return gradient.addcmul_(w.sum(-1, keepdim=True), x, value=-1.0).div_(scale)


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    with similarity._in_float32(a):
        return a @ b
