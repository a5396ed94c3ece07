"""The pages that the build of the site writes: the API reference, result tables from csv files, the live report.

They are made anew from their sources at each build, so that no page outlives what it describes. None of them is in git.
"""

import csv
import functools
import importlib
import inspect
import re
import shutil
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

REPOSITORY = "https://github.com/diffclust/diffclust"
ROOT = Path(__file__).resolve().parent.parent

# Title, module, and its public names where it has no __all__. The page of a name is made from its docstring.
REFERENCE: list[tuple[str, str, tuple[str, ...]]] = [
    ("Similarities, constraints, forests, losses", "diffclust", ()),
    ("Torch modules", "diffclust.nn", ("PartialFenchelYoungLoss", "ConnectivityLoss", "PerturbedClustering")),
    ("scikit-learn estimators", "diffclust.cluster", ()),
    ("Scores", "diffclust.metrics", ("connectivity_error", "clustering_scores")),
    ("Noise", "diffclust.noise", ("sample",)),
    ("How sure, how many", "diffclust.stability", ("soft_connectivity", "ClusterCount")),
    ("Clusters of an embedding", "diffclust.partition", ("partition", "Partition")),
    ("Training", "diffclust.training", ()),
    ("Networks by name", "diffclust.backbones", ("make_backbone", "InputScaling")),
    ("Runs", "diffclust.runs", ()),
    ("The report", "diffclust.report", ("write_report", "ReportData")),
    ("Single cells", "diffclust.cells", ("fit", "rank_genes")),
    (
        "pytorch-metric-learning",
        "diffclust.metric_learning",
        ("PartialFenchelYoungLoss", "CrossBatchMemory", "SelfSupervisedLoss"),
    ),
    ("sentence-transformers", "diffclust.sentence_transformers", ("PartialFenchelYoungLoss",)),
    ("The contract of a solver", "diffclust.solvers.base", ("Request", "Answer", "Solver")),
]

# The gallery, in the order in which it is read.
READING_ORDER = (
    "two_moons", "forest_draw_gradient", "semi_supervised_digits", "unknown_digits", "how_many_clusters", "pairs",
    "ask_and_refit", "soft_connectivity", "linear_denoising", "metric_learning", "jax_digits", "cuda_graph", "cells",
    "tickets", "pictures", "record_linkage", "reading_the_report",
)  # fmt: skip


class InReadingOrder:
    """Sorts the examples of the gallery; sphinx-gallery makes one for each folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, name: str) -> int:
        """The place of an example, by the name of its file."""
        return READING_ORDER.index(Path(name).stem)


def write_all(docs: Path) -> None:
    """Writes every generated page below the folder of the documents."""
    write_reference(docs / "reference")
    write_results(docs / "results")
    write_live_report(docs / "live")


# ---------------------------------------------------------------------------------------------------- the API reference


def public_names(module_name: str, listed: Iterable[str]) -> list[str]:
    """The functions and classes in a module's ``__all__``; those listed where it has none."""
    module = importlib.import_module(module_name)
    names = getattr(module, "__all__", listed)
    return sorted((name for name in names if callable(getattr(module, name))), key=str.lower)


def write_reference(folder: Path) -> None:
    """``reference/index.rst``: a table of every public name; autosummary makes the page of each from its docstring."""
    parts = ["API reference\n=============\n", "Every public name, from its docstring.\n"]
    if (folder.parent / "api.md").exists():  # signatures and defaults on one page
        parts += [":doc:`All signatures on one page </api>`.\n", ".. toctree::\n   :hidden:\n\n   /api\n"]
    for title, module_name, listed in REFERENCE:
        names = public_names(module_name, listed)
        parts += [f"{title}\n{'-' * len(title)}\n", f".. currentmodule:: {module_name}\n"]
        parts += [".. autosummary::\n   :toctree: generated\n\n" + "".join(f"   {name}\n" for name in names)]
    write_if_changed(folder / "index.rst", "\n".join(parts))


