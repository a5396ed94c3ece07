"""The examples run, and show what they say."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def load(name):
    return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name=name)["main"]


def test_two_moons(tmp_path, capsys):
    scores = load("two_moons")(tmp_path)
    assert scores["no labels"]["ari"] < 0.1
    assert scores["5 labels a moon"]["ari"] > 0.7
    assert (tmp_path / "two_moons.png").stat().st_size > 10_000
    assert "accuracy" in capsys.readouterr().out


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_linear_denoising(seed):
    all_columns, first_map, learned_map = load("linear_denoising")(seed=seed)
    assert min(all_columns, first_map) > 0.1
    assert learned_map == 0.0


def test_semi_supervised_digits():
    scores = load("semi_supervised_digits")(n_steps=300)
    assert scores["ours"]["ari"] > scores["k-means, pixels"]["ari"]


def test_jax_digits():
    pytest.importorskip("optax")
    scores = load("jax_digits")(n_steps=150)
    assert scores["ours"]["ari"] > scores["k-means, pixels"]["ari"]


def test_soft_connectivity():
    confused = load("soft_connectivity")(n_steps=150)
    assert sum(confused[:5]) / 5 > 0.2
    assert sum(confused[-5:]) / 5 < 0.05


def test_many_ranks_under_torchrun():
    losses = load("many_ranks")(n_steps=21)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    result = subprocess.run([*launcher, EXAMPLES / "many_ranks.py"], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    found = {int(step): float(loss) for step, loss in re.findall(r"step (\d+): loss ([\d.]+)", result.stdout)}
    assert {step: found[step] for step in (0, 10, 20)} == pytest.approx({s: losses[s] for s in (0, 10, 20)}, rel=1e-3)
    assert losses[20] < 0.6 * losses[0]


def test_jax_devices():
    pytest.importorskip("optax")
    losses = load("jax_devices")(n_steps=11)
    code = f"import runpy; runpy.run_path({str(EXAMPLES / 'jax_devices.py')!r})['main'](n_steps=11)"
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    result = subprocess.run([sys.executable, "-c", code], env=os.environ | flags, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    found = [float(loss) for loss in re.findall(r"step \d+: loss ([\d.]+)", result.stdout)]
    assert found == pytest.approx([losses[0], losses[10]], rel=1e-3)
    assert losses[10] < 0.6 * losses[0]


def test_the_page_on_devices_shows_the_example():
    page = (EXAMPLES.parent / "docs" / "jax-devices.md").read_text("utf-8")
    snippets = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(snippets) == 2
    for snippet in snippets:
        assert snippet in (EXAMPLES / "jax_devices.py").read_text("utf-8")


def test_every_example_is_tested():
    tested = {
        "two_moons", "linear_denoising", "semi_supervised_digits", "soft_connectivity", "jax_digits", "jax_devices",
        "many_ranks",
    }  # fmt: skip
    assert {path.stem for path in EXAMPLES.glob("*.py")} == tested
    assert "matplotlib" in sys.modules
