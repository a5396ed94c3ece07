"""The ecosystem's switches: opcheck, compile, export, autocast, functorch, threads, forks; and no cost without need."""

import contextlib
import copy
import itertools
import os
import shutil
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest
import torch
import torch._dynamo.testing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, jacrev, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import diffclust as dc
from oracles import random_similarity
from processes import python_c

binding = import_module("diffclust.bindings.torch")  # registers the operators
OPS = torch.ops.diffclust
K, N, B = 3, 7, 6
LABELS = torch.tensor([0, 0, 1, 1, 2, -1, -1])
PAIRS = dc.Constraints.from_pairs(N, must_link=[(0, 1)], cannot_link=[(1, 2), (3, 4), (4, 5)])


def similarity(n=N, seed=0, dtype=torch.float32):
    matrix = torch.from_numpy(random_similarity(np.random.default_rng(seed), n)).to(dtype)
    return matrix.fill_diagonal_(0.0)


def batch(size=4, **options):
    return torch.stack([similarity(seed=s, **options) for s in range(size)])


def embeddings(n=N, seed=0, **options):
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), **options)


def forest_loss(s, **options):
    target = torch.zeros(N, N).index_put((torch.tensor([0, 1, 2, 3]), torch.tensor([1, 2, 3, 4])), torch.tensor(1.0))
    return dc.fenchel_young_loss(s, (target + target.T).to(s.dtype), K, **options)


FUNCTIONS = {
    "squared adjacency": lambda s, **o: (dc.perturbed_adjacency(s, K, **o) ** 2).sum((-1, -2)),
    "value": lambda s, **o: dc.perturbed_value(s, K, **o),
    "adjacency": lambda s, **o: dc.perturbed_adjacency(s, K, **o),
    "connectivity": lambda s, **o: dc.perturbed_connectivity(s, K, **o),
    "labelled value": lambda s, **o: dc.perturbed_value(s, K, constraints=dc.Constraints.from_labels(LABELS), **o),
    "labelled connectivity": lambda s, **o: dc.perturbed_connectivity(
        s, K, constraints=dc.Constraints.from_labels(LABELS), **o
    ),
    "partial loss": lambda s, **o: dc.partial_fenchel_young_loss(s, dc.Constraints.from_labels(LABELS), K, **o),
    "connectivity loss": lambda s, **o: dc.connectivity_loss(s, dc.Constraints.from_labels(LABELS), K, **o),
    "forest loss": forest_loss,
}
EVERY = pytest.mark.parametrize("name", FUNCTIONS)
OPTIONS = {"n_draws": B, "seed": 3, "epsilon": 0.5}


def weighted(name, s, **options):
    """A scalar whose gradient is not trivial, for any of the functions."""
    result = FUNCTIONS[name](s, **{**OPTIONS, **options})
    weights = torch.linspace(-1.0, 2.0, result.numel(), dtype=result.dtype).reshape(result.shape)
    return (result * weights).sum() if result.ndim else result


def value_and_gradient(function, s):
    s = s.detach().clone().requires_grad_()
    value = function(s)
    (gradient,) = torch.autograd.grad(value, s)
    return value.detach(), gradient


# ----------------------------------------------------------------------------------------------------------------
# Registered operators


