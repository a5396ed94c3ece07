"""The one definition of noise.

Noise is a pure function of ``(seed, draw, i, j)``, made by the counter-based generator Philox4x32-10
(Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Any draw can be made again,
anywhere, in any order. So no noise has to be stored for longer than its draw is being solved.

**Layout.** The key is the 64-bit seed; the counter is ``(j // 2, i // 2, draw low, draw high)`` for ``i < j``.
One call of the generator gives four words, which serve the 2 x 2 block of pairs that share this counter:
``(i, j)`` takes word ``2 * (i % 2) + j % 2``. A solver that reads rows *and* columns of the symmetric matrix then
uses two of the four words whichever way it goes.

**Normal noise** is Box-Muller on words (0, 1) and (2, 3). **Gumbel noise** is ``-log(-log(u))``, a word each.

**The same bits everywhere.** Logarithm, sine and cosine are polynomials written out here in float32 additions,
multiplications and square roots, each of which IEEE 754 defines to the last bit. A backend that does the same
operations in the same order, without fusing a multiplication and an addition, gets the same noise to the last bit,
and therefore the same forests. The functions below run unchanged on NumPy arrays and, compiled by Numba, on scalars.

**Noise of your own** is a subclass of :class:`Noise`: a quantile function and a score. It gets the same words at the
same places, so it is a pure function of ``(seed, draw, i, j)``, too. Solvers have kernels for normal and Gumbel noise.
Any other noise is made by NumPy, one draw after the other, and solved on the host (``solvers/sampled.py``).
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffclust.frameworks import check_at_least, framework_of, is_captured

__all__ = ["Gumbel", "Noise", "Normal", "sample"]

KINDS = ("normal", "gumbel")  # what solvers have kernels for, by the number that kernels know it by

MASK = np.uint64(0xFFFFFFFF)
_BITS_32 = np.uint64(32)
_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL_0, _WEYL_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)

_ONE, _HALF, _QUARTER, _MINUS_TWO = np.float32(1.0), np.float32(0.5), np.float32(0.25), np.float32(-2.0)
_TWO_TO_MINUS_30, _TWO_TO_MINUS_32 = np.float32(2.0**-30), np.float32(2.0**-32)
_BITS_30, _QUARTER_TURN = np.uint64(30), np.uint64(0x3FFFFFFF)
_HALF_QUARTER_TURN = np.int32(1 << 29)
_BIT_0, _BIT_1 = np.uint64(1), np.uint64(2)

# Bits of float32 sqrt(1/2): subtracting them before taking the exponent leaves a mantissa in [sqrt(1/2), sqrt(2)).
_SQRT_HALF_BITS = np.int32(0x3F3504F3)
_MANTISSA_BITS = np.int32(23)
_LN2 = np.float32(0.6931471805599453)

# log(1 + f) = f * P(f) on [sqrt(1/2) - 1, sqrt(2) - 1], minimax in relative error: 1.7e-7.
_L0, _L1, _L2, _L3 = np.float32(0.99999994), np.float32(-0.500003457), np.float32(0.333356082), np.float32(-0.249715596)
_L4, _L5, _L6, _L7 = np.float32(0.19884236), np.float32(-0.17212428), np.float32(0.16338143), np.float32(-0.103787065)

# sin(t * pi/2) = t * S(t^2) and cos(t * pi/2) = 1 + t^2 * C(t^2) on [-1/2, 1/2], minimax: 3e-9 and 1.8e-7.
_S0, _S1, _S2, _S3 = np.float32(1.57079633), np.float32(-0.645963482), np.float32(0.0796815705), np.float32(-0.00460146)
_C0, _C1, _C2 = np.float32(-1.23370011), np.float32(0.253639479), np.float32(-0.0205224754)


def philox_round(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> tuple[Any, Any, Any, Any, Any, Any]:
    """One round: two 32 x 32 -> 64 bit products, halves swapped, xor with counter and key; and the next key."""
    product_0, product_1 = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1
    high_0, high_1 = product_0 >> _BITS_32, product_1 >> _BITS_32
    next_0, next_1 = (k0 + _WEYL_0) & MASK, (k1 + _WEYL_1) & MASK
    return high_1 ^ c1 ^ k0, product_1 & MASK, high_0 ^ c3 ^ k1, product_0 & MASK, next_0, next_1


def philox(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> tuple[Any, Any, Any, Any]:
    """Philox4x32-10: four 32-bit words from a counter of four words and a key of two, each held in a uint64."""
    # Written out rather than looped: a compiler can then vectorise the loop around the call.
    state = philox_round(c0, c1, c2, c3, k0, k1)
    state = philox_round(*philox_round(*philox_round(*state)))
    state = philox_round(*philox_round(*philox_round(*state)))
    state = philox_round(*philox_round(*philox_round(*state)))
    return state[0], state[1], state[2], state[3]


def log_polynomial(f: Any) -> Any:
    """log(1 + f) for f in [sqrt(1/2) - 1, sqrt(2) - 1]."""
    return f * (_L0 + f * (_L1 + f * (_L2 + f * (_L3 + f * (_L4 + f * (_L5 + f * (_L6 + f * _L7)))))))


def log(u: Any) -> Any:
    """Natural logarithm of a positive normal float32."""
    bits = np.float32(u).view(np.int32)
    exponent = np.int32((bits - _SQRT_HALF_BITS) >> _MANTISSA_BITS)
    mantissa = np.int32(bits - (exponent << _MANTISSA_BITS)).view(np.float32)
    return np.float32(exponent) * _LN2 + log_polynomial(mantissa - _ONE)


def uniform(word: Any) -> Any:
    """The word as a float32 in [2^-33, 1]."""
    return (np.float32(np.uint32(word)) + _HALF) * _TWO_TO_MINUS_32


def normal_pair(word_0: Any, word_1: Any) -> tuple[Any, Any]:
    """Two standard normals by Box-Muller: radius from the first word, angle from the second; |z| < 6.77."""
    radius = np.sqrt(_MINUS_TWO * log(uniform(word_0)))
    # The angle is (quadrant + t) quarter turns with t in [-1/2, 1/2); products with 0, 1 and -1 are exact.
    t = np.float32(np.int32(np.int32(word_1 & _QUARTER_TURN) - _HALF_QUARTER_TURN)) * _TWO_TO_MINUS_30
    t2 = t * t
    sine = t * (_S0 + t2 * (_S1 + t2 * (_S2 + t2 * _S3)))
    cosine = _ONE + t2 * (_C0 + t2 * (_C1 + t2 * _C2))
    quadrant = word_1 >> _BITS_30
    odd = np.float32(np.uint32(quadrant & _BIT_0))
    sign = _ONE - np.float32(np.uint32(quadrant & _BIT_1))
    even = _ONE - odd
    return radius * (sign * (cosine * even - sine * odd)), radius * (sign * (sine * even + cosine * odd))


def gumbel(word: Any) -> Any:
    """A standard Gumbel variable, -log(E) with E = -log(1 - v) exponential; below 22.9."""
    v, rest = uniform(word), uniform(MASK - word)
    # Near v = 0, `rest` is rounded near 1, and its log has lost the digits of -log(1 - v). There log1p(-v) is taken.
    near = np.float32(v < _QUARTER)
    return -log(-(near * log_polynomial(-np.minimum(v, _QUARTER)) + (_ONE - near) * log(rest)))


class Noise:
    """A distribution of noise: one independent variable for every pair of points.

    Noise of your own is a subclass with :meth:`quantile` and :meth:`score`; pass an instance as ``noise=``. The density
    must be positive and smooth almost everywhere, else gradients by the score are wrong. An instance must be hashable;
    one with parameters is best a ``dataclass(frozen=True)``.

    Noise of your own is made and solved on the host, draw by draw, on NumPy arrays, torch tensors and JAX arrays alike.
    That is much slower than normal and Gumbel noise, for which solvers have kernels. Under ``torch.compile``,
    ``torch.export`` and ``torch.func``, and in a captured CUDA graph, it is an error.

    Attributes:
        symmetric: whether z and -z have the same density, which antithetic draws need.

    Example:
        >>> class Logistic(Noise):
        ...     symmetric = True
        ...
        ...     def quantile(self, u):
        ...         return np.log(u) - np.log1p(-u)
        ...
        ...     def score(self, z):
        ...         return np.tanh(z / 2)
        >>> Logistic().sample(seed=0, n_draws=2, n=3).shape
        (2, 3, 3)
    """

    symmetric: bool = False

    def quantile(self, u: NDArray[np.float64]) -> NDArray[Any]:
        """The inverse of the cumulative distribution function: noise from uniform variables.

        Args:
            u: float64, inside (0, 1), in steps of 2^-32.

        Returns:
            The noise, finite and of the shape of ``u``. It is rounded to float32.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method quantile(u).")

    def score(self, z: NDArray[np.float64]) -> NDArray[Any]:
        """Minus the derivative of the logarithm of the density, by which expectations are differentiated.

        Args:
            z: float64 noise.

        Returns:
            The score of each entry, of the shape of ``z``.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method score(z).")

    def from_words(self, *words: NDArray[np.uint64]) -> tuple[NDArray[Any], ...]:
        """The noise of 2 x 2 blocks of pairs, from their four words; see the head of this module."""
        uniform = (np.stack(words).astype(np.float64) + 0.5) * 2.0**-32
        values = np.asarray(self.quantile(uniform))
        if values.shape != uniform.shape or not np.isfinite(values).all():
            raise ValueError(f"{self!r}.quantile(u) must be finite for u inside (0, 1), and of the shape of u.")
        return tuple(values)

    def sample(self, seed: int, n_draws: int, n: int, *, first_draw: int = 0) -> NDArray[np.float32]:
        """The noise of draws ``first_draw, first_draw + 1, ...``, see :func:`sample`."""
        for name, value in (("n_draws", n_draws), ("n", n), ("first_draw", first_draw)):
            check_at_least(name, value, lowest=0)
        if first_draw + n_draws > 2**63:
            raise ValueError(f"draws are numbered up to 2**63, got first_draw={first_draw}.")
        k0, k1 = split_seed(seed)
        half = (n + 1) // 2
        rows, columns = (index.astype(np.uint64) for index in np.triu_indices(half))
        draws = np.arange(first_draw, first_draw + n_draws, dtype=np.uint64)
        result = np.zeros((n_draws, 2 * half, 2 * half), np.float32)
        a, b = rows.astype(np.intp), columns.astype(np.intp)
        for position, draw in enumerate(draws):
            zero = np.zeros_like(rows)
            words = philox(columns, rows, zero + (draw & MASK), zero + (draw >> _BITS_32), k0, k1)
            values = self.from_words(*words)
            z = result[position]
            z[2 * a, 2 * b], z[2 * a, 2 * b + 1], z[2 * a + 1, 2 * b], z[2 * a + 1, 2 * b + 1] = values
        result = np.triu(result[:, :n, :n], 1)
        return result + result.swapaxes(-1, -2)

    def __repr__(self) -> str:
        """Name of the class; a ``dataclass`` has a better one."""
        return f"{type(self).__name__}()"


class Normal(Noise):
    """Standard normal noise; ``noise="normal"`` is short for it."""

    symmetric = True

    def from_words(self, *words: Any) -> tuple[Any, ...]:
        """Box-Muller on words (0, 1) and (2, 3)."""
        return *normal_pair(words[0], words[1]), *normal_pair(words[2], words[3])

    def score(self, z: Any) -> Any:
        """The score of the standard normal density, z itself."""
        return z


class Gumbel(Noise):
    """Standard Gumbel noise; ``noise="gumbel"`` is short for it."""

    def from_words(self, *words: Any) -> tuple[Any, ...]:
        """A variable from each word."""
        return tuple(gumbel(word) for word in words)

    def score(self, z: Any) -> Any:
        """The score of the density exp(-z - exp(-z))."""
        return 1 - np.exp(-z)


# Short forms. Those in KINDS have kernels; any other is made by NumPy, as an instance is.
NAMED: dict[str, Noise] = {"normal": Normal(), "gumbel": Gumbel()}


class Draws(NamedTuple):
    """Which noise: draws ``first``, ``first + 1``, ... of a seed, scaled by epsilon (0: none)."""

    seed: Any = 0
    first: Any = 0
    n_draws: int = 1
    epsilon: Any = 0.0
    noise: str | Noise = "normal"
    antithetic: bool = False


def check_noise(noise: Any) -> str | Noise:
    """The short form of a noise that has one, else the noise itself; an error if it is none, or cannot be hashed."""
    if isinstance(noise, str):
        if noise in KINDS:
            return noise
        noise = NAMED.get(noise, noise)
    if isinstance(noise, type) and issubclass(noise, Noise):
        raise TypeError(f"noise must be an instance, got the class {noise.__name__}. Pass {noise.__name__}().")
    if not isinstance(noise, Noise):
        raise ValueError(
            f"noise must be one of {tuple(NAMED)}, got {noise!r}. Others are instances of diffclust.noise.Noise."
        )
    if type(noise).__hash__ is None:
        raise TypeError(f"noise must be hashable, got {noise!r}. Make its class a dataclass with frozen=True.")
    return next((kind for kind in KINDS if type(noise) is type(NAMED[kind])), noise)


def as_noise(noise: str | Noise) -> Noise:
    """The noise that a short form stands for; a :class:`Noise` as it is."""
    noise = check_noise(noise)
    return NAMED[noise] if isinstance(noise, str) else noise


def kernel_of(noise: str | Noise) -> int:
    """The number by which kernels know a noise, its position in :data:`KINDS`; a ValueError if they do not."""
    if not isinstance(noise, str):
        raise ValueError(
            f"This solver has kernels for the noise {KINDS} only, got {noise!r}. diffclust.solvers.solver_for(array, "
            "noise) is one that takes it."
        )
    return KINDS.index(check_noise(noise))


def sample(
    seed: int, n_draws: int, n: int, noise: str | Noise = "normal", *, first_draw: int = 0
) -> NDArray[np.float32]:
    """The noise of draws ``first_draw, first_draw + 1, ...``: float32 of shape (n_draws, n, n).

    Each matrix is symmetric with a zero diagonal and one independent variable for every pair. With the same
    ``seed``, draw ``b`` of every operator, loss and backend solves ``similarity + epsilon * sample(...)[b]``.

    Args:
        seed: an integer of 64 bits.
        n_draws: number of draws.
        n: number of points.
        noise: "normal", "gumbel" or a :class:`Noise`.
        first_draw: number of the first draw of the seed's stream.

    Returns:
        The matrices.

    Raises:
        TypeError: an argument that must be an integer is none.
        ValueError: an argument is out of its range.

    Example:
        >>> z = sample(seed=0, n_draws=2, n=3)
        >>> bool((z == z.swapaxes(-1, -2)).all()), float(abs(z.diagonal(axis1=1, axis2=2)).max())
        (True, 0.0)
    """
    return as_noise(noise).sample(seed, n_draws, n, first_draw=first_draw)


def matrices(draws: Draws, n: int) -> NDArray[np.float32]:
    """(n_draws, n, n) noise; antithetic draws 2b and 2b + 1 are plain draw b and its mirror image."""
    noise, first = as_noise(draws.noise), int(draws.first)
    if not draws.antithetic:
        return noise.sample(draws.seed, draws.n_draws, n, first_draw=first)
    numbers = np.arange(first, first + draws.n_draws)
    pairs = noise.sample(draws.seed, draws.n_draws // 2 + 1, n, first_draw=first // 2)
    return pairs[numbers // 2 - first // 2] * np.where(numbers % 2, -1, 1).astype(np.float32)[:, None, None]


def scores(draws: Draws, n: int) -> NDArray[np.float64]:
    """(n_draws, n, n) scores of these matrices, 0 on the diagonal."""
    score = as_noise(draws.noise).score(matrices(draws, n).astype(np.float64))
    return np.where(np.eye(n, dtype=bool), 0.0, score)


def check_integer(name: str, value: Any) -> int:
    """An integer of 64 bits, signed or unsigned, from anything that stands for one."""
    if framework_of(value) != "numpy":
        wrong = "int" not in str(value.dtype) or value.ndim != 0
    else:
        wrong = isinstance(value, (bool, float)) or not hasattr(value, "__index__")
    if wrong:
        raise TypeError(f"{name} must be an integer, got {value!r}.")
    if not -(2**63) <= int(value) < 2**64:
        raise ValueError(f"{name} must fit into 64 bits, got {value}. Pass an int from 0 to 2**64 - 1.")
    return int(value)


def draw_seed(like: Any, plain: bool = True) -> Any:
    """A seed from torch's global generator for a tensor, else from NumPy's.

    Returns:
        An integer. Where something traces (not ``plain``) or a CUDA graph is captured, it is a tensor from the device's
        generator, drawn anew in each run.
    """
    if framework_of(like) != "torch":
        # The legacy generator is the global one: np.random.seed makes runs repeatable.
        return np.random.randint(0, 2**63 - 1, dtype=np.int64)  # noqa: NPY002
    randint = sys.modules["torch"].randint
    if plain and not is_captured(like):
        return int(randint(0, 2**63 - 1, ()))
    return randint(0, 2**63 - 1, (), device=like.device)


def split_seed(seed: int) -> tuple[np.uint64, np.uint64]:
    """The two 32-bit words of the key; negative seeds (of signed integer types) count modulo 2^64."""
    seed = check_integer("seed", seed)
    return np.uint64(seed & 0xFFFFFFFF), np.uint64((seed >> 32) & 0xFFFFFFFF)
