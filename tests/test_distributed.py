"""One loss over the batches of all ranks: real gloo processes, the same numbers for any number of them."""

import os
import socket

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import diffclust as dc  # noqa: E402

N, STEPS = 24, 20


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def splits(ranks, uneven):
    """How many of the N rows each rank has; uneven ones leave one rank without any."""
    if not uneven or ranks == 1:
        return [N // ranks + (r < N % ranks) for r in range(ranks)]
    sizes = [0, *(N // (ranks - 1) for _ in range(ranks - 1))]
    sizes[-1] += N - sum(sizes)
    return sizes


def make_loss(kind):
    if kind == "connectivity":
        return dc.nn.ConnectivityLoss(4, n_draws=6, seed=3, gather=True)
    options = {"antithetic": {"antithetic": True}, "robust": {"reachability": 3, "must_link_first": False}}.get(
        kind, {}
    )
    return dc.nn.PartialFenchelYoungLoss(4, n_draws=10, epsilon=0.3, seed=3, gather=True, **options)


CASES = {  # of so many ranks: which losses, and whether rows are uneven
    1: [("plain", False), ("antithetic", False), ("robust", False), ("connectivity", False)],
    2: [("plain", False), ("robust", True), ("connectivity", False)],
    3: [("plain", False), ("plain", True), ("antithetic", False)],
    4: [("plain", False)],
}


def work(rank, ranks, port, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    for kind, uneven in CASES[ranks]:
        record = train(rank, ranks, uneven, kind)
        others = [torch.empty_like(record) for _ in range(ranks)]
        dist.all_gather(others, record)
        assert all(torch.equal(other, others[0]) for other in others)  # the same on all ranks
        if rank == 0:
            torch.save(record, f"{folder}/{ranks}-{uneven}-{kind}.pt")
    dist.destroy_process_group()


def train(rank, ranks, uneven, kind):
    """Losses and gradients of twenty steps of one network under DistributedDataParallel."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    data = torch.randn(STEPS, N, 5, dtype=torch.float64)
    labels = torch.randint(-1, 4, (STEPS, N))
    loss_function = make_loss(kind)
    if rank:
        loss_function.noise_seed += 1  # as if the ranks had drawn their own seeds: rank 0's counts
    model = DistributedDataParallel(network)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    sizes = splits(ranks, uneven)
    start = sum(sizes[:rank])
    mine = slice(start, start + sizes[rank])
    record = []
    for step in range(STEPS):
        loss = loss_function(model(data[step, mine]), labels[step, mine])
        optimiser.zero_grad()
        loss.backward()
        record.append(torch.cat([loss.detach()[None], *(p.grad.flatten() for p in network.parameters())]))
        optimiser.step()
    return torch.stack(record)


def test_twenty_steps_are_the_same_for_any_number_of_ranks(tmp_path):
    for ranks in CASES:
        mp.spawn(work, (ranks, free_port(), str(tmp_path)), nprocs=ranks)
    for ranks, cases in CASES.items():
        for kind, uneven in cases:
            found, expected = (
                torch.load(tmp_path / f"{r}.pt") for r in (f"{ranks}-{uneven}-{kind}", f"1-False-{kind}")
            )
            assert expected[:, 1:].abs().sum() > 0
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def test_without_ranks_gather_changes_nothing():
    torch.manual_seed(0)
    embeddings, labels = torch.randn(10, 2), torch.randint(-1, 3, (10,))
    assert torch.equal(
        dc.nn.PartialFenchelYoungLoss(3, seed=0, gather=True)(embeddings, labels),
        dc.nn.PartialFenchelYoungLoss(3, seed=0)(embeddings, labels),
    )
