"""One clustering over the batches of all ranks: real processes, the same numbers for any number of them."""

import tempfile

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import diffclust as dc  # noqa: E402
from diffclust import distributed  # noqa: E402
from processes import FORKED  # noqa: E402

pytestmark = pytest.mark.slow

N, STEPS = 24, 8


def on_ranks(ranks, work, *arguments, backend="gloo"):
    """Run ``work(rank, ranks, *arguments)`` in a process for each rank; for several numbers of ranks one by one."""
    numbers = (ranks,) if isinstance(ranks, int) else tuple(ranks)
    with tempfile.TemporaryDirectory() as folder:
        start = (numbers, folder, backend, work, arguments)
        # A process that has asked whether there is a GPU cannot hand it on to a fork.
        method = "spawn" if backend == "nccl" else FORKED
        mp.start_processes(_work, start, nprocs=max(numbers), start_method=method)


def _work(rank, numbers, folder, backend, work, arguments):
    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    for ranks in numbers:
        if rank < ranks:
            dist.init_process_group(backend, init_method=f"file://{folder}/{ranks}", rank=rank, world_size=ranks)
            work(rank, ranks, *arguments)
            dist.destroy_process_group()


# ------------------------------------------------------------------------------------------------------------------
# Training is the same for any number of ranks


class Layer(dc.nn.PerturbedClustering):
    """A loss on the soft connectivity, of which each rank looks at its own rows: the mean over ranks counts."""

    def forward(self, embeddings, labels):
        soft = super().forward(embeddings)
        start = dist.get_rank() * len(soft) // distributed.n_ranks()
        mine = (soft * torch.arange(len(soft)))[start : start + len(embeddings)]
        return mine.mean() * mine.numel() * distributed.n_ranks() / soft.numel()


OPTIONS = {"n_draws": 10, "epsilon": 0.3, "seed": 3, "gather": True}
LOSSES = {
    "plain": lambda: dc.nn.PartialFenchelYoungLoss(4, **OPTIONS),
    "antithetic": lambda: dc.nn.PartialFenchelYoungLoss(4, antithetic=True, **OPTIONS),
    "robust": lambda: dc.nn.PartialFenchelYoungLoss(4, reachability=3, must_link_first=False, **OPTIONS),
    "two draws": lambda: dc.nn.PartialFenchelYoungLoss(4, **{**OPTIONS, "n_draws": 2}),
    "connectivity": lambda: dc.nn.ConnectivityLoss(4, **OPTIONS),
    "connectivity, antithetic": lambda: dc.nn.ConnectivityLoss(4, antithetic=True, **OPTIONS),
    "connectivity, two draws": lambda: dc.nn.ConnectivityLoss(4, **{**OPTIONS, "n_draws": 2}),
    "layer": lambda: Layer(4, **OPTIONS),
}


def wrap(network, how, ranks):
    """Something that averages gradients over ranks."""
    if how == "fsdp":
        mesh = init_device_mesh("cpu", (ranks,))
        for layer in (network[0], network[2]):
            fully_shard(layer, mesh=mesh)
        return fully_shard(network, mesh=mesh)
    if how == "compiled network":
        network = torch.compile(network, backend="aot_eager")
    return DistributedDataParallel(network)


