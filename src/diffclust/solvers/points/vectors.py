"""The distances of a few points to a tile of points, with the sums in registers.

Numba leaves it to LLVM to make vectors of a loop, and LLVM keeps the sums of this one in memory, which takes nearly
twice as long. So the loop is written in LLVM's own instructions: for each coordinate it loads the lanes of the tile
and, for each point, adds to a vector of sums. The sum of a pair is made in the order of the coordinates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.extending import intrinsic

WIDTH = 32  # points of a tile
ROWS = 4  # points whose distances to a tile are computed together: the tile is loaded once for all of them
# What LLVM calls a number, and how many of them are summed at a time. With more, the registers would not hold the sums.
if binding.get_host_cpu_features().get("avx512f", False):
    NUMBERS = {types.float64: (ir.DoubleType(), 32), types.float32: (ir.FloatType(), 32)}
else:
    NUMBERS = {types.float64: (ir.DoubleType(), 8), types.float32: (ir.FloatType(), 16)}
INDEX = ir.IntType(64)
# (builder, totals, differences) -> totals
Add = Callable[[Any, Any, Any], Any]


def _call(builder: Any, name: str, *arguments: Any) -> Any:
    """An instruction of LLVM that takes vectors of one type, and makes one."""
    vector = arguments[0].type
    bits = 64 if vector.element == ir.DoubleType() else 32
    function = ir.FunctionType(vector, [vector] * len(arguments))
    name = f"llvm.{name}.v{vector.count}f{bits}"
    return builder.call(cgutils.get_or_insert_function(builder.module, function, name), arguments)


def _add_square(builder: Any, totals: Any, differences: Any) -> Any:
    return _call(builder, "fmuladd", differences, differences, totals)


def _add_size(builder: Any, totals: Any, differences: Any) -> Any:
    return builder.fadd(totals, _call(builder, "fabs", differences))


def _largest_size(builder: Any, totals: Any, differences: Any) -> Any:
    sizes = _call(builder, "fabs", differences)
    return builder.select(builder.fcmp_ordered(">", sizes, totals), sizes, totals)


def _kernel(add: Add) -> Any:
    """``f(xs, a, row, ys, b, out)`` for compiled code: :func:`diffclust.solvers.points.tiles.distances` of one kind."""

    def kernel(_: Any, xs: Any, a: Any, row: Any, ys: Any, b: Any, out: Any) -> Any:
        if not xs.dtype == ys.dtype == out.dtype or xs.dtype not in NUMBERS:
            return None  # Numba says that there is no such function
        return types.void(xs, types.int64, types.int64, ys, types.int64, out), generate

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        xs, ys, out = (context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 3, 5))
        _, d, width = cgutils.unpack_tuple(builder, xs.shape)  # (tiles, d, WIDTH) or, for a few points, (1, d, ROWS)
        a, row, b = (arguments[i] for i in (1, 2, 4))
        x = builder.gep(xs.data, [builder.add(builder.mul(builder.mul(a, d), width), row)])
        y = builder.gep(ys.data, [builder.mul(builder.mul(b, d), _index(WIDTH))])
        number, n_lanes = NUMBERS[signature.args[0].dtype]
        for first in range(0, WIDTH, n_lanes):
            lanes, place = (builder.gep(start, [_index(first)]) for start in (y, out.data))
            _sum_coordinates(builder, add, ir.VectorType(number, n_lanes), d, width, x, lanes, place)
        return context.get_dummy_value()

    return intrinsic(kernel)


def _sum_coordinates(builder: Any, add: Add, vector: Any, d: Any, width: Any, x: Any, y: Any, out: Any) -> None:
    """From pointers to the points (d, width) and to lanes (d, WIDTH) of a tile the distances at a pointer."""
    n_bytes = 8 if vector.element == ir.DoubleType() else 4
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    before = builder.block
    head, body, end = (builder.append_basic_block(name) for name in ("next", "coordinate", "end"))
    builder.branch(head)
    builder.position_at_end(head)
    k, totals = builder.phi(INDEX), [builder.phi(vector) for _ in range(ROWS)]
    builder.cbranch(builder.icmp_signed("<", k, d), body, end)
    builder.position_at_end(body)
    lanes = builder.bitcast(builder.gep(y, [builder.mul(k, _index(WIDTH))]), vector.as_pointer())
    lanes = builder.load(lanes, align=n_bytes)
    sums = []
    for r, total in enumerate(totals):
        coordinate = builder.load(builder.gep(x, [builder.add(builder.mul(k, width), _index(r))]))
        point = builder.insert_element(ir.Constant(vector, ir.Undefined), coordinate, _index(0))
        point = builder.shuffle_vector(point, ir.Constant(vector, ir.Undefined), everywhere)
        sums.append(add(builder, total, builder.fsub(point, lanes)))
    for total, sum_ in zip(totals, sums, strict=True):
        total.add_incoming(ir.Constant(vector, [0.0] * vector.count), before)
        total.add_incoming(sum_, body)
    k.add_incoming(_index(0), before)
    k.add_incoming(builder.add(k, _index(1)), body)
    builder.branch(head)
    builder.position_at_end(end)
    for r, total in enumerate(totals):
        place = builder.bitcast(builder.gep(out, [_index(r * WIDTH)]), vector.as_pointer())
        builder.store(total, place, align=n_bytes)


def _index(number: int) -> Any:
    return ir.Constant(INDEX, number)


squared_euclidean, manhattan, chebyshev = _kernel(_add_square), _kernel(_add_size), _kernel(_largest_size)
