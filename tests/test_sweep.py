"""Sweeps: every point of the grid once, what is finished is skipped, what failed is listed."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from experiments import sweep

ROOT = Path(__file__).resolve().parent.parent

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


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["local", "debug"])
def test_job_array(tmp_path, command, cluster):
    """submitit with its own stand-ins for Slurm, in a process of its own: it does as it likes with logs and streams."""
    pytest.importorskip("submitit")
    program = textwrap.dedent(
        f"""
        import sys
        from experiments import sweep

        on_cluster = sweep.run_on_cluster
        sweep.run_on_cluster = lambda commands, jobs, report, out, _, timeout_min, **options: on_cluster(
            commands, jobs, report, out, {cluster!r}, timeout_min=timeout_min
        )
        sys.exit(sweep.main({arguments(tmp_path, "--engine", "slurm", "--jobs", "2")!r}, {command!r}))
        """
    )
    # A job finds the function by its module's name.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    result = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert result.returncode == 1, result.stderr
    assert result.stdout.count("done: ") == 2
    assert "2 of 4 runs failed" in result.stdout
