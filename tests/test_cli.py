"""The command line as people use it: help, results, one sentence for a mistake, Ctrl-C, and a kill at any moment."""

import errno
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lightning")
pytest.importorskip("typer")
pd = pytest.importorskip("pandas")
torch = pytest.importorskip("torch")

from typer.testing import CliRunner  # noqa: E402

import diffclust as dc  # noqa: E402
from diffclust import cli, messages, metrics, report, runs, tables, training  # noqa: E402
from diffclust.__main__ import main  # noqa: E402
from diffclust.files import write_atomically  # noqa: E402
from processes import python_m  # noqa: E402

N = 24
LABELS = ["--labels", "y.npy"]
TRUTH = np.arange(N) % 3
FAST = ["--steps", "6", "--batch-size", "16", "--draws", "3", "--backbone", "linear", "--device", "cpu"]
FAST += ["--cut", "forest", "--quiet"]  # comparing cuts is most of the time of a run


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """Every test has a folder with a small table, its labels and pairs; reports are drawn only where asked for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "write_report", lambda data, path: write_atomically(path, "<html></html>"))
    np.save("x.npy", make_rows())
    np.save("y.npy", np.where(np.arange(N) < 12, TRUTH, -1))
    lines = [f"{row[0]},{row[1]},{'abc'[TRUTH[i]] if i < 12 else ''}" for i, row in enumerate(make_rows())]
    Path("t.csv").write_text("width,height,kind\n" + "\n".join(lines) + "\n")


def make_rows(seed=0):
    return (np.random.default_rng(seed).normal(size=(N, 4)) + 6 * np.eye(4)[TRUTH]).astype(np.float32)


def call(*arguments):
    return CliRunner().invoke(cli.app, [str(each) for each in arguments])


def fit(*arguments):
    return call("fit", *FAST, *arguments)


def sentence(result, code=2):
    """The one line of an error."""
    assert result.exit_code == code, (result.output, result.exception)
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("Error: ")
    assert lines[0].endswith(".")
    assert not lines[0].endswith("..")
    return lines[0]


# -------------------------------------------------------------------------------------------------------------- help


def test_help_reads_well(monkeypatch):
    monkeypatch.setenv("COLUMNS", "110")
    monkeypatch.setenv("NO_COLOR", "1")
    overview = call("--help")
    assert overview.exit_code == 0
    assert overview.output.index(" fit ") < overview.output.index(" cluster ")
    text = call("fit", "--help").output
    assert "[OPTIONS] [DATA]" in text
    groups = ["What is known", "--labels", "--must-link", "--clusters", "Training", "--steps", "The run", "--out"]
    assert [text.index(each) for each in groups] == sorted(text.index(each) for each in groups)
    assert "[default: auto]" in text
    assert "[default: 300, or 100 with --warm]" in text
    assert "\\[" not in text
    for line in call("cluster", "--help").output.splitlines():
        assert len(line) <= 110
    assert call("--version").output == f"diffclust {dc.__version__}\n"


def test_usage_errors_exit_with_2():
    for arguments in ("fit --lables x", "clutser", "fit x.npy y.npy", "fit --steps many", "fit --steps 0",
                      "fit --epsilon 0", "fit --epsilon nan", "fit --holdout 1", "cluster"):  # fmt: skip
        result = call(*arguments.split())
        assert result.exit_code == 2
        assert "Traceback" not in result.output
    assert not Path("diffclust-run").exists()


@pytest.mark.parametrize("value", ["0", "-1", "foo", "2.5", "²", "", "9" * 5000])
def test_clusters_is_a_number_or_auto(value):
    result = call("fit", "x.npy", "--labels", "y.npy", f"--clusters={value}")
    assert result.exit_code == 2
    assert "must be a number from 1, or auto" in re.sub(r"[\s│]+", " ", result.output)


# ----------------------------------------------------------------------------------------------------------- results


def test_fit_prints_the_table_and_the_report():
    result = fit("t.csv", "--labels", "kind", "--out", "run", "--holdout", "0.25", "--cut", "auto")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert "Scored on 3 rows" in result.stdout
    assert "on 3 rows whose labels nobody was told, of the 3 labelled classes" in result.stdout
    for method in ("diffclust", "k-means on raw data", "single linkage on raw data", "cross-entropy, same labels"):
        assert method in result.stdout
    assert result.stdout.endswith(f"Report: {Path('run/report.html')}\n")
    run = dc.load_run("run")
    assert f"{len(run.names)} clusters of 24 rows: " in result.stdout
    assert Path("run/clusters.csv").read_text().startswith("row,cluster,name,confidence,novelty,label\n0,0,a,")


def test_a_score_is_one_row_of_a_table(monkeypatch):
    monkeypatch.setitem(metrics.SCORES, "purity", metrics.Score("purity", lambda true, pred: 0.5, best="min"))
    result = fit("t.csv", "--labels", "kind", "--holdout", "0.25", "--cut", "forest")
    assert "purity" in result.stdout
    assert result.stdout.count("0.500") >= 4
    scores = dc.load_run("diffclust-run").metrics["scores"]
    assert {row["purity"] for row in scores} == {0.5}
    assert report.payload._scores(scores)["columns"][-1] == {"name": "purity", "title": "Purity ↓", "best": "min"}


def test_lines_of_results_are_not_broken_to_the_width_of_a_terminal():
    out, kinds = "run-" + "x" * 100, [each * 60 for each in "abc"]
    lines = [f"{row[0]},{row[1]},{kinds[TRUTH[i]]}" for i, row in enumerate(make_rows())]
    Path("long.csv").write_text("width,height,kind\n" + "\n".join(lines) + "\n")
    printed = fit("long.csv", "--labels", "kind", "--out", out, "--clusters", "3").stdout.splitlines()
    assert "3 clusters of 24 rows: " + ", ".join(f"{kind} (8)" for kind in kinds) in printed
    assert printed[-1] == f"Report: {Path(out) / 'report.html'}"


def test_without_quiet_it_says_what_it_does(capfd):
    result = call("fit", "x.npy", "--labels", "y.npy", *FAST[:-1])
    assert result.exit_code == 0, result.output
    assert "Drawing the report" in result.stderr
    assert "loss=" in result.stderr
    assert Path("diffclust-run/clusters.csv").exists()


def test_images(tmp_path):
    pictures = np.zeros((N, 8, 8), np.uint8)
    pictures[np.arange(N), 2 * TRUTH + 1] = 200
    np.save("x.npy", pictures)
    result = call("fit", "x.npy", *LABELS, "--steps", "3", "--draws", "3", "--device", "cpu", "--cut", "forest", "-q")
    assert result.exit_code == 0, result.output
    assert dc.load_run("diffclust-run").settings["config"]["backbone"] == "cnn"
    Path("rows").mkdir()
    for row, picture in enumerate(pictures):
        np.save(f"rows/{row:02}.npy", picture)
    result = call("cluster", "diffclust-run", "rows")
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == N + 1


def test_images_with_their_channels_first_are_images(monkeypatch):
    shown = []
    monkeypatch.setattr(report, "write_report", lambda data, path: shown.append(data) or write_atomically(path, ""))
    pictures = np.random.default_rng(0).random((N, 3, 8, 12))
    np.save("x.npy", pictures)
    result = call("fit", "x.npy", *LABELS, "--steps", "3", "--draws", "3", "--device", "cpu", "--cut", "forest", "-q")
    assert result.exit_code == 0, result.output
    run = dc.load_run("diffclust-run")
    assert run.settings["config"]["backbone"] == "cnn"
    assert shown[0].raw.shape == (N, 8, 12, 3)
    np.testing.assert_array_equal(run.cluster(pictures), run.clusters)


def test_names_are_not_markup():
    names = [f"[/b] {'abc'[c]} [red]" if i < 12 else "" for i, c in enumerate(TRUTH)]
    Path("y.txt").write_text("".join(f"{name}\n" for name in names))
    result = fit("x.npy", "--labels", "y.txt")
    assert result.exit_code == 0, result.output
    assert "[/b] a [red] (8)" in result.stdout
    placed = call("cluster", "diffclust-run", "x.npy")
    assert placed.exit_code == 0
    assert ",[/b] a [red]," in placed.stdout


def test_pairs_only():
    Path("must.csv").write_text("i,j\n0,3\n1,4\n")
    Path("cannot.csv").write_text("0,1\n")
    result = fit("x.npy", "--must-link", "must.csv", "--cannot-link", "cannot.csv", "--clusters", "3")
    assert result.exit_code == 0, result.output
    assert "3 clusters of 24 rows: new 1 (8), new 2 (8), new 3 (8)" in result.stdout


@pytest.mark.slow
def test_pairs_that_may_be_wrong():
    Path("must.csv").write_text("i,j,weight\n0,3,2\n1,4,2\n2,5,2\n6,9,2\n7,10,2\n0,1,1\n")
    Path("cannot.csv").write_text("0,1\n0,2\n4,5\n")
    options = ["--must-link", "must.csv", "--cannot-link", "cannot.csv", "--clusters", "3"]
    result = call("fit", "x.npy", *options, "--steps", "3", "--draws", "3", "--device", "cpu", "--pair-weight", "2.5")
    assert result.exit_code == 0, result.output
    assert "1 of 9 pairs that may be wrong look wrong, the surest first: must-link 0 1." in result.stderr
    assert "3 clusters of 24 rows: new 1 (8), new 2 (8), new 3 (8)" in result.stdout
    assert fit("x.npy", *options, "--out", "second").exit_code == 0  # hard cannot-links beside soft must-links
    wrong = fit("x.npy", *options, "--pair-weight", "sure", "--out", "third")
    assert wrong.exit_code == 2
    assert "must be hard, auto or a number from 0" in wrong.output


def test_the_digits_are_the_default(monkeypatch):
    asked = {}

    def fit_run(table, config, out, **options):
        asked.update(table=table, config=config, out=out, **options)
        raise ValueError("enough.")

    monkeypatch.setattr(runs, "fit_run", fit_run)
    call("fit")
    known, truth = asked["table"].labels, asked["truth"]
    assert (known >= 0).sum() == 100
    assert set(known[known >= 0]) == {0, 1, 2, 3, 4, 5, 6}
    assert (known[known >= 0] == truth[known >= 0]).all()
    assert asked["config"].n_clusters == 10
    assert asked["table"].features.shape == (1797, 8, 8)
    np.testing.assert_array_equal(cli.digits(1)[0].labels, cli.digits(1)[0].labels)
    assert (cli.digits(1)[0].labels != cli.digits(2)[0].labels).any()


def test_a_killed_run_loses_little(monkeypatch):
    configs = []
    monkeypatch.setattr(runs, "fit_run", lambda table, config, out, **options: configs.append(config))
    monkeypatch.setattr(cli, "_print_result", lambda *arguments: None)
    for steps in (1, 300, 20_000):
        assert call("fit", "x.npy", "--labels", "y.npy", "--steps", steps).exit_code == 0
    assert [config.validate_every for config in configs] == [1, 15, 50]


# ---------------------------------------------------------------------------------------------------------- new rows


@pytest.fixture
def finished():
    assert fit("x.npy", "--labels", "y.npy", "--out", "run").exit_code == 0


def test_cluster_places_new_rows(finished):
    np.save("new.npy", make_rows(1)[:1])
    result = call("cluster", "run", "new.npy")
    assert result.exit_code == 0, result.output
    assert re.fullmatch(r"row,cluster,name,confidence,novelty,unlike\n0,0,0,([01]\.\d{4},){2}0\n", result.stdout)
    np.save("new.npy", make_rows(1))
    result = call("cluster", "run/last.ckpt", "new.npy", "--out", "placed.csv")
    assert result.exit_code == 0
    assert result.stdout == ""
    rows = Path("placed.csv").read_text().splitlines()
    assert [int(row.split(",")[1]) for row in rows[1:]] == TRUTH.tolist()


def test_cluster_leaves_out_a_column_of_labels():
    assert fit("t.csv", "--labels", "kind", "--out", "run").exit_code == 0
    places = call("cluster", "run", "t.csv", "--labels", "kind")
    assert places.exit_code == 0
    assert call("cluster", "run", "t.csv").stdout == places.stdout  # the run knows its columns


def test_cluster_takes_the_columns_of_the_run():
    assert fit("t.csv", "--labels", "kind", "--out", "run").exit_code == 0
    places = call("cluster", "run", "t.csv", "--labels", "kind").stdout
    np.save("unnamed.npy", make_rows()[:, :2])
    assert call("cluster", "run", "unnamed.npy").stdout == places
    turned = pd.read_csv("t.csv")[["height", "kind", "width"]].assign(depth=1)
    turned.to_csv("turned.csv", index=False)
    assert call("cluster", "run", "turned.csv").stdout == places
    Path("new.csv").write_text("width,depth\n1,1\n")
    assert "it lacks height. It has width" in sentence(call("cluster", "run", "new.csv"))


def test_mistakes_of_cluster(finished):
    np.save("wide.npy", np.zeros((3, 9)))
    Path("folder").mkdir()
    Path("other.ckpt").write_text("x")
    assert "rows of shape (4,), got (9,)" in sentence(call("cluster", "run", "wide.npy"))
    assert "gone does not exist" in sentence(call("cluster", "gone", "x.npy"))
    assert "gone.npy does not exist" in sentence(call("cluster", "run", "gone.npy"))
    assert "not the folder of a finished run" in sentence(call("cluster", "folder", "x.npy"))
    assert "not the folder of a finished run" in sentence(call("cluster", "other.ckpt", "x.npy"))
    assert "nor the checkpoint last.ckpt in it" in sentence(call("cluster", "run/metrics.json", "x.npy"))
    assert "folder/no/such.csv" in sentence(call("cluster", "run", "x.npy", "--out", "folder/no/such.csv"))
    assert "Cannot read or write folder" in sentence(call("cluster", "run", "x.npy", "--out", "folder"))
    last = Path("run/last.ckpt")
    last.write_bytes(last.read_bytes()[:1000])
    assert "last.ckpt has 1000 bytes, not the" in sentence(call("cluster", "run", "x.npy"))


def test_a_backbone_of_ones_own_is_named_again(tmp_path, monkeypatch):
    Path("tests_own.py").write_text("import torch\n\n\ndef network(shape):\n    return torch.nn.Linear(*shape, 5)\n")
    monkeypatch.syspath_prepend(tmp_path)
    own = ["--backbone", "tests_own:network"]
    assert call("fit", "x.npy", *LABELS, *FAST, "--out", "run", *own).exit_code == 0
    assert "name it again, --backbone tests_own:network." in sentence(call("cluster", "run", "x.npy"))
    assert "is 'tests_own:network', not 'linear'" in sentence(call("cluster", "run", "x.npy", "--backbone", "linear"))
    assert call("cluster", "run", "x.npy", *own).exit_code == 0
    assert call("fit", "x.npy", *LABELS, *FAST, "--out", "run", *own, "--resume").exit_code == 0
    again = sentence(call("fit", "x.npy", *LABELS, *FAST, "--out", "run", "--resume"))
    assert "--backbone tests_own:network, now it is 'linear'" in again


def test_names_are_no_formulas():
    Path("y.txt").write_text("".join(f"{'=-@'[c]}1+1\n" if i < 12 else "\n" for i, c in enumerate(TRUTH)))
    assert fit("x.npy", "--labels", "y.txt").exit_code == 0
    placed = call("cluster", "diffclust-run", "x.npy").stdout
    for text in (placed, Path("diffclust-run/clusters.csv").read_text()):
        assert ",'=1+1," in text
        assert ",=1+1" not in text
    assert sorted(dc.load_run("diffclust-run").names) == ["-1+1", "=1+1", "@1+1"]


@pytest.mark.parametrize(
    "arguments",
    ["fit x.npy --labels y.npy --out ", "fit ", "fit x.npy --must-link ", "cluster run ", "cluster run x.npy --out "],
)
def test_an_empty_name_is_not_the_current_folder(arguments):
    before = sorted(Path().iterdir())
    for empty in ("", " "):
        result = call(*arguments.strip().split(), empty)
        assert result.exit_code == 2
        assert "must name a file or a folder" in re.sub(r"[\s│]+", " ", result.output)
    assert sorted(Path().iterdir()) == before


def test_seeds():
    result = fit("x.npy", *LABELS, "--seed", 2**32)
    assert result.exit_code == 0, result.output
    assert "seed must be an integer from 0 to 2**64 - 1" in sentence(
        fit("x.npy", *LABELS, "--seed", 2**64, "--out", "b")
    )
    assert not Path("b").exists()


# ---------------------------------------------------------------------------------------------------------- mistakes

MISTAKES = {
    "no such file": (["gone.npy"], "gone.npy does not exist"),
    "no labels": (["x.npy"], "Nothing is known"),
    "labels of nothing": (["--labels", "kind"], "name its file first"),
    "no column": (["t.csv", "--labels", "sort"], "no column 'sort'"),
    "text column": (["t.csv", "--labels", "kind", "--id", "name"], "t.csv has no column 'name'. It has width, height"),
    "all unknown": (["x.npy", "--labels", "unknown.npy"], "Nothing is known"),
    "too few labels": (["x.npy", "--labels", "few.npy"], "few.npy has 5 labels, x.npy has 24 rows"),
    "contradiction": (["x.npy", "--must-link", "must.csv", "--cannot-link", "cannot.csv"], "(0, 1), (1, 2) join them"),
    "contradicts labels": (["x.npy", *LABELS, "--must-link", "must.csv"], "(0, 1) must stay apart"),
    "pair out of range": (["x.npy", "--must-link", "far.csv"], "pair (0, 99) is out of range"),
    "too few clusters": (["x.npy", *LABELS, "--clusters", "2"], "--clusters 2 is outside"),
    "too many clusters": (["x.npy", *LABELS, "--clusters", "25"], "--clusters 25 is outside"),
    "cut": (["x.npy", *LABELS, "--cut", "kmeans"], "cut must be 'auto' or one of"),
    "cut of labels": (["x.npy", *LABELS, "--cut", "classifier", "--clusters", "4"], "needs a labelled class for each"),
    "backbone": (["x.npy", *LABELS, "--backbone", "resnet"], "backbone must be one of"),
    "cnn on a table": (["x.npy", *LABELS, "--backbone", "cnn"], "needs images"),
    "device": (["x.npy", *LABELS, "--device", "tpu"], "--device tpu must be 'auto', 'cpu' or 'cuda'"),
    "noise": (["x.npy", *LABELS, "--epsilon", "inf"], "epsilon must be above 0 and finite"),
    "out is a file": (["x.npy", *LABELS, "--out", "y.npy"], "--out y.npy is a file"),
    "out is below a file": (["x.npy", *LABELS, "--out", "y.npy/run"], "--out y.npy/run cannot be written"),
    "out cannot be": (["x.npy", *LABELS, "--out", "/proc/diffclust"], "--out /proc/diffclust cannot be written"),
    "nothing to resume": (["x.npy", *LABELS, "--resume"], "has no run to go on with"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence_and_leaves_nothing(name):
    arguments, message = MISTAKES[name]
    np.save("unknown.npy", np.full(N, -1))
    np.save("few.npy", np.zeros(5))
    Path("must.csv").write_text("0,1\n1,2\n")
    Path("cannot.csv").write_text("0,2\n")
    Path("far.csv").write_text("0,99\n")
    before = {path: path.read_bytes() for path in Path().iterdir()}
    assert message in sentence(call("fit", "--quiet", *arguments))
    assert {path: path.read_bytes() for path in Path().iterdir()} == before


def test_a_folder_with_a_run_is_not_overwritten(finished):
    before = Path("run/clusters.csv").stat().st_mtime_ns
    assert "run has a run already" in sentence(fit("x.npy", "--labels", "y.npy", "--out", "run"))
    assert "--seed 0, now it is 1" in sentence(
        fit("x.npy", "--labels", "y.npy", "--out", "run", "--resume", "--seed", "1")
    )
    np.save("x.npy", make_rows(3))
    assert "other data" in sentence(fit("x.npy", "--labels", "y.npy", "--out", "run", "--resume"))
    assert Path("run/clusters.csv").stat().st_mtime_ns == before


def test_the_title_of_the_digits_counts_no_answers(monkeypatch):
    titles = []
    monkeypatch.setattr(runs, "fit_run", lambda *arguments, title, **options: titles.append(title))
    Path("answers.csv").write_text("row,label\n5,9\n")
    assert call("fit").exit_code == call("fit", "--more", "answers.csv").exit_code == 0
    assert titles == ["Handwritten digits: 100 labels, three digits never labelled", "Handwritten digits"]


def test_a_full_disk(monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(runs.folder, "write_atomically", full)
    assert "The disk is full: cannot write run/settings.json" in sentence(
        fit("x.npy", "--labels", "y.npy", "--out", "run")
    )


def test_too_little_memory(monkeypatch):
    def too_large(*arguments, **options):
        raise MemoryError("Unable to allocate 7 TiB.")

    monkeypatch.setattr(cli, "read_table", too_large)
    assert "not enough memory. Unable to allocate 7 TiB" in sentence(fit("x.npy"))


def test_a_package_that_is_not_installed(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "diffclust.runs", None)
    assert "diffclust.runs" in call("fit", "x.npy", *LABELS).stderr
    monkeypatch.setitem(sys.modules, "diffclust.cli", None)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err.endswith("The command line needs: pip install 'diffclust[fit]'\n")


def test_reproduce_says_where_it_went():
    message = sentence(call("reproduce", "toy", "--tiny"))
    assert "python -m experiments run toy --tiny" in message
    assert "reproduce" not in call("--help").output


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("n_clusters=2 is outside.", "--clusters 2 is outside."),
        ("n_clusters=2, min_cluster_size=3: no.", "--clusters 2, --min-cluster-size 3: no."),
        ("Nothing is known: give labels of some rows, or must_link or cannot_link pairs.",
         "Nothing is known: give labels of some rows, or --must-link or --cannot-link pairs."),
        ("folder='a b' is a file. Go on with resume=True.", "--out a b is a file. Go on with --resume."),
        ("n_clusters.csv does not exist, nor x/n_steps, nor 'must_link'.",
         "n_clusters.csv does not exist, nor x/n_steps, nor 'must_link'."),
        ("labels='kind': x.npy has no columns.", "--labels kind: x.npy has no columns."),
        ("backbone='pkg.mod:net'.", "--backbone pkg.mod:net."),
    ],
)  # fmt: skip
def test_arguments_become_options(message, shown):
    assert messages.in_flags(message) == shown


def test_our_own_faults_have_a_traceback(monkeypatch):
    monkeypatch.setattr(cli, "read_table", lambda *arguments, **options: {}["fault"])
    assert isinstance(fit("x.npy").exception, KeyError)
    monkeypatch.setenv("DIFFCLUST_TRACEBACK", "1")
    monkeypatch.setattr(cli, "read_table", tables.read_table)
    assert isinstance(fit("gone.npy").exception, ValueError)


# ------------------------------------------------------------------------------------------------ Ctrl-C and the kill


def test_interrupted_before_there_is_a_run(monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "read_table", interrupt)
    assert sentence(fit("x.npy"), 130) == "Error: Interrupted."


def program(out, *more):
    """A run of real processes, on one thread: steps enough to be hit in the middle of them."""
    arguments = ["fit", "x.npy", "--labels", "y.npy", "--clusters", "4", "--steps", "150", "--batch-size", "24"]
    return python_m("diffclust", *arguments, "--draws", "5", "--device", "cpu", "-q", "--out", out, *more)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    here = Path.cwd()
    os.chdir(folder)
    try:
        np.save("x.npy", make_rows())
        np.save("y.npy", np.where(np.arange(N) < 12, TRUTH, -1))
        process = program("run")
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    finally:
        os.chdir(here)
    return folder / "run"


def wait_for(condition, process, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None or time.monotonic() > until:
            return False
        time.sleep(0.002)
    return True


def assert_whole_files(folder):
    for path in folder.iterdir():
        if path.suffix == ".npy":
            np.load(path)
        elif path.suffix == ".npz":
            with np.load(path) as arrays:
                assert [arrays[name] for name in arrays]
        elif path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".ckpt":
            torch.load(path, weights_only=True)
        elif path.suffix == ".csv":
            assert len(path.read_text().splitlines()) == N + 1
        elif path.suffix == ".html":
            assert path.read_text("utf-8").rstrip().endswith("</html>")
        else:
            assert path.name in ("log", ".lock") or path.name.endswith(".tmp")


def assert_same_result(folder, other):
    for name in ("clusters.csv", "embeddings.npy"):
        assert (folder / name).read_bytes() == (other / name).read_bytes(), name
    one, two = dc.load_run(folder), dc.load_run(other)
    np.testing.assert_array_equal(one.hierarchy.edges, two.hierarchy.edges)
    np.testing.assert_array_equal(one.hierarchy.weights, two.hierarchy.weights)
    assert one.metrics["scores"] == two.metrics["scores"]


@pytest.mark.slow
def test_killed_at_any_moment_and_resumed_is_the_run_that_was_not(uninterrupted):
    """In the middle of training, once more a little later, and when the first result is there."""
    run, last = Path("run"), Path("run/last.ckpt")
    killed = 0
    for moment in ("first checkpoint", "next checkpoint", "first result"):
        written = last.stat().st_mtime_ns if last.exists() else 0
        process = program("run", *(["--resume"] if run.exists() else []))
        if moment == "first result":
            reached = wait_for(Path("run/embeddings.npy").exists, process)
        else:
            reached = wait_for(lambda since=written: last.exists() and last.stat().st_mtime_ns > since, process)
        if reached:
            process.kill()
            killed += 1
        process.communicate(timeout=60)
        assert_whole_files(run)
    assert killed >= 2
    process = program("run", "--resume")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert_whole_files(run)
    assert not list(run.glob(".*"))
    assert_same_result(run, uninterrupted)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_control_c_leaves_a_checkpoint_to_go_on_with(uninterrupted):
    process = program("run")
    assert wait_for(Path("run/last.ckpt").exists, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert errors.strip() == "Error: Interrupted. Go on with the same command and --resume."
    assert_whole_files(Path("run"))
    steps = len(training.load("run/last.ckpt").loss_curve)
    assert 0 < steps < 150
    process = program("run", "--resume")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert_same_result(Path("run"), uninterrupted)


# ------------------------------------------------------------------------------------------------------------- bench


def test_bench_prints_ratios():
    result = call("bench", "--points", 12, "--points", 20, "--draws", 3, "--clusters", 2)
    assert result.exit_code == 0
    for column in ("points", "solve", "plain Kruskal", "diffclust", "ratio"):
        assert column in result.stdout
    assert result.stdout.count("together") == 2
    assert "x │" in result.stdout


@pytest.mark.slow
def test_bench_has_columns_for_a_gpu(monkeypatch):
    """Here in Triton's interpreter, on tensors of the CPU."""
    pytest.importorskip("triton")
    monkeypatch.setattr("diffclust.bench.find_gpu", lambda: "cpu")
    rows = call("bench", "--points", 6, "--draws", 1, "--clusters", 2).output
    assert rows.count("ratio") == 2
    assert len(re.findall(r"\d+x", rows)) == 8  # four solves, two ratios

    from diffclust.solvers import cuda

    solve = cuda.solve
    monkeypatch.setattr(cuda, "solve", lambda request: solve(request._replace(n_clusters=1)))
    assert "differ on 6 points" in str(call("bench", "--points", 6, "--draws", 1, "--clusters", 2).exception)


def test_bench_times_nothing_that_is_wrong(monkeypatch):
    monkeypatch.setattr("diffclust.bench.reference.kruskal", lambda similarity, k, known: [])
    assert isinstance(call("bench", "--points", 12, "--clusters", 2).exception, AssertionError)


def test_bench_says_what_cannot_be():
    assert "12 points cannot be 13 clusters" in sentence(call("bench", "--points", 12, "--clusters", 13))
