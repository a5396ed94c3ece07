"""How a JAX program launches a Triton kernel: by jaxlib's ``triton_kernel_call_ffi``, as Pallas does."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import jax
import triton
import triton.language as tl
from jax import Array

from diffclust.solvers.kernels.launches import launch

TARGET = "triton_kernel_call_ffi"
TYPES = {"float32": "*fp32", "int32": "*i32", "int64": "*i64", "uint32": "*u32"}


def can_launch() -> bool:
    """Whether jaxlib launches Triton's kernels on NVIDIA's GPUs."""
    try:
        from jaxlib import gpu_triton

        return gpu_triton._cuda_triton is not None and TARGET in gpu_triton._cuda_triton.registrations()
    except (ImportError, AttributeError):
        return False


def multiprocessors() -> int:
    """How many multiprocessors the GPU has; of the interpreter any number."""
    return int(getattr(jax.devices()[0], "core_count", 64))


def call(
    kernel: Any,
    grid: tuple[int, ...],
    warps: int,
    inputs: Sequence[Array | int],
    outputs: Sequence[jax.ShapeDtypeStruct],
    constants: dict[str, Any],
    reused: int = 0,
    zeroed: Sequence[int] = (),
) -> list[Array]:
    """The arrays that a kernel writes, given those and the numbers that it reads.

    Args:
        kernel: takes inputs, outputs and constants, in this order.
        grid: how many programs.
        warps: of a program.
        inputs: arrays and numbers of 32 bits.
        outputs: types and shapes.
        constants: what Triton compiles for, by name.
        reused: how many of the last outputs are the last arrays of the inputs, changed.
        zeroed: which outputs are zeros before.

    Returns:
        The outputs.
    """
    from jaxlib import gpu_triton

    signature, attributes, parameters = {}, {}, []
    for place, (name, each) in enumerate(zip(kernel.arg_names, [*inputs, *outputs], strict=False)):
        if isinstance(each, int):
            signature[name] = "i32"
            parameters.append(gpu_triton.create_scalar_parameter(each, "i32"))
        else:
            signature[name] = TYPES[each.dtype.name]
            clear = each.size * each.dtype.itemsize if place - len(inputs) in zeroed else 0
            parameters.append(gpu_triton.create_array_parameter(clear, 16))
        if not isinstance(each, int) or each % 16 == 0:
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = triton.compiler.ASTSource(kernel, signature | dict.fromkeys(constants, "constexpr"), constants, attributes)
    capability = gpu_triton.get_compute_capability(0)
    target = triton.backends.compiler.GPUTarget("cuda", capability, 32)
    compiled = triton.compile(source, target=target, options=launch(warps))
    launched = gpu_triton.TritonKernelCall(
        gpu_triton.TritonKernel(
            compiled.metadata.name, warps, 1, compiled.metadata.shared, compiled.asm["ptx"], "", capability
        ),
        *(*grid, 1, 1)[:3],
        parameters,
    )
    arrays = [each for each in inputs if not isinstance(each, int)]
    n, m = len(arrays), len(outputs)
    function = jax.ffi.ffi_call(
        TARGET, list(outputs), input_output_aliases={n - i: m - i for i in range(1, reused + 1)}
    )
    opaque = zlib.compress(launched.to_proto(kernel.__name__, b""))
    return list(function(*arrays, name=kernel.__name__, opaque=opaque))


def empty(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
    """An output of :func:`call`."""
    return jax.ShapeDtypeStruct(shape, dtype)


@triton.jit
def integer(row):
    """The integer of a low and a high word, or of one with a sign."""
    if row.dtype.element_ty == tl.int32:
        value = tl.load(row).to(tl.int64)
    else:
        value = (tl.load(row).to(tl.uint64) | (tl.load(row + 1).to(tl.uint64) << 32)).to(tl.int64)
    return value


@triton.jit
def as_keys(words):
    """JAX has no integers of 64 bits unless told so: memory for keys is of twice as many of 32 bits."""
    return words.to(tl.pointer_type(tl.int64))
