"""The one noise: Philox against published vectors, the layout in plain Python, the transforms, and the statistics."""

import itertools
import math

import numba
import numpy as np
import pytest
from scipy import stats

from diffclust import noise
from diffclust.solvers import cpu
from solving import solve

ULP = 2.0**-24  # half a unit in the last place of a float32 near 1
FOUR_SIGMA = 2 * stats.norm.sf(4)  # p-value of a deviation of four standard errors
MASK = 0xFFFFFFFF

# Random123 1.14, kat_vectors: philox4x32 10. (counter, key, words)
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((MASK,) * 4, (MASK,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def python_philox(counter, key):
    """Philox4x32-10 in plain Python integers, from the paper."""
    c, k = list(counter), list(key)
    for _ in range(10):
        left, right = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(right >> 32) ^ c[1] ^ k[0], right & MASK, (left >> 32) ^ c[3] ^ k[1], left & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return tuple(c)


def python_words(seed, draw, i, j):
    """The block of four words that holds pair (i, j), i < j, and the position of its own word."""
    counter = (j // 2, i // 2, draw & MASK, draw >> 32)
    return python_philox(counter, (seed & MASK, (seed >> 32) & MASK)), 2 * (i % 2) + j % 2


def exact_normal(words, position):
    """Box-Muller in float64 on words (0, 1) or (2, 3): cosine, then sine; the angle starts an eighth turn early."""
    radius_word, angle_word = words[position - position % 2 : position - position % 2 + 2]
    radius = math.sqrt(-2 * math.log((radius_word + 0.5) / 2**32))
    angle = 2 * math.pi * (angle_word / 2**32 - 1 / 8)
    return radius, radius * (math.sin(angle) if position % 2 else math.cos(angle))


def exact_gumbel(words, position):
    return -math.log(-math.log1p(-(words[position] + 0.5) / 2**32))


def words_to_try(rng, n):
    """Random words and all that lie near a corner of a transform."""
    corners = [w for c in range(5) for w in range(c * 2**30 - 3, c * 2**30 + 4)]
    corners += [round(c * 2**32) + d for c in (0.5**0.5, 0.25, 0.75, 1 / 8, 3 / 8) for d in range(-300, 300, 25)]
    corners += [2**e + d for e in range(33) for d in (-1, 0, 1)]
    corners = np.array(sorted({w for w in corners if 0 <= w <= MASK}), np.uint64)
    return np.concatenate([corners, rng.integers(0, 2**32, size=n, dtype=np.uint64)])


# ----------------------------------------------------------------------------------------------------------------
# The generator and the layout


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS, ids=["zeros", "ones", "pi"])
def test_known_answers(counter, key, words):
    assert python_philox(counter, key) == words
    assert tuple(int(w) for w in noise.philox(*map(np.uint64, counter), *map(np.uint64, key))) == words
    arrays = [np.full(3, value, np.uint64) for value in (*counter, *key)]
    for got, expected in zip(noise.philox(*arrays), words, strict=True):
        assert got.tolist() == [expected] * 3


def test_philox_equals_plain_python_on_random_counters():
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 2**32, size=(6, 300), dtype=np.uint64)
    got = np.stack(noise.philox(*inputs)).T
    expected = [python_philox(column[:4], column[4:]) for column in inputs.T.tolist()]
    assert got.tolist() == [list(words) for words in expected]


LAYOUT_CASES = [  # seed, n_draws, n, first_draw
    (0, 2, 6, 0),
    (12345, 1, 7, 3),
    (2**64 - 1, 1, 5, 0),
    (0xDEADBEEF_00000001, 1, 4, 0),
    (-1, 1, 4, 0),
    (-(2**63), 1, 4, 0),
    (7, 2, 4, 2**32 - 1),  # the draw's high word starts to count
    (7, 1, 3, 2**40 + 5),
]


@pytest.mark.parametrize(("seed", "n_draws", "n", "first_draw"), LAYOUT_CASES)
@pytest.mark.parametrize("kind", noise.KINDS)
def test_documented_layout(kind, seed, n_draws, n, first_draw):
    z = noise.sample(seed, n_draws, n, kind, first_draw=first_draw)
    assert z.dtype == np.float32
    assert z.shape == (n_draws, n, n)
    for b, (i, j) in itertools.product(range(n_draws), itertools.combinations(range(n), 2)):
        words, position = python_words(seed % 2**64, first_draw + b, i, j)
        if kind == "normal":
            pair = position - position % 2
            same_bits = noise.normal_pair(np.uint64(words[pair]), np.uint64(words[pair + 1]))[position % 2]
            radius, expected = exact_normal(words, position)
            bound = ULP * (16 * max(1.0, radius) + 1 / radius)
        else:
            same_bits = noise.gumbel(np.uint64(words[position]))
            expected = exact_gumbel(words, position)
            bound = 16 * ULP * (1 + abs(expected))
        assert z[b, i, j] == same_bits
        assert abs(float(z[b, i, j]) - expected) <= bound


@pytest.mark.parametrize("kind", noise.KINDS)
def test_symmetric_with_zero_diagonal(kind):
    for n in range(9):
        z = noise.sample(5, 4, n, kind)
        assert z.shape == (4, n, n)
        assert np.isfinite(z).all()
        assert (z == z.swapaxes(1, 2)).all()
        assert (z[:, range(n), range(n)] == 0).all()
        assert (z[:, *np.triu_indices(n, 1)] != 0).all()


@pytest.mark.parametrize("kind", noise.KINDS)
def test_a_draw_does_not_depend_on_how_much_is_drawn(kind):
    large = noise.sample(11, 6, 13, kind)
    for n in range(14):
        assert np.array_equal(noise.sample(11, 6, n, kind), large[:, :n, :n])
    for first, count in itertools.product(range(6), repeat=2):
        assert np.array_equal(
            noise.sample(11, count, 13, kind, first_draw=first)[: 6 - first], large[first : first + count]
        )
    assert noise.sample(11, 0, 13, kind).shape == (0, 13, 13)


def test_seeds():
    z = noise.sample(3, 1, 20)
    assert np.array_equal(z, noise.sample(np.int64(3), 1, 20))
    assert np.array_equal(noise.sample(-1, 1, 20), noise.sample(2**64 - 1, 1, 20))
    assert np.array_equal(noise.sample(-(2**63), 1, 20), noise.sample(2**63, 1, 20))
    upper = np.triu_indices(20, 1)
    for bit in range(64):  # every bit of the seed counts
        assert (noise.sample(3 ^ (1 << bit), 1, 20)[0][upper] != z[0][upper]).mean() > 0.99


def test_draws_use_both_words_of_the_counter():
    draws = [0, 1, 2**31, 2**32, 2**32 + 1, 2**33, 2**48]
    z = np.stack([noise.sample(0, 1, 20, first_draw=draw)[0][np.triu_indices(20, 1)] for draw in draws])
    for a, b in itertools.combinations(range(len(draws)), 2):
        assert (z[a] != z[b]).mean() > 0.99


# ----------------------------------------------------------------------------------------------------------------
# The transforms


def test_uniform_covers_its_range():
    words = np.array([0, 1, 2**31, MASK], np.uint64)
    assert noise.uniform(words).tolist() == [2.0**-33, 1.5 * 2.0**-32, 0.5, 1.0]


def test_log():
    u = np.concatenate(
        [
            noise.uniform(words_to_try(np.random.default_rng(1), 20_000)),
            np.nextafter(np.float32(0.5**0.5), np.float32([0, 1])),
            np.float32([0.5, 1.0, 2.0, 4.0, 1e-30, 1e30]),
        ]
    )
    got, exact = noise.log(u).astype(np.float64), np.array([math.log(float(x)) for x in u])
    assert noise.log(u).dtype == np.float32
    assert (np.abs(got - exact) <= 16 * ULP * np.abs(exact)).all()
    assert noise.log(np.float32(1)) == 0


def test_normal_transform_against_float64():
    rng = np.random.default_rng(2)
    w0, w1 = words_to_try(rng, 20_000), words_to_try(rng, 20_000)
    for first, second in ((w0, rng.permutation(w1)), (rng.permutation(w0), w1)):
        a, b = noise.normal_pair(first, second)
        assert a.dtype == b.dtype == np.float32
        # From the float32 uniform on, errors are relative to the radius.
        radius = np.sqrt(-2 * np.log(noise.uniform(first).astype(np.float64)))
        angle = 2 * np.pi * (second.astype(np.float64) / 2**32 - 1 / 8)
        assert (np.abs(a - radius * np.cos(angle)) <= 16 * ULP * radius).all()
        assert (np.abs(b - radius * np.sin(angle)) <= 16 * ULP * radius).all()
        assert max(np.abs(a).max(), np.abs(b).max()) < 6.77
    for angle_word in words_to_try(rng, 0):  # the largest radius, and the smallest
        assert np.hypot(*noise.normal_pair(np.uint64(0), angle_word)) == pytest.approx(
            math.sqrt(66 * math.log(2)), rel=1e-6
        )
        assert noise.normal_pair(np.uint64(MASK), angle_word) == (0, 0)


def test_gumbel_transform_against_float64():
    words = words_to_try(np.random.default_rng(3), 40_000)
    got = noise.gumbel(words)
    exact = np.array([exact_gumbel([w], 0) for w in words.tolist()])
    assert got.dtype == np.float32
    assert (np.abs(got - exact) <= 16 * ULP * (1 + np.abs(exact))).all()
    assert got.max() < 22.9
    assert np.isfinite(got).all()


# ----------------------------------------------------------------------------------------------------------------
# Compiled by Numba: the same bits


@numba.njit(cache=True)
def compiled_words(counters):
    out = np.empty((counters.shape[1], 4), np.uint64)
    for c in range(counters.shape[1]):
        out[c] = noise.philox(
            counters[0, c], counters[1, c], counters[2, c], counters[3, c], counters[4, c], counters[5, c]
        )
    return out


@numba.njit(cache=True)
def compiled_transforms(first, second):
    out = np.empty((3, len(first)), np.float32)
    for c in range(len(first)):
        out[0, c], out[1, c] = noise.normal_pair(first[c], second[c])
        out[2, c] = noise.gumbel(first[c])
    return out


def test_numba_makes_the_same_words():
    counters = np.random.default_rng(4).integers(0, 2**32, size=(6, 1000), dtype=np.uint64)
    assert np.array_equal(compiled_words(counters), np.stack(noise.philox(*counters), 1))


def test_numba_makes_the_same_bits():
    rng = np.random.default_rng(5)
    first = words_to_try(rng, 200_000)
    second = rng.permutation(first)
    a, b = noise.normal_pair(first, second)
    got = compiled_transforms(first, second)
    assert np.array_equal(got, np.stack([a, b, noise.gumbel(first)]))
    assert np.array_equal(np.signbit(got[:2]), np.signbit(np.stack([a, b])))


@pytest.mark.parametrize("kind", noise.KINDS)
@pytest.mark.parametrize("n", [2, 3, 6, 9, 101])
def test_solver_uses_the_same_bits(kind, n):
    """One problem for each pair, all other edges missing: the value of the forest is twice that pair's noise."""
    rows, columns = np.triu_indices(n, 1)
    if n > 20:  # more than BLOCKS blocks of noise in a draw; a few pairs will do
        chosen = np.random.default_rng(6).choice(len(rows), size=60, replace=False)
        rows, columns = np.append(rows[chosen], [0, n - 2]), np.append(columns[chosen], [n - 1, n - 1])
    similarity = np.full((len(rows), n, n), -np.inf, np.float32)
    similarity[range(len(rows)), rows, columns] = similarity[range(len(rows)), columns, rows] = 0
    n_draws, epsilon, first = (40 if n < 20 else 4), np.float32(0.3), 2**32 - 2
    z = noise.sample(-9, n_draws, n, kind, first_draw=first)
    solved = solve(cpu, similarity, np.full(len(rows), n - 1), seed=-9, first_draw=first, n_draws=n_draws,
                       epsilon=0.3, noise=kind)  # fmt: skip
    assert (solved.edges[:, 0, :, 0] == np.stack([rows, columns], 1)[:, None]).all()
    assert np.array_equal(solved.values[:, 0], 2 * (epsilon * z[:, rows, columns]).T.astype(np.float64))


def test_many_blocks_of_noise():
    """A draw of more blocks than the kernel makes at a time: the whole tree of the noise alone."""
    n = 151
    z = noise.sample(1, 1, n)[0]
    solved = solve(cpu, np.zeros((1, n, n), np.float32), np.array([1]), seed=1, epsilon=1.0)
    rows, columns = solved.edges[0, 0, 0].T
    weights = z[rows, columns]
    assert (np.diff(weights) <= 0).all()
    exact = solve(cpu, z[None], np.array([1]))
    assert np.array_equal(solved.edges, exact.edges)
    assert np.array_equal(solved.values, exact.values)


# ----------------------------------------------------------------------------------------------------------------
# Statistics: every mean within four standard errors, which follow from the exact moments of the distribution

N_DRAWS, N_POINTS = 60, 200


@pytest.fixture(scope="module")
def normals():
    return noise.sample(20230519, N_DRAWS, N_POINTS).astype(np.float64)


@pytest.fixture(scope="module")
def gumbels():
    return noise.sample(20230519, N_DRAWS, N_POINTS, "gumbel").astype(np.float64)


def upper(z):
    return z[:, *np.triu_indices(z.shape[-1], 1)]


def assert_mean(values, expected, variance):
    """The mean of independent values, within four standard errors."""
    error = math.sqrt(variance / values.size)
    assert abs(values.mean() - expected) <= 4 * error, (values.mean() - expected) / error


def double_factorial(p):
    """E[z^p] for a standard normal."""
    return 0 if p % 2 else math.prod(range(p - 1, 0, -2))


@pytest.mark.parametrize("power", range(1, 9))
def test_normal_moments(normals, power):
    variance = double_factorial(2 * power) - double_factorial(power) ** 2
    assert_mean(upper(normals) ** power, double_factorial(power), variance)


@pytest.mark.parametrize("power", range(1, 5))
def test_gumbel_moments(gumbels, power):
    exact = [float(stats.gumbel_r.moment(p)) for p in (power, 2 * power)]
    assert_mean(upper(gumbels) ** power, exact[0], exact[1] - exact[0] ** 2)


@pytest.mark.parametrize("power", range(1, 4))
def test_gumbel_is_minus_log_of_an_exponential(gumbels, power):
    factorial = math.factorial
    assert_mean(np.exp(-power * upper(gumbels)), factorial(power), factorial(2 * power) - factorial(power) ** 2)


@pytest.mark.parametrize("kind", noise.KINDS)
def test_kolmogorov_smirnov(normals, gumbels, kind):
    values, law = (normals, stats.norm) if kind == "normal" else (gumbels, stats.gumbel_r)
    assert stats.kstest(upper(values).ravel(), law.cdf).pvalue > FOUR_SIGMA
    # Each of the four words of a block, and single draws, by themselves.
    for r, c in itertools.product(range(2), repeat=2):
        block = values[:, r : N_POINTS // 2 : 2, N_POINTS // 2 + c :: 2]
        assert stats.kstest(block.ravel(), law.cdf).pvalue > FOUR_SIGMA
    for draw in range(0, N_DRAWS, 20):
        assert stats.kstest(upper(values)[draw], law.cdf).pvalue > FOUR_SIGMA


@pytest.mark.parametrize("threshold", [2.0, 3.0, 4.0])
def test_normal_tails(normals, threshold):
    for tail in (upper(normals) > threshold, upper(normals) < -threshold):
        p = stats.norm.sf(threshold)
        assert_mean(tail.astype(np.float64), p, p * (1 - p))


def assert_independent(a, b):
    """Two independent standard normal samples: products, products of squares, signs of large values."""
    a, b = a.ravel(), b.ravel()
    assert_mean(a * b, 0, 1)
    assert_mean((a**2 - 1) * (b**2 - 1), 0, 4)
    assert_mean((a**2 - 1) * b, 0, 2)
    assert_mean(a * (b**2 - 1), 0, 2)
    assert_mean((a**3 - 3 * a) * (b**3 - 3 * b), 0, 36)  # Hermite polynomials: variance 3! * 3!


@pytest.mark.parametrize("lag", [1, 2, 4, 16, 32])
def test_draws_are_independent(normals, lag):
    assert_independent(upper(normals)[lag:], upper(normals)[:-lag])


@pytest.mark.parametrize("shift", [2**16, 2**31, 2**32, 2**32 + 1])
def test_distant_draws_are_independent(normals, shift):
    assert_independent(upper(normals)[:20], upper(noise.sample(20230519, 20, N_POINTS, first_draw=shift)))


@pytest.mark.parametrize("change", [1, 2, 2**31, 2**32, 2**63])
def test_seeds_are_independent(normals, change):
    assert_independent(upper(normals)[:20], upper(noise.sample(20230519 ^ change, 20, N_POINTS)))


WORDS = list(itertools.product(range(2), repeat=2))


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(WORDS, 2)))
def test_words_of_a_block_are_independent(normals, first, second):
    half = N_POINTS // 2  # rows from the first half, columns from the second: whole blocks above the diagonal
    corner = normals[:, :half, half:]
    assert_independent(corner[:, first[0] :: 2, first[1] :: 2], corner[:, second[0] :: 2, second[1] :: 2])


