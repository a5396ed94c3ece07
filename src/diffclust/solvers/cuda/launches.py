"""Where torch launches kernels, and at little cost from the second time on."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch

from diffclust.solvers.kernels.ahead import in_rehearsal
from diffclust.solvers.kernels.launches import launch


@functools.lru_cache
def multiprocessors(device: torch.device) -> int:
    """How many multiprocessors a GPU has; of the interpreter any number."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 64


def device_of(tensor: torch.Tensor) -> Any:
    """A context in which the tensor's device is the current one; entering one takes a while, so only if it is not."""
    if not tensor.is_cuda or tensor.device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(tensor.device)


def stream_of(tensor: torch.Tensor) -> int:
    """The handle of the current stream of the tensor's device."""
    return torch._C._cuda_getCurrentRawStream(tensor.get_device()) if tensor.is_cuda else 0


class Launch:
    """A kernel with the arguments that never change.

    From the second time on it is launched without Triton's look at all arguments, which is most of a launch's cost.

    Args:
        workspace: tensors that only the kernel knows.
        constants: its last arguments.
    """

    def __init__(
        self,
        kernel: Any,
        programs: int,
        num_warps: int,
        workspace: tuple[torch.Tensor, ...],
        constants: tuple[Any, ...],
    ) -> None:
        self._kernel, self._programs, self._num_warps = kernel, programs, num_warps
        self.workspace, self._constants = workspace, constants
        self._pointers = [tensor.data_ptr() for tensor in workspace]
        self._compiled: Any = None

    def __call__(self, stream: int, tensors: tuple[torch.Tensor, ...], numbers: tuple[Any, ...]) -> None:
        """Launch with tensors, numbers, workspace and constants, in this order.

        What the compiled kernel depends on must be the same in all calls: types of tensors, sizes of integers. Triton's
        launch hooks, which profilers may set, see the first launch only.
        """
        compiled, pointers = self._compiled, [tensor.data_ptr() for tensor in tensors]
        aligned = not [pointer for pointer in pointers if pointer % 16]  # else Triton compiles another kernel
        if aligned and compiled is not None and not in_rehearsal():
            compiled.run(
                self._programs, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None,
                *pointers, *numbers, *self._pointers, *self._constants,
            )  # fmt: skip
            return
        compiled = self._kernel[(self._programs,)](
            *tensors, *numbers, *self.workspace, *self._constants, **launch(self._num_warps)
        )
        if aligned:
            self._compiled = compiled  # None in the interpreter, which compiles nothing


def class_of(argument: torch.Tensor | int) -> Any:
    """What Triton compiles for where it does not look at the value: of a tensor its type, of a number its size."""
    return -0x80000000 <= argument < 0x80000000 if isinstance(argument, int) else argument.dtype
