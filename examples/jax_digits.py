"""Digits with 100 labels, in JAX: train an encoder with optax on labelled and unlabelled images, cluster test images.

python examples/jax_digits.py
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import diffclust as dc

SIZES = (64, 256, 64, 16)


def init_encoder(key: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
    """Weights and biases of a small multilayer perceptron."""
    keys = jax.random.split(key, len(SIZES) - 1)
    return [
        (jax.random.normal(k, (a, b)) * (2 / a) ** 0.5, jnp.zeros(b))
        for k, a, b in zip(keys, SIZES[:-1], SIZES[1:], strict=True)
    ]


def encode(parameters: list[tuple[jax.Array, jax.Array]], images: jax.Array) -> jax.Array:
    *hidden, (weight, bias) = parameters
    for w, b in hidden:
        images = jax.nn.relu(images @ w + b)
    return images @ weight + bias


def loss_function(parameters: list[tuple[jax.Array, jax.Array]], images: jax.Array, labels: jax.Array, key: jax.Array):
    """Labels are -1 where unknown; the constraints are built inside the compiled step."""
    similarity = dc.standardize(dc.negative_squared_distances(encode(parameters, images)))
    constraints = dc.Constraints.from_labels(labels)
    return dc.partial_fenchel_young_loss(similarity, constraints, 10, epsilon=0.3, n_draws=50, seed=key)


def main(n_steps: int = 200, n_labels: int = 100, batch_size: int = 128, seed: int = 0) -> dict[str, dict[str, float]]:
    rng = np.random.default_rng(seed)
    images, digits = load_digits(return_X_y=True)
    train, test, train_digits, test_digits = train_test_split(
        (images / 16).astype(np.float32), digits, test_size=0.5, stratify=digits, random_state=seed
    )
    labelled = np.concatenate(
        [rng.choice(np.flatnonzero(train_digits == d), n_labels // 10, replace=False) for d in range(10)]
    )
    unlabelled = np.setdiff1d(np.arange(len(train)), labelled)
    known = np.full(len(train), -1)
    known[labelled] = train_digits[labelled]

    key = jax.random.key(seed)
    parameters = init_encoder(key)
    optimiser = optax.adam(1e-3)
    state = optimiser.init(parameters)

    @jax.jit
    def step(parameters, state, images, labels, key):
        loss, gradient = jax.value_and_grad(loss_function)(parameters, images, labels, key)
        updates, state = optimiser.update(gradient, state)
        return optax.apply_updates(parameters, updates), state, loss

    for i in range(n_steps):
        half = min(batch_size // 2, n_labels)
        batch = np.concatenate([rng.choice(labelled, half, False), rng.choice(unlabelled, batch_size - half, False)])
        parameters, state, loss = step(parameters, state, train[batch], known[batch], jax.random.fold_in(key, i))
        if (i + 1) % 50 == 0:
            print(f"step {i + 1}: loss {loss:.3f}")

    embedded = encode(parameters, jnp.asarray(test))
    tree = dc.Hierarchy.from_similarity(dc.negative_squared_distances(embedded))
    clusterings = {
        "ours": tree.labels(10, min_cluster_size=40),
        "k-means, our embedding": KMeans(10, n_init=10, random_state=0).fit_predict(np.asarray(embedded)),
        "k-means, pixels": KMeans(10, n_init=10, random_state=0).fit_predict(test),
    }
    scores = {name: dc.metrics.clustering_scores(test_digits, labels) for name, labels in clusterings.items()}
    print(f"\n{'':>24}  " + "  ".join(f"{key:>8}" for key in scores["ours"]))
    for name, row in scores.items():
        print(f"{name:>24}  " + "  ".join(f"{value:8.3f}" for value in row.values()))
    return scores


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--labels", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    main(arguments.steps, arguments.labels, seed=arguments.seed)
