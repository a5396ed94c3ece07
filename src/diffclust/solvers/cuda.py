"""The forest solver for CUDA: Triton, a program for every (problem, solve, draw), noise made inside the kernel.

**Idea.** A program runs Prim on ``similarity + epsilon * noise`` with its whole state in registers: one 64-bit key for
every vertex, its best edge to the tree. A key holds all that decides between edges, what counts most at the top::

    bit 63   in the tree: sticky under the unsigned maximum of an update, last under the signed one of a choice
    61 - 62  tier: 2 same label, 1 different labels (a virtual edge), 0 all others; 0 in the free solve
    29 - 60  weight, a float32 mapped to an unsigned integer of the same order
     1 - 28  complement of the edge (i, j), i < j, 14 bits each: equal weights go by smaller (i, j)
     0       whether the new vertex is j

so one maximum decides a round, ties included, and the keys of the rounds are the spanning tree. Which of its edges
stay, and in what order, is then found by counting, for each, the stronger ones. Constraints that are not labels with
must-links first go through :func:`_agglomerate`, the greedy itself.

**Cost.** A round takes one row of the similarity, n normals and one reduction; a draw n - 1 rounds. Each call of the
generator serves vertices 2c and 2c + 1, which therefore share a lane, as two arrays, "even" and "odd". A vertex takes
some 115 instructions in a round, 95 of them for its noise: large problems are bound by arithmetic, small ones by the
latency of a round. Memory is O(draws * n) beside the similarity. Nothing here waits for the device.

The noise is that of :mod:`diffclust.noise` to the last bit, so kernels run with ``enable_fp_fusion=False``.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import triton
import triton.language as tl

from diffclust import noise as definition
from diffclust.solvers import Forests

MAX_POINTS = 1 << 14  # an index has 14 bits in a key
SMALL = 128  # points up to which everything goes into one launch
SCRATCH_BYTES = 1 << 30  # of the general greedy, which needs n x n for each draw in flight

_ROUND_0, _ROUND_1 = tl.constexpr(int(definition._MULTIPLIER_0)), tl.constexpr(int(definition._MULTIPLIER_1))
_WEYL_0, _WEYL_1 = tl.constexpr(int(definition._WEYL_0)), tl.constexpr(int(definition._WEYL_1))
_HALF, _QUARTER = tl.constexpr(float(definition._HALF)), tl.constexpr(float(definition._QUARTER))
_TWO_TO_MINUS_32 = tl.constexpr(float(definition._TWO_TO_MINUS_32))
_SQRT_HALF_BITS = tl.constexpr(int(definition._SQRT_HALF_BITS))
_EXPONENT_MASK = tl.constexpr(-(1 << int(definition._MANTISSA_BITS)))
_LN2_OF_EXPONENT_BITS = tl.constexpr(float(definition._LN2) * 2.0 ** -int(definition._MANTISSA_BITS))
_L0, _L1, _L2, _L3, _L4, _L5, _L6, _L7 = (tl.constexpr(float(getattr(definition, f"_L{i}"))) for i in range(8))
_S0, _S1, _S2, _S3 = (tl.constexpr(float(getattr(definition, f"_S{i}"))) for i in range(4))
_C0, _C1, _C2 = (tl.constexpr(float(getattr(definition, f"_C{i}"))) for i in range(3))
_SIGN_BIT = tl.constexpr(-(1 << 31))
_INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))  # by NumPy, in tests without a GPU

_INDEX_BITS, _CODE_BITS = tl.constexpr(14), tl.constexpr(28)
_LARGEST_INDEX, _LARGEST_CODE = tl.constexpr((1 << 14) - 1), tl.constexpr((1 << 28) - 1)
_WEIGHT_SHIFT, _TIER_SHIFT = tl.constexpr(29), tl.constexpr(61)
_WITHOUT_TIER = tl.constexpr((1 << 61) - 1)
_IN_TREE = tl.constexpr(-(1 << 63))

# --------------------------------------------------------------------------------------------------------------
# Noise: the functions of diffclust.noise on vectors of words


@triton.jit
def _product(a, b):
    """High and low word of a product of uint32. The compiler does not always see that one instruction gives both."""
    if _INTERPRETED:
        high, low = tl.umulhi(a, b), a * b
    else:
        high, low = tl.inline_asm_elementwise(
            "{ .reg .b64 p; mul.wide.u32 p, $2, $3; mov.b64 {$1, $0}, p; }", "=r,=r,r,r", [a, b],
            dtype=(tl.uint32, tl.uint32), is_pure=True, pack=1,
        )  # fmt: skip
    return high, low


@triton.jit
def _philox(c0, c1, c2, c3, k0, k1):
    """Philox4x32-10 on uint32 words."""
    for _ in tl.static_range(10):
        high_0, low_0 = _product(c0, tl.full((), _ROUND_0, tl.uint32))
        high_1, low_1 = _product(c2, tl.full((), _ROUND_1, tl.uint32))
        c0, c1, c2, c3 = high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0
        k0, k1 = k0 + _WEYL_0, k1 + _WEYL_1
    return c0, c1, c2, c3


@triton.jit
def _log_polynomial(f):
    return f * (_L0 + f * (_L1 + f * (_L2 + f * (_L3 + f * (_L4 + f * (_L5 + f * (_L6 + f * _L7)))))))


@triton.jit
def _log(x):
    """Natural logarithm of a positive normal float32."""
    bits = x.to(tl.int32, bitcast=True)
    # The exponent stays at its place in the word: a factor 2^23 that the constant takes back without rounding.
    exponent = (bits - _SQRT_HALF_BITS) & _EXPONENT_MASK
    mantissa = (bits - exponent).to(tl.float32, bitcast=True)
    return exponent.to(tl.float32) * _LN2_OF_EXPONENT_BITS + _log_polynomial(mantissa - 1.0)


@triton.jit
def _uniform(word):
    return (word.to(tl.float32) + _HALF) * _TWO_TO_MINUS_32


@triton.jit
def _sqrt(x):
    """Correctly rounded square root of 0 or a number in the middle of the range.

    This is the compiler's own sequence for ``sqrt.rn`` less its test for tiny and huge numbers: a branch, which would
    keep the chains of two vertices from running side by side.
    """
    if _INTERPRETED:
        root = tl.sqrt_rn(x)
    else:
        inverse = tl.inline_asm_elementwise(
            "rsqrt.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
        inverse = tl.minimum(tl.abs(inverse), 1e18)  # infinite at 0, where the product must be 0
        near = x * inverse
        root = tl.fma(tl.fma(-near, near, x), 0.5 * inverse, near)
    return root


@triton.jit
def _normal(radius_word, angle_word, component):
    """Component 0 (cosine) or 1 (sine) of Box-Muller: the sine is the cosine of an angle a quarter turn less."""
    # A quarter turn ahead the signs of the quadrants (cosine, -sine, -cosine, sine) are just the first bit.
    ahead = angle_word + tl.where(component == 0, 1 << 30, 0).to(tl.uint32)
    # Four times the definition's integer: again a power of two that rounding does not see, and one instruction less.
    t = ((ahead << 2).to(tl.int32, bitcast=True) ^ _SIGN_BIT).to(tl.float32) * _TWO_TO_MINUS_32
    t2 = t * t
    sine = t * (_S0 + t2 * (_S1 + t2 * (_S2 + t2 * _S3)))
    cosine = 1.0 + t2 * (_C0 + t2 * (_C1 + t2 * _C2))
    size = tl.where((ahead & (1 << 30)) == 0, sine, cosine).to(tl.int32, bitcast=True)
    sign = ahead.to(tl.int32, bitcast=True) & _SIGN_BIT
    radius = _sqrt(-2.0 * _log(_uniform(radius_word)))
    return radius * (size ^ sign).to(tl.float32, bitcast=True)


@triton.jit
def _gumbel(word):
    v, rest = _uniform(word), _uniform(~word)
    near = v < _QUARTER
    return -_log(-tl.where(near, _log_polynomial(-tl.minimum(v, _QUARTER)), _log(rest)))


@triton.jit
def _four(w0, w1, w2, w3, zero, GUMBEL: tl.constexpr):
    """The noise of the four pairs of a block; ``zero`` is a tensor of the words' shape."""
    if GUMBEL:
        z0, z1, z2, z3 = _gumbel(w0), _gumbel(w1), _gumbel(w2), _gumbel(w3)
    else:
        z0, z1 = _normal(w0, w1, zero), _normal(w0, w1, zero + 1)
        z2, z3 = _normal(w2, w3, zero), _normal(w2, w3, zero + 1)
    return z0, z1, z2, z3


