"""The forest solver for JAX: an XLA program, vectorised over problems and draws, noise made inside it.

Weights ``similarity + epsilon * noise`` are held as *ordered integers* (floats mapped to integers of the same order),
one n x n matrix for each draw of a chunk. Draws are solved chunk after chunk, so no array has ``n_draws * n * n``
elements unless the problem is small. A spanning tree is n slots; each is empty or holds an edge and its weight.

Two algorithms grow the same tree. Prim (:func:`_prim`) reads every weight once, but takes n rounds: best on a CPU.
Borůvka (:func:`_boruvka`) reads all of them in each of at most log2(n) rounds: best on a GPU, where a round costs some
kernel launches whatever its size. With labels and must-links first, the constrained forest is a tree as well: grown
inside each labelled group, then from all labelled points, glued to one root, to the others. Constraints of another
form, and labelled groups that missing edges cut into pieces, go through :func:`_agglomerate`, the greedy itself.

The noise is that of :mod:`diffclust.noise` to the last bit. XLA's compilers fuse a multiplication and an addition into
one operation that rounds once; :func:`_rounded` stands between the two where that would change a bit.

All functions are pure functions of arrays with a leading dimension of problems. Seeds and numbers of draws have 64
bits, more than JAX's integers have by default: they are pairs of words, see :func:`as_words`.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from diffclust import noise as definition
from diffclust.solvers import Forests

try:
    import jax
    import jax.numpy as jnp
    from jax import Array, lax
except ImportError as error:
    raise ImportError("The JAX solver needs JAX: pip install 'diffclust[jax]'.") from error

# Of the n x n matrices of weights of a chunk of draws: what stays in the caches of a CPU, or keeps a GPU busy.
CHUNK_BYTES = {"cpu": 8 << 20, "gpu": 256 << 20}
MAX_POINTS = 32767  # an edge (i, j) and a bit are the int32 2 * (i * n + j) + bit

_STATIC = ("n", "n_draws", "noise", "antithetic", "must_link_first", "free")


def _jit(function: Callable[..., Any]) -> Callable[..., Any]:
    names = inspect.signature(function).parameters
    return jax.jit(function, static_argnames=[name for name in _STATIC if name in names])


# ------------------------------------------------------------------------------------------------------------------
# Noise: the functions of diffclust.noise on arrays of words


def _bits(array: Any, dtype: Any) -> Array:
    return lax.bitcast_convert_type(array, dtype)


def _opaque_zero(*arrays: Any) -> Array:
    """An int32 zero that no compiler knows to be one, if any of the arrays is not a constant."""
    firsts = (_bits(a.reshape(-1)[:1].astype(jnp.float32), jnp.uint32).sum(dtype=jnp.uint32) for a in arrays)
    t = functools.reduce(jnp.bitwise_xor, firsts)
    square = t * t  # 0, 1, 4 or 9 modulo 16: bit 3 is never set without bit 0
    return ((square >> 3) & ~square & 1).astype(jnp.int32)


def _rounded(product: Any, zero: Any) -> Array:
    """The product itself, kept from being fused with an addition: an exclusive or with a zero of unknown value."""
    return _bits(_bits(product, jnp.int32) ^ zero, jnp.float32)


def split_product(a: Any, b: int) -> Array:
    """The high word of a product of uint32, from products of 16-bit halves."""
    low, high = jnp.uint32(b & 0xFFFF), jnp.uint32(b >> 16)
    a_low, a_high = a & 0xFFFF, a >> 16
    cross_0, cross_1 = a_low * high, a_high * low
    middle = ((a_low * low) >> 16) + (cross_0 & 0xFFFF) + (cross_1 & 0xFFFF)
    return a_high * high + (cross_0 >> 16) + (cross_1 >> 16) + (middle >> 16)


def _high_word(a: Any, b: int) -> Array:
    """The high word of a product of uint32, by XLA's own instruction where JAX has it."""
    return lax.mulhi(a, jnp.full_like(a, b)) if hasattr(lax, "mulhi") else split_product(a, b)