class Recorder(TorchDispatchMode):
    """Keeps the arguments of every call of an operator of ours, forward and backward."""

    def __init__(self):
        super().__init__()
        self.calls = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "diffclust":
            assert not kwargs
            kind = tuple((tuple(a.shape), a.dtype) if isinstance(a, torch.Tensor) else a for a in args)
            own = tuple(a.detach().clone() if isinstance(a, torch.Tensor) else a for a in args)
            self.calls.setdefault(func, {})[kind] = own
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def operator_calls():
    """{operator: samples of its arguments} as the public functions make them: one and two problems, both dtypes."""
    known = (None, dc.Constraints.from_labels(LABELS), PAIRS)
    with Recorder() as recorder:
        for s, constraints in itertools.product((similarity(), batch(2, dtype=torch.float64)), known):
            leaf = s.requires_grad_()
            results = [
                dc.perturbed_value(leaf, 4, constraints=constraints, **OPTIONS),
                dc.perturbed_adjacency(leaf, 4, constraints=constraints, noise="gumbel", **OPTIONS),
                dc.perturbed_connectivity(leaf, 4, constraints=constraints, antithetic=True, **OPTIONS),
            ]
            if constraints is not None:
                results.append(dc.partial_fenchel_young_loss(leaf, constraints, 4, **OPTIONS))
                results.append(dc.partial_fenchel_young_loss(leaf, constraints, 1, diagnostics=True, **OPTIONS)[0])
                results.append(dc.connectivity_loss(leaf, constraints, 4, **OPTIONS))
            sum((r**2).sum() for r in results).backward()
            OPS.given_similarity(leaf).sum().backward()  # only compiled programs have this one
        with torch.no_grad():
            dc.perturbed_value(similarity(), 4, **OPTIONS)
        # Counting is called from inside other operators, where the recorder does not look.
        for arguments in list(recorder.calls[OPS.expected_adjacency.default].values()):
            OPS.adjacency_counts(OPS.expected_adjacency(*arguments)[1][:, None], N)
    return {func.name(): list(samples.values()) for func, samples in recorder.calls.items()}


def registered_operators():
    """The schemas in torch's own register."""
    names = {schema.name for schema in torch._C._jit_get_all_schemas()}
    return sorted(name for name in names if name.startswith("diffclust::"))


def test_every_operator_is_used(operator_calls):
    assert {name.removesuffix(".default") for name in operator_calls} == set(registered_operators())


@pytest.mark.slow
@pytest.mark.parametrize("name", registered_operators())
def test_opcheck(name, operator_calls):
    samples = next(calls for key, calls in operator_calls.items() if key.removesuffix(".default") == name)
    assert len(samples) >= 2
    for arguments in samples:
        results = torch.library.opcheck(getattr(OPS, name.removeprefix("diffclust::")).default, arguments)
        assert set(results.values()) == {"SUCCESS"}


# ----------------------------------------------------------------------------------------------------------------
# torch.compile and torch.export


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()


def compiled(function, backend="aot_eager"):
    return torch.compile(function, fullgraph=True, backend=backend)


@pytest.mark.slow
@EVERY
def test_compiled_functions_equal_eager(name):
    def function(s):
        return weighted(name, s)

    for s in (similarity(), batch(2)):
        if s.ndim == 3 and name == "forest loss":
            continue
        eager, ours = value_and_gradient(function, s), value_and_gradient(compiled(function), s)
        assert torch.equal(eager[0], ours[0])
        assert torch.equal(eager[1], ours[1])
        assert eager[1].abs().sum() > 0


def make(kind, **options):
    if kind == "ConnectivityLoss":  # which solves without constraints
        options.pop("must_link_first", None)
    return getattr(dc.nn, kind)(K, n_draws=B, seed=3, epsilon=0.5, **options)


def run(module, x):
    kind = getattr(module, "_orig_mod", module)  # of a compiled one
    return module(x) if isinstance(kind, dc.nn.PerturbedClustering) else module(x, LABELS)


def assert_rounded_alike(gradient, other):
    """Eagerly the similarity's gradient is written by hand, compiled it is autograd's: sums of 2 n products each."""
    bound = 2 * len(gradient) * 2 * torch.finfo(gradient.dtype).eps * gradient.abs().max()
    torch.testing.assert_close(gradient, other, rtol=0, atol=bound.item())