def escape_bars(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Bars in docstrings, as in |x - y|, are bars. In reStructuredText they would be substitutions."""
    for i, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            literals = line.split("``")
            literals[::2] = [part.replace("|", r"\|") for part in literals[::2]]
            lines[i] = "``".join(literals)


def source_address(domain: str, info: dict[str, str]) -> str | None:
    """Where the source of a documented name can be read; None where it has none of its own."""
    found: object = importlib.import_module(info["module"])
    for name in info["fullname"].split("."):
        found = getattr(found, name, None)
    found = inspect.unwrap(found.fget if isinstance(found, property) else found)
    try:
        path = Path(inspect.getsourcefile(found)).resolve().relative_to(ROOT)
        line = inspect.getsourcelines(found)[1]
    except (OSError, TypeError, ValueError):
        return None
    return f"{REPOSITORY}/blob/main/{path.as_posix()}#L{line}"


def skip_member(app: object, what: str, name: str, obj: object, skip: bool, options: object) -> bool | None:
    """Leaves out what scikit-learn adds to its estimators for the routing of metadata."""
    return True if re.fullmatch(r"set_\w+_request", name) else None


# -------------------------------------------------------------------------------------------------- results from tables


def read(name: str) -> list[dict[str, str]]:
    """The rows of a file of ``results/``."""
    with (ROOT / "results" / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table in Markdown; the first column is text, the others are numbers."""
    header = list(header)
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def mean(values: Iterable[str]) -> float:
    """The mean of numbers that were read as text."""
    return statistics.fmean(float(value) for value in values)


def mean_ari(name: str, column: str, titles: dict[str, str]) -> str:
    """Mean ARI over the sets, of each method at each value of a column; the best of a column is bold."""
    rows = read(name)
    scores = defaultdict(list)
    for row in rows:
        scores[row["method"], row[column]].append(row["ari"])
    means = {key: mean(values) for key, values in scores.items()}
    best = {value: max(score for key, score in means.items() if key[1] == value) for value in titles}

    def cell(method: str, value: str) -> str:
        if (method, value) not in means:
            return ""
        text = f"{means[method, value]:.3f}"
        return f"**{text}**" if means[method, value] == best[value] else text

    last = list(titles)[-1]
    methods = sorted({method for method, _ in scores}, key=lambda method: -means.get((method, last), 0.0))
    n_sets = len({row["set"] for row in rows})
    lines = ([method, *(cell(method, value) for value in titles)] for method in methods)
    text = f"Adjusted Rand index, mean over {n_sets} sets and all seeds, by the share of known labels.\n\n"
    return text + table(["method", *titles.values()], lines)


def small_sets() -> str:
    """Mean ARI of each method at each share of known labels."""
    shares = sorted({row["share"] for row in read("small_sets.csv")}, key=float)
    return mean_ari("small_sets.csv", "share", {share: f"{float(share):.0%}" for share in shares})


def trust() -> str:
    """Mean ARI of each method under each protocol."""
    titles = {share: f"{share}%" for share in ("1", "5", "20")}
    return mean_ari("trust.csv", "protocol", titles | {"half": "10% of half of the classes"})


def means_by_protocol(name: str, columns: dict[str, str]) -> str:
    """Means of columns of a file, by protocol."""
    rows = read(name)
    lines = []
    for protocol in dict.fromkeys(row["protocol"] for row in rows):
        some = [row for row in rows if row["protocol"] == protocol]
        means = (f"{mean(row[name] for row in some if row[name]):.3f}" for name in columns)
        lines.append([protocol, len(some), *means])
    return table(["protocol", "cases", *columns.values()], lines)


def trust_development() -> str:
    """Means over the development tables, on which the probabilities were fitted."""
    columns = {"vote": "vote of other cuts", "agreement": "agreement", "score": "score on hidden labels"}
    return means_by_protocol("trust_development.csv", columns | {"right": "share that is right"})


def trust_sure() -> str:
    """How sure: means over the sets."""
    known = {"calibration_error_share_known": "if the share were known", "calibration_error_of_truth": "of the truth"}
    columns = {"ari": "ARI", "calibration_error": "calibration error", "calibration_error_before": "before"}
    return means_by_protocol("trust_sure.csv", columns | known)


def trust_k() -> str:
    """The number of clusters that was chosen for each set and seed."""
    columns = ("set", "protocol", "seed", "true_n_clusters", "n_clusters", "interval", "ari")
    header = ["set", "labels", "seed", "true number", "chosen", "interval", "ARI"]
    return table(header, ([row[name] for name in columns] for row in read("trust_k.csv")))


def pairs() -> str:
    """The ARI of hard pairs, of automatic weights and of the yardstick ("told"), by the share that is wrong."""
    columns = ("set", "seed", "pairs", "flipped", "method", "ari", "wrong")
    header = ["set", "seed", "number", "share that is wrong", "pairs", "ARI", "share that was found"]
    return table(header, ([row[name] for name in columns] for row in read("pairs.csv")))


def texts() -> str:
    """The mean ARI of each method, and over how many seeds, by the share of the intents that is known."""
    scores: dict[str, dict[str, list[str]]] = {}
    for row in read("text.csv"):
        scores.setdefault(row["method"], {}).setdefault(row["known"], []).append(row["ari"])
    lines = (
        [method, *(f"{mean(of[share]):.1f} ({len(of[share])})" if share in of else "" for share in ("0.25", "0.75"))]
        for method, of in scores.items()
    )
    return table(["ARI (number of seeds)", "25 % known", "75 % known"], lines)


def small_sets_k() -> str:
    """How often each rule finds the number of clusters, or one beside it."""
    rows = read("small_sets_k.csv")

    def share(rule: str, slack: int) -> str:
        return f"{statistics.fmean(abs(int(row[rule]) - int(row['k'])) <= slack for row in rows):.0%}"

    rules = ("gap", "stability", "labels")
    return f"Of {len(rows)} cases.\n\n" + table(
        ["rule", "the true number", "at most one off"], ([rule, share(rule, 0), share(rule, 1)] for rule in rules)
    )


def points() -> str:
    """Seconds for the exact tree of points, beside other packages."""
    rows = read("points.csv")
    peers = [name for name in rows[0] if name not in ("data", "points", "dimensions", "ours", "ratio")]
    header = ["points", "dimensions", "ours, s", *(f"{peer}, s" for peer in peers), "best other / ours"]
    return table(
        header,
        ([r["points"], r["dimensions"], r["ours"], *(r[peer] for peer in peers), r["ratio"]] for r in rows),
    )


def loss() -> str:
    """Milliseconds of loss and gradient, and the authors' code beside it."""
    return table(
        ["points", "draws", "whose", "ms"], ([r["n"], r["draws"], r["contender"], r["ms"]] for r in read("loss.csv"))
    )


def gpu() -> str:
    """Milliseconds of loss and gradient against points, draws and problems."""
    return table(
        ["what grows", "points", "draws", "problems", "ms", "peak extra memory, MiB"],
        ([r["kind"], r["points"], r["draws"], r["problems"], r["ms"], r["peak_MiB"]] for r in read("gpu.csv")),
    )


def place() -> str:
    """Time and memory of placing the rows of a large file."""
    columns = ("rows", "processor_seconds", "rows_per_second", "peak_GB", "output_MB")
    header = ["rows", "processor time, s", "rows a second", "peak memory, GB", "output, MB"]
    return table(header, ([row[name] for name in columns] for row in read("place.csv")))


def scaling() -> str:
    """Milliseconds of a step of several gloo processes."""
    names = ("seconds", "gather", "solve", "reduce")
    rows = ([r["ranks"], r["n"], *(f"{1000 * float(r[name]):.2f}" for name in names)] for r in read("scaling.csv"))
    return table(["ranks", "rows", "step, ms", "gather, ms", "solve, ms", "reduce, ms"], rows)


def semi_mnist() -> str:
    """Scores of the paper's semi-supervised experiment, mean over seeds."""
    found = defaultdict(list)
    for row in read("semi_mnist.csv"):
        found[int(row["n_labels"]), int(row["withheld"]), row["method"]].append(row)
    header = ["labels", "classes withheld", "loss", "seeds", "whole test set, forest: ARI", "k-means: ARI"]
    columns = ("whole_forest_ari", "whole_kmeans_ari")
    rows = (
        [*key, len(rows), *(f"{mean(row[name] for row in rows):.3f}" for name in columns)]
        for key, rows in sorted(found.items())
    )
    return table(header, rows)


def image_choices(name: str = "image_choices.csv") -> str:
    """The mean ARI over choices of withheld classes, by member and cut."""
    found: dict[tuple[str, str], dict[tuple[str, str, str], list[str]]] = {}
    for row in read(name):
        member = "one network" if row["member"].isdecimal() else row["member"]
        of_cut = found.setdefault((member, row["cut"]), {})
        of_cut.setdefault((row["images"], row["variation"], row["withheld"]), []).append(row["ari"])
    cells = sorted({cell for each in found.values() for cell in each})
    header = ["networks", "cut", *(f"{name}, {variation}, {withheld} withheld" for name, variation, withheld in cells)]
    rows = (
        [*key, *(f"{mean(each[cell]):.3f}" if cell in each else "" for cell in cells)]
        for key, each in sorted(found.items())
    )
    return table(header, rows)


def ask() -> str:
    """Queries that reach the target, the median over seeds, by set and method."""
    curves: dict[tuple[str, str], dict[str, list[tuple[int, bool]]]] = {}
    for row in read("ask.csv"):
        seeds = curves.setdefault((row["set"], row["method"]), {})
        seeds.setdefault(row["seed"], []).append((int(row["queries"]), float(row["ari"]) >= float(row["target"])))

    def needed(curve: list[tuple[int, bool]]) -> float:
        held = (n for (n, here), (_, after) in zip(curve, [*curve[1:], curve[-1]], strict=True) if here and after)
        return next(held, float("inf"))

    def cell(name: str, method: str) -> str:
        if (name, method) not in curves:
            return "–"
        median = statistics.median(map(needed, curves[name, method].values()))
        return "more" if median == float("inf") else f"{median:.0f}"

    methods = list(dict.fromkeys(method for _, method in curves))
    sets = list(dict.fromkeys(name for name, _ in curves))
    return table(["set", *methods], ([name, *(cell(name, method) for method in methods)] for name in sets))


def ask_means(file: str) -> str:
    """The mean over seeds of every column, by set."""
    rows = read(file)
    columns = [name for name in rows[0] if name not in ("set", "seed")]
    sets = dict.fromkeys(row["set"] for row in rows)
    means = {name: [mean(row[c] for row in rows if row["set"] == name) for c in columns] for name in sets}
    return table(["set", *columns], ([name, *(f"{value:.3f}" for value in means[name])] for name in sets))


# File, title, the command that made the file, the page with conditions and remarks, and what makes the table.
TABLES: list[tuple[str, str, str, str, Callable[[], str]]] = [
    (
        "small_sets.csv", "Small real sets", "python benchmarks/small_sets.py --jobs 2 --out results", "small_sets.md",
        small_sets,
    ),
    (
        "small_sets_k.csv", "Small real sets: the number of clusters",
        "python benchmarks/small_sets.py --jobs 2 --out results", "small_sets.md", small_sets_k,
    ),
    (
        "trust.csv", "Tables that nobody tuned for", "python benchmarks/trust.py OUT/report/*.npz "
        "--protocols 1 5 20 --seeds 24 25 --out results/trust.csv; python benchmarks/trust.py OUT/report/*.npz "
        "--protocols half --seeds 40 41 --out results/trust.csv", "trust.md", trust,
    ),
    (
        "trust_development.csv", "Tables on which probabilities were fitted",
        "python benchmarks/trust.py OUT/development/*.npz --ours --seeds 601 701 --out FILE",
        "trust.md", trust_development,
    ),
    (
        "trust_sure.csv", "Tables that nobody tuned for: how sure",
        "python benchmarks/trust.py OUT/report/*.npz --ours --seeds 18 --out FILE", "trust.md", trust_sure,
    ),
    (
        "trust_k.csv", "Tables that nobody tuned for: the number of clusters",
        "python benchmarks/trust.py OUT/report/*.npz --seeds 32 33 --protocols 5 20 --choose-k "
        "--out results/trust_k.csv; python benchmarks/trust.py OUT/report/*.npz --seeds 42 43 --protocols half "
        "--choose-k --out results/trust_k.csv", "trust.md", trust_k,
    ),
    (
        "text.csv", "Texts: new intents", "python benchmarks/text.py TEXTOIR/data/banking --out results", "text.md",
        texts,
    ),
    (
        "pairs.csv", "Pairs, some of them wrong",
        "python benchmarks/pairs.py SETS --seeds 6 7 --flip 0 0.1 0.2 --out results/pairs.csv", "pairs.md", pairs,
    ),
    (
        "ask.csv", "What to label next: queries to the target",
        "python benchmarks/ask.py queries --mnist mnist.npz --pbmc pbmc.h5 --out results", "ask.md", ask,
    ),
    (
        "ask_pairs.csv", "Questions about pairs",
        "python benchmarks/ask.py pairs --sets iris wine digits --seeds 0 1 2 --out results", "ask.md",
        functools.partial(ask_means, "ask_pairs.csv"),
    ),
    (
        "ask_mistakes.csv", "Labels that look wrong", "python benchmarks/ask.py mistakes --seeds 0 1 --out results",
        "ask.md", functools.partial(ask_means, "ask_mistakes.csv"),
    ),
    (
        "ask_names.csv", "Names that stay",
        "python benchmarks/ask.py names --sets iris wine penguins --seeds 0 1 --out results", "ask.md",
        functools.partial(ask_means, "ask_names.csv"),
    ),
    (
        "ask_warm.csv", "A warm start", "python benchmarks/ask.py warm --seeds 0 --out results", "ask.md",
        functools.partial(ask_means, "ask_warm.csv"),
    ),
    (
        "points.csv", "Trees from points, two CPU cores",
        "python benchmarks/points.py --points 20000 --dimensions 2 3 4 8 16 64 --repeats 3 "
        "--peers fastcluster scikit_learn quitefastmst", "README.md", points,
    ),
    (
        "loss.csv", "Loss and gradient on two CPU cores",
        "python benchmarks/loss.py --reference PATH --points 64 128 --draws 100 --seconds 3", "README.md", loss,
    ),
    (
        "gpu.csv", "Loss and gradient on an NVIDIA H200", "PYTHONPATH=src python benchmarks/gpu.py --seconds 0.15",
        "README.md", gpu,
    ),
    (
        "place.csv", "Placing many rows", "python benchmarks/place.py --rows 1000000 4000000 --out results/place.csv",
        "README.md", place,
    ),
    (
        "scaling.csv", "One loss over several processes", "python benchmarks/ranks.py --seconds 5 --out results",
        "scaling.md", scaling,
    ),
    (
        "semi_mnist.csv", "The paper's semi-supervised MNIST", "python -m experiments run semi-mnist",
        "reproduction.md", semi_mnist,
    ),
    (
        "image_choices.csv", "Images with other classes withheld",
        "python benchmarks/image_choices.py mnist --members 1 --out results/image_choices.csv", "reproduction.md",
        image_choices,
    ),
    (
        "fashion_members.csv", "Fashion-MNIST, six classes withheld, three networks",
        "python benchmarks/image_choices.py fashion_mnist --members 3 --withheld 6 --out FILE", "reproduction.md",
        partial(image_choices, "fashion_members.csv"),
    ),
]  # fmt: skip


def write_results(folder: Path) -> None:
    """The files of ``results/``, and a page of tables made from the csv files among them."""
    folder.mkdir(exist_ok=True)
    for path in (ROOT / "results").iterdir():
        if path.suffix in (".md", ".csv", ".png"):
            copy_if_changed(path, folder / path.name)
    parts = [
        "# Tables from the measurements\n",
        "The build of this site makes each table from its csv file. The linked page has conditions and remarks.\n",
    ]
    for name, title, command, page, make in TABLES:
        parts += [f"## {title}\n", f"From [{name}]({name}), which `{command}` wrote; see [{page}]({page}).\n", make()]
    write_if_changed(folder / "tables.md", "\n".join(parts))


# ------------------------------------------------------------------------------------------------------ the live report


def write_live_report(folder: Path) -> None:
    """``report/``, what ``diffclust fit`` writes without any argument, unless it is there from an earlier build."""
    page = folder / "report" / "report.html"
    if not page.exists():
        run = folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "diffclust", "fit", "--quiet", "--out", str(run)], check=True)
        page.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(run / "report.html", page)
        shutil.rmtree(run)