def _philox(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> tuple[Array, Array, Array, Array]:
    """Philox4x32-10 on uint32 words."""
    multiplier_0, multiplier_1 = int(definition._MULTIPLIER_0), int(definition._MULTIPLIER_1)
    for _ in range(10):
        high_0, low_0 = _high_word(c0, multiplier_0), c0 * jnp.uint32(multiplier_0)
        high_1, low_1 = _high_word(c2, multiplier_1), c2 * jnp.uint32(multiplier_1)
        c0, c1, c2, c3 = high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0
        k0, k1 = k0 + jnp.uint32(definition._WEYL_0), k1 + jnp.uint32(definition._WEYL_1)
    return c0, c1, c2, c3


def _polynomial(x: Any, letter: str, degree: int, zero: Any) -> Array:
    """The definition's polynomial of that letter, by Horner's rule."""
    coefficients = [getattr(definition, f"_{letter}{i}") for i in range(degree + 1)]
    total = _rounded(x * coefficients.pop(), zero) + coefficients.pop()
    while coefficients:
        total = _rounded(x * total, zero) + coefficients.pop()
    return total


def _log_polynomial(f: Any, zero: Any) -> Array:
    return _rounded(f * _polynomial(f, "L", 7, zero), zero)


def _log(u: Any, zero: Any) -> Array:
    """Natural logarithm of a positive normal float32."""
    bits = _bits(u, jnp.int32)
    exponent = (bits - definition._SQRT_HALF_BITS) >> definition._MANTISSA_BITS
    mantissa = _bits(bits - (exponent << definition._MANTISSA_BITS), jnp.float32)
    scaled = _rounded(exponent.astype(jnp.float32) * definition._LN2, zero)
    return scaled + _log_polynomial(mantissa - 1.0, zero)


def _uniform(word: Any) -> Array:
    return (word.astype(jnp.float32) + definition._HALF) * definition._TWO_TO_MINUS_32


def _normal_pair(word_0: Any, word_1: Any, zero: Any) -> tuple[Array, Array]:
    radius = jnp.sqrt(-2.0 * _log(_uniform(word_0), zero))
    angle = (word_1 & jnp.uint32(definition._QUARTER_TURN)).astype(jnp.int32) - definition._HALF_QUARTER_TURN
    t = angle.astype(jnp.float32) * definition._TWO_TO_MINUS_30
    t2 = t * t
    sine = t * _polynomial(t2, "S", 3, zero)
    cosine = 1.0 + _rounded(t2 * _polynomial(t2, "C", 2, zero), zero)
    odd, minus = (word_1 >> 30) & 1 == 1, word_1 >> 31 == 1
    first, second = jnp.where(odd, -sine, cosine), jnp.where(odd, cosine, sine)
    return radius * jnp.where(minus, -first, first), radius * jnp.where(minus, -second, second)


def _gumbel(word: Any, zero: Any) -> Array:
    v, rest = _uniform(word), _uniform(~word)
    near = v < definition._QUARTER
    return -_log(-jnp.where(near, _log_polynomial(-jnp.minimum(v, definition._QUARTER), zero), _log(rest, zero)), zero)


def as_words(value: Any) -> Any:
    """(1, 2) uint32, the low and the high word of an integer, which counts modulo 2^64; such words pass."""
    if not isinstance(value, Array):
        return np.array([[int(value) & 0xFFFFFFFF, (int(value) >> 32) & 0xFFFFFFFF]], np.uint32)
    if value.ndim == 2:
        return value
    high = value >> 32 if value.dtype.itemsize == 8 else jnp.where(value < 0, -1, 0)
    return jnp.stack([value.astype(jnp.uint32), high.astype(jnp.uint32)])[None]


def _with_words(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled, with ``words``, (rows, 4), in place of seed and first draw: one row, or one for every problem."""
    compiled = _jit(function)

    @functools.wraps(function)
    def call(*arrays: Any, seed: Any = 0, first_draw: Any = 0, **options: Any) -> Any:
        seed, first_draw = as_words(seed), as_words(first_draw)
        rows = max(len(seed), len(first_draw))
        xp = np if isinstance(seed, np.ndarray) and isinstance(first_draw, np.ndarray) else jnp
        words = xp.concatenate([xp.broadcast_to(each, (rows, 2)) for each in (seed, first_draw)], 1)
        return compiled(*arrays, words=words, **options)

    return call


def _draw_words(words: Any, position: Any, antithetic: bool) -> tuple[Array, Array, Array]:
    """Counter words and sign, (counters, draws), of the draws at these positions after the first one."""
    position = position.astype(jnp.uint32)
    low = words[:, 2, None] + position
    high = words[:, 3, None] + (low < position)
    if not antithetic:
        return low, high, jnp.ones(low.shape, jnp.float32)
    sign = 1.0 - 2.0 * (low & 1).astype(jnp.float32)
    return (low >> 1) | (high << 31), high >> 1, sign


def _noise(words: Any, position: Any, n: int, noise: str, antithetic: bool, zero: Any) -> tuple[Array, Array]:
    """Noise (counters, draws, n, n), without its sign and anything on the diagonal; and the sign (counters, draws).

    Made for the upper triangle of 2 x 2 blocks, row after row, then spread by an index.
    """
    half = (n + 1) // 2
    rows, columns = (jnp.asarray(index, jnp.uint32) for index in np.triu_indices(half))
    low, high, sign = _draw_words(words, position, antithetic)
    shape = (*low.shape, rows.size)
    columns, rows, low, high, k0, k1 = (
        jnp.broadcast_to(a, shape)
        for a in (columns, rows, low[..., None], high[..., None], words[:, 0, None, None], words[:, 1, None, None])
    )
    word = _philox(columns, rows, low, high, k0, k1)
    z: tuple[Array, ...]
    if noise == "normal":
        z = (*_normal_pair(word[0], word[1], zero), *_normal_pair(word[2], word[3], zero))
    else:
        z = tuple(_gumbel(w, zero) for w in word)
    i, j = _pair_of_cell(n)
    row, column = i // 2, j // 2
    block = row * half - row * (row - 1) // 2 + column - row
    index = (2 * (i % 2) + j % 2) * shape[-1] + block
    return jnp.concatenate(z, -1)[..., index], sign


def _pair_of_cell(n: int) -> tuple[Array, Array]:
    """The smaller and the larger index of every cell of an n x n matrix, int32."""
    row, column = (lax.broadcasted_iota(jnp.int32, (n, n), axis) for axis in (0, 1))
    return jnp.minimum(row, column), jnp.maximum(row, column)


# ------------------------------------------------------------------------------------------------------------------
# Weights as ordered integers


def _flip(bits: Array) -> Array:
    last = bits.dtype.itemsize * 8 - 1
    return bits ^ ((bits >> last) & np.array((1 << last) - 1, bits.dtype))


def _ordered(weight: Array) -> Array:
    """A float as an integer of the same order and size; -0.0 and 0.0 are one; -inf, no edge, is the lowest integer."""
    integer = jnp.int32 if weight.dtype == jnp.float32 else jnp.int64
    bits = _bits(jnp.where(weight == 0, 0.0, weight), integer)
    return jnp.where(weight == -jnp.inf, _lowest(integer), _flip(bits))


def _number(weight: Array) -> Array:
    """The float of an ordered integer."""
    return _bits(_flip(weight), jnp.float32 if weight.dtype == jnp.int32 else jnp.float64)


def _lowest(dtype: Any) -> Any:
    return np.array(np.iinfo(dtype).min, dtype)


def _weights(
    similarity: Array, words: Array, epsilon: Any, position: Array, noise: str, antithetic: bool
) -> Array:  # fmt: skip
    """(problems, draws, n, n) ordered similarity + epsilon * noise, symmetric, no edges on the diagonal."""
    n = similarity.shape[-1]
    zero = _opaque_zero(similarity, words)
    z, sign = _noise(words, position, n, noise, antithetic, zero)
    scaled = _rounded((sign * epsilon)[..., None, None] * z, zero)
    return _without_loops(similarity[:, None] + scaled)


def _without_loops(weights: Array) -> Array:
    ordered = _ordered(weights)
    return jnp.where(jnp.eye(weights.shape[-1], dtype=bool), _lowest(ordered.dtype), ordered)


# ------------------------------------------------------------------------------------------------------------------
# Trees


class _Tree(NamedTuple):
    """Slots (..., n) of a forest: edges (i, j) as i * n + j, i < j, and ordered weights; the lowest one means empty."""

    codes: Array
    weights: Array


def _take(array: Array, index: Array) -> Array:
    return jnp.take_along_axis(array, index, -1, mode="clip")


def _put(array: Array, index: Array, update: Array, how: str) -> Array:
    """``array[..., index].how(update)`` along the last dimension; indices out of range are dropped."""
    grid = jnp.meshgrid(*(jnp.arange(d) for d in index.shape[:-1]), indexing="ij", sparse=True)
    where = (*(g[..., None] for g in grid), index)
    return getattr(array.at[where], how)(update, mode="drop")


def _boruvka(weights: Array, component: Array, allowed: Array | None) -> _Tree:
    """Join components, given by the index of one of their points, until no edge between two of them is left.

    In each round every component takes its best edge to another one. Slot r is filled when component r is joined to
    another, which happens once to all but one of the components that get joined.

    Components are (problems, solves, draws, n), weights (problems, 1, draws, n, n), for all solves the same; edges
    ``allowed`` (problems, solves, 1, n, n), or all.
    """
    n, lowest = weights.shape[-1], _lowest(weights.dtype)
    point = jnp.arange(n, dtype=jnp.int32)

    def best_edges(component: Array) -> _Tree:
        """The best edge of each component to another one, in the slot of the component."""
        between = component[..., :, None] != component[..., None, :]
        if allowed is not None:
            between = between & allowed
        best = jnp.where(between, weights, lowest).max(-1)
        is_best = between & (weights == best[..., None])
        other = jnp.where(is_best, point, n).min(-1)  # of equal ones the smaller pair
        code = jnp.minimum(point, other) * n + jnp.maximum(point, other)
        of_component = _put(jnp.full_like(best, lowest), component, best, "max")
        first = (best == _take(of_component, component)) & (best > lowest)
        codes = _put(jnp.full_like(code, n * n), component, jnp.where(first, code, n * n), "min")
        return _Tree(codes, of_component)

    def join(state: tuple[Array, _Tree, _Tree]) -> tuple[Array, _Tree, _Tree]:
        component, tree, best = state
        exists = best.weights > lowest
        first, second = (_take(component, end) for end in (best.codes // n, best.codes % n))
        parent = jnp.where(exists, jnp.where(first == point, second, first), point)
        # Two components that chose each other chose the same edge: the smaller one stays.
        parent = jnp.where((_take(parent, parent) == point) & (point < parent), point, parent)
        joined = parent != point
        tree = _Tree(*(jnp.where(joined, new, old) for new, old in zip(best, tree, strict=True)))
        for _ in range(max(n - 1, 1).bit_length()):
            parent = _take(parent, parent)
        component = _take(parent, component)
        return component, tree, best_edges(component)

    def is_open(state: tuple[Array, _Tree, _Tree]) -> Array:
        return (state[2].weights > lowest).any()

    empty = _Tree(jnp.full(component.shape, -1, jnp.int32), jnp.full(component.shape, lowest))
    return lax.while_loop(is_open, join, (component, empty, best_edges(component)))[1]


def _prim(weights: Array, component: Array, allowed: Array | None) -> _Tree:
    """The same by adding one point after the other. Slot v is filled when point v is added, by the edge that adds it.

    Points of the component that has several come first, as if edges of the highest weight led to them, and where no
    edge leads on, the next point is added without one.
    """
    n, lowest = weights.shape[-1], _lowest(weights.dtype)
    highest = np.array(np.iinfo(weights.dtype).max, weights.dtype)
    point = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), component.shape)
    start = jnp.where(component != point, component, 0).max(-1, keepdims=True)
    problem, solve, draw = jnp.meshgrid(*(jnp.arange(d) for d in component.shape[:-1]), indexing="ij", sparse=True)

    def step(_: Any, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        key, parent, is_open = state
        best = jnp.where(is_open, key, lowest).max(-1, keepdims=True)
        code = jnp.minimum(point, parent) * n + jnp.maximum(point, parent)
        # The last bit says whether the new point is the larger end.
        candidate = jnp.where(is_open & (key == best), 2 * code + (point > parent), 2 * n * n)
        first = candidate.min(-1, keepdims=True)
        u = jnp.where(first % 2 == 1, (first // 2) % n, (first // 2) // n)
        is_open = is_open & (point != u)
        row = weights[problem, 0, draw, u[..., 0]]
        if allowed is not None:
            row = jnp.where(allowed[problem, solve, 0, u[..., 0]], row, lowest)
        better = is_open & ((row > key) | ((row == key) & (u < parent)))
        return jnp.where(better, row, key), jnp.where(better, u, parent), is_open

    state = jnp.where(component == start, highest, lowest), point, jnp.ones(component.shape, bool)
    key, parent, _ = lax.fori_loop(0, n - 1, step, state)
    tree = _Tree(jnp.minimum(point, parent) * n + jnp.maximum(point, parent), key)
    return _masked(tree, key < highest)


def _grow(weights: Array, component: Array, allowed: Array | None = None) -> _Tree:
    """A maximum spanning forest of allowed edges, less those in the one component that may have several points."""
    return lax.platform_dependent(weights, component, allowed, cpu=_prim, default=_boruvka)


def _strongest(tree: _Tree, n_keep: Array) -> _Tree:
    """The ``n_keep`` (...) strongest edges of the tree."""
    codes, weights = tree
    n_keep = n_keep[..., None]

    def nth(array: Array, position: Array) -> Array:
        return _take(lax.sort(array), position.clip(min=0))

    # Two sorts of one array are faster than one sort by two keys.
    weakest = ~nth(~weights, n_keep - 1)
    stronger, tied = weights > weakest, weights == weakest
    n_tied = n_keep - stronger.sum(-1, keepdims=True, dtype=jnp.int32)
    last = nth(jnp.where(tied, codes, np.iinfo(np.int32).max), n_tied - 1)
    return _masked(tree, (stronger | (tied & (codes <= last))) & (n_keep > 0))


def _masked(tree: _Tree, kept: Array) -> _Tree:
    kept = kept & (tree.weights > _lowest(tree.weights.dtype))
    return _Tree(jnp.where(kept, tree.codes, -1), jnp.where(kept, tree.weights, _lowest(tree.weights.dtype)))


# ------------------------------------------------------------------------------------------------------------------
# General constraints: the greedy itself


class _Greedy(NamedTuple):
    """Where the greedy stands; see ``reference.kruskal`` for trees and blocks."""

    step: Array
    active: Array  # (problems, draws)
    open_blocks: Array  # (problems, draws): whether joins between blocks are allowed
    may_open: Array
    n_blocks: Array
    tree: Array  # (problems, draws, n)
    block: Array
    apart: Array  # (problems, draws, n, n): whether the blocks of two points must stay apart
    found: _Tree


def _agglomerate(
    weights: Array, relation: Array, n_clusters: Array, must_link_first: bool, active: Array
) -> _Tree:  # fmt: skip
    """The constrained greedy on draws (problems, draws) that are active: best allowed join first, n steps at most.

    With must-links first, joins between blocks are allowed only when none inside a block is left, and no more when
    ``n_clusters`` blocks are left.
    """
    n, lowest = weights.shape[-1], _lowest(weights.dtype)
    shape = weights.shape[:-1]
    point = jnp.arange(n, dtype=jnp.int32)
    low, high = _pair_of_cell(n)
    k = n_clusters[:, None]
    block = jnp.argmax(relation == 1, -1).astype(jnp.int32)[:, None]
    n_blocks = (block == point).sum(-1, dtype=jnp.int32)
    may_open = jnp.broadcast_to(n_blocks > k, shape[:-1])

    def step(state: _Greedy) -> _Greedy:
        same_tree = state.tree[..., :, None] == state.tree[..., None, :]
        same_block = state.block[..., :, None] == state.block[..., None, :]
        allowed = ~same_tree & (same_block | (state.open_blocks[..., None, None] & ~state.apart))
        best = jnp.where(allowed, weights, lowest).max((-1, -2))
        is_best = allowed & (weights == best[..., None, None])
        code = jnp.where(is_best, low * n + high, n * n).min((-1, -2))
        exists = state.active & (best > lowest)
        i, j = code[..., None] // n, code[..., None] % n  # past the end where there is none
        tree_i, tree_j = _take(state.tree, i), _take(state.tree, j)
        block_i, block_j = _take(state.block, i), _take(state.block, j)
        opened = ~exists & ~state.open_blocks & state.may_open
        joins_blocks = exists & (block_i != block_j)[..., 0]
        tree = jnp.where(exists[..., None] & (state.tree == tree_j), tree_i, state.tree)
        member = (state.block == block_i) | (state.block == block_j)
        member = member & joins_blocks[..., None]
        block = jnp.where(member, block_i, state.block)
        # A point must stay apart from the joined block if it must from one of its two parts.
        far = (state.apart & member[..., :, None]).any(-2)
        apart = state.apart | (member[..., :, None] & far[..., None, :]) | (far[..., :, None] & member[..., None, :])
        n_blocks = state.n_blocks - joins_blocks.astype(jnp.int32)
        may_open = state.may_open & (n_blocks > k)
        found = _Tree(
            *(
                jnp.where(exists[..., None] & (point == state.step), new[..., None], old)
                for new, old in zip((code, best), state.found, strict=True)
            )
        )
        return _Greedy(
            state.step + 1, state.active & (exists | opened), (state.open_blocks | opened) & may_open, may_open,
            n_blocks, tree, block, apart, found,
        )  # fmt: skip

    start = _Greedy(
        jnp.zeros((), jnp.int32), active, may_open & (not must_link_first), may_open,
        jnp.broadcast_to(n_blocks, shape[:-1]), jnp.broadcast_to(point, shape), jnp.broadcast_to(block, shape),
        jnp.broadcast_to((relation == 0)[:, None], weights.shape),
        _Tree(jnp.full(shape, -1, jnp.int32), jnp.full(shape, lowest)),
    )  # fmt: skip
    return lax.while_loop(lambda state: state.active.any(), step, start).found


def _relation_of_labels(labels: Array) -> Array:
    known = (labels >= 0)[..., :, None] & (labels >= 0)[..., None, :]
    same = labels[..., :, None] == labels[..., None, :]
    return jnp.where(jnp.eye(labels.shape[-1], dtype=bool), 1, jnp.where(known, same.astype(jnp.int8), -1))


# ------------------------------------------------------------------------------------------------------------------
# Forests of a chunk of draws


def _label_forests(weights: Array, labels: Array, n_clusters: Array, free: bool) -> _Tree:
    """Forests (problems, solves, draws, n) for labels with must-links first, with ``free`` after those without.

    All trees are grown at once: inside the labelled groups, from all labelled points to the others, and the free one.
    """
    n, lowest = weights.shape[-1], _lowest(weights.dtype)
    shape = weights.shape[:-1]
    point = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), shape)
    known = labels >= 0
    same = known[:, :, None] & (labels[:, :, None] == labels[:, None, :])
    first = jnp.argmax(known, -1, keepdims=True).astype(jnp.int32)  # stands for all labelled points
    glued = jnp.broadcast_to(jnp.where(known, first, point[:, 0])[:, None], shape)
    every = jnp.ones_like(same)
    components = [point, glued, point] if free else [point, glued]
    allowed = [same, every, every] if free else [same, every]
    trees = _grow(weights[:, None], jnp.stack(components, 1), jnp.stack(allowed, 1)[:, :, None])
    inside = _solve_of(trees, 0)
    filled = inside.weights > lowest
    n_inside = filled.sum(-1, dtype=jnp.int32)

    n_groups = _first_of_group(labels).sum(-1, dtype=jnp.int32)[:, None]
    n_known = known.sum(-1, dtype=jnp.int32)[:, None]
    n_outside, n_free = n - n_known + n_groups - n_clusters[:, None], n - n_clusters[:, None]
    n_keep = jnp.stack([n_outside, n_free] if free else [n_outside], 1)
    kept = _strongest(_Tree(*(array[:, 1:] for array in trees)), n_keep)

    # The slot of the first labelled point may be filled twice; each group has left one slot free.
    root = jnp.where(known[:, None] & ~filled, point, n).min(-1, keepdims=True)
    at_first = jnp.broadcast_to(first[:, None], root.shape)
    outside = _Tree(*(jnp.where(point == root, _take(array, at_first), array) for array in _solve_of(kept, 0)))
    forest = _Tree(*(jnp.where(filled, a, b) for a, b in zip(inside, outside, strict=True)))

    is_cut = n_inside < n_known - n_groups
    greedy = _agglomerate(weights, _relation_of_labels(labels), n_clusters, True, is_cut)
    forest = _Tree(*(jnp.where(is_cut[..., None], a, b) for a, b in zip(greedy, forest, strict=True)))
    return _stack([_solve_of(kept, 1), forest] if free else [forest])


def _first_of_group(labels: Array) -> Array:
    """Whether a point is labelled and the first one with its label."""
    return (labels >= 0) & (
        jnp.argmax(labels[..., :, None] == labels[..., None, :], -1) == jnp.arange(labels.shape[-1])
    )


def _solve_of(tree: _Tree, solve: int) -> _Tree:
    return _Tree(*(array[:, solve] for array in tree))


def _stack(trees: list[_Tree]) -> _Tree:
    return _Tree(*(jnp.stack(arrays, 1) for arrays in zip(*trees, strict=True)))


def _free_forest(weights: Array, n_clusters: Array) -> _Tree:
    point = jnp.arange(weights.shape[-1], dtype=jnp.int32)
    tree = _grow(weights[:, None], jnp.broadcast_to(point, weights.shape[:-1])[:, None])
    return _strongest(_solve_of(tree, 0), weights.shape[-1] - n_clusters[:, None])


def _forests(
    weights: Array, n_clusters: Array, labels: Array | None, relation: Array | None, must_link_first: bool, free: bool
) -> _Tree:
    """Forests (problems, solves, draws, n); the solves are (free, constrained) or one of them."""
    if labels is not None and must_link_first:
        return _label_forests(weights, labels, n_clusters, free)
    trees = []
    if free or (labels is None and relation is None):
        trees.append(_free_forest(weights, n_clusters))
    if labels is not None:
        relation = _relation_of_labels(labels)
    if relation is not None:
        active = jnp.ones(weights.shape[:2], bool)
        trees.append(_agglomerate(weights, relation, n_clusters, must_link_first, active))
    return _stack(trees)


# ------------------------------------------------------------------------------------------------------------------
# All draws, chunk after chunk


def _n_chunks(n_problems: int, n: int, n_draws: int) -> int:
    budget = CHUNK_BYTES.get(jax.default_backend(), CHUNK_BYTES["gpu"])
    return min(n_draws, math.ceil(4 * n_problems * n * n * n_draws / budget)) or 1


def _over_chunks(
    function: Callable[[Array], tuple[Any, Any]], n_problems: int, n: int, n_draws: int
) -> tuple[Any, Any]:  # fmt: skip
    """Apply a function of positions of draws (chunk,) to all draws: (arrays over draws, sums over draws).

    Arrays have the draws in dimension 2. The function masks draws past the last one, of which there can be some in the
    last chunk, in its sums.
    """
    n_chunks = _n_chunks(n_problems, n, n_draws)
    size = math.ceil(n_draws / n_chunks)
    positions = jnp.arange(n_chunks * size, dtype=jnp.int32).reshape(n_chunks, size)
    if n_chunks == 1:
        return function(positions[0])

    def step(total: Any, position: Array) -> tuple[Any, Any]:
        each, summed = function(position)
        return jax.tree.map(jnp.add, total, summed), each

    zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(function, positions[0])[1])
    total, each = lax.scan(step, zeros, positions)

    def in_one_row(array: Array) -> Array:
        array = jnp.moveaxis(array, 0, 2)
        return array.reshape(*array.shape[:2], -1, *array.shape[4:])[:, :, :n_draws]

    return jax.tree.map(in_one_row, each), total


def _solve_chunk(
    similarity: Array, n_clusters: Array, labels: Array | None, relation: Array | None, words: Array, epsilon: Any,
    position: Array, *, noise: str, antithetic: bool, must_link_first: bool, free: bool,
) -> _Tree:  # fmt: skip
    """Forests of the draws at these positions; a problem with a NaN has no edges."""
    # The barrier keeps XLA from making the noise once for each use of it.
    weights = lax.optimization_barrier(_weights(similarity, words, epsilon, position, noise, antithetic))
    tree = _forests(weights, n_clusters.astype(jnp.int32), labels, relation, must_link_first, free)
    return _masked(tree, ~jnp.isnan(similarity).any((-1, -2))[:, None, None, None])


def _values(similarity: Array, tree: _Tree) -> Array:
    """(problems, solves, draws) <A, weights>, NaN where the similarity has one.

    Summed with the rounding errors beside the sum, so that the order of the slots does not show: two solves that find
    the same forest have the same value.
    """
    weights = jnp.where(tree.codes >= 0, _number(tree.weights), 0)

    def add(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
        total = a[0] + b[0]
        of_b = total - a[0]
        error = (a[0] - (total - of_b)) + (b[0] - of_b)
        return total, a[1] + b[1] + error

    zero = np.zeros((), weights.dtype)
    total, error = lax.reduce((weights, jnp.zeros_like(weights)), (zero, zero), add, (weights.ndim - 1,))
    broken = jnp.isnan(similarity).any((-1, -2))[:, None, None]
    return jnp.where(broken, jnp.nan, 2 * (total + error))


def _sorted_edges(tree: _Tree) -> Array:
    """(..., n - 1, 2) edges by decreasing weight, then (-1, -1)."""
    n = tree.codes.shape[-1]
    codes = lax.sort((~tree.weights, tree.codes), num_keys=2)[1][..., : n - 1, None]
    return jnp.where(codes >= 0, jnp.concatenate([codes // n, codes % n], -1), -1)


def _number_trees(codes: Array) -> Array:
    """(..., n) trees of the forest with these edges, numbered by their smallest point.

    Points take over the smallest label beside them, and then that label's label, until no edge has two.
    """
    n = codes.shape[-1]
    ends = [jnp.where(codes >= 0, end, 0) for end in (codes // n, codes % n)]
    point = jnp.arange(n, dtype=jnp.int32)

    def meet(label: Array) -> tuple[Array, Array]:
        first, second = (_take(label, end) for end in ends)
        return jnp.minimum(first, second), jnp.maximum(first, second)

    def spread(label: Array) -> Array:
        small, large = meet(label)
        label = _put(label, large, small, "min")
        return _take(label, label)

    def differ(label: Array) -> Array:
        small, large = meet(label)
        return (small != large).any()

    label = lax.while_loop(differ, spread, jnp.broadcast_to(point, codes.shape))
    return _take(jnp.cumsum(label == point, -1, dtype=jnp.int32) - 1, label)


def _check_size(similarity: Array) -> None:
    if similarity.shape[-1] > MAX_POINTS:
        raise ValueError(f"The JAX solver takes up to {MAX_POINTS} points, got {similarity.shape[-1]}.")


@_with_words
def solve(
    similarity: Array,
    n_clusters: Array,
    *,
    labels: Array | None = None,
    relation: Array | None = None,
    must_link_first: bool = True,
    free: bool = True,
    words: Array,
    n_draws: int = 1,
    epsilon: Any = 0.0,
    noise: str = "normal",
    antithetic: bool = False,
) -> Forests:
    """Forests of ``similarity + epsilon * noise`` for every problem and draw; arguments as those of ``solvers.cpu``.

    Seed and first draw may be words, (1, 2) or one row for every problem. A problem with a NaN gets NaN values and no
    edges. Fewer edges than n - k mean that the greedy got stuck.
    """
    _check_size(similarity)

    def chunk(position: Array) -> tuple[Forests, tuple[()]]:
        tree = _solve_chunk(
            similarity, n_clusters, labels, relation, words, epsilon, position, noise=noise, antithetic=antithetic,
            must_link_first=must_link_first, free=free,
        )  # fmt: skip
        broken = jnp.isnan(similarity).any((-1, -2))[:, None, None, None]
        trees = jnp.where(broken, 0, _number_trees(tree.codes))
        return Forests(_sorted_edges(tree), trees, _values(similarity, tree)), ()

    return _over_chunks(chunk, len(similarity), similarity.shape[-1], n_draws)[0]


class Expectation(NamedTuple):
    """What expected values and their gradients are made of, without the draws' edges."""

    values: Array  # (problems, solves, draws)
    n_edges: Array  # (problems, solves, draws)
    counts: Array  # (problems, n, n), see adjacency_counts


@_with_words
def expect(
    similarity: Array,
    n_clusters: Array,
    *,
    labels: Array | None = None,
    relation: Array | None = None,
    must_link_first: bool = True,
    free: bool = True,
    words: Array,
    n_draws: int = 1,
    epsilon: Any = 0.0,
    noise: str = "normal",
    antithetic: bool = False,
) -> Expectation:
    """Values of the forests that :func:`solve` finds, and how often each edge is in them, chunk after chunk."""
    _check_size(similarity)
    n = similarity.shape[-1]

    def chunk(position: Array) -> tuple[tuple[Array, Array], Array]:
        tree = _solve_chunk(
            similarity, n_clusters, labels, relation, words, epsilon, position, noise=noise, antithetic=antithetic,
            must_link_first=must_link_first, free=free,
        )  # fmt: skip
        n_edges = (tree.codes >= 0).sum(-1, dtype=jnp.int32)
        real = (position < n_draws)[:, None]
        return (_values(similarity, tree), n_edges), _count(jnp.where(real, tree.codes, -1), n)

    (values, n_edges), counts = _over_chunks(chunk, len(similarity), similarity.shape[-1], n_draws)
    return Expectation(values, n_edges, counts)


# ------------------------------------------------------------------------------------------------------------------
# Sums over draws


def _count(codes: Array, n: int) -> Array:
    """(problems, n, n) int32, how often each edge is in codes (problems, solves, ...), less those of a second solve."""
    sign = 1 - 2 * jnp.arange(codes.shape[1], dtype=jnp.int32).reshape(-1, *[1] * (codes.ndim - 2))
    codes, sign = (a.reshape(codes.shape[0], math.prod(codes.shape[1:])) for a in jnp.broadcast_arrays(codes, sign))
    index = jnp.where(codes >= 0, codes, n * n)
    counts = _put(jnp.zeros((codes.shape[0], n * n), jnp.int32), index, sign, "add").reshape(-1, n, n)
    return counts + counts.swapaxes(-1, -2)


def mean_values(values: Array) -> Array:
    """(problems,) mean over draws of values (problems, solves, draws); of two solves, the mean gap between them.

    A gap is never negative: what rounding leaves below zero is zero.
    """
    if values.shape[1] == 1:
        return values[:, 0].mean(-1)
    return (values[:, 0] - values[:, 1]).clip(min=0.0).mean(-1)


@_jit
def adjacency_counts(edges: Array, n: int) -> Array:
    """(problems, n, n) number of draws whose forest has the edge, from edges (problems, solves, draws, n - 1, 2).

    Of two solves, the number in the first less the number in the second.
    """
    return _count(jnp.where(edges[..., 0] >= 0, edges[..., 0] * n + edges[..., 1], -1), n)


@jax.jit
def connectivity_counts(labels: Array) -> Array:
    """(problems, n, n) number of draws in which i and j share a tree, from labels (problems, draws, n)."""
    n_problems, n_draws, n = labels.shape

    def chunk(position: Array) -> tuple[tuple[()], Array]:
        of_draws = labels.at[:, position].get(mode="clip")
        same = of_draws[..., :, None] == of_draws[..., None, :]
        return (), (same & (position < n_draws)[:, None, None]).sum(1, dtype=jnp.int32)

    return _over_chunks(chunk, n_problems, n, n_draws)[1]


@jax.jit
def adjacency_products(cotangent: Array, edges: Array) -> Array:
    """(problems, draws) inner products <cotangent, A> with the adjacency matrix of every draw."""
    n = cotangent.shape[-1]
    n_problems, n_draws, n_edges, _ = edges.shape
    both = (cotangent + cotangent.swapaxes(-1, -2)).reshape(n_problems, n * n)
    codes = (edges[..., 0] * n + edges[..., 1]).reshape(n_problems, n_draws * n_edges)
    return jnp.where(codes >= 0, _take(both, codes), 0).reshape(n_problems, n_draws, n_edges).sum(-1)


@jax.jit
def connectivity_products(cotangent: Array, labels: Array) -> Array:
    """(problems, draws) inner products <cotangent, M> with the connectivity matrix of every draw."""
    n_problems, n_draws, n = labels.shape

    def chunk(position: Array) -> tuple[Array, tuple[()]]:
        of_draws = labels.at[:, position].get(mode="clip")
        same = of_draws[..., :, None] == of_draws[..., None, :]
        return jnp.where(same, cotangent[:, None], 0).sum((-1, -2))[:, None], ()

    return _over_chunks(chunk, n_problems, n, n_draws)[0][:, 0]


@_with_words
def noise_sum(weights: Array, n: int, *, words: Array, noise: str, antithetic: bool = False) -> Array:
    """(problems, n, n) sum over draws of weights (problems, draws) times the score of the noise, made again.

    The score is minus the derivative of the log-density: z for normal noise, 1 - exp(-z) for Gumbel noise.
    """
    n_draws = weights.shape[1]

    def chunk(position: Array) -> tuple[tuple[()], Array]:
        z, sign = _noise(words, position, n, noise, antithetic, _opaque_zero(words, weights))
        score = z if noise == "normal" else 1.0 - jnp.exp(-z)
        of_draws = jnp.where(position < n_draws, weights.at[:, position].get(mode="clip") * sign, 0)
        product = "pb,pbij->pij" if len(words) > 1 else "pb,qbij->pij"  # noise of each problem, or one for all
        return (), jnp.einsum(product, of_draws, score.astype(weights.dtype), precision="highest")

    total = _over_chunks(chunk, len(words), n, n_draws)[1]
    return jnp.where(jnp.eye(n, dtype=bool), 0, total)