MODULES = ("PartialFenchelYoungLoss", "ConnectivityLoss", "PerturbedClustering")
PARTIAL, CONNECTIVITY, LAYER = MODULES  # which share most of what is compiled: below they meet each option in pairs


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODULES)
def test_compiled_modules_equal_eager_and_move_along_the_stream(kind):
    eager, module = make(kind), make(kind)
    ours = compiled(module)
    x, y = embeddings().requires_grad_(), embeddings().requires_grad_()
    seen = []
    for _ in range(3):
        expected = eager(x) if kind == "PerturbedClustering" else eager(x, LABELS)
        got = ours(y) if kind == "PerturbedClustering" else ours(y, LABELS)
        assert torch.equal(expected, got)
        (expected**2).sum().backward()
        (got**2).sum().backward()
        assert_rounded_alike(x.grad, y.grad)
        seen.append(got.detach())
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])
    assert eager.noise_counter == module.noise_counter == 3 * B


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "how"),
    [(PARTIAL, "no gradient asked for"), (PARTIAL, "inference_mode"), (CONNECTIVITY, "no_grad"),
     (CONNECTIVITY, "eval"), (LAYER, "no gradient asked for"), (LAYER, "inference_mode")],
)  # fmt: skip
def test_compiled_modules_without_gradient(kind, how):
    """Validation: dynamo takes another way through an autograd.Function when nothing needs a gradient."""
    eager, module = make(kind), make(kind)
    x = embeddings()
    if how == "eval":
        eager, module = eager.eval(), module.eval()
    context = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}.get(how, contextlib.nullcontext)
    ours = compiled(module)
    with context():
        for _ in range(2):
            arguments = (x,) if kind == "PerturbedClustering" else (x, LABELS)
            assert torch.equal(ours(*arguments), eager(*arguments))
    assert eager.noise_counter == module.noise_counter


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor():
    eager, module = make("PartialFenchelYoungLoss"), make("PartialFenchelYoungLoss")
    ours = compiled(module, "inductor")
    x, y = embeddings().requires_grad_(), embeddings().requires_grad_()
    for _ in range(2):
        expected, got = eager(x, LABELS), ours(y, LABELS)
        # Fused arithmetic rounds the similarity differently.
        torch.testing.assert_close(got, expected)
        expected.backward()
        got.backward()
        assert_rounded_alike(x.grad, y.grad)
    assert module.noise_counter == 2 * B


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "needs_gradient", "dynamic"),
    [
        *((kind, True, None) for kind in MODULES),
        (PARTIAL, True, True),
        (LAYER, True, True),
        (CONNECTIVITY, False, None),
    ],
)
def test_compile_with_batches_of_several_sizes(kind, needs_gradient, dynamic):
    """The last batch of an epoch is smaller: with dynamic=None, too, torch then compiles for symbolic sizes.

    Without a gradient, dynamic=True is that of test_one_compiled_graph_serves_all_sizes.
    """
    module, eager = make(kind), make(kind)
    ours = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for n in (8, 7, 11):
        x, y = (embeddings(n).requires_grad_(needs_gradient) for _ in range(2))
        labels = () if kind == "PerturbedClustering" else (torch.arange(n) % 4 - 1,)
        expected, got = eager(x, *labels), ours(y, *labels)
        assert torch.equal(expected, got)
        if needs_gradient:
            (expected**2).sum().backward()
            (got**2).sum().backward()
            assert_rounded_alike(x.grad, y.grad)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "training", "strict"),
    [(PARTIAL, True, True), (PARTIAL, False, False), (CONNECTIVITY, True, False), (CONNECTIVITY, False, True),
     (LAYER, True, True), (LAYER, False, False)],
)  # fmt: skip
def test_export(kind, training, strict):
    module = make(kind).train(training)
    arguments = (embeddings(),) if kind == "PerturbedClustering" else (embeddings(), LABELS)
    exported = torch.export.export(copy.deepcopy(module), arguments, strict=strict).module()
    for seed in range(3):
        arguments = (embeddings(seed=seed), *arguments[1:])
        assert torch.equal(exported(*arguments), module(*arguments))


