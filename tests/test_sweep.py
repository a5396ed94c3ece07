"""Sweeps: every point of the grid once, what is finished is skipped, what failed is listed."""

import json
import os
import sys

import pytest

from experiments import sweep

# Stands for `python -m experiments run`: writes what a finished run has, and fails at b=2.
RUN = """
import json, pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
print("running", *sys.argv[1:])
if "b=2" in sys.argv:
    sys.exit(3)
(out / "numbers.json").write_text(json.dumps(sys.argv[1:]))
"""


@pytest.fixture
def command(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(RUN)
    return f"{sys.executable} {script}"


def arguments(tmp_path, *more):
    return ["toy", "--grid", "a=1,x", "--grid", "b=1,2", "--seeds", "0,1", "--out", str(tmp_path / "runs"), *more]


def test_a_grid(tmp_path, command, capsys):
    assert sweep.main(arguments(tmp_path, "--jobs", "2", "--", "--tiny"), command) == 1
    runs = tmp_path / "runs"
    assert {path.name for path in runs.iterdir()} == {"a=1-b=1", "a=1-b=2", "a=x-b=1", "a=x-b=2"}
    assert json.loads((runs / "a=x-b=1" / "numbers.json").read_text()) == [
        "toy", "--seeds", "0,1", "--set", "a=x", "--set", "b=1", "--out", str(runs / "a=x-b=1"), "--tiny",
    ]  # fmt: skip
    said = capsys.readouterr().out
    assert "2 of 4 runs failed" in said
    assert str(runs / "a=1-b=2" / "sweep.log") in said


def test_again_does_what_is_left(tmp_path, command, capsys):
    sweep.main(arguments(tmp_path), command)
    stopped = tmp_path / "runs" / "a=1-b=2"
    (stopped / "settings.json").write_text("{}")
    (tmp_path / "run.py").write_text(RUN.replace("b=2", "never"))
    capsys.readouterr()
    assert sweep.main(arguments(tmp_path), command) == 0
    said = capsys.readouterr().out
    assert said.count("done") == 2
    assert "4 runs, 2 finished before" in said
    assert "--resume" in json.loads((stopped / "numbers.json").read_text())
    assert (tmp_path / "runs" / "a=1-b=1" / "sweep.log").read_text().count("running") == 1


def test_a_run_that_writes_no_numbers_has_failed(tmp_path, capsys):
    assert sweep.main(["toy", "--out", str(tmp_path)], f"{sys.executable} -c 0") == 1
    assert "FAILED" in capsys.readouterr().out


def test_a_grid_that_cannot_be_read():
    with pytest.raises(SystemExit, match="SETTING=VALUE"):
        sweep.grid_points(["a"])


@pytest.mark.parametrize("cluster", ["local", "debug"])
def test_job_array(tmp_path, command, monkeypatch, cluster, capsys):
    pytest.importorskip("submitit")
    # A job finds the function by its module's name.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    cluster_of_the_test = sweep.run_on_cluster

    def run(commands, jobs, report, out, _, **options):
        cluster_of_the_test(commands, jobs, report, out, cluster, timeout_min=options["timeout_min"])

    monkeypatch.setattr(sweep, "run_on_cluster", run)
    assert sweep.main(arguments(tmp_path, "--engine", "slurm", "--jobs", "2"), command) == 1
    said = capsys.readouterr().out
    assert said.count("done: ") == 2
    assert "2 of 4 runs failed" in said
