"""Compiles the CUDA kernels to machine code for an H100, without a GPU and without running them.

    python tests/compile_kernels.py

Triton's interpreter, in which the tests run without a GPU, does not check types. This does. It prints how many kernels
were compiled, and fails at the first that cannot be.
"""

from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from diffclust.noise import Draws
from diffclust.solvers import Request, cuda
from diffclust.solvers.cuda import similarity as triton_similarity
from diffclust.solvers.kernels import ahead

TARGET = GPUTarget("cuda", 90, 32)
NAMES = {torch.float32: "fp32", torch.float64: "fp64", torch.int64: "i64", torch.int32: "i32", torch.int8: "i8"}
compiled: dict[Any, Any] = {}


def type_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "*" + NAMES[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
    """In place of ``JITFunction.run``, which compiles and launches."""
    assert isinstance(self, ahead._Kernel), f"{self.__name__} would be launched in a rehearsal: decorate it as a kernel"
    names = [each.name for each in self.params]
    values = dict(zip(names, arguments, strict=False)) | {n: options.pop(n) for n in names if n in options}
    constants = {each.name: values[each.name] for each in self.params if each.is_constexpr}
    signature = {n: "constexpr" if n in constants else type_of(value) for n, value in values.items()}
    key = (self.__name__, str(signature), str(constants), str(options))
    if key not in compiled:
        compiled[key] = triton.compile(ASTSource(self, signature, constants), target=TARGET, options=options)
    return compiled[key]


def pairs_that_must_link(n: int) -> torch.Tensor:
    group = torch.arange(n) // 2
    return torch.where(group[:, None] == group, 1, -1).to(torch.int8).repeat(2, 1, 1)


def main() -> None:
    JITFunction.run = compile_only
    cases = [
        # n, noise, what is known, must-links first, details: all pairs of values of a kernel's constants are among them
        (20, "normal", "nothing", True, ("mean", "draws")),
        (20, "normal", "labels", True, ("mean", "forests")),
        (20, "normal", "labels", False, ("mean", "draws")),
        (20, "normal", "relation", True, ("mean", "draws")),
        (20, "normal", "relation", False, ("mean", "forests")),
        (20, "gumbel", "labels", True, ("mean",)),
        (300, "normal", "nothing", True, ("mean", "forests")),
        (300, "normal", "labels", True, ("draws",)),
        (300, "normal", "labels", False, ("mean",)),
        (300, "normal", "relation", True, ("mean", "forests")),
        (300, "normal", "relation", False, ("draws",)),
        (300, "gumbel", "labels", True, ("mean",)),
    ]
    for n, noise, known, must_link_first, details in cases:
        draws = Draws(seed=torch.tensor(1), first=torch.tensor(0), n_draws=3, epsilon=0.1, noise=noise)
        given = {"labels": torch.zeros(2, n, dtype=torch.int64), "relation": pairs_that_must_link(n)}
        for detail in details:
            request = Request(
                torch.zeros(2, n, n),
                2,
                draws=draws,
                must_link_first=must_link_first,
                adjacency=True,
                detail=detail,
                if_infeasible="clamp",
                **({} if known == "nothing" else {known: given[known]}),
            )
            cuda.solve(request)
    draws, weights = Draws(seed=torch.tensor(1), first=torch.tensor(0)), torch.ones(2, 3)
    edges, labels = torch.zeros(2, 3, 19, 2, dtype=torch.int32), torch.zeros(2, 3, 20, dtype=torch.int32)
    cuda.noise_sum(weights, 20, draws)
    cuda.sums.adjacency_counts(edges[:, None], 20)
    cuda.sums.connectivity_counts(labels)
    cuda.sums.adjacency_products(torch.zeros(2, 20, 20), edges)
    cuda.sums.connectivity_products(torch.zeros(2, 20, 20), labels)
    for dtype in (torch.float32, torch.float64):
        s, scale = triton_similarity.standardize(torch.zeros(2, 20, 20, dtype=dtype))
        triton_similarity.gradient(s, s, torch.zeros(2, 20, 4, dtype=dtype), scale, torch.matmul)
    print(f"{len(compiled)} kernels were compiled")


if __name__ == "__main__":
    main()
