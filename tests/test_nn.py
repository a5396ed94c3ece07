"""Modules: they train, keep their place in the stream of noise, and stand where metric-learning losses stand."""

import copy
import importlib.util
import inspect
import io

import numpy as np
import pytest
import torch
from torch import nn

import diffclust as dc
from diffclust.frameworks import rehearsed_capture

LOSSES = (dc.nn.PartialFenchelYoungLoss, dc.nn.ConnectivityLoss)
EVERY_LOSS = pytest.mark.parametrize("module", LOSSES, ids=lambda m: m.__name__)
LABELS = torch.tensor([0, 0, 1, 1, 2, 2, -1, -1])


def embeddings(n=8, d=3, seed=0, **options):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), **options)


def functional(module):
    return {
        dc.nn.PartialFenchelYoungLoss: dc.partial_fenchel_young_loss,
        dc.nn.ConnectivityLoss: dc.connectivity_loss,
    }[module]


def call(module, x=None):
    """Any of the three modules on the same batch, as one tensor."""
    x = embeddings() if x is None else x
    return module(x) if isinstance(module, dc.nn.PerturbedClustering) else module(x, LABELS)


ALL = pytest.mark.parametrize("kind", [*LOSSES, dc.nn.PerturbedClustering], ids=lambda m: m.__name__)


def losses_of(loss, x, optimizer, n_steps):
    """The loss of every step of training the embeddings themselves."""
    history = []
    for _ in range(n_steps):
        optimizer.zero_grad()
        value = loss(x, LABELS)
        value.backward()
        optimizer.step()
        history.append(value.item())
    return history


# ----------------------------------------------------------------------------------------------------------------
# What they compute


@EVERY_LOSS
@pytest.mark.parametrize("options", [{}, {"noise": "gumbel"}, {"epsilon": 1.0}, {"antithetic": True}], ids=str)
def test_a_loss_is_the_function_on_the_standardised_similarity(module, options):
    x = embeddings()
    s = dc.standardize(dc.negative_squared_distances(x))
    truth = functional(module)(s, dc.Constraints.from_labels(LABELS), 3, n_draws=20, seed=5, **options)
    assert torch.equal(module(3, n_draws=20, seed=5, **options)(x, LABELS), truth)


