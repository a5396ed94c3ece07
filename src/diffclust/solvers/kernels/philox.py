"""Noise: the functions of :mod:`diffclust.noise` on vectors of words."""

from __future__ import annotations

import triton
import triton.language as tl

from diffclust import noise as definition
from diffclust.solvers.kernels.launches import INTERPRETED

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
SIGN_BIT = tl.constexpr(-(1 << 31))


@triton.jit
def _product(a, b):
    """High and low word of a product of uint32. The compiler does not always see that one instruction gives both."""
    if INTERPRETED:
        high, low = tl.umulhi(a, b), a * b
    else:
        high, low = tl.inline_asm_elementwise(
            "{ .reg .b64 p; mul.wide.u32 p, $2, $3; mov.b64 {$1, $0}, p; }", "=r,=r,r,r", [a, b],
            dtype=(tl.uint32, tl.uint32), is_pure=True, pack=1,
        )  # fmt: skip
    return high, low


@triton.jit
def philox(c0, c1, c2, c3, k0, k1):
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
    if INTERPRETED:
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
    t = ((ahead << 2).to(tl.int32, bitcast=True) ^ SIGN_BIT).to(tl.float32) * _TWO_TO_MINUS_32
    t2 = t * t
    sine = t * (_S0 + t2 * (_S1 + t2 * (_S2 + t2 * _S3)))
    cosine = 1.0 + t2 * (_C0 + t2 * (_C1 + t2 * _C2))
    size = tl.where((ahead & (1 << 30)) == 0, sine, cosine).to(tl.int32, bitcast=True)
    sign = ahead.to(tl.int32, bitcast=True) & SIGN_BIT
    radius = _sqrt(-2.0 * _log(_uniform(radius_word)))
    return radius * (size ^ sign).to(tl.float32, bitcast=True)


@triton.jit
def _gumbel(word):
    v, rest = _uniform(word), _uniform(word ^ 0xFFFFFFFF)  # ~word, which the interpreter of Triton 3.6 cannot do
    near = v < _QUARTER
    return -_log(-tl.where(near, _log_polynomial(-tl.minimum(v, _QUARTER)), _log(rest)))


@triton.jit
def noise_of_block(w0, w1, w2, w3, zero, GUMBEL: tl.constexpr):
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
def draw_words(seed, first_draw, position, ANTITHETIC: tl.constexpr):
    """Key and counter words of draw ``first_draw + position`` as uint32, and the sign of its noise."""
    key = _integer(seed).to(tl.uint64)
    draw = (_integer(first_draw) + position).to(tl.uint64)
    sign = tl.full((), 1.0, tl.float32)
    if ANTITHETIC:
        sign = tl.where((draw & 1) != 0, -1.0, 1.0)
        draw = draw >> 1
    return key.to(tl.uint32), (key >> 32).to(tl.uint32), draw.to(tl.uint32), (draw >> 32).to(tl.uint32), sign


@triton.jit
def mean_of_two(a, b):
    """Of the entries of a pair, as float32; rounded as on the CPU."""
    return (0.5 * a + 0.5 * b).to(tl.float32)