@triton.jit
def _integer(value):
    """An int64 from an argument that is a number or points to one."""
    if value.dtype.is_ptr():
        number = tl.load(value)
    else:
        number = value
    return number.to(tl.int64)


@triton.jit
def _draw_words(seed, first_draw, position, ANTITHETIC: tl.constexpr):
    """Key and counter words of draw ``first_draw + position`` as uint32, and the sign of its noise."""
    key = _integer(seed).to(tl.uint64)
    draw = (_integer(first_draw) + position).to(tl.uint64)
    sign = tl.full((), 1.0, tl.float32)
    if ANTITHETIC:
        sign = tl.where((draw & 1) != 0, -1.0, 1.0)
        draw = draw >> 1
    return key.to(tl.uint32), (key >> 32).to(tl.uint32), draw.to(tl.uint32), (draw >> 32).to(tl.uint32), sign


@triton.jit
def _noise_row(u, column, k0, k1, draw_low, draw_high, GUMBEL: tl.constexpr):
    """Noise between u and the vertices (2 * column, 2 * column + 1); at u itself it is not defined.

    Word and component follow from the layout of the 2 x 2 blocks. Where u is the smaller end, both vertices take the
    words of u's row, (2r, 2r + 1) with r = u % 2. Where it is the larger, they take rows 0 and 1, column r. On the
    diagonal the one pair of the block, (2c, 2c + 1), is word 1 both ways.
    """
    r = u & 1
    block = u >> 1
    w0, w1, w2, w3 = _philox(
        tl.maximum(column, block).to(tl.uint32), tl.minimum(column, block).to(tl.uint32), draw_low, draw_high, k0, k1
    )
    smaller = 2 * column >= u
    even_in_row_1 = smaller & (r == 1)
    odd_in_row_0 = smaller & (r == 0)
    even_0, even_1 = tl.where(even_in_row_1, w2, w0), tl.where(even_in_row_1, w3, w1)
    odd_0, odd_1 = tl.where(odd_in_row_0, w0, w2), tl.where(odd_in_row_0, w1, w3)
    even_component, odd_component = tl.where(smaller, 0, r), tl.where(smaller, 1, r)
    if GUMBEL:
        even = _gumbel(tl.where(even_component == 0, even_0, even_1))
        odd = _gumbel(tl.where(odd_component == 0, odd_0, odd_1))
    else:
        even = _normal(even_0, even_1, even_component)
        odd = _normal(odd_0, odd_1, odd_component)
    return even, odd


@triton.jit
def _weight_row(
    similarity, n, u, column, scale, k0, k1, draw_low, draw_high,
    SYMMETRIC: tl.constexpr, NOISY: tl.constexpr, GUMBEL: tl.constexpr,
):  # fmt: skip
    """``similarity + scale * noise`` between u and (2 * column, 2 * column + 1)."""
    row = similarity + tl.cast(u, tl.int64) * n
    even = tl.load(row + 2 * column, mask=2 * column < n, other=0.0)
    odd = tl.load(row + 2 * column + 1, mask=2 * column + 1 < n, other=0.0)
    if not SYMMETRIC:
        even = _mean_of_two(even, tl.load(similarity + 2 * column * n + u, mask=2 * column < n, other=0.0))
        odd = _mean_of_two(odd, tl.load(similarity + (2 * column + 1) * n + u, mask=2 * column + 1 < n, other=0.0))
    if NOISY:
        even_noise, odd_noise = _noise_row(u, column, k0, k1, draw_low, draw_high, GUMBEL)
        even += scale * even_noise
        odd += scale * odd_noise
    return even, odd


@triton.jit
def _mean_of_two(a, b):
    """Of the entries of a pair, as float32; rounded as on the CPU."""
    return (0.5 * a + 0.5 * b).to(tl.float32)


# --------------------------------------------------------------------------------------------------------------
# Keys


@triton.jit
def _key(weight, u, v):
    """The key, in tier 0, of an edge from u in the tree to a new vertex v."""
    # Adding zero makes -0.0 equal to 0.0; and the hardware's addition makes every NaN the positive one, which wins.
    bits = (weight + 0.0).to(tl.int32, bitcast=True)
    ordered = (bits ^ ((bits >> 31) | _SIGN_BIT)).to(tl.uint32, bitcast=True)
    edge = tl.where(
        v > u,
        (2 * _LARGEST_CODE + 1 - 2 * v) - (u << (_INDEX_BITS + 1)),
        (2 * _LARGEST_CODE - (v << (_INDEX_BITS + 1))) - 2 * u,
    )
    return (ordered.to(tl.int64) << _WEIGHT_SHIFT) | edge.to(tl.int64)


@triton.jit
def _weight_of(key):
    ordered = (key >> _WEIGHT_SHIFT).to(tl.uint32).to(tl.int32, bitcast=True)
    return (ordered ^ (~(ordered >> 31) | _SIGN_BIT)).to(tl.float32, bitcast=True)


@triton.jit
def _ends_of(key):
    """(i, j), i < j, and whether j is the new vertex."""
    code = _LARGEST_CODE - ((key >> 1).to(tl.int32) & _LARGEST_CODE)
    return code >> _INDEX_BITS, code & _LARGEST_INDEX, (key & 1) != 0


@triton.jit
def _with_tier(key, label_u, label_v):
    """The key in its tier; u is labelled."""
    tier = tl.where(label_v == label_u, 2, tl.where(label_v >= 0, 1, 0))
    return key | (tier.to(tl.int64) << _TIER_SHIFT)


@triton.jit
def _updated(key, candidate, is_u):
    candidate |= tl.where(is_u, _IN_TREE, 0)
    return tl.maximum(key.to(tl.uint64, bitcast=True), candidate.to(tl.uint64, bitcast=True)).to(tl.int64, bitcast=True)