# ---------------------------------------------------------------------------------------------------------------- links


def rewrite_links(app: object, docname: str, source: list[str]) -> None:
    """Links to files of the repository, which are right on GitHub, become links to pages of the site."""
    text = source[0]
    gallery = "|".join(READING_ORDER)
    text = re.sub(r"(\]\(|^\[\w+\]: )(?:\.\./)+results/", r"\1/results/", text, flags=re.MULTILINE)
    text = re.sub(r"\]\((?:\.\./)+docs/", "](/", text)
    text = re.sub(rf"\]\((?:\.\./)*examples/({gallery})\.py\)", r"](/gallery/\1.rst)", text)
    source_files = r"\]\((?:\.\./)*((?:examples|benchmarks|experiments|src|tests)\b[^)#]*)"
    text = re.sub(source_files, rf"]({REPOSITORY}/blob/main/\1", text)
    source[0] = text


# ---------------------------------------------------------------------------------------------------------------- files


def write_if_changed(path: Path, text: str) -> None:
    """Sphinx reads again only what has changed."""
    if not path.exists() or path.read_text("utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def copy_if_changed(source: Path, target: Path) -> None:
    """The same for a file that is there already."""
    if not target.exists() or target.read_bytes() != source.read_bytes():
        shutil.copyfile(source, target)