def test_signs_of_a_block_are_jointly_uniform(normals):
    half = N_POINTS // 2
    corner = normals[:, :half, half:] > 0
    codes = sum((corner[:, r::2, c::2].astype(int) << (2 * r + c)) for r, c in WORDS)
    assert stats.chisquare(np.bincount(codes.ravel(), minlength=16)).pvalue > FOUR_SIGMA


@pytest.mark.parametrize(("rows", "columns"), [(0, 1), (1, 0), (0, 2), (2, 0), (2, 2), (1, 1), (0, 50), (50, 0)])
def test_pairs_are_independent(normals, rows, columns):
    half = N_POINTS // 2
    corner = normals[:, :half, half:]
    assert_independent(corner[:, : half - rows, : half - columns], corner[:, rows:, columns:])


def test_mirrored_blocks_are_independent(normals):
    """Pairs (i, j) and (i', j') whose blocks would share a counter if rows and columns were mixed up."""
    n = N_POINTS // 2
    i, j = np.triu_indices(n, 2)
    assert_independent(normals[:, i, j], normals[:, i, n + j])
    assert_independent(normals[:, i, j], normals[:, i, 2 * n - 1 - j])


@pytest.mark.parametrize("kind", noise.KINDS)
def test_no_pair_is_drawn_twice(kind):
    """All 2 x 2 blocks differ: four float32 values, equal by chance with probability about 2^-80."""
    z = noise.sample(1, 30, 60, kind)
    blocks = z.reshape(30, 30, 2, 30, 2).swapaxes(2, 3)[:, *np.triu_indices(30, 1)].reshape(-1, 4)
    assert len(np.unique(blocks, axis=0)) == len(blocks)


@pytest.mark.parametrize("seed", [-(2**63), 2**64 - 1])
def test_seeds_have_64_bits_signed_or_unsigned(seed):
    assert noise.check_integer("seed", seed) == seed
    with pytest.raises(ValueError, match="seed must fit into 64 bits"):
        noise.check_integer("seed", seed + (1 if seed > 0 else -1))