def splits(ranks, uneven):
    """How many of the N rows each rank has; uneven ones leave one rank without any."""
    if not uneven or ranks == 1:
        return [N // ranks + (r < N % ranks) for r in range(ranks)]
    sizes = [0, *(N // (ranks - 1) for _ in range(ranks - 1))]
    sizes[-1] += N - sum(sizes)
    return sizes


def train(rank, ranks, kind, uneven=False, how="ddp"):
    """Loss, gradients and parameters of some steps of one network."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    data = torch.randn(STEPS, N, 5, dtype=torch.float64)
    labels = torch.randint(-1, 4, (STEPS, N))
    loss_function = LOSSES[kind]()
    if rank:
        loss_function.noise_seed += 1  # as if the ranks had drawn their own seeds: rank 0's counts
    model = wrap(network, how, ranks)

    def loss_of(x, y):
        return loss_function(model(x), y)

    if how == "compiled step":
        loss_of = torch.compile(loss_of, backend="inductor" if kind == "plain" else "aot_eager")
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05 if "connectivity" not in kind else 1e-4)  # large gradients
    sizes = splits(ranks, uneven)
    start = sum(sizes[:rank])
    mine = slice(start, start + sizes[rank])
    record = []
    for step in range(STEPS):
        loss = loss_of(data[step, mine], labels[step, mine])
        optimiser.zero_grad()
        loss.backward()
        if kind == "layer":  # the one loss whose value each rank has a part of
            dist.all_reduce(loss.data)
            loss.data /= ranks
        tensors = [t for p in network.parameters() for t in (p.grad, p.detach())]
        if how == "fsdp":
            tensors = [t.full_tensor() for t in tensors]
        record.append(torch.cat([loss.detach()[None], *(t.flatten() for t in tensors)]))
        optimiser.step()
    return torch.stack(record)


CASES = {  # of so many ranks: which losses, whether rows are uneven, what wraps the network
    1: [(kind, False, "ddp") for kind in LOSSES],
    2: [
        ("plain", False, "ddp"), ("robust", True, "ddp"), ("connectivity", False, "ddp"), ("layer", False, "ddp"),
        ("plain", False, "fsdp"), ("connectivity", False, "fsdp"), ("plain", False, "compiled network"),
        ("plain", False, "compiled step"), ("connectivity", False, "compiled step"),
    ],
    3: [
        ("plain", True, "ddp"), ("antithetic", False, "ddp"), ("two draws", False, "ddp"),
        ("connectivity", True, "ddp"), ("connectivity, antithetic", False, "ddp"),
        ("connectivity, two draws", True, "ddp"),
    ],
    4: [("plain", False, "ddp")],
}  # fmt: skip


def train_all(rank, ranks, folder):
    for position, case in enumerate(CASES[ranks]):
        record = train(rank, ranks, *case)
        others = [torch.empty_like(record) for _ in range(ranks)]
        dist.all_gather(others, record)
        assert all(torch.equal(other, others[0]) for other in others)  # the same on all ranks
        if rank == 0:
            torch.save(record, f"{folder}/{ranks}-{position}.pt")


def test_training_is_the_same_for_any_number_of_ranks(tmp_path):
    on_ranks(CASES, train_all, str(tmp_path))
    expected = {kind: torch.load(tmp_path / f"1-{position}.pt") for position, (kind, *_) in enumerate(CASES[1])}
    for ranks, cases in CASES.items():
        for position, (kind, *rest) in enumerate(cases):
            found, one = torch.load(tmp_path / f"{ranks}-{position}.pt"), expected[kind]
            assert one[:, 1:].abs().sum() > 0
            close = torch.isclose(found, one, rtol=1e-6, atol=1e-9)
            assert close.all(), (ranks, kind, rest, (found - one).abs().max())


def test_without_ranks_gather_changes_nothing():
    torch.manual_seed(0)
    embeddings, labels = torch.randn(10, 2), torch.randint(-1, 3, (10,))
    assert torch.equal(
        dc.nn.PartialFenchelYoungLoss(3, seed=0, gather=True)(embeddings, labels),
        dc.nn.PartialFenchelYoungLoss(3, seed=0)(embeddings, labels),
    )


# ------------------------------------------------------------------------------------------------------------------
# One step, on gloo and on NCCL


def one_step(rank, ranks, device, group_size=None):
    """In each group the loss is that of its rows in one process, and the gradient of a row as many times its gradient
    there as the group has ranks. The communication is forced where there is one rank only."""
    group_size = group_size or ranks
    groups = [dist.new_group([*range(start, start + group_size)]) for start in range(0, ranks, group_size)]
    group, place = groups[rank // group_size], rank % group_size
    torch.manual_seed(rank // group_size)
    rows, labels = torch.randn(N, 3, device=device), torch.randint(-1, 4, (N,), device=device)
    mine = slice(place * N // group_size, (place + 1) * N // group_size)

    def pair(kind):
        gather = True if group_size == ranks else group
        plain, gathering = (kind(4, n_draws=10, epsilon=0.3, seed=3, gather=g).to(device) for g in (False, gather))
        gathering._gathers = lambda: True
        return plain, gathering

    for kind in (dc.nn.PartialFenchelYoungLoss, dc.nn.ConnectivityLoss):
        plain, gathering = pair(kind)
        whole, local = rows.clone().requires_grad_(), rows[mine].clone().requires_grad_()
        for _ in range(2):
            expected, found = plain(whole, labels), gathering(local, labels[mine])
            torch.testing.assert_close(found, expected)
            expected_gradient = torch.autograd.grad(expected, whole)[0][mine] * group_size
            assert expected_gradient.abs().sum() > 0
            torch.testing.assert_close(torch.autograd.grad(found, local)[0], expected_gradient, rtol=1e-4, atol=1e-4)
        (gradient,) = torch.autograd.grad(gathering(local, labels[mine]), local, create_graph=True)
        with pytest.raises(NotImplementedError, match="no second derivatives"):
            torch.autograd.grad((gradient**2).sum() + local.sum(), local)
        for module in (plain, gathering):
            module.noise_counter.zero_()
        known = dc.Constraints.from_labels(labels)  # of all rows
        torch.testing.assert_close(gathering(local, known), plain(whole, known))
    plain, gathering = pair(dc.nn.PerturbedClustering)
    assert torch.equal(gathering(rows[mine]), plain(rows))


@pytest.mark.parametrize(("ranks", "group_size"), [(1, 1), (2, 2), (4, 2)])
def test_a_step_on_gloo(ranks, group_size):
    on_ranks(ranks, one_step, "cpu", group_size)


def half_precision(rank, ranks):
    """More ranks than draws: the rank without any has nothing to solve, and the same kind of number to add."""
    torch.manual_seed(0)
    rows, labels = torch.randn(N, 3, dtype=torch.bfloat16), torch.randint(-1, 4, (N,))
    mine = slice(rank * N // ranks, (rank + 1) * N // ranks)
    for kind in (dc.nn.PartialFenchelYoungLoss, dc.nn.ConnectivityLoss):
        plain, gathering = (kind(4, n_draws=2, epsilon=0.3, seed=3, gather=gather) for gather in (False, True))
        local = rows[mine].clone().requires_grad_()
        loss = gathering(local, labels[mine])
        torch.testing.assert_close(loss, plain(rows, labels))
        loss.backward()
        assert local.grad.dtype == torch.bfloat16


def test_half_precision_on_more_ranks_than_draws():
    on_ranks(3, half_precision)


@pytest.mark.gpu
@pytest.mark.skipif(not dist.is_nccl_available(), reason="needs NCCL")
def test_a_step_on_nccl():
    on_ranks(torch.cuda.device_count(), one_step, "cuda", backend="nccl")


# ------------------------------------------------------------------------------------------------------------------
# What travels, and what does not fit


def count_traffic(rank, ranks):
    """Four collectives a step; their bytes depend on the rows, not on the draws."""
    sent = []

    def counting(function, operand):
        def count(*tensors, **options):
            sent.append(tensors[operand].numel() * tensors[operand].element_size())
            return function(*tensors, **options)

        return count

    distributed._all_gather = counting(distributed._all_gather, 0)
    distributed._reduce_scatter = counting(distributed._reduce_scatter, 1)
    dist.all_reduce = counting(dist.all_reduce, 0)
    for n_draws in (4, 400):
        embeddings, labels = torch.randn(8, 3, requires_grad=True), torch.arange(8) % 3
        dc.nn.PartialFenchelYoungLoss(3, n_draws=n_draws, gather=True)(embeddings, labels).backward()
        rows = 8 * ranks
        assert sent == [ranks * 5 * 8, rows * (3 * 4 + 8), 4, rows * 3 * 4]
        sent.clear()


def disagree(rank, ranks):
    loss = dc.nn.PartialFenchelYoungLoss(3, gather=True)
    with pytest.raises(ValueError, match="On rank 1 labels are for 4 points, embeddings are 5"):
        loss(torch.randn(5, 2), torch.zeros(5 - rank, dtype=torch.int64))
    with pytest.raises(ValueError, match="12 bytes on rank 1, 8 on rank 0"):
        loss(torch.randn(5, 2 + rank), torch.zeros(5, dtype=torch.int64))


def traffic_and_errors(rank, ranks):
    disagree(rank, ranks)
    count_traffic(rank, ranks)


def test_traffic_and_errors():
    on_ranks(2, traffic_and_errors)