def arguments_of(kind, n, leading=(), seed=0):
    """Embeddings (*leading, n, 3) and, for a loss, labels of the same problems."""
    x = torch.randn(*leading, n, 3, generator=torch.Generator().manual_seed(seed))
    labels = (torch.arange(n) % 4 - 1).expand(*leading, n).contiguous()
    return (x,) if kind == "PerturbedClustering" else (x, labels)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "strict", "options"),
    [*((kind, True, {}) for kind in MODULES), (LAYER, False, {}), (PARTIAL, False, {}),
     (CONNECTIVITY, True, {"reachability": 4}), (LAYER, True, {"reachability": 4}),
     (PARTIAL, True, {"similarity": "cosine", "must_link_first": False})],
)  # fmt: skip
def test_export_with_batches_of_any_size(kind, strict, options):
    """One exported program, the numbers of the eager module for every number of points, k and fewer among them.

    A strict export reads the Python code of an option as well; the other one only runs it.
    """
    module = make(kind, **options).eval()
    least = {"min": K} if kind == "PerturbedClustering" else {}  # an operator needs k points
    n, arguments = torch.export.Dim("n", **least), arguments_of(kind, 9)
    program = torch.export.export(module, arguments, dynamic_shapes=[{0: n}] * len(arguments), strict=strict)
    exported = program.module()
    sizes = (9, 3, 4, 14) if kind == "PerturbedClustering" else (9, 2, 3, 4, 14)
    for size in sizes:
        arguments = arguments_of(kind, size, seed=size)
        assert torch.equal(exported(*arguments), module(*arguments))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "strict"), [(PARTIAL, True), (CONNECTIVITY, False), (LAYER, True), (LAYER, False)])
def test_export_with_any_number_of_problems(kind, strict):
    module = make(kind).eval()
    arguments = arguments_of(kind, 9, (5,))
    shapes = {0: torch.export.Dim("problems"), 1: torch.export.Dim("n", min=K)}
    program = torch.export.export(module, arguments, dynamic_shapes=[shapes] * len(arguments), strict=strict)
    exported = program.module()
    for problems, size in ((5, 9), (2, 6), (7, 4)):
        arguments = arguments_of(kind, size, (problems,), seed=size)
        assert torch.equal(exported(*arguments), module(*arguments))


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODULES)
def test_one_compiled_graph_serves_all_sizes(kind):
    """dynamic=True: no size is compiled anew, and sizes below k are as in eager mode."""
    module, eager = make(kind).eval(), make(kind).eval()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    ours = torch.compile(module, fullgraph=True, backend=counter, dynamic=True)
    sizes = (8, 5, 4, 12) if kind == "PerturbedClustering" else (8, 5, 2, 12)
    counts = []
    for size in sizes:
        arguments = arguments_of(kind, size)
        assert torch.equal(ours(*arguments), eager(*arguments))
        counts.append(counter.frame_count)
    assert len(set(counts)) == 1


