"""The pages say what is there: ``docs/api.md`` has every public name with its arguments, and the code of pages runs."""

import importlib
import inspect
import json
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest

import diffclust as dc

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

# ----------------------------------------------------------------------------------------------------------------
# docs/api.md

# Objects that functions return, or that their own class methods make: listed by their methods.
BY_METHODS = ("Constraints", "Forest", "Hierarchy", "Knowledge")
TRAINING = ("TrainingConfig", "fit", "fit_many", "embed", "load")
METRIC_LEARNING = ("PartialFenchelYoungLoss", "CrossBatchMemory", "SelfSupervisedLoss")


def public_names():
    """Dotted names of all that is public, as users write them."""
    names = []
    for name in dc.__all__:
        value = getattr(dc, name)
        if name in BY_METHODS:
            names += [f"dc.{name}.{method}" for method, made in vars(value).items() if is_method(method, made)]
        elif not inspect.ismodule(value):
            names.append(f"dc.{name}")
    for module in ("cells", "nn", "metrics"):
        found = vars(importlib.import_module(f"diffclust.{module}"))
        names += [f"dc.{module}.{name}" for name, value in found.items() if is_own(name, value, module)]
    names += [f"dc.{module}.{name}" for module in ("cluster", "noise") for name in getattr(dc, module).__all__]
    names += [f"dc.noise.Noise.{name}" for name, made in vars(dc.noise.Noise).items() if is_method(name, made)]
    names += [f"dc.training.{name}" for name in TRAINING]
    names += ["dc.stability.soft_connectivity", "dc.solvers.solver_for"]
    names += [f"dc.metric_learning.{name}" for name in METRIC_LEARNING]
    names += ["dc.sentence_transformers.PartialFenchelYoungLoss"]
    return names


def is_method(name, value):
    return not name.startswith("_") and isinstance(value, (classmethod, staticmethod)) | inspect.isfunction(value)


def is_own(name, value, module):
    return not name.startswith("_") and getattr(value, "__module__", None) == f"diffclust.{module}" and callable(value)


def signature(name):
    """The arguments of a public name with their defaults, without types, as ``docs/api.md`` writes them."""
    value = dc
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    written, keyword_only = [], False
    for parameter in inspect.signature(value).parameters.values():
        if parameter.name in ("self", "cls") or parameter.default == "deprecated":
            continue
        if parameter.kind == parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            written.append("*")
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = json.dumps(parameter.default) if isinstance(parameter.default, str) else repr(parameter.default)
        shown = "" if parameter.default is parameter.empty else f"={default}"
        written.append(f"{star}{parameter.name}{shown}")
    return f"{name}({', '.join(written)})"


def test_every_public_name_is_on_the_page_with_its_arguments():
    pytest.importorskip("lightning")
    pytest.importorskip("pytorch_metric_learning")
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    blocks = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    found = [" ".join(text.split()) for block in blocks for text in re.split(r"\n(?=dc\.)", block)]
    expected = [signature(name) for name in public_names()]
    missing, extra = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    wrap = textwrap.TextWrapper(118, subsequent_indent="    ", break_long_words=False).fill
    assert not missing, "docs/api.md must have these:\n" + "\n".join(map(wrap, missing))
    assert not extra, "docs/api.md has these, which are not there:\n" + "\n".join(map(wrap, extra))
    assert len(found) == len(set(found))


LINK = re.compile(r"(?:\]\(|^\[\w+\]: )(?!https?:)([^)#\s]*\.md|)(?:#([^)\s]*))?[)\n]", re.MULTILINE)


def test_links_between_pages_lead_somewhere():
    for page in [*PAGES, *(ROOT / "results").glob("*.md")]:
        for target, anchor in LINK.findall(page.read_text("utf-8")):
            path = page.parent / target if target else page
            assert path.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors(path), f"{page.name}: {target}#{anchor}"


def anchors(page):
    titles = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_file_is_in_the_tree_of_the_design():
    tree = (ROOT / "docs" / "design.md").read_text("utf-8").split("```")[1]
    for folder in ("src/diffclust", "experiments"):
        names = {path.name for path in (ROOT / folder).rglob("*.py")} - {"__init__.py"}
        assert [name for name in sorted(names) if name not in tree] == []


# ----------------------------------------------------------------------------------------------------------------
# Code on pages

# A page describes machines that a test does not have: what to write in their place.
IN_A_TEST = {
    'init_process_group("nccl")': 'init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)',
    '"cuda"': '"cpu"',
    "fully_shard(network, mesh=mesh)": "fully_shard(torch.nn.Linear(64, 16), mesh=mesh)",  # the next blocks use network
    "start + 8": "start + 1",
    "dist.get_world_size(), 8)": "dist.get_world_size(), 1)",
    "dist.get_rank() // 8": "dist.get_rank()",
    'devices=2, strategy="ddp", max_steps=30': 'accelerator="cpu", max_steps=2, logger=False',
    "ForestEmbedding(n_clusters=10, ": 'ForestEmbedding(n_clusters=10, n_steps=10, cut="forest", ',
}


def code_of(page):
    return "\n".join(re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL))


@pytest.fixture
def names():
    """What a reader has at hand: data, a network, frameworks."""
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    from sklearn.datasets import load_digits
    from torch import distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    digits, classes = load_digits(return_X_y=True)
    rows, y = digits[:200].astype(np.float32), np.where(np.arange(200) % 2, -1, classes[:200])
    x, known, test_points = torch.tensor(rows), torch.tensor(y), torch.tensor(digits, dtype=torch.float32)
    blocks = [torch.nn.Linear(64, 16)]
    yield {
        "__name__": "__main__", "np": np, "torch": torch, "jax": jax, "dc": dc, "dist": dist,
        "DistributedDataParallel": DistributedDataParallel, "X": rows, "y": y, "X_new": rows[:5], "x": x,
        "known": known, "mine": slice(None), "loader": [(x, known)], "test_points": test_points, "blocks": blocks,
        "encode": lambda params, points: points @ params,
    }  # fmt: skip
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] * (page.name == "clusters.md"))
        for page in PAGES
        if code_of(page) and page.name not in ("start.md", "text.md")  # test_documentation.py runs these block by block
    ],
    ids=lambda page: page.name,
)
def test_code_on_pages_runs(page, names, tmp_path, monkeypatch):
    if page.name == "jax-devices.md":
        pytest.skip("test_examples.py runs the example that this page shows")
    if page.name == "data.md":
        pytest.importorskip("anndata")
    monkeypatch.chdir(tmp_path)
    code = code_of(page)
    for written, run in IN_A_TEST.items():
        code = code.replace(written, run)
    exec(compile(code, "page", "exec"), names)


COMMANDS = [
    line.strip("`").split("#")[0].split()[1:]
    for page in PAGES
    for line in re.findall(r"^diffclust .*|`diffclust [a-z]+ [^`]*`", page.read_text("utf-8"), re.MULTILINE)
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_on_pages_have_options_that_there_are(command):
    typer = pytest.importorskip("typer")
    from diffclust.cli import app

    name, *arguments = command
    if name != "reproduce":
        typer.main.get_command(app).commands[name].make_context(name, [*arguments]).close()
