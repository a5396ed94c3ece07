"""Shorter trainings with some of the labels hidden, by which cuts are compared; beside the main one where possible."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from diffclust.backbones import BACKBONES, make_backbone
from diffclust.knowledge import Knowledge
from diffclust.processes import beside
from diffclust.threads import is_small
from diffclust.training.data import as_rows
from diffclust.training.loop import choose_device, embed, fit, private_random_state, with_own_backbone
from diffclust.training.settings import TrainingConfig

WORTH_A_FORK = 30  # steps, which take longer than to start a process

Embeddings = NDArray[np.float32]
Retrain = Callable[[Knowledge], Embeddings]


def retrainer(config: TrainingConfig, x: Any) -> Retrain:
    """A function that trains on other knowledge and returns the embeddings (n, d) of all rows.

    It takes half as many steps, and one network instead of a committee, which is enough to compare ways to cut an
    embedding. The config is decided (:meth:`TrainingConfig.resolve`). Of a backbone that is a module, which must be
    untrained, each call trains a copy.
    """
    short = dataclasses.replace(
        config,
        backbone="residual" if config.backbone == "committee" else config.backbone,
        n_steps=-(-config.n_steps // 2),
        validation_fraction=0.0,
        patience=None,
        devices=1,  # only the first rank calls this
        num_nodes=1,
        strategy="auto",
    )

    def retrain(knowledge: Knowledge) -> Embeddings:
        return embed(fit(with_own_backbone(short), x, knowledge, progress=False), x, device=config.device)

    return retrain


@contextmanager
def retrained_beside(config: TrainingConfig, x: Any, told: Sequence[Knowledge]) -> Iterator[Retrain]:
    """A :func:`retrainer` that begins now with what it will be ``told``, in other processes where it can.

    Small networks with a name are trained there, on the CPU; see :func:`diffclust.processes.beside`. Elsewhere, and
    with other knowledge, the trainings are done when they are asked for.
    """
    retrain = retrainer(config, x)
    tasks = [functools.partial(retrain, each) for each in told]
    with beside(tasks, bool(told) and _is_for_processes(config, x)) as results:

        def ready(knowledge: Knowledge) -> Embeddings:
            for number, each in enumerate(told):
                if np.array_equal(each.labels, knowledge.labels):
                    return results()[number]
            return retrain(knowledge)

        yield ready


def _is_for_processes(config: TrainingConfig, x: Any) -> bool:
    """Whether the training is one of a small network that does not need other devices or ranks."""
    if config.backbone not in BACKBONES or choose_device(config.device) != "cpu" or config.n_steps < 2 * WORTH_A_FORK:
        return False
    if (config.devices, config.num_nodes) != (1, 1) or not {type(config.similarity), type(config.noise)} <= {str}:
        return False
    shape = tuple(as_rows(x).shape[1:])
    with private_random_state():
        network = make_backbone(config.backbone, shape, int(config.embedding_dim))
    return is_small(network, torch.zeros(1, *shape), int(config.batch_size))
