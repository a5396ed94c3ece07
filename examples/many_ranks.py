"""One loss over the batches of all ranks: digits, each rank with its part of every batch.

python examples/many_ranks.py                                  # one process
torchrun --nproc-per-node 2 examples/many_ranks.py             # the same from two, up to rounding
"""

import gc
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel

import diffclust as dc


def main(n_steps: int = 100, batch_size: int = 128) -> list[float]:
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = "cpu"
    if torch.cuda.is_available():
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
        torch.cuda.set_device(device)
    if ranks > 1:  # torchrun has set the variables that say where to meet
        dist.init_process_group("nccl" if device != "cpu" else "gloo")

    x, y = (torch.tensor(array, device=device) for array in load_digits(return_X_y=True))
    x, known = x.float() / 16, torch.where(torch.arange(len(y), device=device) % 5 == 0, y, -1)  # a fifth has labels
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 16)).to(device)
    model = DistributedDataParallel(network) if ranks > 1 else network
    loss_function = dc.nn.PartialFenchelYoungLoss(
        n_clusters=10, epsilon=0.1, n_draws=100, must_link_first=True, seed=0, gather=True
    ).to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    rows_of = torch.Generator().manual_seed(0)  # the same on all ranks: each takes its part of the same rows
    losses = []
    for step in range(n_steps):
        mine = torch.randint(len(x), (batch_size,), generator=rows_of).tensor_split(ranks)[rank].to(device)
        loss = loss_function(model(x[mine]), known[mine])  # known only for own rows; the loss is that of all rows
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
        if rank == 0 and step % 10 == 0:
            print(f"step {step}: loss {losses[-1]:.6f}")

    if rank == 0:
        with torch.no_grad():
            labels = dc.Hierarchy.from_points(network(x)).labels(n_clusters=10, min_cluster_size=20)
        print(f"ARI of all digits: {dc.metrics.clustering_scores(y.cpu().numpy(), labels)['ari']:.3f}")
    if ranks > 1:
        del model, loss, loss_function  # what uses the group goes first: else a rank may abort when its process ends
        gc.collect()
        dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    main()