# ----------------------------------------------------------------------------------------------------------------
# Half precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@EVERY
def test_half_precision_similarities_are_computed_in_float32(name, dtype):
    half = similarity().to(dtype)
    result = FUNCTIONS[name](half, **OPTIONS)
    assert result.dtype == torch.float32
    assert torch.equal(result, FUNCTIONS[name](half.float(), **OPTIONS))
    _, gradient = value_and_gradient(lambda s: weighted(name, s), half)
    _, full = value_and_gradient(lambda s: weighted(name, s), half.float())
    assert gradient.dtype == dtype
    assert torch.equal(gradient, full.to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("metric", ["sqeuclidean", "cosine"])
def test_half_precision_embeddings_and_autocast_are_computed_in_float32(kind, dtype, metric):
    half = embeddings().to(dtype)
    truth = run(make(kind, similarity=metric), half.float())
    assert truth.dtype == torch.float32
    assert torch.equal(run(make(kind, similarity=metric), half), truth)
    with torch.autocast("cpu", dtype=dtype):
        assert torch.equal(run(make(kind, similarity=metric), half), truth)
        assert torch.equal(run(make(kind, similarity=metric), half.float()), truth)
        x = half.clone().requires_grad_()
        run(make(kind, similarity=metric), x).sum().backward()
    assert x.grad.dtype == dtype
    assert x.grad.isfinite().all()


def test_autocast_around_a_network():
    torch.manual_seed(0)
    net, module = torch.nn.Linear(3, 2), make("PartialFenchelYoungLoss")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = net(embeddings())
        loss = module(out, LABELS)
    assert out.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    loss.backward()
    assert net.weight.grad.isfinite().all()


# ----------------------------------------------------------------------------------------------------------------
# torch.func


@EVERY
def test_func_grad_equals_autograd(name):
    s = similarity()
    assert torch.equal(grad(lambda t: weighted(name, t))(s), value_and_gradient(lambda t: weighted(name, t), s)[1])


@EVERY
def test_vmap_equals_a_loop(name):
    s = batch()
    together = vmap(lambda t: FUNCTIONS[name](t, **OPTIONS))(s)
    assert torch.equal(together, torch.stack([FUNCTIONS[name](one, **OPTIONS) for one in s]))
    moved = vmap(lambda t: FUNCTIONS[name](t, **OPTIONS), in_dims=2)(s.movedim(0, 2))
    assert torch.equal(moved, together)


@EVERY
def test_vmap_of_grad_equals_a_loop(name):
    s = batch()
    together = vmap(grad(lambda t: weighted(name, t)))(s)
    each = [value_and_gradient(lambda t: weighted(name, t), one)[1] for one in s]
    torch.testing.assert_close(together, torch.stack(each), rtol=8 * torch.finfo(torch.float32).eps, atol=1e-6)
    assert together.abs().sum() > 0


@pytest.mark.parametrize("name", ["value", "adjacency", "connectivity", "partial loss"])
def test_jacrev_equals_a_loop(name):
    s = similarity(dtype=torch.float64)
    jacobian = jacrev(lambda t: FUNCTIONS[name](t, **OPTIONS))(s)
    leaf = s.clone().requires_grad_()
    flat = FUNCTIONS[name](leaf, **OPTIONS).reshape(-1)
    rows = [torch.autograd.grad(entry, leaf, retain_graph=True)[0] for entry in flat]
    torch.testing.assert_close(jacobian.reshape(-1, N, N), torch.stack(rows), rtol=1e-13, atol=1e-14)
    assert jacobian.abs().sum() > 0


def test_vmap_over_labels_and_clusters():
    labels = torch.stack([LABELS, LABELS.roll(1), LABELS.roll(2)])
    k = torch.tensor([3, 4, 5])
    s = similarity()

    def loss(one_labels, one_k):
        return dc.partial_fenchel_young_loss(s, dc.Constraints.from_labels(one_labels), one_k, **OPTIONS)

    together = vmap(loss)(labels, k)
    assert torch.equal(together, torch.stack([loss(a, b) for a, b in zip(labels, k, strict=True)]))


@pytest.mark.parametrize("what", ["seed", "first_draw"])
@pytest.mark.parametrize("name", ["value", "connectivity"])
def test_vmap_over_the_noise_says_that_it_does_not_work(what, name):
    s = similarity()
    with pytest.raises(NotImplementedError, match=f"vmap over {what} is not supported"):
        vmap(lambda number: FUNCTIONS[name](s, **{**OPTIONS, what: number}))(torch.arange(3))


def test_per_sample_gradients_of_a_network_through_a_module():
    torch.manual_seed(0)
    net, module = torch.nn.Linear(3, 2), make("PartialFenchelYoungLoss").eval()
    parameters = dict(net.named_parameters())
    x = torch.stack([embeddings(seed=s) for s in range(3)])

    def loss(p, one):
        return module(functional_call(net, p, (one,)), LABELS)

    together = vmap(grad(loss), in_dims=(None, 0))({k: p.detach() for k, p in parameters.items()}, x)
    for i in range(3):
        each = torch.autograd.grad(loss(parameters, x[i]), list(parameters.values()))
        for name, expected in zip(parameters, each, strict=True):
            torch.testing.assert_close(together[name][i], expected)


@EVERY
@pytest.mark.parametrize("square", [False, True])
def test_second_derivatives_are_refused(name, square):
    """Also where something else has one, and the forests' would pass for zero."""

    def function(s):
        value = weighted(name, s)
        return value**2 if square else value

    def penalty(gradient, s):
        return (gradient**2).sum() + (s**2).sum()

    s = similarity(dtype=torch.float64).requires_grad_()
    (first,) = torch.autograd.grad(function(s), s, create_graph=True)
    assert torch.equal(first, value_and_gradient(function, s)[1])
    for differentiate in (lambda p: torch.autograd.grad(p, s), torch.Tensor.backward):
        with pytest.raises(NotImplementedError, match="no second derivatives"):
            differentiate(penalty(first, s))
        (first,) = torch.autograd.grad(function(s), s, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        grad(lambda s: penalty(grad(function)(s), s))(s.detach())
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        vmap(jacrev(jacrev(function)))(s.detach()[None])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend", "square"),
    [(name, backend, False) for name in FUNCTIONS for backend in ("eager", "aot_eager")]
    + [(name, "eager", True) for name in ("value", "adjacency", "connectivity", "partial loss")],
)
def test_compiled_second_derivatives_are_refused(name, backend, square):
    """By us where the backward pass stays ours, else by AOTAutograd, which has none of anything; never a zero."""

    def function(s):
        value = weighted(name, s)
        return value**2 if square else value

    s = similarity(dtype=torch.float64).requires_grad_()
    ours = compiled(function, backend)
    for differentiate in (lambda p: torch.autograd.grad(p, s), torch.Tensor.backward):
        (first,) = torch.autograd.grad(ours(s), s, create_graph=True)
        with pytest.raises(RuntimeError, match=r"no second derivatives|not currently support double backward"):
            differentiate((first**2).sum() + (s**2).sum())
    # At the end: a backward pass that is compiled without create_graph gives up what a second one would need.
    for found, expected in zip(value_and_gradient(ours, s), value_and_gradient(function, s), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_second_derivatives_of_modules_are_refused(kind, backend):
    module = compiled(make(kind), backend)
    x = embeddings().requires_grad_()
    (first,) = torch.autograd.grad((run(module, x) ** 2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"no second derivatives|not currently support double backward"):
        torch.autograd.grad((first**2).sum() + (x**2).sum(), x)


@EVERY
def test_tracing_with_fake_tensors(name):
    """Nothing looks at a value, not even for a warning."""
    s = similarity()
    traced = make_fx(lambda s: weighted(name, s))(s)
    assert torch.equal(traced(s), weighted(name, s))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert weighted(name, mode.from_tensor(s)).shape == ()


# ----------------------------------------------------------------------------------------------------------------
# No cost without need


def saved_tensors(function):
    """The tensors that autograd keeps for backward while the function runs."""
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        function()
    return saved


@EVERY
def test_tensors_without_gradient_cost_no_backward(name):
    s = similarity()
    result = FUNCTIONS[name](s, **OPTIONS)
    assert not result.requires_grad
    assert result.grad_fn is None
    assert saved_tensors(lambda: FUNCTIONS[name](s, **OPTIONS)) == []
    leaf = s.clone().requires_grad_()
    with torch.no_grad():
        assert saved_tensors(lambda: FUNCTIONS[name](leaf, **OPTIONS)) == []
    assert FUNCTIONS[name](leaf, **OPTIONS).grad_fn is not None


@pytest.mark.parametrize("name", ["value", "adjacency", "connectivity", "labelled value", "partial loss"])
def test_backward_keeps_edges_or_labels_and_nothing_larger(name):
    n_draws = 50
    leaf = similarity().requires_grad_()
    saved = saved_tensors(lambda: FUNCTIONS[name](leaf, **{**OPTIONS, "n_draws": n_draws}))
    solves = 2 if name == "partial loss" else 1
    kept = [t.numel() for t in saved if t.data_ptr() != leaf.data_ptr()]  # the caller's own matrix is no copy
    assert 0 < sum(kept) <= solves * n_draws * 2 * (N - 1) + 8


@EVERY
def test_inference_mode(name):
    s = similarity()
    expected = FUNCTIONS[name](s, **OPTIONS)
    with torch.inference_mode():
        assert torch.equal(FUNCTIONS[name](s, **OPTIONS), expected)
        assert torch.equal(FUNCTIONS[name](s.clone(), **OPTIONS), expected)


@EVERY
def test_strided_views(name):
    s = similarity()
    wide = torch.full((2 * N, 3 * N), torch.nan)
    wide[::2, ::3] = s
    view = wide[::2, ::3]
    assert not view.is_contiguous()
    assert torch.equal(FUNCTIONS[name](view, **OPTIONS), FUNCTIONS[name](s, **OPTIONS))
    assert torch.equal(FUNCTIONS[name](s.T, **OPTIONS), FUNCTIONS[name](s, **OPTIONS))
    expanded = s.expand(3, N, N)
    if name != "forest loss":
        got = FUNCTIONS[name](expanded, **OPTIONS)
        assert torch.equal(got, FUNCTIONS[name](expanded.contiguous(), **OPTIONS))
    _, gradient = value_and_gradient(lambda t: weighted(name, t.T), s)
    assert torch.equal(gradient, value_and_gradient(lambda t: weighted(name, t), s)[1])


@pytest.mark.parametrize("name", ["adjacency", "connectivity"])
def test_strided_cotangents(name):
    leaf = similarity().requires_grad_()
    result = FUNCTIONS[name](leaf, **OPTIONS)
    cotangent = torch.randn(N, N, generator=torch.Generator().manual_seed(0))
    for strided in (cotangent.T.contiguous().T, torch.tensor(1.5).expand(N, N)):
        (a,) = torch.autograd.grad(result, leaf, strided, retain_graph=True)
        (b,) = torch.autograd.grad(result, leaf, strided.contiguous(), retain_graph=True)
        assert torch.equal(a, b)


def test_inputs_are_left_as_they_were():
    s, labels = similarity(), LABELS.clone()
    before = s.clone()
    dc.partial_fenchel_young_loss(s, dc.Constraints.from_labels(labels), K, **OPTIONS)
    assert torch.equal(s, before)
    assert torch.equal(labels, LABELS)


# ----------------------------------------------------------------------------------------------------------------
# Threads and processes


SCRIPT = """
import numba, torch, diffclust as dc

def digest():
    torch.manual_seed(0)
    x = torch.randn(3, 40, 4, dtype=torch.float64)
    s = -torch.stack([(p[:, None] - p[None, :]).pow(2).sum(-1) for p in x])
    s.requires_grad_()
    labels = torch.arange(40) % 5 - 1
    loss = dc.partial_fenchel_young_loss(s, dc.Constraints.from_labels(labels), 6, n_draws=17, seed=1)
    soft = dc.perturbed_connectivity(s, 6, n_draws=17, seed=1, epsilon=1.0)
    edges = dc.perturbed_adjacency(s, 6, n_draws=17, seed=1, epsilon=1.0)
    weights = torch.linspace(-1, 1, soft.numel(), dtype=soft.dtype).reshape(soft.shape)
    (loss + (weights * soft).sum() + (weights**2 * edges).sum()).backward()
    return [t.detach().numpy().tobytes().hex() for t in (loss, soft, edges, s.grad)]

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return "".join(digest())

if __name__ == "__main__":
    print("".join(digest()))
    # After the parent has used its threads.
    loader = torch.utils.data.DataLoader(
        Data(), batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60
    )
    for text in loader:
        print(text)
    numba.config.NUMBA_NUM_THREADS = 1
    print("".join(digest()))
"""


@pytest.mark.slow
def test_results_do_not_depend_on_threads_nor_on_forks():
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=200,
        env={**os.environ, "NUMBA_NUM_THREADS": "3"},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    three_threads, *others = process.stdout.split()
    assert others == [three_threads] * 3  # two forks, and one thread


# ----------------------------------------------------------------------------------------------------------------
# Devices without a solver

ELSEWHERE = """
import warnings
import other_device
import test_torch_switches as t
from test_torch_switches import dc, torch

def there(array):
    return array.detach().to("elsewhere")

def check(found, expected):
    assert found.device.type == "elsewhere" and found.dtype == expected.dtype, (found.device, found.dtype)
    assert torch.equal(found.detach().cpu(), expected.detach())

known = {"here": dc.Constraints.from_labels(t.LABELS), "there": dc.Constraints.from_labels(there(t.LABELS))}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for kind in t.MODULES:
        for dtype in (torch.float32, torch.bfloat16):
            x, module = t.embeddings(dtype=dtype).requires_grad_(), t.make(kind)
            y, other = there(x).requires_grad_(), t.make(kind)
            labels = () if kind == "PerturbedClustering" else (t.LABELS,)
            for _ in range(2):  # along the stream of noise
                here, found = module(x, *labels), other(y, *map(there, labels))
                check(found, here)
            (here**2).sum().backward()
            (found**2).sum().backward()
            check(y.grad, x.grad)
            module.eval(), other.eval().to("elsewhere")
            check(other(y, *map(there, labels)), module(x, *labels))
    s = t.similarity()
    for constraints in (None, "labels", "pairs"):
        here, found = ({None: None, "labels": known[at], "pairs": t.PAIRS}[constraints] for at in known)
        for function in (dc.perturbed_value, dc.perturbed_adjacency, dc.perturbed_connectivity):
            a, b = s.clone().requires_grad_(), there(s).requires_grad_()
            expected = function(a, 4, constraints=here, **t.OPTIONS)
            result = function(b, 4, constraints=found, **t.OPTIONS)
            check(result, expected)
            (expected**2).sum().backward()
            (result**2).sum().backward()
            check(b.grad, a.grad)
        a, b = (dc.spanning_forest(m, 4, constraints=c) for m, c in ((s, here), (there(s), found)))
        for each in ("edges", "labels", "value"):
            check(getattr(b, each), getattr(a, each))
        check(b.adjacency(), a.adjacency())
        check(b.connectivity(), a.connectivity())
        if constraints is not None:
            results = [
                dc.partial_fenchel_young_loss(m, c, 9, diagnostics=True, **t.OPTIONS)
                for m, c in ((s, here), (there(s), found))
            ]
            check(results[1][0], results[0][0])
            for b, a in zip(results[1][1], results[0][1], strict=True):
                check(b, a)
    points = t.embeddings(40)
    trees = dc.Hierarchy.from_points(points), dc.Hierarchy.from_points(there(points))
    assert (trees[0].edges == trees[1].edges).all()
messages = [str(each.message) for each in caught if "no solver" in str(each.message)]
assert len(messages) == 1, messages
assert "torch tensors on elsewhere" in messages[0] and "CPU" in messages[0]
try:
    t.make("PartialFenchelYoungLoss")(there(t.embeddings()), known["here"])
except ValueError as error:
    assert "labels are on cpu, the similarity is on elsewhere:0" in str(error), error
    print("done")
"""


@pytest.mark.slow
def test_a_device_without_a_solver_is_served_by_the_cpu():
    """Forward and backward, the same numbers, where they came from; one warning a process."""
    pytest.importorskip("torch.utils.backend_registration")
    if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch cannot make a device in Python")
    output, errors = python_c(ELSEWHERE).communicate()
    assert output == "done\n", errors


def test_meta_tensors_have_no_solver():
    """There is nothing to solve; operators on them give shapes."""
    with pytest.raises(TypeError, match="No solver for torch arrays on meta"):
        import_module("diffclust.solvers").solver_for(torch.empty(2, device="meta"))
    assert dc.perturbed_connectivity(torch.empty(5, 5, device="meta"), 2).shape == (5, 5)
