"""
A training loop in JAX
======================

Digits with 100 labels: an encoder is trained with optax on labelled and unlabelled images, then test images are
clustered. A JAX key is the seed of the noise.
"""

# %%
# Half of the images are for training; ten of each digit have a label.
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import diffclust as dc

SIZES = (64, 256, 64, 16)
rng = np.random.default_rng(0)
images, digits = load_digits(return_X_y=True)
train, test, train_digits, test_digits = train_test_split(
    (images / 16).astype(np.float32), digits, test_size=0.5, stratify=digits, random_state=0
)
known = np.full(len(train), -1)
for digit in range(10):
    known[rng.choice(np.flatnonzero(train_digits == digit), 10, replace=False)] = digit
labelled, unlabelled = np.flatnonzero(known >= 0), np.flatnonzero(known < 0)

# %%
# A small multilayer perceptron.
Parameters = list[tuple[jax.Array, jax.Array]]


def init_encoder(key: jax.Array) -> Parameters:
    keys = jax.random.split(key, len(SIZES) - 1)
    return [
        (jax.random.normal(k, (a, b)) * (2 / a) ** 0.5, jnp.zeros(b))
        for k, a, b in zip(keys, SIZES[:-1], SIZES[1:], strict=True)
    ]


def encode(parameters: Parameters, images: jax.Array) -> jax.Array:
    *hidden, (weight, bias) = parameters
    for w, b in hidden:
        images = jax.nn.relu(images @ w + b)
    return images @ weight + bias


# %%
# Labels are -1 where unknown. The constraints are built inside the compiled step.
def loss_function(parameters: Parameters, images: jax.Array, labels: jax.Array, key: jax.Array) -> jax.Array:
    similarity = dc.standardize(dc.negative_squared_distances(encode(parameters, images)))
    constraints = dc.Constraints.from_labels(labels)
    return dc.partial_fenchel_young_loss(similarity, constraints, 10, epsilon=0.3, n_draws=50, seed=key)


key = jax.random.key(0)
parameters = init_encoder(key)
optimiser = optax.adam(1e-3)
state = optimiser.init(parameters)


@jax.jit
def step(parameters, state, images, labels, key):
    loss, gradient = jax.value_and_grad(loss_function)(parameters, images, labels, key)
    updates, state = optimiser.update(gradient, state)
    return optax.apply_updates(parameters, updates), state, loss


losses = []
for i in range(150):
    batch = np.concatenate([rng.choice(labelled, 64, False), rng.choice(unlabelled, 64, False)])
    parameters, state, loss = step(parameters, state, train[batch], known[batch], jax.random.fold_in(key, i))
    losses.append(float(loss))

# %%
# The tree of the test images is cut into ten clusters of at least forty.
embedded = encode(parameters, jnp.asarray(test))
tree = dc.Hierarchy.from_similarity(dc.negative_squared_distances(embedded))
clusterings = {
    "ours": tree.labels(10, min_cluster_size=40),
    "k-means, our embedding": KMeans(10, n_init=10, random_state=0).fit_predict(np.asarray(embedded)),
    "k-means, pixels": KMeans(10, n_init=10, random_state=0).fit_predict(test),
}
scores = {name: dc.metrics.clustering_scores(test_digits, labels) for name, labels in clusterings.items()}
for name, row in scores.items():
    print(f"{name:>24}: " + ", ".join(f"{key} {value:.3f}" for key, value in row.items()))

# %%
figure, axis = plt.subplots(figsize=(6, 3), constrained_layout=True)
axis.plot(losses)
axis.set(xlabel="step", ylabel="loss")
plt.show()
