"""One loss over the batch of all devices, in JAX: digits, each device with its part of every batch.

python examples/jax_devices.py                                                        # on the devices that there are
XLA_FLAGS=--xla_force_host_platform_device_count=4 python examples/jax_devices.py     # the same loss, up to rounding
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits

import diffclust as dc

N_DRAWS = 96  # a multiple of the number of devices


def encode(parameters: dict[str, jax.Array], images: jax.Array) -> jax.Array:
    return jax.nn.relu(images @ parameters["hidden"]) @ parameters["out"]


def loss_function(parameters: dict[str, jax.Array], images: jax.Array, labels: jax.Array, step: jax.Array) -> jax.Array:
    """Called by shard_map: images and labels are those of this device."""
    embeddings = jax.lax.all_gather(encode(parameters, images), "device", tiled=True)
    labels = jax.lax.all_gather(labels, "device", tiled=True)
    share = N_DRAWS // jax.lax.axis_size("device")
    loss = dc.partial_fenchel_young_loss(
        dc.standardize(dc.negative_squared_distances(embeddings)),
        dc.Constraints.from_labels(labels),
        n_clusters=10,
        epsilon=0.1,
        n_draws=share,
        must_link_first=True,
        seed=0,
        first_draw=N_DRAWS * step + share * jax.lax.axis_index("device"),
    )
    return jax.lax.pmean(loss, "device")


def main(n_steps: int = 100, batch_size: int = 128) -> list[float]:
    mesh = jax.make_mesh((jax.device_count(),), ("device",), axis_types=(AxisType.Auto,))
    specs = (P(), P("device"), P("device"), P())
    loss_and_gradient = jax.value_and_grad(jax.shard_map(loss_function, mesh=mesh, in_specs=specs, out_specs=P()))
    optimiser = optax.sgd(0.02, momentum=0.9)

    @jax.jit
    def update(parameters, state, images, labels, step):
        loss, gradient = loss_and_gradient(parameters, images, labels, step)
        updates, state = optimiser.update(gradient, state)
        return optax.apply_updates(parameters, updates), state, loss

    x, y = load_digits(return_X_y=True)
    x, known = (x / 16).astype(np.float32), np.where(np.arange(len(y)) % 5 == 0, y, -1)  # a fifth has labels
    rng = np.random.default_rng(0)
    parameters = {
        "hidden": jnp.asarray(rng.normal(size=(64, 128)) / 8, jnp.float32),
        "out": jnp.asarray(rng.normal(size=(128, 16)) / 11, jnp.float32),
    }
    state = optimiser.init(parameters)
    losses = []
    for step in range(n_steps):
        rows = rng.integers(len(x), size=batch_size)
        parameters, state, loss = update(parameters, state, x[rows], known[rows], jnp.asarray(step))
        losses.append(float(loss))
        if step % 10 == 0:
            print(f"step {step}: loss {losses[-1]:.6f}")

    tree = dc.Hierarchy.from_points(np.asarray(encode(parameters, x)))
    labels = tree.labels(n_clusters=10, min_cluster_size=20)
    print(f"ARI of all digits: {dc.metrics.clustering_scores(y, labels)['ari']:.3f}")
    return losses


if __name__ == "__main__":
    main()
