"""The functions of diffclust.noise on arrays of words."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

try:
    from jax import enable_x64
except ImportError:  # before JAX 0.8
    from jax.experimental import enable_x64  # type: ignore[attr-defined, no-redef]

from diffclust import noise as definition


def bits_of(array: Any, dtype: Any) -> Array:
    """The same bits as another type of the same size."""
    return lax.bitcast_convert_type(array, dtype)


def opaque_zero(*arrays: Any) -> Array:
    """An int32 zero that no compiler knows to be one, if any of the arrays is not a constant."""
    firsts = (bits_of(a.reshape(-1)[:1].astype(jnp.float32), jnp.uint32).sum(dtype=jnp.uint32) for a in arrays)
    t = functools.reduce(jnp.bitwise_xor, firsts)
    square = t * t  # 0, 1, 4 or 9 modulo 16: bit 3 is never set without bit 0
    return ((square >> 3) & ~square & 1).astype(jnp.int32)


def rounded(product: Any, zero: Any) -> Array:
    """The product itself, kept from being fused with an addition: an exclusive or with a zero of unknown value."""
    return bits_of(bits_of(product, jnp.int32) ^ zero, jnp.float32)


def high_word(a: Array, b: int) -> Array:
    """The high word of a product of uint32.

    ``lax.mulhi`` is as fast, but XLA cannot compile it for arrays that are sharded over devices. The 64-bit product is
    hidden from JAX's switch for 64 bits; constants of 64 bits would not be, so they are converted from 32 bits.
    """
    factor, bits = jnp.full_like(a, b), jnp.full_like(a, 32)
    with enable_x64(True):
        a, factor, bits = (lax.convert_element_type(word, np.uint64) for word in (a, factor, bits))
        return lax.convert_element_type(lax.shift_right_logical(lax.mul(a, factor), bits), np.uint32)


def _philox(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> tuple[Array, Array, Array, Array]:
    """Philox4x32-10 on uint32 words."""
    multiplier_0, multiplier_1 = int(definition._MULTIPLIER_0), int(definition._MULTIPLIER_1)
    for _ in range(10):
        high_0, low_0 = high_word(c0, multiplier_0), c0 * jnp.uint32(multiplier_0)
        high_1, low_1 = high_word(c2, multiplier_1), c2 * jnp.uint32(multiplier_1)
        c0, c1, c2, c3 = high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0
        k0, k1 = k0 + jnp.uint32(definition._WEYL_0), k1 + jnp.uint32(definition._WEYL_1)
    return c0, c1, c2, c3


def _polynomial(x: Any, letter: str, degree: int, zero: Any) -> Array:
    """The definition's polynomial of that letter, by Horner's rule."""
    coefficients = [getattr(definition, f"_{letter}{i}") for i in range(degree + 1)]
    total = rounded(x * coefficients.pop(), zero) + coefficients.pop()
    while coefficients:
        total = rounded(x * total, zero) + coefficients.pop()
    return total


def _log_polynomial(f: Any, zero: Any) -> Array:
    return rounded(f * _polynomial(f, "L", 7, zero), zero)


def _log(u: Any, zero: Any) -> Array:
    """Natural logarithm of a positive normal float32."""
    bits = bits_of(u, jnp.int32)
    exponent = (bits - definition._SQRT_HALF_BITS) >> definition._MANTISSA_BITS
    mantissa = bits_of(bits - (exponent << definition._MANTISSA_BITS), jnp.float32)
    scaled = rounded(exponent.astype(jnp.float32) * definition._LN2, zero)
    return scaled + _log_polynomial(mantissa - 1.0, zero)


def _uniform(word: Any) -> Array:
    return (word.astype(jnp.float32) + definition._HALF) * definition._TWO_TO_MINUS_32


def corrected_root(x: Any, root: Any) -> Array:
    """The float32 nearest to the square root of x, from one that is at most one step of the last bit away.

    x - root² comes out exact, because the halves of the root have twelve bits each. Half a step more would be right if
    it is above root * step, half a step less if it is at most minus that.
    """
    bits = bits_of(root, jnp.int32)
    high = bits_of(bits & ~0xFFF, jnp.float32)
    low = root - high
    rest = ((x - high * high) - 2.0 * high * low) - low * low
    step = bits_of(bits & 0x7F800000, jnp.float32) * np.float32(2.0**-23)
    move = (rest > root * step).astype(jnp.int32) - (rest <= -root * step).astype(jnp.int32)
    return jnp.where(x > 0, bits_of(bits + move, jnp.float32), root)


def _root(x: Any) -> Array:
    """The square root, correctly rounded: CPUs do that, GPUs may be two steps away."""
    return lax.platform_dependent(x, cpu=jnp.sqrt, default=lambda x: corrected_root(x, corrected_root(x, jnp.sqrt(x))))


def _normal_pair(word_0: Any, word_1: Any, zero: Any) -> tuple[Array, Array]:
    radius = _root(-2.0 * _log(_uniform(word_0), zero))
    angle = (word_1 & jnp.uint32(definition._QUARTER_TURN)).astype(jnp.int32) - definition._HALF_QUARTER_TURN
    t = angle.astype(jnp.float32) * definition._TWO_TO_MINUS_30
    t2 = t * t
    sine = t * _polynomial(t2, "S", 3, zero)
    cosine = 1.0 + rounded(t2 * _polynomial(t2, "C", 2, zero), zero)
    odd, minus = (word_1 >> 30) & 1 == 1, word_1 >> 31 == 1
    first, second = jnp.where(odd, -sine, cosine), jnp.where(odd, cosine, sine)
    return radius * jnp.where(minus, -first, first), radius * jnp.where(minus, -second, second)


def _gumbel(word: Any, zero: Any) -> Array:
    v, rest = _uniform(word), _uniform(~word)
    near = v < definition._QUARTER
    return -_log(-jnp.where(near, _log_polynomial(-jnp.minimum(v, definition._QUARTER), zero), _log(rest, zero)), zero)


def _draw_words(words: Any, position: Any, antithetic: bool) -> tuple[Array, Array, Array]:
    """Counter words and sign, (counters, draws), of the draws at these positions after the first one."""
    position = position.astype(jnp.uint32)
    low = words[:, 2, None] + position
    high = words[:, 3, None] + (low < position)
    if not antithetic:
        return low, high, jnp.ones(low.shape, jnp.float32)
    sign = 1.0 - 2.0 * (low & 1).astype(jnp.float32)
    return (low >> 1) | (high << 31), high >> 1, sign


def make_noise(
    words: Any, position: Any, n: int, noise: str | definition.Noise, antithetic: bool, zero: Any
) -> tuple[Array, Array]:
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
    i, j = pair_of_cell(n)
    row, column = i // 2, j // 2
    block = row * half - row * (row - 1) // 2 + column - row
    index = (2 * (i % 2) + j % 2) * shape[-1] + block
    return jnp.concatenate(z, -1)[..., index], sign


def pair_of_cell(n: int) -> tuple[Array, Array]:
    """The smaller and the larger index of every cell of an n x n matrix, int32."""
    row, column = (lax.broadcasted_iota(jnp.int32, (n, n), axis) for axis in (0, 1))
    return jnp.minimum(row, column), jnp.maximum(row, column)
