"""Bad input on tensors: what was expected, what came, what to do; and what must not be an error."""

import warnings

import numpy as np
import pytest
import torch

import diffclust as dc

OPERATORS = (dc.perturbed_value, dc.perturbed_adjacency, dc.perturbed_connectivity)
LABEL_LOSSES = (dc.partial_fenchel_young_loss, dc.connectivity_loss)
MODULES = (dc.nn.PartialFenchelYoungLoss, dc.nn.ConnectivityLoss)
LABELS = torch.tensor([0, 0, 1, 1, -1])


def points(n=5, d=2, **options):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(0), **options)


def similarity(n=5, **options):
    return dc.negative_squared_distances(points(n, **options))


def call(function, s, n_clusters=2, **options):
    """Any operator or loss, with something known where a loss wants it."""
    if function in OPERATORS:
        return function(s, n_clusters, **options)
    if function is dc.fenchel_young_loss:
        return function(s, torch.zeros(s.shape), n_clusters, **options)
    return function(s, dc.Constraints.from_labels(LABELS), n_clusters, **options)


FUNCTIONS = (*OPERATORS, *LABEL_LOSSES, dc.fenchel_young_loss)
EVERY = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
EVERY_MODULE = pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)

# ----------------------------------------------------------------------------------------------------------------
# The similarity


@EVERY
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_similarity_that_is_not_floating_point(function, dtype):
    with pytest.raises(TypeError, match="must be floating point"):
        call(function, similarity().to(dtype))


@EVERY
@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 4, 5), ()])
def test_similarity_of_a_wrong_shape(function, shape):
    with pytest.raises(ValueError, match=r"similarity must have shape \(n, n\)"):
        call(function, torch.zeros(shape))


@EVERY
def test_no_points(function):
    with pytest.raises(ValueError, match="empty"):
        call(function, torch.zeros(0, 0))


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_asymmetric_similarity(function, dtype):
    s = similarity().to(dtype)
    s[1, 2] += 0.1
    with pytest.raises(ValueError, match="must be symmetric"):
        call(function, s)


@EVERY
def test_one_sided_missing_edge(function):
    s = similarity()
    s[1, 2] = -torch.inf
    with pytest.raises(ValueError, match="must be symmetric"):
        call(function, s)


@EVERY
def test_nan_in_the_similarity_gives_nan_and_a_gradient(function):
    s = torch.stack([similarity(), similarity()])
    s[0, 1, 2] = s[0, 2, 1] = torch.nan
    s.requires_grad_()
    options = {} if function in OPERATORS else {"reduction": "none"}
    known = {"n_draws": 4, "seed": 0, **options}
    result = call(function, s, **known)
    alone = call(function, s[1], **known)
    assert result[0].isnan().all()
    assert torch.equal(result[1], alone)
    (gradient,) = torch.autograd.grad(result.sum(), s)
    assert gradient.shape == s.shape


@EVERY
def test_positive_infinity_does_not_crash(function):
    s = similarity()
    s[1, 2] = s[2, 1] = torch.inf
    call(function, s, n_draws=2, seed=0)


# ----------------------------------------------------------------------------------------------------------------
# Numbers


