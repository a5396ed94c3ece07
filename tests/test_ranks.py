"""Training on several ranks, real gloo processes: the run of one rank for any number of them; ranks that are killed."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lightning")
pytest.importorskip("typer")
torch = pytest.importorskip("torch")

import torch.multiprocessing as mp  # noqa: E402
from lightning.fabric.plugins.environments import LightningEnvironment  # noqa: E402
from lightning.pytorch.callbacks import Callback  # noqa: E402

import diffclust as dc  # noqa: E402
from diffclust.training import TrainingConfig, fit, is_first_rank, is_restartable, torchrun_settings  # noqa: E402
from diffclust.training.ranks import own_environment  # noqa: E402
from processes import FORKED, python_m  # noqa: E402

N = 60
CLASSES = np.arange(N) % 3
KNOWN = np.where(np.arange(N) < 24, CLASSES, -1)


def make_rows():
    return (np.random.default_rng(0).normal(size=(N, 4)) + 4 * np.eye(4)[CLASSES]).astype(np.float32)


class Killed(torch.nn.Sequential):
    """Rank 1 is killed in the step that the environment names, unless torchrun started it again."""

    steps = 0

    def forward(self, x):
        Killed.steps += self.training
        where = (Killed.steps, os.environ.get("LOCAL_RANK"), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        if self.training and where == (int(os.environ.get("KILL_AT", 0)), "1", "0"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)


def make_network(shape):
    """Without a bias at its end: its gradient is zero but for rounding, of which AdamW would make steps."""
    layers = (torch.nn.Linear(int(np.prod(shape)), 8), torch.nn.Tanh(), torch.nn.Linear(8, 3, bias=False))
    return Killed(torch.nn.Flatten(), *layers)


# ------------------------------------------------------------------------------------------------------ training.fit


class StopAt(Callback):
    """One rank of several gets a signal."""

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == 3 and trainer.global_rank == trainer.world_size - 1:
            os.kill(os.getpid(), signal.SIGTERM)


class Ready(Exception):
    pass


def stop():
    """For training that is not to begin."""
    raise Ready


def train(ranks, case, folder=None, resume=None, callbacks=(), **changes):
    """A batch of 25 rows is uneven on 2 and on 3 ranks. Noise is large, so every step has a gradient."""
    settings = {
        "n_clusters": 4, "epsilon": 1.0, "n_draws": 5, "batch_size": 25, "labelled_fraction": 0.4, "validate_every": 3,
        "n_steps": 12, "device": "cpu", "devices": ranks, "backbone": make_network, "learning_rate": 0.01,
    }  # fmt: skip
    x, y = make_rows(), KNOWN
    if case == "forest":
        settings |= {"validation_fraction": 0.3}
    elif case == "pairs":
        y = dc.Knowledge.join(y, must_link=[(30, 33), (31, 34)], cannot_link=[(30, 31), (33, 32)])
    elif case == "images":
        x = np.random.default_rng(1).integers(0, 256, (N, 8, 8), np.uint8)
        settings |= {"augment": "shift-flip", "views": 2, "validation_fraction": 0.3, "patience": 9}
    elif case == "cross-entropy":
        settings |= {"objective": case, "labelled_fraction": 0.8}  # more labelled rows on one rank than on the other
    config = TrainingConfig(**settings | changes)
    module = fit(config, x, y, folder=folder, resume=resume, callbacks=callbacks, progress=False)
    return {**module.state_dict(), "validations": torch.tensor([list(each.values()) for each in module.validations])}


CASES = ("forest", "pairs", "images", "cross-entropy")


def work(rank, ranks, port, folder):
    os.environ.update(
        LOCAL_RANK=str(rank), NODE_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1"
    )
    torch.set_num_threads(1)
    folder = Path(folder)
    if ranks == 2:
        found = {case: train(2, case) for case in CASES}
        found["1 to 2"] = train(2, "forest", resume=folder / "1" / "last.ckpt")
        train(2, "forest", folder=folder / "2", n_steps=6)
        with pytest.raises(KeyboardInterrupt):
            train(2, "forest", folder=folder / "stopped", callbacks=[StopAt()])
        with pytest.raises(ValueError, match=r"begin at different steps, 0 to 6: .* all nodes share"):
            train(2, "forest", resume=folder / "1" / "last.ckpt" if rank == 0 else None)
        with pytest.raises(ValueError, match="at least 2, the number of ranks, got batches of 1"):
            train(2, "pairs", batch_size=1)
    else:
        found = {"2 to 3": train(3, "forest", resume=folder / "2" / "last.ckpt")}
    torch.save(found, folder / f"{ranks}-{rank}.pt")


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        scale = float(value.double().nan_to_num().abs().max()) if value.numel() else 1.0
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-5 * scale, equal_nan=True, msg=name)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.mark.slow
def test_the_run_is_the_same_on_any_number_of_ranks_and_resumes_on_any(tmp_path):
    torch.set_num_threads(1)
    train(1, "forest", folder=tmp_path / "1", n_steps=6)
    for ranks in (2, 3):
        mp.start_processes(work, (ranks, free_port(), str(tmp_path)), nprocs=ranks, start_method=FORKED)
    expected = {case: train(1, case) for case in CASES}
    for rank in range(2):  # every rank has the result
        found = torch.load(tmp_path / f"2-{rank}.pt")
        for case in CASES:
            assert_close(found[case], expected[case])
        assert_close(found["1 to 2"], expected["forest"])
    assert_close(torch.load(tmp_path / "3-0.pt")["2 to 3"], expected["forest"])
    assert_close(train(1, "forest", resume=tmp_path / "2" / "last.ckpt"), expected["forest"])
    assert torch.load(tmp_path / "stopped" / "last.ckpt", weights_only=True)["global_step"] == 4


def test_who_started_this_process(monkeypatch):
    for name in ("TORCHELASTIC_MAX_RESTARTS", "SLURM_RESTART_COUNT", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    assert torchrun_settings() == {}
    assert not is_restartable()
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert is_restartable()
    for name, value in {"RUN_ID": "x", "MAX_RESTARTS": "1", "USE_AGENT_STORE": "False"}.items():
        monkeypatch.setenv(f"TORCHELASTIC_{name}", value)
    sizes = {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}
    for name, value in sizes.items():
        monkeypatch.setenv(name, value)
    assert torchrun_settings() == {"devices": 4, "num_nodes": 2}
    config = TrainingConfig(n_clusters=2, device="cpu", **torchrun_settings())
    with pytest.raises(Ready):
        fit(config, make_rows(), KNOWN, on_ready=stop)
    assert is_first_rank()
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with pytest.raises(ValueError, match="set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
        fit(config, make_rows(), KNOWN, on_ready=stop)


@pytest.mark.parametrize(
    ("launched", "is_own"),
    [
        ({}, True),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, False),
        ({"PMI_RANK": "0"}, False),
        ({"TORCHELASTIC_RUN_ID": "1", "LOCAL_WORLD_SIZE": "1", "RANK": "0", "GROUP_RANK": "0"}, False),
    ],
)
def test_lightning_does_not_look_for_who_has_launched_this_process_if_nobody_has(monkeypatch, launched, is_own):
    """It would start MPI for that."""
    for name in list(os.environ):
        if name.startswith(("OMPI_", "PMI_", "PMIX_", "MPI_", "SLURM_", "TORCHELASTIC_")):
            monkeypatch.delenv(name)
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    assert [type(each) for each in own_environment()] == [LightningEnvironment] * is_own


def test_settings_of_ranks():
    for changes in ({"strategy": "ddp_spawn"}, {"timeout": 0.0}, {"num_nodes": 0}):
        with pytest.raises(ValueError, match=next(iter(changes))):
            TrainingConfig(n_clusters=2, **changes)
    with pytest.raises(ValueError, match="cannot start on these devices"):
        fit(TrainingConfig(n_clusters=3, device="cpu", devices=0), make_rows(), KNOWN, on_ready=stop)


# -------------------------------------------------------------------------------------------------- the command line


ARGUMENTS = (
    *("fit", "x.npy", "--labels", "y.npy", "--clusters", "4", "--cut", "forest", "--steps", "40", "--batch-size", "25"),
    *("-q", "--draws", "5", "--device", "cpu", "--backbone", "test_ranks:make_network", "--out"),
)


PATHS = os.pathsep.join((str(Path(dc.__file__).parents[1]), str(Path(__file__).parent)))


def run(out, kill_at=0):
    """The program in the current folder, which starts a second rank: how it ended, its output, its errors."""
    process = python_m(
        "diffclust", *ARGUMENTS, out, "--devices", "2", OMP_NUM_THREADS=1, PYTHONPATH=PATHS, KILL_AT=kill_at
    )
    return process, *process.communicate()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    np.save(folder / "x.npy", make_rows())
    np.save(folder / "y.npy", KNOWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        process, output, errors = run("run")
    assert (process.returncode, errors) == (0, "")
    assert output.count("Report:") == 1
    return folder


def clusters_of(path):
    return [line.split(",")[1] for line in (path / "clusters.csv").read_text().splitlines()]


LOST = (
    "Error: Rank 0 of 2 has lost another rank, which ended, cannot be reached or let the others wait for more than 45 s"
)
OBSERVED = "terminated with code -9. Forcefully terminating all other processes"  # where Lightning notices first


@pytest.mark.slow
def test_a_killed_rank_ends_all_with_a_sentence_and_one_rank_can_go_on(undisturbed, monkeypatch):
    monkeypatch.chdir(undisturbed)
    process, _, errors = run("killed", kill_at=23)
    assert process.returncode != 0
    if OBSERVED not in errors:
        (line,) = errors.strip().splitlines()
        assert line.startswith(LOST)
        assert line.endswith("Go on from the last checkpoint with --resume.")
    last = undisturbed / "killed" / "last.ckpt"
    assert time.time() - last.stat().st_mtime < 60
    assert torch.load(last, weights_only=True)["global_step"] == 22
    resumed = python_m("diffclust", *ARGUMENTS, "killed", "--resume")
    _, errors = resumed.communicate()
    assert resumed.returncode == 0, errors
    assert clusters_of(undisturbed / "killed") == clusters_of(undisturbed / "run")


@pytest.mark.slow
def test_torchrun_starts_a_killed_rank_again_and_the_run_goes_on(undisturbed):
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1")
    ended = subprocess.run(
        [sys.executable, *launcher, "-m", "diffclust", *ARGUMENTS, "restarted"],
        cwd=undisturbed, capture_output=True, text=True, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PATHS, "KILL_AT": "23"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "(exitcode: -9) local_rank: 1" in ended.stderr
    for name in ("clusters.csv", "embeddings.npy"):
        assert (undisturbed / "restarted" / name).read_bytes() == (undisturbed / "run" / name).read_bytes()
