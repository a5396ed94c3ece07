"""
A training step as a CUDA graph
===============================

On a GPU a small step is bound by the launches of its kernels. A captured step has none of that: loss, gradient and
optimiser are replayed with one call. Nothing in the loss waits for the host, so it can be captured.

Where this site is built there is no GPU. The example then takes the same steps one by one.
"""

# %%
# Data, a network, and buffers that keep their place in memory: a graph reads from where it was captured.
import time

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import diffclust as dc

device = "cuda" if torch.cuda.is_available() else "cpu"
images, digits = load_digits(return_X_y=True)
rows = torch.tensor(images / 16, dtype=torch.float32, device=device)
digits = torch.tensor(digits, device=device)
torch.manual_seed(0)
known = torch.where(torch.rand(len(digits), device=device) < 0.2, digits, -1)
network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 16)).to(device)
loss_function = dc.nn.PartialFenchelYoungLoss(n_clusters=10, seed=0).to(device)
optimiser = torch.optim.Adam(network.parameters(), lr=1e-3, capturable=device == "cuda")
batch, labels = rows[:128].clone(), known[:128].clone()


def step() -> torch.Tensor:
    optimiser.zero_grad(set_to_none=True)
    loss = loss_function(network(batch), labels)
    loss.backward()
    optimiser.step()
    return loss.detach()


# %%
# Three steps on a side stream make everything ready, the fourth is recorded. The module counts its draws in a buffer,
# so each replay has new noise.
if device == "cuda":
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured_loss = step()

# %%
# Training: copy a batch into the buffers, replay, and read the loss.
losses = []
started = time.perf_counter()
for _ in range(200):
    chosen = torch.randint(len(rows), (128,), device=device)
    batch.copy_(rows[chosen])
    labels.copy_(known[chosen])
    if device == "cuda":
        graph.replay()
        losses.append(captured_loss.clone())
    else:
        losses.append(step())
curve = torch.stack(losses).cpu()
print(
    f"{'replayed' if device == 'cuda' else 'one by one'}: {1000 * (time.perf_counter() - started) / 200:.2f} ms a step"
)

# %%
figure, axis = plt.subplots(figsize=(6, 3), constrained_layout=True)
axis.plot(curve)
axis.set(xlabel="step", ylabel="loss")
plt.show()
