"""How kernels are launched: with which options, on which device, and at little cost from the second time on."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))  # by NumPy, in tests without a GPU


def launch(num_warps: int) -> dict[str, Any]:
    # A fused multiplication and addition would round once instead of twice: other noise than on other devices.
    return {"num_warps": num_warps, "num_stages": 1, "enable_fp_fusion": False}


def device_of(tensor: torch.Tensor) -> Any:
    """A context in which the tensor's device is the current one; entering one takes a while, so only if it is not."""
    if not tensor.is_cuda or tensor.device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(tensor.device)


def current_stream(tensor: torch.Tensor) -> tuple[int, int]:
    """The tensor's device, which is the current one, and the handle of its current stream."""
    device = tensor.get_device()
    return device, torch._C._cuda_getCurrentRawStream(device) if device >= 0 else 0


_known_kernels: dict[Any, Any] = {}


def launch_again(kernel: Any, programs: int, arguments: tuple[Any, ...], key: Any, num_warps: int) -> None:
    """Launch a kernel, from the second time on without Triton's look at every argument, most of what a launch costs.

    ``key`` says all that the compiled kernel depends on: constants, numbers, and the class of what is not in it.
    Triton's launch hooks, which profilers may set, see the first launch only.
    """
    device, stream = current_stream(arguments[0])
    key = kernel, device, key
    known = _known_kernels.get(key)
    if known is not None:
        known.run(programs, 1, 1, stream, known.function, known.packed_metadata, None, None, None, *arguments)
        return
    compiled = kernel[(programs,)](*arguments, **launch(num_warps))
    if compiled is not None:  # the interpreter compiles nothing
        _known_kernels[key] = compiled


def class_of(argument: torch.Tensor | int) -> Any:
    """What Triton compiles for: of a tensor its type and alignment, of a number its size."""
    if isinstance(argument, int):
        return -0x80000000 <= argument < 0x80000000
    return argument.dtype, argument.data_ptr() % 16 == 0
