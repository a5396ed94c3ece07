"""Training steps that take only numbers of rows from the host. On a GPU such a step is captured once and replayed.

The row numbers of many steps, a block, are sent to the device at once. A step, from picking its rows to the optimiser
and the learning rate, is one CUDA graph, in which networks that are trained side by side are parallel branches. So the
time between kernels is saved. A step that cannot be captured is taken as it is. On the CPU the same code runs without a
graph.
"""

from __future__ import annotations

import contextlib
import pickle
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from diffclust.training.data import Block, ForestData

if TYPE_CHECKING:
    from diffclust.training.module import ForestModule

WARM_UP = 3  # steps before a graph is captured: they choose algorithms and make the optimizer's state
PRECISIONS = ("32-true", "bf16-mixed")  # others need more of Lightning than a context for the forward pass


def seed_step(device: torch.device, seed: int, step: int, rank: int = 0) -> None:
    """Seeds torch, so that what a network draws in a step, such as dropout, is a function of (seed, step, rank)."""
    number = int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0]) >> 1
    # Not torch.manual_seed: it records a stack trace for every kind of device that is missing, which takes 1 ms.
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(number)


class Steps:
    """Steps of networks side by side, each on its data and with its optimizer.

    Args:
        networks: on their device.
        data: of each network; the rows of x are the same for all.
        optimizers: of each network.
        done: steps that were taken before.
        longest: number of steps of the longest block.

    Attributes:
        done: steps so far.
        not_captured: why a GPU takes these steps one by one; "" where it replays them, and on the CPU.
    """

    def __init__(
        self,
        networks: Sequence[ForestModule],
        data: Sequence[ForestData],
        optimizers: Sequence[torch.optim.Optimizer],
        done: int,
        longest: int,
    ) -> None:
        self.networks, self.data, self.optimizers, self.done = networks, data, optimizers, done
        self.device = device = networks[0].device
        self._on_gpu = device.type == "cuda"
        self.not_captured = "" if all(each.config.capture for each in data) else "capture is False"
        self._longest = longest
        x = data[0].sets["training"][0].to(device)
        for each in data:
            each.sets["training"] = x, each.sets["training"][1].to(device)
        # What a step reads or writes is on the device, at addresses that a graph can use again.
        n_steps = max(each.config.n_steps for each in data)
        self._step = torch.full((1,), done, device=device)
        self._in_block = torch.zeros(1, dtype=torch.int64, device=device)

        def of_steps(value: Callable[[int], float]) -> Tensor:
            return torch.tensor([value(step) for step in range(n_steps)], device=device)

        configs = [each.config for each in data]
        self._rates = [of_steps(lambda step, c=c: c.learning_rate * c.rate(step)) for c in configs]  # type: ignore[misc]
        self._rate = [rates[0].clone() for rates in self._rates]
        has_scale = [network.loss.noise_scale is not None for network in networks]
        self._scales = [of_steps(c.noise_scale) if has else None for c, has in zip(configs, has_scale, strict=True)]
        self._block: list[Block] = []
        self._active: list[int] = []
        self._graph: torch.cuda.CUDAGraph | None = None
        self._until_capture = WARM_UP
        self._streams = [torch.cuda.Stream() for _ in networks] if self._on_gpu else []

    def run(
        self,
        block: Sequence[Block],
        active: list[int],
        before_step: Callable[[int], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        """The steps of a block.

        Args:
            block: rows, and moves of images, for each network.
            active: the numbers of the networks that take these steps.
            before_step: called with the number of each step before it.
            stop: called after each step, says whether to leave out the rest of the block.
        """
        self._load(block)
        if active != self._active:
            self._active, self._graph, self._until_capture = active, None, WARM_UP
        # Lightning may have switched half precision on for all of this; a network does so for its forward pass.
        with self._ready_optimizers(), torch.autocast(self.device.type, enabled=False):
            for _ in range(len(block[0][0])):
                if before_step is not None:
                    before_step(self.done)
                self._advance()
                if stop is not None and stop():
                    break

    def _load(self, block: Sequence[Block]) -> None:
        if not self._block:
            self._block = [
                (self._make_buffer(rows), None if moves is None else self._make_buffer(moves)) for rows, moves in block
            ]
        for (rows, moves), (new_rows, new_moves) in zip(self._block, block, strict=True):
            rows[: len(new_rows)] = new_rows
            if moves is not None and new_moves is not None:
                moves[: len(new_moves)] = new_moves
        self._in_block.zero_()

    def _make_buffer(self, steps: Tensor) -> Tensor:
        """Memory for the longest block: the first one may be shorter."""
        return steps.new_empty((self._longest, *steps.shape[1:]))

    @contextlib.contextmanager
    def _ready_optimizers(self) -> Iterator[None]:
        """Optimizers that a graph can hold. Between blocks they are as ever, and so they are in checkpoints."""
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]  # one for each network
        if self._on_gpu:
            for group, optimizer, rate in zip(groups, self.optimizers, self._rate, strict=True):
                group.update(lr=rate, capturable=True, fused=True)
                for state in optimizer.state.values():
                    state["step"] = state["step"].to(self.device)  # a run that began on the CPU had it there
        try:
            yield
        finally:
            for i, group in enumerate(groups):
                group.update(lr=self._rate_of(i, self.done), capturable=False)

    def _rate_of(self, i: int, step: int) -> float:
        config = self.data[i].config
        return config.learning_rate * config.rate(step)

    def _advance(self) -> None:
        """One step of all networks."""
        if not self._on_gpu:
            for i in self._active:
                seed_step(self.device, self.data[i].config.seed, self.done)
                self.optimizers[i].param_groups[0]["lr"] = self._rate_of(i, self.done)
                self._step_of(i)
            self._count_step()
        else:
            seed_step(self.device, self.data[self._active[0]].config.seed, self.done)
            if self._graph is None and not self.not_captured and self._until_capture == 0:
                self._capture()
            if self._graph is not None:
                self._graph.replay()
            else:
                self._take_step()
        self.done += 1

    def _count_step(self) -> None:
        self._step += 1
        self._in_block += 1

    def _take_step(self) -> None:
        """A step without a graph. The last one before a capture shows whether the step can be captured."""
        self._until_capture = max(0, self._until_capture - 1)
        if self._until_capture or self.not_captured:
            self._on_streams()
        else:
            with watch_host() as found:
                self._on_streams()
            self.not_captured = " and ".join(found)

    def _capture(self) -> None:
        """Captures a step. If that fails, ``not_captured`` says so, and all is as it was before."""
        before, pool = torch.cuda.current_stream(), torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool, torch.cuda.Stream(), capture_error_mode="thread_local"):
                self._on_streams()
            self._graph = graph
        except Exception as error:  # a network of the user may raise anything
            torch.cuda.set_stream(before)
            _end_failed_capture(self.device, pool)
            reason = str(error.__context__ or error).strip() or type(error).__name__
            self.not_captured = f"the step cannot be captured ({reason.splitlines()[0].rstrip('.')})"

    def _on_streams(self) -> None:
        """A step of every network, each on its own stream. The current stream waits for all of them."""
        current = torch.cuda.current_stream()
        for i in self._active:
            self._streams[i].wait_stream(current)
            with torch.cuda.stream(self._streams[i]):
                self._step_of(i)
        for i in self._active:
            current.wait_stream(self._streams[i])
        self._count_step()

    def _step_of(self, i: int) -> None:
        """One step of one network. Nothing is read on the host, so that a graph can hold it."""
        network, optimizer, (rows, moves) = self.networks[i], self.optimizers[i], self._block[i]
        rows = rows.index_select(0, self._in_block)[0]
        moves = None if moves is None else moves.index_select(0, self._in_block)[0]
        x, known = self.data[i].take("training", rows, moves)
        scales = self._scales[i]
        if scales is not None:
            network.loss.noise_scale.copy_(scales.index_select(0, self._step)[0])  # type: ignore[union-attr]
        with network.half_precision():
            embeddings = network(x)
        loss = network.loss_of_step(embeddings.float(), known)
        optimizer.zero_grad()
        loss.backward()
        if self._on_gpu:
            self._rate[i].copy_(self._rates[i].index_select(0, self._step)[0])
        optimizer.step()
        network.losses.index_copy_(0, self._step, loss.detach()[None])


@contextlib.contextmanager
def watch_host() -> Iterator[list[str]]:
    """Finds what the host does in a step on a GPU that a graph would not do again: reasons, known at the end."""
    found: list[str] = []
    states, mode = _random_states(), torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    waits = [each for each in said if "synchronizing CUDA operation" in str(each.message)]
    if waits:
        found.append(f"a step waits for the GPU ({waits[0].filename}, line {waits[0].lineno})")
    if _random_states() != states:
        found.append("a step draws random numbers on the host")


def _random_states() -> bytes:
    """Of the global generators of torch on the CPU, Python and NumPy."""
    return pickle.dumps((torch.get_rng_state().numpy(), random.getstate(), np.random.get_state()))  # noqa: NPY002


def _end_failed_capture(device: torch.device, pool: Any) -> None:
    """Torch leaves its generator and its allocator in the middle of a capture that fails."""
    generator = torch.cuda.default_generators[device.index]
    generator.graphsafe_set_state(generator.clone_state())
    with contextlib.suppress(RuntimeError):  # it has ended where the capture could
        torch._C._cuda_endAllocateToPool(device.index, pool)
