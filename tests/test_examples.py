"""The examples run, and show what they say."""

import functools
import os
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from processes import on_ranks

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def load(name):
    return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name=name)["main"]


@functools.cache
def run(name):
    """Everything that an example of the gallery leaves behind. It must draw something."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    pyplot.close("all")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive")
        found = runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name=name)
    assert pyplot.get_fignums()
    pyplot.close("all")
    return found


def test_two_moons(capsys):
    scores = run("two_moons")["scores"]
    assert scores["no labels"]["ari"] < 0.1
    assert scores["5 labels a moon"]["ari"] > 0.7
    assert "accuracy" in capsys.readouterr().out


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_linear_denoising(seed):
    all_columns, first_map, learned_map = run("linear_denoising")["errors"][seed]
    assert min(all_columns, first_map) > 0.1
    assert learned_map == 0.0


def test_semi_supervised_digits():
    scores = run("semi_supervised_digits")["scores"]
    assert scores["ours"]["ari"] > scores["k-means, pixels"]["ari"]


def test_jax_digits():
    pytest.importorskip("optax")
    scores = run("jax_digits")["scores"]
    assert scores["ours"]["ari"] > scores["k-means, pixels"]["ari"]


def test_soft_connectivity():
    confused = run("soft_connectivity")["confused"]
    assert sum(confused[:5]) / 5 > 0.2
    assert sum(confused[-5:]) / 5 < 0.05


def test_forest_draw_gradient():
    found = run("forest_draw_gradient")
    assert found["loss"].item() > 0
    assert found["gradient"].min() < 0 < found["gradient"].max()


def test_unknown_digits():
    found = run("unknown_digits")
    assert found["scores"]["ari"] > 0.7
    new, hidden, novelty = found["new"], found["hidden"], found["model"].novelty_
    assert novelty[hidden & new].mean() > novelty[hidden & ~new].mean() + 0.3


def test_how_many_clusters():
    answers = run("how_many_clusters")["answers"]
    assert answers["labels"].n_clusters == 6


def test_pairs(capsys):
    scores = run("pairs")["scores"]
    assert scores["no pairs"] < 0.5
    assert scores["sixty pairs"] > 0.9
    assert "Contradictory constraints" in capsys.readouterr().out


def test_ask_and_refit():
    curves = run("ask_and_refit")["curves"]
    assert all(rows[:, -1].mean() > 0.9 for rows in curves.values())


def test_metric_learning():
    pytest.importorskip("pytorch_metric_learning")
    scores = run("metric_learning")["scores"]
    assert all(values[0] > 0.95 for values in scores.values())


def test_cuda_graph():
    curve = run("cuda_graph")["curve"]
    assert curve[-20:].mean() < 0.3 * curve[:5].mean()


def test_cells():
    scores = run("cells")["scores"]
    assert all(ours > 0.8 for kind in ("round types", "one type develops") for ours, _ in scores[kind])
    assert len(scores["weak and noisy"]) == 3  # where k-means may well be better


def test_tickets():
    assert run("tickets")["scores"]["ari"] > 0.9


def test_pictures():
    assert run("pictures")["scores"]["ari"] > 0.7


def test_record_linkage():
    scores = run("record_linkage")["scores"]
    assert scores["tree and pairs"] > scores["tree"] > 0.6


def test_reading_the_report(capsys):
    run("reading_the_report")
    assert "report.html" in capsys.readouterr().out


def test_many_ranks():
    """With the variables that torchrun sets; test_ranks.py starts torchrun itself."""
    losses = load("many_ranks")(n_steps=21)
    ranks = on_ranks(2, "examples.many_ranks")
    (output, errors), _ = (each.communicate() for each in ranks)
    assert [each.returncode for each in ranks] == [0, 0], errors
    found = {int(step): float(loss) for step, loss in re.findall(r"step (\d+): loss ([\d.]+)", output)}
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
    text = Path(__file__).read_text("utf-8")
    tested = set(re.findall(r'\b(?:run|load)\("(\w+)"\)', text))
    assert {path.stem for path in EXAMPLES.glob("*.py")} == tested