@triton.jit
def _largest(key, WARPS: tl.constexpr):
    """The largest key, first in each warp: two 32-bit reductions, an instruction each, beat ten shuffles of halves."""
    if key.shape[0] >= 32 * WARPS:
        rows = tl.reshape(key, (WARPS, key.shape[0] // WARPS))
        high = (rows >> 32).to(tl.int32)
        largest_high = tl.max(high, axis=1, keep_dims=True)
        low = (rows & 0xFFFFFFFF).to(tl.uint32)
        largest_low = tl.max(tl.where(high == largest_high, low, 0), axis=1, keep_dims=True)
        key = tl.reshape((largest_high.to(tl.int64) << 32) | largest_low.to(tl.int64), (WARPS,))
    return tl.max(key, axis=0)


# --------------------------------------------------------------------------------------------------------------
# What a draw returns


@triton.jit
def _rank(keys, n_edges, key):
    """For each key, how many of ``keys[:n_edges]`` are larger."""
    rank = tl.zeros(key.shape, tl.int32)
    for start in range(0, n_edges, 8):
        for offset in tl.static_range(8):  # eight loads in flight
            other = start + offset
            rank += (tl.load(keys + other, mask=other < n_edges, other=_IN_TREE) > key).to(tl.int32)
    return rank


@triton.jit
def _write_edges(edges, key, kept, position, n_kept, n):
    """Write the kept edges to their positions, and (-1, -1) after them."""
    index = tl.arange(0, key.shape[0])
    i, j, _ = _ends_of(key)
    tl.store(edges + 2 * position, i, mask=kept)
    tl.store(edges + 2 * position + 1, j, mask=kept)
    unused = (index >= n_kept) & (index < n - 1)
    tl.store(edges + 2 * index, -1, mask=unused)
    tl.store(edges + 2 * index + 1, -1, mask=unused)


@triton.jit
def _count(counts, i, j, solve, n):
    """Add edges (i, j) with i >= 0 to a problem's counts, both ways; subtract those of the second solve."""
    i, j = i.to(tl.int64), j.to(tl.int64)
    sign = tl.full(i.shape, 1, tl.int32) - 2 * solve
    tl.atomic_add(counts + i * n + j, sign, mask=i >= 0, sem="relaxed")
    tl.atomic_add(counts + j * n + i, sign, mask=i >= 0, sem="relaxed")


@triton.jit
def _value(key, kept, failed):
    """Twice the sum of the kept weights, the sum in float64 so that its order does not show; NaN where failed."""
    total = tl.sum(tl.where(kept, _weight_of(key), 0.0).to(tl.float64), axis=0)
    return tl.where(failed, float("nan"), (2.0 * total).to(tl.float32))


@triton.jit
def _number_trees(labels, smallest, numbers, root, failed, n):
    """labels[v] = number of v's tree by its smallest point. ``root[v]`` is any point that stands for v's tree."""
    v = tl.arange(0, root.shape[0])
    valid = v < n
    tl.store(smallest + v, v, mask=valid)
    tl.debug_barrier()
    tl.atomic_min(smallest + root, v, mask=valid, sem="relaxed", scope="cta")
    tl.debug_barrier()
    first = tl.load(smallest + root, mask=valid, other=0)
    tl.store(numbers + v, tl.cumsum((valid & (first == v)).to(tl.int32), axis=0) - 1, mask=valid)
    tl.debug_barrier()
    number = tl.load(numbers + first, mask=valid, other=0)
    tl.store(labels + v, tl.where(failed, 0, number), mask=valid)


@triton.jit
def _find_roots(parents, key, kept, n, BLOCK: tl.constexpr, JUMPS: tl.constexpr):
    """The root of each vertex where the new vertex of each kept edge hangs on the other one: pointer jumping."""
    index = tl.arange(0, BLOCK)
    i, j, new_is_j = _ends_of(key)
    new, old = tl.where(new_is_j, j, i), tl.where(new_is_j, i, j)
    tl.store(parents + new, tl.where(kept, old, new), mask=index < n - 1)
    tl.store(parents, 0)  # where Prim started
    tl.debug_barrier()
    root = tl.load(parents + index, mask=index < n, other=0)
    for _ in range(JUMPS):
        root = tl.load(parents + root, mask=index < n, other=0)
        tl.debug_barrier()
        tl.store(parents + index, root, mask=index < n)
        tl.debug_barrier()
    return root


@triton.jit
def _kept_edges(key, rank, n, k):
    """(which tree edges the forest keeps, whether the draw failed).

    All of tier 2, none of tier 1, and the strongest of tier 0 up to n - k in all; never an edge of weight -inf. A draw
    fails where a NaN was met, which always gets into the tree, or where missing edges cut a labelled group.
    """
    exists = key >= 0
    tier = (key >> _TIER_SHIFT).to(tl.int32)
    weight = _weight_of(key)
    missing = weight == float("-inf")
    in_tier_1 = tl.sum((exists & (tier == 1)).to(tl.int32), axis=0)
    wrong = exists & ((weight != weight) | (missing & (tier == 2)))
    failed = tl.max(wrong.to(tl.int32), axis=0) > 0
    # Tier 0 starts after tiers 2 and 1, and as many as tier 2 leaves of n - k may stay: tier 2 counts on both sides.
    strong = (tier == 0) & (rank - in_tier_1 < n - k)
    kept = exists & ((tier == 2) | strong) & (missing == 0)
    return tl.where(failed, False, kept), failed


# --------------------------------------------------------------------------------------------------------------
# Prim


@triton.jit
def _grow_tree(
    similarity, point_labels, constrained, keys, n, scale, k0, k1, draw_low, draw_high,
    SYMMETRIC: tl.constexpr, LABELS: tl.constexpr, HALF: tl.constexpr, NOISY: tl.constexpr, GUMBEL: tl.constexpr,
    WARPS: tl.constexpr,
):  # fmt: skip
    """Prim from vertex 0: the keys of the maximum spanning tree, in the order in which it grew."""
    column = tl.arange(0, HALF)
    even, odd = 2 * column, 2 * column + 1
    key_even = tl.where(even < n, 0, _IN_TREE).to(tl.int64)
    key_odd = tl.where(odd < n, 0, _IN_TREE).to(tl.int64)
    if LABELS:
        label_even = tl.load(point_labels + even, mask=even < n, other=-1)
        label_odd = tl.load(point_labels + odd, mask=odd < n, other=-1)

    u = 0
    for step in range(n - 1):
        weight_even, weight_odd = _weight_row(
            similarity, n, u, column, scale, k0, k1, draw_low, draw_high, SYMMETRIC, NOISY, GUMBEL
        )
        new_even, new_odd = _key(weight_even, u, even), _key(weight_odd, u, odd)
        if LABELS:
            label_u = tl.load(point_labels + u)
            if constrained & (label_u >= 0):
                new_even = _with_tier(new_even, label_u, label_even)
                new_odd = _with_tier(new_odd, label_u, label_odd)
        key_even = _updated(key_even, new_even, even == u)
        key_odd = _updated(key_odd, new_odd, odd == u)
        best = _largest(tl.maximum(key_even, key_odd), WARPS)
        tl.store(keys + step, best)
        i, j, new_is_j = _ends_of(best)
        u = tl.where(new_is_j, j, i)
    tl.debug_barrier()


@triton.jit(do_not_specialize=["seed", "first_draw"])
def _prim(
    similarity, n_clusters, point_labels, seed, first_draw, epsilon, n, n_draws, n_solves, n_solves_out,
    counts, edges_out, labels_out, values_out, keys, smallest, numbers,
    HALF: tl.constexpr, JUMPS: tl.constexpr, COUNTS: tl.constexpr, NOISY: tl.constexpr, GUMBEL: tl.constexpr,
    ANTITHETIC: tl.constexpr, LABELS: tl.constexpr, WITH_LABELS: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """One draw of one solve of one problem. With ``LABELS`` the last solve is the constrained one."""
    item = tl.program_id(0)
    draw = item % n_draws
    solve = (item // n_draws) % n_solves
    problem = (item // n_draws // n_solves).to(tl.int64)
    out = (problem * n_solves_out + solve) * n_draws + draw
    keys += item.to(tl.int64) * n
    k0, k1, draw_low, draw_high, sign = _draw_words(seed, first_draw, draw, ANTITHETIC)
    _grow_tree(
        similarity + problem * n * n, point_labels + problem * n, solve == n_solves - 1, keys, n, sign * epsilon,
        k0, k1, draw_low, draw_high, True, LABELS, HALF, NOISY, GUMBEL, WARPS,
    )  # fmt: skip

    index = tl.arange(0, 2 * HALF)
    key = tl.load(keys + index, mask=index < n - 1, other=-1)
    position = _rank(keys, n - 1, key)
    kept, failed = _kept_edges(key, position, n, tl.load(n_clusters + problem).to(tl.int32))
    if LABELS:  # noqa: SIM102 - known when compiled, the next one when run
        if solve == n_solves - 1:  # the order of the edges is by weight, whatever their tier
            plain = tl.where(kept, key & _WITHOUT_TIER, -1)
            tl.debug_barrier()
            tl.store(keys + index, plain, mask=index < n - 1)
            tl.debug_barrier()
            position = _rank(keys, n - 1, plain)
    n_kept = tl.sum(kept.to(tl.int32), axis=0)
    _write_edges(edges_out + out * (n - 1) * 2, key, kept, position, n_kept, n)
    tl.store(values_out + out, _value(key, kept, failed))
    if COUNTS:
        i, j, _ = _ends_of(key)
        _count(counts + problem * n * n, tl.where(kept, i, -1), j, solve, n)
    if WITH_LABELS:
        labels_out += out * n
        root = _find_roots(labels_out, key, kept, n, 2 * HALF, JUMPS)
        _number_trees(labels_out, smallest + item.to(tl.int64) * n, numbers + item.to(tl.int64) * n, root, failed, n)


def _num_warps(n: int) -> int:
    """Warps of a program that runs Prim on n points, by the number of 2 x 2 blocks in a row of the noise."""
    columns = triton.next_power_of_2((n + 1) // 2)
    for warps, largest in ((1, 32), (2, 64), (4, 128), (8, 1024), (16, 2048)):
        if columns <= largest:
            return warps
    return 32


# --------------------------------------------------------------------------------------------------------------
# General constraints: the greedy itself


@triton.jit
def _may_join(tree_block, block, apart, open_blocks, n, valid):
    """For every tree, whether a tree of block ``tree_block`` may join it."""
    forbidden = tl.load(apart + tree_block.to(tl.int64) * n + block, mask=valid, other=1) != 0
    return (block == tree_block) | (open_blocks & (forbidden == 0))


@triton.jit
def _nearest(matrix, apart, r, block, alive, open_blocks, n):
    """The best edge from tree r to a tree it may join, -1 where there is none, and that tree."""
    t = tl.arange(0, block.shape[0])
    own_block = tl.sum(tl.where(t == r, block, 0), axis=0)
    key = tl.load(matrix + r.to(tl.int64) * n + t, mask=alive, other=-1)
    key = tl.where(alive & (t != r) & _may_join(own_block, block, apart, open_blocks, n, alive), key, -1)
    best = tl.max(key, axis=0)
    return best, tl.min(tl.where(key == best, t, n), axis=0)


@triton.jit
def _refresh(pending, nearest_key, nearest, matrix, apart, block, alive, open_blocks, n):
    """Look again for the nearest tree of every pending tree."""
    t = tl.arange(0, block.shape[0])
    r = tl.min(tl.where(pending, t, n), axis=0)
    while r < n:
        key, tree = _nearest(matrix, apart, r, block, alive, open_blocks, n)
        nearest_key = tl.where(t == r, key, nearest_key)
        nearest = tl.where(t == r, tree, nearest)
        pending = pending & (t != r)
        r = tl.min(tl.where(pending, t, n), axis=0)
    return nearest_key, nearest


@triton.jit
def _fill_matrix(
    matrix, similarity, n, scale, k0, k1, draw_low, draw_high,
    HALF: tl.constexpr, NOISY: tl.constexpr, GUMBEL: tl.constexpr,
):  # fmt: skip
    """Write the keys of all edges, -1 where there is none; return whether there was a NaN."""
    column = tl.arange(0, HALF)
    even, odd = 2 * column, 2 * column + 1
    n_wrong = tl.zeros((HALF,), tl.int32)
    for index in range(n):
        u = tl.cast(index, tl.int32)
        weight_even, weight_odd = _weight_row(
            similarity, n, u, column, scale, k0, k1, draw_low, draw_high, True, NOISY, GUMBEL
        )
        target = matrix + tl.cast(u, tl.int64) * n
        # The bit for the new vertex has no use here, and must not tell (u, v) from (v, u).
        key_even = tl.where((even == u) | (weight_even == float("-inf")), -1, _key(weight_even, u, even) | 1)
        key_odd = tl.where((odd == u) | (weight_odd == float("-inf")), -1, _key(weight_odd, u, odd) | 1)
        tl.store(target + even, key_even, mask=even < n)
        tl.store(target + odd, key_odd, mask=odd < n)
        n_wrong += ((weight_even != weight_even) & (even < n) & (even != u)).to(tl.int32)
        n_wrong += ((weight_odd != weight_odd) & (odd < n) & (odd != u)).to(tl.int32)
    return tl.sum(n_wrong, axis=0) > 0


@triton.jit
def _fill_blocks(apart, relation, point_labels, n, BLOCK: tl.constexpr, LABELS: tl.constexpr):
    """Write which pairs must stay apart; return for each point the smallest one that it must link to, or itself."""
    t = tl.arange(0, BLOCK)
    valid = t < n
    block = t
    if LABELS:
        label = tl.load(point_labels + t, mask=valid, other=-1)
    for i in range(n):
        j = tl.cast(n - 1 - i, tl.int32)  # downwards, so that the smallest partner is written last
        if LABELS:
            label_j = tl.load(point_labels + j)
            known = (label >= 0) & (label_j >= 0)
            same, different = known & (label == label_j), known & (label != label_j)
        else:
            row = tl.load(relation + tl.cast(j, tl.int64) * n + t, mask=valid, other=-1)
            same, different = row == 1, row == 0
        tl.store(apart + tl.cast(j, tl.int64) * n + t, different.to(tl.int8), mask=valid)
        block = tl.where(same & (j < t), j, block)
    return block


@triton.jit(do_not_specialize=["seed", "first_draw"])
def _agglomerate(
    similarity, n_clusters, point_labels, relation, seed, first_draw, epsilon, n, n_problems, n_draws, n_solves_out,
    edges_out, labels_out, values_out, keys, smallest, numbers, matrices, aparts,
    HALF: tl.constexpr, NOISY: tl.constexpr, GUMBEL: tl.constexpr, ANTITHETIC: tl.constexpr,
    LABELS: tl.constexpr, MUST_LINK_FIRST: tl.constexpr, WITH_LABELS: tl.constexpr,
):  # fmt: skip
    """The constrained greedy of ``reference.kruskal`` as agglomeration; programs take draws in turn.

    Trees are merged best pair first, and the row of a tree in ``matrix`` holds its best edges to the others. Each tree
    remembers its nearest tree that it may join. A block is what a tree must at least become: joins inside a block are
    always allowed, joins between blocks while ``open_blocks``. With must-links first, blocks open when no join inside a
    block is left; they close when k blocks are left.
    """
    program = tl.program_id(0)
    matrix = matrices + program.to(tl.int64) * n * n
    apart = aparts + program.to(tl.int64) * n * n
    keys += program.to(tl.int64) * n
    smallest += program.to(tl.int64) * n
    numbers += program.to(tl.int64) * n
    t = tl.arange(0, 2 * HALF)
    for item in range(program, n_problems * n_draws, tl.num_programs(0)):
        draw, problem = item % n_draws, tl.cast(item // n_draws, tl.int64)
        out = (problem * n_solves_out + n_solves_out - 1) * n_draws + draw
        k = tl.load(n_clusters + problem).to(tl.int32)
        k0, k1, draw_low, draw_high, sign = _draw_words(seed, first_draw, draw, ANTITHETIC)
        failed = _fill_matrix(
            matrix, similarity + problem * n * n, n, sign * epsilon, k0, k1, draw_low, draw_high, HALF, NOISY, GUMBEL
        )
        block = _fill_blocks(apart, relation + problem * n * n, point_labels + problem * n, n, 2 * HALF, LABELS)
        tl.debug_barrier()

        tree = t
        alive = t < n
        n_blocks = tl.sum((alive & (block == t)).to(tl.int32), axis=0)
        may_open = n_blocks > k
        open_blocks = may_open & (MUST_LINK_FIRST == 0)
        nearest = tl.zeros((2 * HALF,), tl.int32)
        nearest_key = tl.full((2 * HALF,), -1, tl.int64)
        nearest_key, nearest = _refresh(alive, nearest_key, nearest, matrix, apart, block, alive, open_blocks, n)
        n_edges = 0
        running = failed == 0
        while running:
            best = tl.max(nearest_key, axis=0)
            pending = t < 0
            if best >= 0:
                tl.store(keys + n_edges, best)
                n_edges += 1
                r = tl.min(tl.where(nearest_key == best, t, n), axis=0)
                s = tl.sum(tl.where(t == r, nearest, 0), axis=0)
                kept = tl.sum(tl.where(t == r, block, 0), axis=0)
                gone = tl.sum(tl.where(t == s, block, 0), axis=0)
                alive = alive & (t != s)
                tree = tl.where(tree == s, r, tree)
                nearest_key = tl.where(t == s, -1, nearest_key)

                was_open = open_blocks
                if kept != gone:
                    either = tl.load(apart + kept.to(tl.int64) * n + t, mask=t < n, other=0)
                    either = either | tl.load(apart + gone.to(tl.int64) * n + t, mask=t < n, other=0)
                    tl.debug_barrier()
                    tl.store(apart + kept.to(tl.int64) * n + t, either, mask=t < n)
                    tl.store(apart + t.to(tl.int64) * n + kept, either, mask=t < n)
                    block = tl.where(block == gone, kept, block)
                    n_blocks -= 1
                    may_open = may_open & (n_blocks > k)
                    open_blocks = open_blocks & may_open

                # The best edges of the joined tree, in row and column r.
                others = alive & (t != r)
                joined = tl.load(matrix + r.to(tl.int64) * n + t, mask=others, other=-1)
                joined = tl.maximum(joined, tl.load(matrix + s.to(tl.int64) * n + t, mask=others, other=-1))
                tl.debug_barrier()
                tl.store(matrix + r.to(tl.int64) * n + t, joined, mask=others)
                tl.store(matrix + t.to(tl.int64) * n + r, joined, mask=others)
                tl.debug_barrier()

                # The better of two best edges is still the best, if the joined tree may be joined at all.
                moved = others & (nearest_key >= 0) & ((nearest == r) | (nearest == s))
                welcome = _may_join(kept, block, apart, open_blocks, n, alive)
                nearest = tl.where(moved & welcome, r, nearest)
                nearest_key = tl.where(moved & welcome, joined, nearest_key)
                pending = (alive & (t == r)) | (moved & (welcome == 0))
                if kept != gone:  # a nearest tree in another block may have become forbidden
                    partner = tl.where(alive & (nearest_key >= 0), nearest, 0)
                    tl.store(numbers + t, block, mask=t < n)
                    tl.debug_barrier()
                    partner_block = tl.load(numbers + partner, mask=alive, other=0)
                    tl.debug_barrier()
                    forbidden = tl.load(apart + block.to(tl.int64) * n + partner_block, mask=alive, other=0) != 0
                    pending = pending | (alive & (nearest_key >= 0) & (block != partner_block) & forbidden)
                if was_open & (open_blocks == 0):
                    pending = alive
            else:
                running = may_open & (open_blocks == 0)
                open_blocks = may_open
                pending = alive & running
            nearest_key, nearest = _refresh(pending, nearest_key, nearest, matrix, apart, block, alive, open_blocks, n)

        tl.debug_barrier()
        is_edge = t < n_edges
        key = tl.load(keys + t, mask=is_edge, other=-1)
        position = _rank(keys, n_edges, key)
        _write_edges(edges_out + out * (n - 1) * 2, key, is_edge, position, n_edges, n)
        tl.store(values_out + out, _value(key, is_edge, failed))
        if WITH_LABELS:
            _number_trees(labels_out + out * n, smallest, numbers, tl.where(t < n, tree, 0), failed, n)
        tl.debug_barrier()  # before the next draw overwrites the scratch


# --------------------------------------------------------------------------------------------------------------
# All draws


def solve(
    similarity: torch.Tensor,
    n_clusters: torch.Tensor,
    *,
    labels: torch.Tensor | None = None,
    relation: torch.Tensor | None = None,
    must_link_first: bool = True,
    free: bool = True,
    seed: torch.Tensor | int,
    first_draw: torch.Tensor | int,
    n_draws: int = 1,
    epsilon: float = 0.0,
    noise: str = "normal",
    antithetic: bool = False,
    with_labels: bool = True,
    counts: torch.Tensor | None = None,
    num_warps: int | None = None,
) -> Forests:
    """Forests of ``similarity + epsilon * noise`` for every problem and draw, as ``solvers.cpu.solve`` gives them.

    Args:
        similarity: (problems, n, n) float32, exactly symmetric; the diagonal is ignored.
        n_clusters: (problems,) integers.
        labels: (problems, n) int64, negative is unknown; or
        relation: (problems, n, n) int8, 1 same, 0 different, -1 unknown, transitively closed; or neither.
        free: also (or, without constraints, only) the forests without constraints.
        seed, first_draw: integers, or int64 scalars on the device, which only the kernels read.
        with_labels: False leaves out the trees of the points (``labels`` has length 0).
        counts: (problems, n, n) int32 zeros, to which the edges are added as in :func:`adjacency_counts`.
        num_warps: of the main kernel, for measurements; see :func:`_num_warps`.

    A draw with a NaN gets a NaN value, no edges and labels 0; so does, with labels and must-links first, a draw in
    which missing edges (-inf) cut a labelled group into pieces.
    """
    n_problems, n = _check_similarity(similarity)
    definition.check_kind(noise)
    constrained = labels is not None or relation is not None
    general = relation is not None or (labels is not None and not must_link_first)
    free = free or not constrained
    n_solves = int(free) + int(constrained)
    forests = Forests(
        similarity.new_empty((n_problems, n_solves, n_draws, max(n - 1, 0), 2), dtype=torch.int32),
        similarity.new_empty((n_problems, n_solves, n_draws, n if with_labels else 0), dtype=torch.int32),
        similarity.new_empty((n_problems, n_solves, n_draws), dtype=torch.float32),
    )
    if n == 0 or n_problems * n_draws == 0:
        forests.values.zero_()
        return forests

    half = triton.next_power_of_2((n + 1) // 2)
    similarity, n_clusters = similarity.contiguous(), n_clusters.contiguous()
    draws = {
        "NOISY": epsilon != 0, "GUMBEL": noise == "gumbel", "ANTITHETIC": antithetic, "WITH_LABELS": with_labels,
        "HALF": half,
    }  # fmt: skip
    points = similarity if labels is None else labels.contiguous()  # a pointer that is not read where there are none
    warps = num_warps or _num_warps(n)
    with device_of(similarity):
        in_main_kernel = int(free) + int(constrained and not general)
        if in_main_kernel:
            items = n_problems * in_main_kernel * n_draws
            _prim[(items,)](
                similarity, n_clusters, points, seed, first_draw, float(epsilon), n, n_draws, in_main_kernel, n_solves,
                similarity if counts is None else counts, *forests, *_scratch(similarity, items, n, with_labels),
                JUMPS=(n - 1).bit_length(), COUNTS=counts is not None and not general,
                LABELS=labels is not None and not general, WARPS=warps, **draws, **_launch(warps),
            )  # fmt: skip
        if general:
            # 9 bytes a pair: an int64 key and an int8 flag.
            programs = max(1, min(n_problems * n_draws, SCRATCH_BYTES // (9 * n * n)))
            _agglomerate[(programs,)](
                similarity, n_clusters, points, similarity if relation is None else relation.contiguous(),
                seed, first_draw, float(epsilon), n, n_problems, n_draws, n_solves,
                *forests, *_scratch(similarity, programs, n, True),
                similarity.new_empty((programs, n, n), dtype=torch.int64),
                similarity.new_empty((programs, n, n), dtype=torch.int8),
                LABELS=relation is None, MUST_LINK_FIRST=must_link_first, **draws, **_launch(_num_warps(n)),
            )  # fmt: skip
    if counts is not None and general:
        counts += adjacency_counts(forests.edges, n)
    return forests


@triton.jit
def _symmetrise(similarity, out, counts, n, tile, COUNTS: tl.constexpr, BLOCK: tl.constexpr):
    """A tile of the mean of a matrix and its transpose, as float32, and zeros for the counts."""
    tiles = tl.cdiv(n, BLOCK)
    i, j = (tile // tiles) * BLOCK + tl.arange(0, BLOCK), (tile % tiles) * BLOCK + tl.arange(0, BLOCK)
    inside = (i[:, None] < n) & (j[None, :] < n)
    here = i[:, None].to(tl.int64) * n + j[None, :]
    there = j[None, :].to(tl.int64) * n + i[:, None]
    value = _mean_of_two(tl.load(similarity + here, mask=inside), tl.load(similarity + there, mask=inside))
    tl.store(out + here, value, mask=inside)
    if COUNTS:
        tl.store(counts + here, 0, mask=inside)


@triton.jit
def _clamp(k, labels, n, BLOCK: tl.constexpr):
    """One problem's k, moved to between its number of groups and its number of groups and unlabelled points."""
    n_groups, n_known = 0, 0
    for start in range(0, n, BLOCK):
        index = start + tl.arange(0, BLOCK)
        own = tl.load(labels + index, mask=index < n, other=-1)
        repeated = tl.zeros((BLOCK,), tl.int32)
        for other in range(tl.minimum(start + BLOCK, n)):
            repeated += ((tl.load(labels + other) == own) & (other < index)).to(tl.int32)
        n_known += tl.sum((own >= 0).to(tl.int32), axis=0)
        n_groups += tl.sum(((own >= 0) & (repeated == 0)).to(tl.int32), axis=0)
    return tl.minimum(tl.maximum(k, tl.maximum(n_groups, 1)), n - n_known + n_groups)


@triton.jit
def _make_ready(
    similarity, out, counts, n_clusters, labels, clusters_out, n, n_tiles,
    COUNTS: tl.constexpr, BLOCK: tl.constexpr, LABEL_BLOCK: tl.constexpr,
):  # fmt: skip
    """One launch for all: a program for each tile of a problem, and one more for its number of clusters."""
    tile, problem = tl.program_id(0), tl.program_id(1).to(tl.int64)
    start = problem * n * n
    if tile < n_tiles:
        _symmetrise(similarity + start, out + start, counts + start, n, tile, COUNTS, BLOCK)
    else:
        k = _clamp(tl.load(n_clusters + problem), labels + problem * n, n, LABEL_BLOCK)
        tl.store(clusters_out + problem, k)


def make_ready(
    similarity: torch.Tensor, n_clusters: torch.Tensor, labels: torch.Tensor | None, with_counts: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """What :func:`solve` takes: the mean of similarity and its transpose as float32, a feasible k, counts of 0.

    n_clusters (problems,) is moved into the range that labels (problems, n) allow; without labels it stays as it is.
    """
    n_problems, n, _ = similarity.shape
    symmetric = similarity.new_empty(similarity.shape, dtype=torch.float32)
    counts = similarity.new_empty(similarity.shape, dtype=torch.int32) if with_counts else None
    clusters = n_clusters if labels is None else torch.empty_like(n_clusters)
    if symmetric.numel():
        n_tiles = triton.cdiv(n, 32) ** 2
        with device_of(similarity):
            _make_ready[(n_tiles + int(labels is not None), n_problems)](
                similarity.contiguous(), symmetric, symmetric if counts is None else counts, n_clusters,
                symmetric if labels is None else labels.contiguous(), clusters, n, n_tiles, COUNTS=with_counts,
                BLOCK=32, LABEL_BLOCK=min(triton.next_power_of_2(n), 1024), **_launch(4),
            )  # fmt: skip
    return symmetric, clusters, counts


def _check_similarity(similarity: torch.Tensor) -> tuple[int, int]:
    if similarity.dtype != torch.float32:
        raise TypeError(f"The CUDA solver computes in float32, got {similarity.dtype}. Pass similarity.float().")
    n_problems, n, _ = similarity.shape
    if n > MAX_POINTS:
        raise ValueError(f"The CUDA solver takes up to {MAX_POINTS} points, got {n}. Use the CPU for more.")
    return n_problems, n


def _scratch(like: torch.Tensor, items: int, n: int, with_labels: bool) -> tuple[torch.Tensor, ...]:
    """For each program the keys of its tree, and two arrays to number the trees with."""
    keys = like.new_empty((items, n), dtype=torch.int64)
    numbering = like.new_empty((2, items if with_labels else 0, n), dtype=torch.int32)
    return keys, numbering[0], numbering[1]


def _launch(num_warps: int) -> dict[str, Any]:
    # A fused multiplication and addition would round once instead of twice: other noise than on other devices.
    return {"num_warps": num_warps, "num_stages": 1, "enable_fp_fusion": False}


# --------------------------------------------------------------------------------------------------------------
# Small problems: everything in one launch, because there the time goes into launches


@triton.jit(do_not_specialize=["seed", "first_draw", "n_clusters"])
def _prim_and_mean(
    similarity, n_clusters, point_labels, seed, first_draw, epsilon, n, n_draws, n_counts, counts, values, keys,
    means, adjacency,
    HALF: tl.constexpr, COUNTS: tl.constexpr, NOISY: tl.constexpr, GUMBEL: tl.constexpr, ANTITHETIC: tl.constexpr,
    LABELS: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """:func:`_prim` on input that was not made ready, and the means over draws by the program that ends last.

    After its ``n_counts`` entries ``counts`` has a word for each problem: how many of its programs have ended.
    """
    n_solves = 2 if LABELS else 1
    item = tl.program_id(0)
    draw = item % n_draws
    solve = (item // n_draws) % n_solves
    problem = (item // n_draws // n_solves).to(tl.int64)
    point_labels += problem * n
    keys += item.to(tl.int64) * n
    values += problem * n_solves * n_draws
    k0, k1, draw_low, draw_high, sign = _draw_words(seed, first_draw, draw, ANTITHETIC)
    _grow_tree(
        similarity + problem * n * n, point_labels, solve == 1, keys, n, sign * epsilon, k0, k1, draw_low, draw_high,
        False, LABELS, HALF, NOISY, GUMBEL, WARPS,
    )  # fmt: skip
    if n_clusters.dtype.is_ptr():
        k = tl.load(n_clusters + problem)
    else:
        k = n_clusters
    if LABELS:
        k = _clamp(k, point_labels, n, 2 * HALF)
    index = tl.arange(0, 2 * HALF)
    key = tl.load(keys + index, mask=index < n - 1, other=-1)
    kept, failed = _kept_edges(key, _rank(keys, n - 1, key), n, k.to(tl.int32))
    tl.store(values + solve * n_draws + draw, _value(key, kept, failed))
    if COUNTS:
        i, j, _ = _ends_of(key)
        _count(counts + problem * n * n, tl.where(kept, i, -1), j, solve, n)
    tl.debug_barrier()
    ended = tl.atomic_add(counts + n_counts + problem, 1, sem="acq_rel")
    if ended == n_solves * n_draws - 1:
        tl.store(means + problem, _mean_of_draws(values, n_draws, LABELS, 128))
        if COUNTS:
            for start in range(0, n * n, 2048):
                pair = problem * n * n + start + tl.arange(0, 2048)
                inside = pair < (problem + 1) * n * n
                count = tl.load(counts + pair, mask=inside, other=0, cache_modifier=".cg")
                tl.store(adjacency + pair, _share(count.to(tl.float32), n_draws), mask=inside)


@triton.jit
def _share(count, n_draws):
    """``count / n_draws``, correctly rounded: a quotient, and its remainder's share of it."""
    draws = tl.full(count.shape, 1.0, tl.float32) * n_draws
    if _INTERPRETED:
        quotient = count / draws
    else:
        inverse = tl.div_rn(tl.full((), 1.0, tl.float32), tl.full((), 1.0, tl.float32) * n_draws)
        quotient = count * inverse
        quotient = tl.fma(tl.fma(-quotient, draws, count), inverse, quotient)
    return quotient


def mean_in_one_launch(
    similarity: torch.Tensor,
    n_clusters: torch.Tensor | int,
    labels: torch.Tensor | None = None,
    *,
    seed: torch.Tensor | int,
    first_draw: torch.Tensor | int,
    n_draws: int,
    epsilon: float,
    noise: str = "normal",
    antithetic: bool = False,
    with_adjacency: bool = True,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Means over draws, of the value (...) and of the adjacency (..., n, n), for up to ``SMALL`` points.

    The numbers of :func:`make_ready`, :func:`solve` with ``free``, and :func:`mean_values`, in one launch.
    Similarity (..., n, n) of any float type need not be symmetric, n_clusters may be a number, labels are (..., n).
    """
    n = similarity.shape[-1]
    similarity = similarity.contiguous()
    points = similarity if labels is None else labels.contiguous()
    n_problems = similarity.numel() // (n * n)
    n_counts = n_problems * n * n if with_adjacency else 0
    items = n_problems * n_draws * (1 if labels is None else 2)
    counts = similarity.new_zeros(n_counts + n_problems, dtype=torch.int32)
    means = similarity.new_empty(similarity.shape[:-2])
    adjacency = torch.empty_like(similarity) if with_adjacency else None
    if items:
        warps = _num_warps(n)
        kind = (warps, with_adjacency, epsilon != 0, noise == "gumbel", antithetic, labels is not None)
        with device_of(similarity):
            _launch_again(
                _prim_and_mean, items,
                (similarity, n_clusters, points, seed, first_draw, float(epsilon), n, n_draws, n_counts, counts,
                 similarity.new_empty(items, dtype=torch.float32), similarity.new_empty(items * n, dtype=torch.int64),
                 means, means if adjacency is None else adjacency,
                 triton.next_power_of_2((n + 1) // 2), *kind[1:], warps),
                (kind, n, n_draws, n_counts, *map(_class_of, (similarity, n_clusters, points, seed, first_draw))),
                warps,
            )  # fmt: skip
    return means, adjacency


_known_kernels: dict[Any, Any] = {}


def _launch_again(kernel: Any, programs: int, arguments: tuple[Any, ...], key: Any, num_warps: int) -> None:
    """Launch a kernel, from the second time on without Triton's look at every argument, most of what a launch costs.

    ``key`` says all that the compiled kernel depends on: constants, numbers, and the class of what is not in it.
    """
    key = kernel, arguments[0].get_device(), key
    known = _known_kernels.get(key)
    if known is not None:
        known[programs, 1, 1](*arguments)
        return
    compiled = kernel[(programs,)](*arguments, **_launch(num_warps))
    if compiled is not None:  # the interpreter compiles nothing
        _known_kernels[key] = compiled


def _class_of(argument: torch.Tensor | int) -> Any:
    """What Triton compiles for: of a tensor its type and alignment, of a number its size."""
    if isinstance(argument, int):
        return -(2**31) <= argument < 2**31
    return argument.dtype, argument.data_ptr() % 16 == 0


def device_of(tensor: torch.Tensor) -> Any:
    """A context in which the tensor's device is the current one; entering one takes a while, so only if it is not."""
    if not tensor.is_cuda or tensor.device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(tensor.device)


# --------------------------------------------------------------------------------------------------------------
# Sums over draws


def _by_problem(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, copied only if a problem's part of it is not contiguous: ``forests.edges[:, 0]`` is used in place."""
    expected: list[int] = []
    size = 1
    for length in reversed(tensor.shape[1:]):
        expected.insert(0, size)
        size *= length
    return tensor if list(tensor.stride()[1:]) == expected else tensor.contiguous()


@triton.jit
def _mean_of_draws(values, n_draws, TWO: tl.constexpr, BLOCK: tl.constexpr):
    """Mean over draws of one problem's values, or of the gaps between its two solves, none of them below zero."""
    total = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, n_draws, BLOCK):
        draw = start + tl.arange(0, BLOCK)
        value = tl.load(values + draw, mask=draw < n_draws, other=0.0, cache_modifier=".cg")
        if TWO:
            value -= tl.load(values + n_draws + draw, mask=draw < n_draws, other=0.0, cache_modifier=".cg")
            value = tl.where(value < 0, 0.0, value)
        total += value
    return (tl.sum(total, axis=0) / n_draws).to(tl.float32)


@triton.jit
def _mean(values, means, n_draws, TWO: tl.constexpr, BLOCK: tl.constexpr):
    problem = tl.program_id(0).to(tl.int64)
    tl.store(means + problem, _mean_of_draws(values + problem * n_draws * (2 if TWO else 1), n_draws, TWO, BLOCK))


def mean_values(values: torch.Tensor) -> torch.Tensor:
    """(problems,) mean over draws of values (problems, solves, draws); of two solves, the mean gap between them."""
    n_problems, n_solves, n_draws = values.shape
    means = values.new_empty((n_problems,))
    if n_problems:
        with device_of(values):
            _mean[(n_problems,)](values.contiguous(), means, n_draws, TWO=n_solves == 2, BLOCK=128, **_launch(1))
    return means


@triton.jit
def _count_edges(edges, counts, n, n_edges, BLOCK: tl.constexpr):
    """Add the edges of one problem's first solve, all draws in a row, to its counts; subtract those of the second."""
    solve, problem = tl.program_id(1), tl.program_id(2).to(tl.int64)
    edge = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    edges += (problem * tl.num_programs(1) + solve) * n_edges * 2
    i = tl.load(edges + 2 * edge, mask=edge < n_edges, other=-1)
    j = tl.load(edges + 2 * edge + 1, mask=edge < n_edges, other=-1)
    _count(counts + problem * n * n, i, j, solve, n)


def adjacency_counts(edges: torch.Tensor, n: int) -> torch.Tensor:
    """(problems, n, n) int32 number of draws whose forest has the edge, from edges (problems, solves, draws, n - 1, 2).

    Of two solves, the number in the first less the number in the second.
    """
    n_problems, n_solves, n_draws, per_draw, _ = edges.shape
    counts = edges.new_zeros((n_problems, n, n), dtype=torch.int32)
    n_edges = n_draws * per_draw
    if n_problems * n_edges:
        with device_of(edges):
            grid = (triton.cdiv(n_edges, 256), n_solves, n_problems)
            _count_edges[grid](edges.contiguous(), counts, n, n_edges, BLOCK=256, **_launch(4))
    return counts


@triton.jit
def _count_pairs(labels, labels_stride, counts, n, n_draws, BLOCK: tl.constexpr):
    """A tile of the matrix that counts the draws in which i and j share a tree."""
    problem = tl.program_id(2).to(tl.int64)
    i, j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    labels += problem * labels_stride
    count = tl.zeros((BLOCK, BLOCK), tl.int32)
    for draw in range(n_draws):
        row = labels + tl.cast(draw, tl.int64) * n
        own = tl.load(row + i, mask=i < n, other=-1)
        other = tl.load(row + j, mask=j < n, other=-1)
        count += (own[:, None] == other[None, :]).to(tl.int32)
    offset = problem * n * n + i[:, None].to(tl.int64) * n + j[None, :]
    tl.store(counts + offset, count, mask=(i[:, None] < n) & (j[None, :] < n))


def connectivity_counts(labels: torch.Tensor) -> torch.Tensor:
    """(problems, n, n) int32 number of draws in which i and j share a tree, from labels (problems, draws, n)."""
    n_problems, n_draws, n = labels.shape
    counts = labels.new_empty((n_problems, n, n), dtype=torch.int32)
    if n_problems * n:
        labels = _by_problem(labels)
        with device_of(labels):
            tiles = triton.cdiv(n, 32)
            grid = (tiles, tiles, n_problems)
            _count_pairs[grid](labels, labels.stride(0), counts, n, n_draws, BLOCK=32, **_launch(4))
    return counts


@triton.jit
def _multiply_edges(cotangent, edges, edges_stride, products, n, n_draws, BLOCK: tl.constexpr):
    """One draw's sum of the cotangent over its edges, both ways."""
    draw, problem = tl.program_id(0), tl.program_id(1).to(tl.int64)
    edges += problem * edges_stride + tl.cast(draw, tl.int64) * (n - 1) * 2
    cotangent += problem * n * n
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n - 1, BLOCK):
        edge = start + tl.arange(0, BLOCK)
        i = tl.load(edges + 2 * edge, mask=edge < n - 1, other=-1).to(tl.int64)
        j = tl.load(edges + 2 * edge + 1, mask=edge < n - 1, other=-1).to(tl.int64)
        total += tl.load(cotangent + i * n + j, mask=i >= 0, other=0.0)
        total += tl.load(cotangent + j * n + i, mask=i >= 0, other=0.0)
    tl.store(products + problem * n_draws + draw, tl.sum(total, axis=0))


def adjacency_products(cotangent: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """(problems, draws) float32 <cotangent, A> of every draw's adjacency A, every edge counted both ways."""
    n_problems, n_draws = edges.shape[:2]
    products = cotangent.new_empty((n_problems, n_draws), dtype=torch.float32)
    if n_problems * n_draws:
        cotangent, edges = cotangent.float().contiguous(), _by_problem(edges)
        with device_of(edges):
            block = min(triton.next_power_of_2(max(edges.shape[2], 32)), 1024)
            _multiply_edges[(n_draws, n_problems)](
                cotangent, edges, edges.stride(0), products, cotangent.shape[-1], n_draws, BLOCK=block, **_launch(4)
            )
    return products


@triton.jit
def _multiply_pairs(cotangent, labels, labels_stride, partial, n, n_draws, DRAWS: tl.constexpr, BLOCK: tl.constexpr):
    """A tile's share of <cotangent, M> for ``DRAWS`` draws: the tile is read once for all of them."""
    tiles = tl.cdiv(n, BLOCK)
    tile, problem = tl.program_id(0), tl.program_id(2).to(tl.int64)
    i, j = (tile // tiles) * BLOCK + tl.arange(0, BLOCK), (tile % tiles) * BLOCK + tl.arange(0, BLOCK)
    inside = (i[:, None] < n) & (j[None, :] < n)
    part = tl.load(cotangent + problem * n * n + i[:, None].to(tl.int64) * n + j[None, :], mask=inside, other=0.0)
    labels += problem * labels_stride
    partial += (problem * tiles * tiles + tile) * n_draws
    first = tl.program_id(1) * DRAWS
    for draw in range(first, tl.minimum(first + DRAWS, n_draws)):
        row = labels + tl.cast(draw, tl.int64) * n
        own = tl.load(row + i, mask=i < n, other=-1)
        other = tl.load(row + j, mask=j < n, other=-1)
        same = tl.where(own[:, None] == other[None, :], part, 0.0)
        tl.store(partial + draw, tl.sum(tl.sum(same, axis=1), axis=0))


def connectivity_products(cotangent: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """(problems, draws) float32 <cotangent, M> of every draw's connectivity M, the diagonal included."""
    n_problems, n_draws, n = labels.shape
    block = 32 if n <= 1024 else 64
    tiles = triton.cdiv(n, block) ** 2
    partial = cotangent.new_empty((n_problems, tiles, n_draws), dtype=torch.float32)
    if partial.numel():
        cotangent, labels = cotangent.float().contiguous(), _by_problem(labels)
        with device_of(labels):
            grid = (tiles, triton.cdiv(n_draws, 16), n_problems)
            _multiply_pairs[grid](
                cotangent, labels, labels.stride(0), partial, n, n_draws, DRAWS=16, BLOCK=block, **_launch(4)
            )
    return partial.sum(dim=1)


@triton.jit
def _score(z, GUMBEL: tl.constexpr):
    """Minus the derivative of the noise's log-density."""
    return 1.0 - tl.exp(-z) if GUMBEL else z


@triton.jit(do_not_specialize=["seed", "first_draw"])
def _weigh_noise(
    weights, seed, first_draw, out, n, n_draws,
    DRAWS: tl.constexpr, BLOCK: tl.constexpr, GUMBEL: tl.constexpr, ANTITHETIC: tl.constexpr,
):  # fmt: skip
    """``BLOCK`` 2 x 2 blocks in one row of blocks: all four words of the generator serve, each pair is drawn once."""
    row, problem = tl.program_id(0), tl.program_id(2).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if (tl.program_id(1) + 1) * BLOCK <= row:  # below the diagonal: written from above it
        return
    weights += problem * n_draws
    out += problem * n * n
    high, low = tl.maximum(column, row).to(tl.uint32), tl.minimum(column, row).to(tl.uint32)
    sum_0, sum_1 = tl.zeros((DRAWS, BLOCK), tl.float32), tl.zeros((DRAWS, BLOCK), tl.float32)
    sum_2, sum_3 = tl.zeros((DRAWS, BLOCK), tl.float32), tl.zeros((DRAWS, BLOCK), tl.float32)
    for start in range(0, n_draws, DRAWS):
        draw = start + tl.arange(0, DRAWS)
        k0, k1, draw_low, draw_high, sign = _draw_words(seed, first_draw, draw, ANTITHETIC)
        weight = (tl.load(weights + draw, mask=draw < n_draws, other=0.0) * sign)[:, None]
        zero = tl.zeros((DRAWS, BLOCK), tl.uint32)
        w0, w1, w2, w3 = _philox(
            zero + high[None, :], zero + low[None, :], zero + draw_low[:, None], zero + draw_high[:, None], k0, k1
        )
        z0, z1, z2, z3 = _four(w0, w1, w2, w3, zero, GUMBEL)
        sum_0 += weight * _score(z0, GUMBEL)
        sum_1 += weight * _score(z1, GUMBEL)
        sum_2 += weight * _score(z2, GUMBEL)
        sum_3 += weight * _score(z3, GUMBEL)
    i, j = 2 * row, 2 * column
    _store_pair(out, i, j, tl.sum(sum_0, axis=0), n)
    _store_pair(out, i, j + 1, tl.sum(sum_1, axis=0), n)
    _store_pair(out, i + 1, j, tl.sum(sum_2, axis=0), n)
    _store_pair(out, i + 1, j + 1, tl.sum(sum_3, axis=0), n)


@triton.jit
def _store_pair(out, i, j, value, n):
    """Write both entries of a pair i < j, or a zero on the diagonal; i is a scalar, j a vector."""
    tl.store(out + tl.cast(i, tl.int64) * n + j, tl.where(i == j, 0.0, value), mask=(i <= j) & (j < n))
    tl.store(out + j.to(tl.int64) * n + i, value, mask=(i < j) & (j < n))


def noise_sum(
    weights: torch.Tensor,
    n: int,
    *,
    seed: torch.Tensor | int,
    first_draw: torch.Tensor | int,
    noise: str = "normal",
    antithetic: bool = False,
) -> torch.Tensor:
    """(problems, n, n) float32 sum over draws of ``weights[problem, draw] * score(noise of the draw)``, symmetric.

    The score, minus the derivative of the log-density, is z for normal noise and 1 - exp(-z) for Gumbel noise; on the
    diagonal it is 0.
    """
    definition.check_kind(noise)
    n_problems, n_draws = weights.shape
    result = weights.new_empty((n_problems, n, n), dtype=torch.float32)
    if result.numel():
        half = (n + 1) // 2
        block = min(triton.next_power_of_2(half), 32)
        with device_of(weights):
            _weigh_noise[(half, triton.cdiv(half, block), n_problems)](
                weights.float().contiguous(), seed, first_draw, result, n, n_draws,
                DRAWS=8, BLOCK=block, GUMBEL=noise == "gumbel", ANTITHETIC=antithetic, **_launch(4),
            )  # fmt: skip
    return result