@EVERY
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_clusters": 0}, ValueError, "n_clusters=0 must be from 1 to the number of points, 5"),
        ({"n_clusters": -1}, ValueError, "n_clusters=-1 must be from 1"),
        ({"n_clusters": 2.0}, TypeError, "n_clusters must be an integer"),
        ({"n_clusters": True}, TypeError, "n_clusters must be an integer"),
        ({"n_clusters": "2"}, TypeError, "n_clusters must be an integer"),
        ({"n_clusters": None}, TypeError, "n_clusters must be an integer"),
        ({"n_clusters": torch.tensor(2.0)}, TypeError, "n_clusters must be integers"),
        ({"n_clusters": torch.tensor([2, 2])}, ValueError, "one integer or one per problem"),
        ({"epsilon": 0.0}, ValueError, "epsilon must be positive"),
        ({"epsilon": -0.1}, ValueError, "epsilon must be positive"),
        ({"epsilon": float("nan")}, ValueError, "epsilon must be positive"),
        ({"epsilon": float("inf")}, ValueError, "epsilon must be positive"),
        ({"epsilon": "0.1"}, TypeError, "epsilon must be a number"),
        ({"epsilon": None}, TypeError, "epsilon must be a number"),
        ({"n_draws": 0}, ValueError, "n_draws must be at least 1"),
        ({"n_draws": -3}, ValueError, "n_draws must be at least 1"),
        ({"n_draws": 10.0}, TypeError, "n_draws must be an integer"),
        ({"n_draws": True}, TypeError, "n_draws must be an integer"),
        ({"noise": "uniform"}, ValueError, "noise must be one of"),
        ({"noise": None}, ValueError, "noise must be one of"),
        ({"seed": 1.0}, TypeError, "seed must be an integer"),
        ({"seed": True}, TypeError, "seed must be an integer"),
        ({"seed": "1"}, TypeError, "seed must be an integer"),
        ({"seed": torch.tensor(1.0)}, TypeError, "seed must be an integer"),
        ({"seed": torch.tensor([1, 2])}, TypeError, "seed must be an integer"),
        ({"seed": torch.tensor(True)}, TypeError, "seed must be an integer"),
        ({"seed": 2**64}, ValueError, "seed must fit into 64 bits"),
        ({"seed": -(2**63) - 1}, ValueError, "seed must fit into 64 bits"),
        ({"first_draw": 1.5}, TypeError, "first_draw must be an integer"),
        ({"antithetic": True, "noise": "gumbel"}, ValueError, "antithetic draws need symmetric noise"),
        ({"antithetic": True, "n_draws": 5}, ValueError, "n_draws must be even, got 5"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_bad_numbers(function, options, error, message):
    with pytest.raises(error, match=message):
        call(function, similarity(), **{"n_draws": 4, **options})


@pytest.mark.parametrize("function", [*OPERATORS, dc.fenchel_young_loss], ids=lambda f: f.__name__)
@pytest.mark.parametrize("k", [-2, 0])
def test_n_clusters_in_a_tensor_out_of_range(function, k):
    with pytest.raises(ValueError, match=f"n_clusters={k}"):
        call(function, similarity(), torch.tensor(k), n_draws=4)


@pytest.mark.parametrize("function", OPERATORS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("k", [6, np.int64(6), torch.tensor(6)], ids=["int", "numpy", "tensor"])
def test_operators_refuse_more_clusters_than_points(function, k):
    """Losses do not, see test_losses.py."""
    with pytest.raises(ValueError, match="n_clusters=6 must be from 1 to the number of points, 5"):
        call(function, similarity(), k, n_draws=4)


@pytest.mark.parametrize("number", [torch.tensor(1.5), torch.tensor(True), torch.tensor([1, 2])], ids=str)
def test_a_tensor_that_is_no_integer_beside_an_array(number):
    with pytest.raises(TypeError, match="seed must be an integer"):
        dc.perturbed_value(similarity().numpy(), 2, seed=number)
    with pytest.raises((TypeError, ValueError), match="n_clusters must be"):
        dc.perturbed_value(similarity().numpy(), number, seed=0)


@pytest.mark.parametrize("k", [-2, 0, 6])
def test_n_clusters_in_a_tensor_beside_an_array(k):
    with pytest.raises(ValueError, match=f"n_clusters={k} must be from 1"):
        dc.perturbed_value(similarity().numpy(), torch.tensor(k), seed=0)
    assert dc.perturbed_value(similarity().numpy(), torch.tensor(2), seed=0) > -np.inf


@pytest.mark.parametrize("function", LABEL_LOSSES, ids=lambda f: f.__name__)
def test_label_losses_move_n_clusters_in_a_tensor_into_the_range(function):
    for k, used in ((-2, 2), (0, 2), (6, 3)):
        asked, meant = (call(function, similarity(), x, n_draws=4, seed=0) for x in (torch.tensor(k), used))
        assert asked == meant


@EVERY
def test_good_numbers(function):
    for options in (
        {"seed": None}, {"seed": 2**64 - 1}, {"seed": -(2**63)}, {"seed": np.int32(4)}, {"seed": torch.tensor(3)},
        {"epsilon": 1}, {"epsilon": np.float32(0.5)}, {"n_draws": np.int64(3)}, {"n_clusters": np.int64(2)},
        {"n_clusters": torch.tensor(2)}, {"n_clusters": torch.tensor(2, dtype=torch.int32)}, {"first_draw": 2**40},
        {"antithetic": True, "n_draws": 2},
    ):  # fmt: skip
        assert call(function, similarity(), **{"n_draws": 2, **options}).isfinite().all()


@pytest.mark.parametrize("function", [*LABEL_LOSSES, dc.fenchel_young_loss], ids=lambda f: f.__name__)
@pytest.mark.parametrize("reduction", ["max", None, 1])
def test_unknown_reduction(function, reduction):
    with pytest.raises(ValueError, match="reduction must be one of"):
        call(function, similarity(), reduction=reduction)


# ----------------------------------------------------------------------------------------------------------------
# Constraints


@pytest.mark.parametrize("function", LABEL_LOSSES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("wrong", [None, LABELS, [0, 1, 1, 0, 0], "labels"], ids=["None", "tensor", "list", "string"])
def test_losses_want_constraints(function, wrong):
    with pytest.raises(TypeError, match=r"constraints must be a Constraints object.*from_labels"):
        function(similarity(), wrong, 2)


@pytest.mark.parametrize("function", OPERATORS, ids=lambda f: f.__name__)
def test_operators_want_constraints(function):
    with pytest.raises(TypeError, match=r"constraints must be a Constraints object.*from_labels"):
        function(similarity(), 2, constraints=LABELS)
    assert function(similarity(), 2, constraints=None, n_draws=2).isfinite().all()


@EVERY
def test_constraints_about_another_number_of_points(function):
    if function is dc.fenchel_young_loss:
        pytest.skip("has no constraints")
    known = {"constraints": dc.Constraints.from_labels(LABELS)} if function in OPERATORS else {}
    with pytest.raises(ValueError, match="constraints are about 5 points, similarity is about 4"):
        call(function, similarity(4), **known)


@pytest.mark.parametrize("function", LABEL_LOSSES, ids=lambda f: f.__name__)
def test_constraints_of_another_batch_shape(function):
    known = dc.Constraints.from_labels(LABELS.expand(3, 5))
    with pytest.raises(ValueError, match=r"batch shape \(3,\), similarity has \(2,\)"):
        function(similarity().expand(2, 5, 5), known, 2)


@pytest.mark.parametrize("function", OPERATORS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(("k", "labels"), [(1, [0, 1, 1, -1, -1]), (4, [0, 0, 0, -1, -1]), (2, [0, 1, 2, -1, -1])])
def test_operators_refuse_an_infeasible_k(function, k, labels):
    known = dc.Constraints.from_labels(torch.tensor(labels))
    allowed = f"{known.min_clusters} to {known.max_clusters}"
    with pytest.raises(ValueError, match=f"n_clusters={k} is infeasible: the constraints allow {allowed} clusters"):
        function(similarity(), k, constraints=known, n_draws=2)


@pytest.mark.parametrize("function", OPERATORS, ids=lambda f: f.__name__)
def test_operators_name_the_problem_of_the_batch(function):
    known = dc.Constraints.from_labels(torch.tensor([[0, 0, 1, -1, -1], [0, 1, 2, -1, -1]]))
    with pytest.raises(ValueError, match=r"3 to 5 clusters \(problem 1 of the batch\)"):
        function(similarity().expand(2, 5, 5), 2, constraints=known, n_draws=2)


@pytest.mark.parametrize("function", OPERATORS, ids=lambda f: f.__name__)
def test_operators_refuse_a_graph_in_too_many_pieces(function):
    s = torch.full((4, 4), -torch.inf)
    s[0, 1] = s[1, 0] = s[2, 3] = s[3, 2] = 1.0
    with pytest.raises(ValueError, match="n_clusters=1 cannot be reached"):
        function(s, 1, n_draws=2)
    function(s, 2, n_draws=2)


@pytest.mark.parametrize("function", LABEL_LOSSES, ids=lambda f: f.__name__)
def test_more_labelled_classes_than_clusters(function):
    known = dc.Constraints.from_labels(torch.tensor([0, 1, 2, 3, -1]))
    s = similarity().requires_grad_()
    loss = function(s, known, 2, n_draws=4, seed=0)
    assert loss == function(s, known, 4, n_draws=4, seed=0)
    assert loss.isfinite()
    with pytest.raises(ValueError, match="n_clusters=2 is infeasible: the constraints allow 4 to 5 clusters"):
        function(s, known, 2, n_draws=4, strict=True)


# ----------------------------------------------------------------------------------------------------------------
# Devices. The meta device is a second device that every machine has.


@pytest.mark.parametrize("function", LABEL_LOSSES, ids=lambda f: f.__name__)
def test_labels_on_another_device(function):
    known = dc.Constraints.from_labels(LABELS.to("meta"))
    with pytest.raises(ValueError, match="labels are on meta, the similarity is on cpu"):
        function(similarity(), known, 2)


@EVERY_MODULE
def test_module_with_labels_on_another_device(module):
    with pytest.raises(ValueError, match="labels are on meta, the similarity is on cpu"):
        module(2)(points(), LABELS.to("meta"))


@pytest.mark.parametrize("function", OPERATORS, ids=lambda f: f.__name__)
def test_operator_with_labels_on_another_device(function):
    with pytest.raises(ValueError, match="labels are on meta, the similarity is on cpu"):
        function(similarity(), 2, constraints=dc.Constraints.from_labels(LABELS.to("meta")))


def test_target_on_another_device():
    with pytest.raises((ValueError, RuntimeError), match="meta"):
        dc.fenchel_young_loss(similarity(), torch.zeros(5, 5, device="meta"), 2)


# ----------------------------------------------------------------------------------------------------------------
# Modules: embeddings and labels


@EVERY_MODULE
@pytest.mark.parametrize("kind", ["sqeuclidean", "cosine"])
def test_integer_embeddings(module, kind):
    with pytest.raises(TypeError, match=r"embeddings must be floating point, got torch\.int64"):
        module(2, similarity=kind)(torch.zeros(5, 2, dtype=torch.int64), LABELS)


def test_integer_embeddings_of_the_layer():
    with pytest.raises(TypeError, match="embeddings must be floating point"):
        dc.nn.PerturbedClustering(2)(torch.zeros(5, 2, dtype=torch.int64))


@EVERY_MODULE
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool, torch.complex64])
def test_labels_that_are_not_integers(module, dtype):
    with pytest.raises(TypeError, match="labels must be integers"):
        module(2)(points(), LABELS.to(dtype))


@EVERY_MODULE
@pytest.mark.parametrize("shape", [(5,), ()])
def test_embeddings_of_a_wrong_shape(module, shape):
    with pytest.raises(ValueError, match=r"must have shape \(n, d\)"):
        module(2)(torch.zeros(shape), LABELS)


@EVERY_MODULE
@pytest.mark.parametrize("length", [4, 6])
def test_labels_of_a_wrong_length(module, length):
    with pytest.raises(ValueError, match=rf"{length} points"):
        module(2)(points(), torch.zeros(length, dtype=torch.int64))


@EVERY_MODULE
def test_labels_that_are_a_number(module):
    with pytest.raises(ValueError, match=r"labels must have shape \(n,\)"):
        module(2)(points(), torch.tensor(1))


@EVERY_MODULE
def test_no_embeddings(module):
    with pytest.raises(ValueError, match=r"empty|n >= 1"):
        module(2)(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64))


@EVERY_MODULE
@pytest.mark.parametrize("options", [{"n_clusters": 0}, {"n_draws": 0}, {"epsilon": 0.0}, {"epsilon": float("nan")}, {"noise": "x"}, {"similarity": "euclid"}, {"reduction": "max"}, {"seed": 2**64}, {"reachability": 2.0}, {"reachability": 0}, {"antithetic": True, "n_draws": 3}, {"antithetic": True, "noise": "gumbel"}], ids=str)  # fmt: skip  # noqa: E501
def test_modules_refuse_bad_values_when_they_are_made(module, options):
    with pytest.raises(ValueError, match=next(iter(options)).replace("_", ".")):
        module(**{"n_clusters": 2, **options})


@EVERY_MODULE
@pytest.mark.parametrize("wrong", [None, ["sqeuclidean"], {"cosine": 1}], ids=str)
def test_a_similarity_is_a_name_or_a_function(module, wrong):
    with pytest.raises(TypeError, match=r"similarity must be one of .* or a function, got "):
        module(2, similarity=wrong)


@EVERY_MODULE
def test_strict_module_refuses_a_batch_smaller_than_k(module):
    with pytest.raises(ValueError, match="n_clusters=7"):
        module(7, strict=True)(points(), LABELS)
    assert module(7, seed=0)(points(), LABELS).isfinite()


# ----------------------------------------------------------------------------------------------------------------
# Batches that a training run will meet


def loss_and_gradient(module, x, labels):
    x = x.clone().requires_grad_()
    loss = module(x, labels)
    loss.backward()
    return loss.detach(), x.grad


@EVERY_MODULE
@pytest.mark.parametrize("label", [0, 7])
@pytest.mark.parametrize("kind", ["sqeuclidean", "cosine"])
def test_a_batch_of_one_point(module, label, kind):
    loss, gradient = loss_and_gradient(module(3, similarity=kind, seed=0), torch.ones(1, 4), torch.tensor([label]))
    assert loss == 0
    assert (gradient == 0).all()


@EVERY_MODULE
def test_a_batch_of_one_unlabelled_point(module):
    with pytest.warns(UserWarning, match="No point of this batch is labelled"):
        loss, gradient = loss_and_gradient(module(3, seed=0), torch.ones(1, 4), torch.tensor([-1]))
    assert loss == 0
    assert (gradient == 0).all()


def test_one_point_is_one_cluster():
    assert dc.perturbed_connectivity(torch.zeros(1, 1), 1).tolist() == [[1.0]]
    assert dc.perturbed_adjacency(torch.zeros(1, 1), 1).tolist() == [[0.0]]
    assert dc.perturbed_value(torch.zeros(1, 1), 1) == 0


def test_a_batch_without_labels():
    known = torch.full((5,), -1)
    module = dc.nn.PartialFenchelYoungLoss(2, seed=0)
    with pytest.warns(UserWarning, match="No point of this batch is labelled: the loss is 0"):
        loss, gradient = loss_and_gradient(module, points(), known)
    assert loss == 0
    assert (gradient == 0).all()
    with pytest.warns(UserWarning, match="No point of this batch is labelled"):
        loss, gradient = loss_and_gradient(dc.nn.ConnectivityLoss(2, seed=0), points(), known)
    assert loss == 0
    assert (gradient == 0).all()


def test_a_batch_without_labels_warns_once():
    """A training run that meets such batches again and again is told once, by Python's own rule for warnings."""
    module = dc.nn.PartialFenchelYoungLoss(2, seed=0, n_draws=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            module(points(), torch.full((5,), -1))
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module(points(), LABELS)
        for shape in ((0, 5, 3), (2, 0, 5, 3)):  # without any problem
            module(torch.zeros(shape), torch.full((5,), -1))


def test_no_label_in_one_problem_of_a_batch():
    labels = torch.stack([LABELS, torch.full((5,), -1)])
    x = torch.stack([points(), points()]).requires_grad_()
    loss = dc.nn.PartialFenchelYoungLoss(2, seed=0, reduction="none")(x, labels)
    assert loss[1] == 0
    loss.sum().backward()
    assert (x.grad[1] == 0).all()


@EVERY_MODULE
@pytest.mark.parametrize("n_clusters", [1, 2, 5])
def test_every_label_is_the_same(module, n_clusters):
    """All points in one class leave k = 1: the free tree and the constrained one are the same."""
    loss, gradient = loss_and_gradient(module(n_clusters, seed=0), points(), torch.full((5,), 3))
    assert loss == 0
    assert (gradient == 0).all()


@EVERY_MODULE
@pytest.mark.parametrize("n_clusters", [1, 2, 5])
def test_every_label_is_different(module, n_clusters):
    loss, gradient = loss_and_gradient(module(n_clusters, seed=0), points(), torch.arange(5))
    assert loss == 0
    assert (gradient == 0).all()


@EVERY_MODULE
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kind", ["sqeuclidean", "cosine"])
@pytest.mark.parametrize("standardize", [True, False])
def test_broken_embeddings_give_a_nan_loss(module, wrong, kind, standardize):
    x = points()
    x[2, 1] = wrong
    loss, gradient = loss_and_gradient(module(2, seed=0, similarity=kind, standardize=standardize), x, LABELS)
    assert loss.isnan()
    assert gradient.shape == x.shape


def test_nan_embeddings_of_the_layer():
    x = points()
    x[0, 0] = torch.nan
    x.requires_grad_()
    soft = dc.nn.PerturbedClustering(2, seed=0)(x)
    assert soft.isnan().all()
    soft.sum().backward()


@EVERY_MODULE
def test_equal_embeddings(module):
    """A collapsed network: all similarities are equal, and nothing divides by their deviation of zero."""
    for kind in ("sqeuclidean", "cosine"):
        for value in (0.0, 1.0):
            loss, gradient = loss_and_gradient(module(2, seed=0, similarity=kind), torch.full((5, 3), value), LABELS)
            assert loss.isfinite()
            assert gradient.isfinite().all()


@EVERY_MODULE
def test_huge_and_tiny_embeddings(module):
    for scale in (1e-15, 1e15):
        loss, gradient = loss_and_gradient(module(2, seed=0), scale * points(), LABELS)
        assert loss.isfinite()
        assert gradient.isfinite().all()


@EVERY_MODULE
def test_labels_of_any_integer_type(module):
    types = (torch.int64, torch.int32, torch.int16, torch.int8)
    results = {module(2, seed=0)(points(), LABELS.to(t)).item() for t in types}
    results.add(module(2, seed=0)(points(), LABELS.numpy()).item())
    assert len(results) == 1