@EVERY_LOSS
@pytest.mark.parametrize("scale", [0.25, 4.0])  # powers of two: no rounding
def test_a_scale_of_the_noise_is_another_epsilon(module, scale):
    scaled, other = module(3, n_draws=20, seed=5, epsilon=0.5), module(3, n_draws=20, seed=5, epsilon=0.5 * scale)
    scaled.noise_scale = torch.tensor(scale)
    assert "noise_scale" not in scaled.state_dict()
    results = []
    for loss in (scaled, other):
        x = embeddings().requires_grad_()
        value = loss(x, LABELS)
        results.append((value.detach(), torch.autograd.grad(value, x)[0]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-6)
    assert results[0][1].abs().max() > 0
    plain = module(3, n_draws=20, seed=5, epsilon=0.5).eval()
    scaled.noise_counter.zero_()
    assert torch.equal(scaled.eval()(embeddings(), LABELS), plain(embeddings(), LABELS))


def test_losses_modules_and_training_have_one_set_of_defaults():
    training = pytest.importorskip("diffclust.training").TrainingConfig(n_clusters=2).resolve((4,))
    expected = {name: getattr(training, name) for name in ("epsilon", "n_draws", "must_link_first")}
    functions = (dc.partial_fenchel_young_loss, dc.fenchel_young_loss, dc.connectivity_loss, dc.nn.PerturbedClustering)
    for function in (*functions, dc.nn.PartialFenchelYoungLoss, dc.nn.ConnectivityLoss):
        parameters = inspect.signature(function).parameters
        found = {name: parameters[name].default for name in expected if name in parameters}
        assert found.items() <= expected.items()
        assert {"epsilon", "n_draws"} <= found.keys()


def test_the_layer_is_the_function():
    x = embeddings()
    s = dc.standardize(dc.negative_squared_distances(x))
    options = {"epsilon": 0.1, "n_draws": 20, "seed": 5, "must_link_first": True}
    layer = dc.nn.PerturbedClustering(3, **options)
    assert torch.equal(layer(x), dc.perturbed_connectivity(s, 3, **options))
    known = dc.Constraints.from_labels(LABELS)
    second = dc.perturbed_connectivity(s, 3, first_draw=20, constraints=known, **options)
    assert torch.equal(layer(x, known), second)


@EVERY_LOSS
@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("similarity", ["sqeuclidean", "cosine", "callable"])
def test_similarity_is_pluggable(module, standardize, similarity):
    x = embeddings()
    function = {
        "sqeuclidean": dc.negative_squared_distances,
        "cosine": dc.cosine_similarities,
        "callable": lambda points: -torch.cdist(points, points, p=1),
    }[similarity]
    s = dc.standardize(function(x)) if standardize else function(x)
    chosen = function if similarity == "callable" else similarity
    plugged = module(3, similarity=chosen, standardize=standardize, seed=1)
    truth = functional(module)(s, dc.Constraints.from_labels(LABELS), 3, seed=1)
    assert torch.equal(plugged(x, LABELS), truth)
    assert torch.equal(plugged.similarities(x), s)


def test_must_link_first_reaches_the_solver():
    line = torch.tensor([[0.0], [1.0], [2.0]])
    labels = torch.tensor([0, -1, 0])
    first, later = (
        dc.nn.PartialFenchelYoungLoss(1, epsilon=1e-3, standardize=False, must_link_first=value, seed=0)(line, labels)
        for value in (True, False)
    )
    assert first > 5
    assert later == 0


@EVERY_LOSS
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_batches_of_problems(module, reduction):
    x = torch.stack([embeddings(seed=s) for s in range(6)]).reshape(2, 3, 8, 3)
    result = module(3, seed=0, reduction=reduction, n_draws=20)(x, LABELS)
    each = torch.stack([module(3, seed=0, n_draws=20)(one, LABELS) for one in x.reshape(6, 8, 3)])
    # Matrix products of a batch and of one problem may be rounded differently: compare what that can move.
    bound = 8 * 8 * 64 * torch.finfo(torch.float32).eps
    if reduction == "none":
        assert result.shape == (2, 3)
        assert (result.reshape(6) - each).abs().max() <= bound
    else:
        assert result.shape == ()
        assert abs(result - getattr(each, reduction)()) <= 6 * bound
    own_labels = LABELS.expand(2, 3, 8)
    assert torch.equal(module(3, seed=0, reduction=reduction, n_draws=20)(x, own_labels), result)


def test_the_layer_takes_batches():
    x = torch.stack([embeddings(seed=s) for s in range(4)])
    soft = dc.nn.PerturbedClustering(3, seed=0)(x)
    assert soft.shape == (4, 8, 8)
    assert (soft.diagonal(dim1=-1, dim2=-2) == 1).all()


@EVERY_LOSS
def test_constraints_in_place_of_labels(module):
    a = module(3, seed=0)(embeddings(), dc.Constraints.from_labels(LABELS))
    assert a == module(3, seed=0)(embeddings(), LABELS)
    pairs = dc.Constraints.from_pairs(8, must_link=[(0, 1)], cannot_link=[(1, 2), (3, 4), (4, 5)])
    assert pairs.relation is not None
    assert module(3, seed=0)(embeddings(), pairs).isfinite()


# ----------------------------------------------------------------------------------------------------------------
# Embeddings to standardised similarity, with a gradient written by hand where nothing traces or transforms


def similarities(x):
    return dc.nn.PartialFenchelYoungLoss(3, seed=0).similarities(x)


def by_autograd(x):
    return dc.standardize(dc.negative_squared_distances(x))


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def cotangent_of(value):
    """Not symmetric, and with a mean."""
    return 1 + random(*value.shape, seed=1).to(value.dtype)


def value_and_gradient(function, x):
    x = x.detach().requires_grad_()
    value = function(x)
    return value.detach(), *torch.autograd.grad(value, x, cotangent_of(value))


SHAPES = [(1, 1), (1, 4), (2, 3), (3, 1), (40, 16), (5, 0), (0, 5, 3), (4, 6, 2), (2, 2, 5, 3)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_similarities_and_their_gradient_are_those_of_the_formulas(shape):
    x = random(*shape)
    (value, gradient), (expected, truth) = (value_and_gradient(f, x) for f in (similarities, by_autograd))
    assert torch.equal(value, expected)
    torch.testing.assert_close(gradient, truth, rtol=1e-10, atol=1e-10)
    if len(shape) > 2 or shape[-2] == 1 or shape[-1] == 0:
        return
    # In float32 it is as far from the truth as what autograd makes of the formulas, or a rounding of what is summed.
    distances = -dc.negative_squared_distances(x)
    summands = (cotangent_of(value) + cotangent_of(value).mT).abs() * distances.sqrt() / distances.std(correction=0)
    ours, theirs = ((value_and_gradient(f, x.float())[1] - truth).abs().max() for f in (similarities, by_autograd))
    assert ours <= 2 * theirs + 4 * torch.finfo(torch.float32).eps * summands.sum(-1).max()


def test_derivatives_of_similarities():
    """First ones are written by hand, second ones are those of the formulas; hooks see a gradient once."""
    x, cotangent = random(2, 5, 3).requires_grad_(), random(2, 5, 5, seed=1).requires_grad_()
    assert "_StandardizedDistances" in similarities(x).grad_fn.name()
    assert torch.autograd.gradcheck(similarities, (x,))
    assert torch.autograd.gradgradcheck(similarities, (x,), (cotangent,))
    seen = []
    x.register_hook(lambda gradient: seen.append(gradient))
    for create_graph in (False, True):
        (gradient,) = torch.autograd.grad(similarities(x), x, cotangent, create_graph=create_graph)
        torch.testing.assert_close(gradient, torch.autograd.grad(by_autograd(x), x, cotangent)[0])
    assert len(seen) == 4


def test_similarities_under_transforms():
    x, tangent = random(3, 5, 2).requires_grad_(), random(3, 5, 2, seed=1)

    def total(function, x):
        return (function(x) ** 3).sum()

    truth = torch.autograd.grad(total(by_autograd, x), x)[0]
    gradient = torch.func.grad(lambda x: total(similarities, x))
    torch.testing.assert_close(gradient(x), truth)
    torch.testing.assert_close(torch.func.vmap(gradient)(x), truth)
    with torch.autograd.forward_ad.dual_level():
        dual = total(similarities, torch.autograd.forward_ad.make_dual(x, tangent))
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(dual).tangent, (truth * tangent).sum())


def test_numbers_of_other_libraries():
    seed = torch.tensor(3)
    loss = dc.nn.PartialFenchelYoungLoss(np.int64(3), reachability=np.int64(2), n_draws=np.int64(5), seed=seed)
    seed += 1  # the module's stream of noise is its own
    assert loss.noise_seed == 3
    assert loss(random(6, 2), torch.tensor([0, 0, 1, 1, 2, -1])).isfinite()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_embeddings_have_similarity_and_gradient_zero(dtype):
    for value in (0.0, 1.0, -3.0):
        for result in value_and_gradient(similarities, torch.full((4, 3), value, dtype=dtype)):
            assert (result == 0).all()


def test_nan_stays_in_its_problem():
    x = random(3, 5, 2)
    x[1, 2, 0] = torch.nan
    for result in value_and_gradient(similarities, x):
        assert torch.equal(result.isnan(), torch.tensor([False, True, False])[:, None, None].expand_as(result))


@pytest.mark.parametrize("function", [similarities, by_autograd])
@pytest.mark.parametrize("scale", [2.0**-27, 2.0**27])
def test_the_gradient_of_collapsed_and_of_vast_embeddings(function, scale):
    """Similarities do not change with the scale, so their gradient is one over it; float32 is wide enough for both."""
    x = random(7, 3, dtype=torch.float32)
    (value, gradient), (scaled, small_or_large) = (value_and_gradient(function, c * x) for c in (1.0, scale))
    assert torch.equal(scaled, value)
    torch.testing.assert_close(scale * small_or_large, gradient)


def test_a_backward_pass_within_autocast_is_in_float32():
    x = random(20, 8, dtype=torch.float32)
    expected = value_and_gradient(similarities, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = value_and_gradient(similarities, x)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@EVERY_LOSS
def test_training_is_that_of_the_formulas(module):
    def train(similarity):
        x = embeddings(dtype=torch.float64).requires_grad_()
        loss = module(3, n_draws=20, seed=0, epsilon=0.5, similarity=similarity)
        return losses_of(loss, x, torch.optim.SGD([x], lr=0.1), 20)

    assert np.allclose(train("sqeuclidean"), train(dc.negative_squared_distances), rtol=0, atol=1e-10)


# ----------------------------------------------------------------------------------------------------------------
# The stream of noise


@ALL
def test_the_counter_moves_by_the_number_of_draws_in_training_only(kind):
    module = kind(3, n_draws=7, seed=0)
    assert module.noise_counter.item() == 0
    call(module)
    assert module.noise_counter.item() == 7
    module.eval()
    a, b = call(module), call(module)
    assert torch.equal(a, b)
    assert module.noise_counter.item() == 7
    module.train()
    c, d = call(module), call(module)
    assert torch.equal(c, a)  # evaluation looked at the noise that comes next, and left it there
    assert not torch.equal(c, d)
    assert module.noise_counter.item() == 21


@ALL
def test_call_number_m_uses_the_draws_after_m_minus_one_calls(kind):
    module = kind(3, epsilon=0.2, n_draws=7, seed=11)
    s = dc.standardize(dc.negative_squared_distances(embeddings()))
    for step in range(3):
        options = {"epsilon": 0.2, "n_draws": 7, "seed": 11, "first_draw": 7 * step}
        if kind is dc.nn.PerturbedClustering:
            truth = dc.perturbed_connectivity(s, 3, **options)
        else:
            truth = functional(kind)(s, dc.Constraints.from_labels(LABELS), 3, **options)
        assert torch.equal(call(module), truth)


@ALL
def test_state_dict_continues_the_same_stream(kind):
    module = kind(3, n_draws=7, seed=11)
    call(module)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    ahead = [call(module) for _ in range(3)]
    file.seek(0)
    resumed = kind(3, n_draws=7, seed=99)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert resumed.noise_seed.item() == 11
    assert all(torch.equal(a, call(resumed)) for a in ahead)


@ALL
def test_a_copy_has_its_own_stream(kind):
    module = kind(3, n_draws=7, seed=11)
    call(module)
    twin = copy.deepcopy(module)
    ahead = [call(module) for _ in range(3)]
    assert twin.noise_counter.item() == 7
    assert all(torch.equal(a, call(twin)) for a in ahead)


@ALL
def test_manual_seed_makes_a_run_repeatable(kind):
    runs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        module, other = kind(3, n_draws=7), kind(3, n_draws=7)
        assert module.noise_seed != other.noise_seed
        runs.append([call(module), call(other), call(module)])
    assert all(torch.equal(a, b) for a, b in zip(runs[0], runs[1], strict=True))
    assert not torch.equal(runs[0][0], runs[2][0])


def test_a_whole_training_run_is_repeatable_bit_for_bit():
    def run():
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        loss = dc.nn.PartialFenchelYoungLoss(3, n_draws=20)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(10):
            optimizer.zero_grad()
            loss(net(embeddings()), LABELS).backward()
            optimizer.step()
        return torch.cat([p.detach().flatten() for p in net.parameters()])

    first = run()
    assert torch.equal(first, run())


def test_seeds_up_to_64_bits():
    a = dc.nn.PartialFenchelYoungLoss(3, seed=2**64 - 1)(embeddings(), LABELS)
    s = dc.standardize(dc.negative_squared_distances(embeddings()))
    assert a == dc.partial_fenchel_young_loss(s, dc.Constraints.from_labels(LABELS), 3, seed=2**64 - 1)


@ALL
def test_moves_and_casts_keep_the_counter_an_integer(kind):
    module = kind(3, n_draws=7, seed=11).double().half().float()
    call(module)
    assert module.noise_counter.dtype == module.noise_seed.dtype == torch.int64
    assert module.noise_counter.item() == 7
    assert not list(module.parameters())
    assert "n_clusters=3" in repr(module)


# ----------------------------------------------------------------------------------------------------------------
# Training


def clusters(n_per_class=20, n_classes=3, noise_dimensions=3, noise=2.0, seed=0):
    """Classes along two dimensions, drowned in noise dimensions."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(n_classes), n_per_class)
    angle = 2 * np.pi * labels / n_classes
    signal = np.stack([np.cos(angle), np.sin(angle)], 1) + 0.15 * rng.normal(size=(len(labels), 2))
    x = np.concatenate([signal, noise * rng.normal(size=(len(labels), noise_dimensions))], 1)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(labels)


@EVERY_LOSS
@pytest.mark.parametrize("similarity", ["sqeuclidean", "cosine"])
def test_training_embeddings_brings_the_loss_down(module, similarity):
    torch.manual_seed(0)
    x = embeddings().requires_grad_()
    # The score needs draws that differ: more noise than the envelope gradient does.
    epsilon = 0.5 if module is dc.nn.ConnectivityLoss else 0.1
    loss = module(3, n_draws=100, seed=0, similarity=similarity, epsilon=epsilon)
    history = losses_of(loss, x, torch.optim.Adam([x], lr=0.05), 150)
    assert history[0] > 0.5
    assert np.mean(history[-10:]) < 0.3 * np.mean(history[:3])


def test_a_linear_map_learns_to_ignore_noise_dimensions():
    x, labels = clusters()
    known = torch.where(torch.arange(len(labels)) % 2 == 0, labels, -1)
    torch.manual_seed(0)
    net = nn.Linear(5, 2, bias=False)
    loss = dc.nn.PartialFenchelYoungLoss(3, n_draws=100, seed=0)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)

    def error():
        s = dc.negative_squared_distances(net(x).detach().double().numpy())
        return dc.metrics.connectivity_error(labels.numpy(), dc.spanning_forest(s, 3).labels)

    start = error()
    for _ in range(100):
        optimizer.zero_grad()
        loss(net(x), known).backward()
        optimizer.step()
    assert start > 0.3
    assert error() == 0.0


def test_the_layer_trains_inside_a_network_with_a_loss_of_ones_own():
    """Any loss behind the soft connectivity trains the map in front of it; here binary cross-entropy on pairs."""
    x, labels = clusters(n_per_class=8, noise_dimensions=1, noise=1.0)
    same = (labels[:, None] == labels[None, :]).float()
    torch.manual_seed(0)
    front = nn.Linear(3, 2, bias=False)
    layer = dc.nn.PerturbedClustering(3, n_draws=100, epsilon=0.5, seed=0)
    optimizer = torch.optim.Adam(front.parameters(), lr=0.05)

    def loss():
        return nn.functional.binary_cross_entropy(layer(front(x)).clamp(0.01, 0.99), same)

    start = loss().item()
    for _ in range(100):
        optimizer.zero_grad()
        loss().backward()
        assert front.weight.grad.isfinite().all()
        optimizer.step()
    assert start > 0.5
    assert loss().item() < 0.2 * start


@EVERY_LOSS
def test_double_embeddings_give_a_double_loss_and_gradient(module):
    x = embeddings().double().requires_grad_()
    loss = module(3, seed=0)(x, LABELS)
    loss.backward()
    assert loss.dtype == x.grad.dtype == torch.float64


# ----------------------------------------------------------------------------------------------------------------
# pytorch-metric-learning


def train_with_metric_learning(loss_function, epochs=12):
    """The package's own loop: its sampler, a DataLoader, loss(embeddings, labels); returns the losses seen."""
    samplers = pytest.importorskip("pytorch_metric_learning.samplers")
    x, labels = clusters(n_per_class=24)
    torch.manual_seed(0)
    net = nn.Linear(5, 2, bias=False)
    data = torch.utils.data.TensorDataset(x, labels)
    sampler = samplers.MPerClassSampler(labels, m=8, batch_size=24, length_before_new_iter=len(labels))
    loader = torch.utils.data.DataLoader(data, batch_size=24, sampler=sampler)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    history = []
    np.random.seed(0)  # noqa: NPY002 - the sampler uses the global generator
    for _ in range(epochs):
        for batch, batch_labels in loader:
            optimizer.zero_grad()
            value = loss_function(net(batch), batch_labels)
            value.backward()
            optimizer.step()
            history.append(value.item())
    s = dc.negative_squared_distances(net(x).detach().double().numpy())
    error = dc.metrics.connectivity_error(labels.numpy(), dc.spanning_forest(s, 3).labels)
    return history, error


def test_runs_where_a_metric_learning_loss_runs():
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    theirs, _ = train_with_metric_learning(losses.TripletMarginLoss(), epochs=2)  # the loop is a loop for their losses
    assert np.isfinite(theirs).all()
    history, error = train_with_metric_learning(dc.nn.PartialFenchelYoungLoss(3, n_draws=50, seed=0))
    assert np.mean(history[-5:]) < 0.1 * np.mean(history[:3])
    assert error == 0.0


ADAPTER = importlib.util.find_spec("diffclust.metric_learning") is not None
needs_adapter = pytest.mark.skipif(not ADAPTER, reason="diffclust.metric_learning is not there")


@needs_adapter
def test_adapter_is_a_metric_learning_loss_and_trains():
    base = pytest.importorskip("pytorch_metric_learning.losses").BaseMetricLossFunction
    from diffclust.metric_learning import PartialFenchelYoungLoss

    loss = PartialFenchelYoungLoss(3, n_draws=50, seed=0)
    assert isinstance(loss, base)
    history, error = train_with_metric_learning(loss)
    assert np.mean(history[-5:]) < 0.1 * np.mean(history[:3])
    assert error == 0.0


@needs_adapter
def test_adapter_computes_our_loss():
    pytest.importorskip("pytorch_metric_learning")
    from diffclust.metric_learning import PartialFenchelYoungLoss

    x = embeddings()
    ours = dc.nn.PartialFenchelYoungLoss(3, n_draws=50, seed=4)
    theirs = PartialFenchelYoungLoss(3, n_draws=50, seed=4)
    for _ in range(2):
        assert torch.equal(theirs(x, LABELS), ours(x, LABELS))
    state = copy.deepcopy(theirs.state_dict())
    ahead = theirs(x, LABELS)
    other = PartialFenchelYoungLoss(3, n_draws=50, seed=5)
    other.load_state_dict(state)
    assert torch.equal(other(x, LABELS), ahead)


@needs_adapter
def test_adapter_beside_other_losses():
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    from diffclust.metric_learning import PartialFenchelYoungLoss

    ours, triplet = PartialFenchelYoungLoss(3, n_draws=20, seed=4), losses.TripletMarginLoss()
    both = losses.MultipleLosses([copy.deepcopy(ours), triplet], weights=[1.0, 0.5])
    x = embeddings().requires_grad_()
    labels = LABELS.clamp(min=0)
    total = both(x, labels)
    torch.testing.assert_close(total, ours(x, labels) + 0.5 * triplet(x, labels))
    total.backward()
    assert x.grad.abs().sum() > 0


@needs_adapter
def test_adapter_clusters_reference_embeddings_with_the_batch():
    pytest.importorskip("pytorch_metric_learning")
    from diffclust.metric_learning import PartialFenchelYoungLoss

    x, more = embeddings(), embeddings(5, seed=1)
    more_labels = torch.tensor([0, 1, 2, -1, 0])
    got = PartialFenchelYoungLoss(3, seed=4)(x, LABELS, ref_emb=more, ref_labels=more_labels)
    together = dc.nn.PartialFenchelYoungLoss(3, seed=4)(torch.cat([x, more]), torch.cat([LABELS, more_labels]))
    assert torch.equal(got, together)


@needs_adapter
def test_adapter_refuses_mined_tuples():
    pytest.importorskip("pytorch_metric_learning")
    from diffclust.metric_learning import CrossBatchMemory, PartialFenchelYoungLoss

    loss = PartialFenchelYoungLoss(3, seed=4)
    mined = tuple(torch.tensor([i]) for i in range(3))
    for wrapped in (loss, CrossBatchMemory(loss, embedding_size=3)):
        with pytest.raises(ValueError, match="Mined tuples have no meaning"):
            wrapped(embeddings(), LABELS, mined)


@needs_adapter
def test_memory_clusters_a_batch_with_earlier_rows_and_not_with_its_own_copy():
    pytest.importorskip("pytorch_metric_learning")
    from diffclust.metric_learning import CrossBatchMemory, PartialFenchelYoungLoss

    memory = CrossBatchMemory(PartialFenchelYoungLoss(3, seed=4), embedding_size=3, memory_size=30)
    plain = dc.nn.PartialFenchelYoungLoss(3, seed=4)
    batches = [embeddings(seed=seed).requires_grad_() for seed in range(3)]
    assert torch.equal(memory(batches[0], LABELS), plain(batches[0], LABELS))
    value = memory(batches[1], LABELS)
    together = torch.cat([batches[1], batches[0].detach()])
    assert torch.equal(value, plain(together, torch.cat([LABELS, LABELS])))
    value.backward()
    assert batches[1].grad.abs().sum() > 0
    assert batches[0].grad is None
    assert torch.isfinite(memory(batches[2], LABELS))


@needs_adapter
def test_memory_keeps_rows_of_a_momentum_encoder_out_of_the_batch():
    pytest.importorskip("pytorch_metric_learning")
    from diffclust.metric_learning import CrossBatchMemory, PartialFenchelYoungLoss

    memory = CrossBatchMemory(PartialFenchelYoungLoss(3, seed=4), embedding_size=3)
    batch, keys = embeddings(seed=0), embeddings(seed=1)
    mask = torch.arange(2 * len(batch)) >= len(batch)
    value = memory(torch.cat([batch, keys]), torch.cat([LABELS, LABELS]), enqueue_mask=mask)
    assert torch.equal(
        value, dc.nn.PartialFenchelYoungLoss(3, seed=4)(torch.cat([batch, keys]), torch.cat([LABELS, LABELS]))
    )


@needs_adapter
def test_views_are_not_read_while_a_capture_is_rehearsed(monkeypatch):
    """Else a step of training on a GPU would wait, and could not be captured."""
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    same = torch.arange(6) % 3
    known = dc.Constraints(relation=torch.where(same[:, None] == same, 1, -1).to(torch.int8))
    loss = dc.nn.PartialFenchelYoungLoss(2, seed=4)
    expected = loss.eval()(x, known)
    for name in ("min_clusters", "max_clusters"):
        monkeypatch.setattr(dc.Constraints, name, property(lambda self: pytest.fail("it is read")))
    with rehearsed_capture():
        assert torch.equal(loss(x, known), expected)


def test_self_supervised_views_belong_together_and_rows_may_share_a_cluster():
    pytest.importorskip("pytorch_metric_learning")
    from diffclust.metric_learning import PartialFenchelYoungLoss, SelfSupervisedLoss

    x, other = embeddings(seed=0).requires_grad_(), embeddings(seed=1)
    value = SelfSupervisedLoss(PartialFenchelYoungLoss(3, seed=4))(x, other)
    views = dc.Constraints.from_pairs(2 * len(x), must_link=[(i, i + len(x)) for i in range(len(x))])
    assert torch.equal(value, dc.nn.PartialFenchelYoungLoss(3, seed=4)(torch.cat([x, other]), views))
    value.backward()
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize("module", [dc.nn.PartialFenchelYoungLoss, dc.nn.ConnectivityLoss])
def test_robust_linkage_is_the_loss_of_the_mutual_reachability(module):
    torch.manual_seed(0)
    embeddings, labels = torch.randn(12, 3, requires_grad=True), torch.tensor([0, 1, 2, 0, 1, 2] + [-1] * 6)
    robust = module(3, n_draws=5, seed=0, reachability=4)
    plain = module(
        3, n_draws=5, seed=0, similarity=lambda x: dc.mutual_reachability(dc.negative_squared_distances(x), 4)
    )
    for found, expected in zip(
        (robust(embeddings, labels), *torch.autograd.grad(robust.eval()(embeddings, labels), embeddings)),
        (plain(embeddings, labels), *torch.autograd.grad(plain.eval()(embeddings, labels), embeddings)),
        strict=True,
    ):
        assert torch.equal(found, expected)
    assert robust(embeddings[:1], labels[:1]).item() == 0  # a batch of fewer points has fewer neighbours
    batch = torch.rand(2, 1, 9, 3)
    torch.testing.assert_close(robust.similarities(batch)[1, 0], robust.similarities(batch[1, 0]))
    few = batch[0, 0, :3]  # three points have two neighbours each, not four
    expected = dc.standardize(dc.mutual_reachability(dc.negative_squared_distances(few), 2))
    torch.testing.assert_close(robust.similarities(few), expected)
    module(3, reachability=1)
    with pytest.raises(ValueError, match="reachability must be"):
        module(3, reachability=0)
