"""Operators, losses and modules on a real GPU (`make test-gpu`): equal to the CPU, captured, compiled, not waiting."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import diffclust as dc  # noqa: E402

pytestmark = pytest.mark.gpu


def problem(rng, n=24, batch=(), dtype=torch.float32):
    points = torch.tensor(rng.normal(size=(*batch, n, 3)), dtype=dtype)
    labels = torch.tensor(rng.integers(-1, 4, size=(*batch, n)))
    return dc.standardize(dc.negative_squared_distances(points)), labels


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def loss_and_gradient(similarity, constraints, **options):
    similarity = similarity.clone().requires_grad_()
    loss = dc.partial_fenchel_young_loss(similarity, constraints, 5, **options)
    return loss.detach().cpu(), torch.autograd.grad(loss, similarity)[0].cpu()


@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
@pytest.mark.parametrize("seed", [3, torch.tensor(2**62 + 1)])
@pytest.mark.parametrize("options", [{}, {"noise": "gumbel"}, {"antithetic": True}, {"must_link_first": False}])
def test_loss_and_gradient_equal_the_cpus(rng, batch, seed, options):
    similarity, labels = problem(rng, batch=batch)
    options = {"seed": seed, "n_draws": 20, **options}
    expected = loss_and_gradient(similarity, dc.Constraints.from_labels(labels), **options)
    found = loss_and_gradient(similarity.cuda(), dc.Constraints.from_labels(labels.cuda()), **options)
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=1e-6)  # integers over the number of draws


def test_one_number_of_clusters_for_a_batch(rng):
    """NumPy's integer, a 0-d tensor and vmap: tensors that repeat their one element."""
    similarity, labels = problem(rng, batch=(3,))
    options = {"seed": 3, "n_draws": 20, "reduction": "none"}
    expected = dc.partial_fenchel_young_loss(similarity, dc.Constraints.from_labels(labels), 5, **options)
    similarity, labels = similarity.cuda(), labels.cuda()

    def loss(similarity, labels, k=5):
        return dc.partial_fenchel_young_loss(similarity, dc.Constraints.from_labels(labels), k, **options)

    for k in (np.int64(5), torch.tensor(5), torch.tensor(5, device="cuda")):
        torch.testing.assert_close(loss(similarity, labels, k).cpu(), expected)
    torch.testing.assert_close(torch.func.vmap(loss)(similarity, labels).cpu(), expected)


def test_pairs_equal_the_cpus(rng):
    similarity, _ = problem(rng)
    constraints = dc.Constraints.from_pairs(24, [(0, 1), (2, 3)], [(0, 2), (4, 5), (5, 6), (6, 4)])
    expected = loss_and_gradient(similarity, constraints, seed=1)
    found = loss_and_gradient(similarity.cuda(), constraints, seed=1)
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("operator", [dc.perturbed_value, dc.perturbed_adjacency, dc.perturbed_connectivity])
@pytest.mark.parametrize("constrained", [False, True])
def test_operators_and_their_gradients_equal_the_cpus(rng, operator, constrained):
    similarity, labels = problem(rng, batch=(2,))
    cotangent = torch.tensor(rng.normal(size=(2, 24, 24)), dtype=torch.float32)

    def run(device):
        s = similarity.detach().clone().to(device).requires_grad_()
        constraints = dc.Constraints.from_labels(labels.to(device)) if constrained else None
        result = operator(s, 5, constraints=constraints, seed=2, n_draws=50)
        weight = cotangent.to(device) if result.ndim == 3 else 1.0
        (result * weight).sum().backward()
        return result.detach().cpu(), s.grad.cpu()

    expected, found = run("cpu"), run("cuda")
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-4)


def test_exact_forest(rng):
    similarity, labels = problem(rng)
    for constraints in (None, dc.Constraints.from_labels(labels)):
        known = None if constraints is None else dc.Constraints.from_labels(labels.cuda())
        expected = dc.spanning_forest(similarity, 5, constraints=constraints)
        found = dc.spanning_forest(similarity.cuda(), 5, constraints=known)
        assert torch.equal(found.edges.cpu(), expected.edges)
        assert torch.equal(found.labels.cpu(), expected.labels)
        assert torch.equal(found.adjacency().cpu(), expected.adjacency())


def test_bitwise_repeatable(rng):
    similarity, labels = problem(rng, n=200)
    runs = [loss_and_gradient(similarity.cuda(), dc.Constraints.from_labels(labels.cuda()), seed=4) for _ in range(3)]
    for loss, gradient in runs[1:]:
        assert torch.equal(loss, runs[0][0])
        assert torch.equal(gradient, runs[0][1])


def test_a_captured_step_draws_fresh_noise_and_never_waits(rng):
    embeddings = torch.tensor(rng.normal(size=(32, 4)), dtype=torch.float32, device="cuda", requires_grad=True)
    labels = torch.tensor(rng.integers(-1, 4, 32), device="cuda")
    criterion = dc.nn.PartialFenchelYoungLoss(4, n_draws=16, seed=5).cuda()
    eager = [criterion(embeddings, labels).item() for _ in range(6)]
    criterion.noise_counter.zero_()

    def step():
        loss = criterion(embeddings, labels)
        return loss.detach(), torch.autograd.grad(loss, embeddings)[0]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # any wait for the device is an error here
        loss, _ = step()
    replayed = []
    for _ in range(3):
        graph.replay()
        replayed.append(loss.item())
    assert replayed == eager[3:6] or replayed == eager[2:5]
    assert len(set(replayed)) == 3


def test_compile_reduce_overhead(rng):
    criterion = dc.nn.PartialFenchelYoungLoss(4, n_draws=16, seed=5).cuda()
    compiled = torch.compile(dc.nn.PartialFenchelYoungLoss(4, n_draws=16, seed=5).cuda(), mode="reduce-overhead")
    labels = torch.tensor(rng.integers(-1, 4, 32), device="cuda")
    for _ in range(4):
        embeddings = torch.tensor(rng.normal(size=(32, 4)), dtype=torch.float32, device="cuda", requires_grad=True)
        expected = criterion(embeddings, labels)
        (expected_gradient,) = torch.autograd.grad(expected, embeddings)
        found = compiled(embeddings, labels)
        (gradient,) = torch.autograd.grad(found, embeddings)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-3, atol=1e-4)


def test_nan_one_point_and_half_precision(rng):
    criterion = dc.nn.PartialFenchelYoungLoss(3, n_draws=8, seed=0).cuda().eval()
    broken = torch.full((6, 2), torch.nan, device="cuda", requires_grad=True)
    labels = torch.tensor([0, 1, 2, -1, -1, 0], device="cuda")
    loss = criterion(broken, labels)
    loss.backward()
    assert loss.isnan()
    single = torch.ones(1, 2, device="cuda", requires_grad=True)
    loss = criterion(single, labels[:1])
    loss.backward()
    assert loss.item() == 0
    assert not single.grad.any()
    points = torch.tensor(rng.normal(size=(6, 2)), dtype=torch.bfloat16, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.equal(criterion(points, labels), criterion(points.float(), labels))
