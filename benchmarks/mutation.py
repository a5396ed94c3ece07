"""How many random mistakes in the source do the tests notice?

    pip install pytest-cov
    python benchmarks/mutation.py --map                       # once: which test runs which line
    python benchmarks/mutation.py --sample 300 --seed 2026 --jobs 2 --out results/mutation.csv

A mutant is one small change of one file of ``src/diffclust``, see :class:`Mutator`. It is killed if a test fails or
runs out of time, and survives if all tests that run the changed line pass. The same command goes on where it stopped.
Mutants live in copies of the repository (``--work``); the repository itself is only read.

Not mutated: what needs a GPU; strings, and all of the texts of errors and warnings; annotations, imports, decorators
and other options of a compiler; conditions of ``while``, which would not end; keywords that say how something looks or
that only check (COSMETIC); None.

Numba and XLA compile what they run, and other processes are not watched, so for these files :data:`TESTS` says which
tests to run, after those that are known to run the line.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import csv
import fnmatch
import importlib
import multiprocessing
import os
import random
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("src/diffclust")
GPU_FILES = ("solvers/cuda/*", "solvers/kernels/*", "solvers/points/cuda.py")
GPU_WORDS = re.compile(r'"cuda"|is_cuda|on_gpu|_until_capture|_graph\b|_streams')
GPU_FUNCTIONS = {"_captured", "_on_streams"}  # of training/fleet.py: CUDA graphs
SKIPPED_TESTS = {"test_cuda", "test_torch_cuda", "test_examples", "test_experiments", "test_sweep", "test_images"}
COSMETIC = {"help", "metavar", "rich_help_panel", "strict", "stacklevel", "indent", "err"}
TESTS = {
    "solvers/cpu/*": ("test_solvers", "test_noise", "test_forest", "test_perturbed", "test_losses"),
    "solvers/tree.py": ("test_hierarchy", "test_forest", "test_stability", "test_cluster"),
    "solvers/points/*": ("test_points", "test_hierarchy", "test_cluster"),
    "solvers/xla/*": ("test_jax_solver", "test_jax"),
    "bindings/jax.py": ("test_jax", "test_jax_solver", "test_losses"),
    "noise.py": ("test_noise", "test_jax_solver", "test_solvers"),
    "distributed.py": ("test_distributed",),
    "training/ranks.py": ("test_ranks",),
}
ELSEWHERE = ("test_distributed", "test_ranks")  # lines that no test is seen to run may run in another process
COMPILED = ("noise.py", "solvers/*.py", "solvers/cpu/*.py", "solvers/points/*.py")  # by Numba
WARM = ("test_solvers", "test_points", "test_hierarchy", "test_stability", "test_noise")  # these compile nearly all
PRELOADED = ("torch", "lightning.pytorch", "jax", "jax.numpy", "pandas", "sklearn.cluster", "sklearn.datasets",
             "scipy.spatial", "scipy.sparse.csgraph", "hypothesis", "plotly", "matplotlib", "networkx")  # fmt: skip

SWAPS: dict[type[ast.AST], tuple[str, ...]] = {  # token, and what may stand in its place
    ast.Lt: ("<", "<=", ">="), ast.LtE: ("<=", "<", ">"), ast.Gt: (">", ">=", "<="), ast.GtE: (">=", ">", "<"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"), ast.And: ("and", "or"), ast.Or: ("or", "and"),
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"), ast.Pow: ("**", "*"), ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.BitXor: ("^", "|"),
}  # fmt: skip
EXTREMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "argmin": "argmax",
            "argmax": "argmin"}  # fmt: skip


class Mutant(NamedTuple):
    file: str  # below PACKAGE
    line: int
    column: int
    operator: str
    before: str
    after: str
    start: int  # bytes of the file
    end: int
    lines: tuple[int, int]  # that are run if the change is; (0, 0): whatever imports the file

    @property
    def key(self) -> tuple[str, ...]:
        return (self.file, str(self.line), str(self.column), self.operator, self.before, self.after)


class Mutator(ast.NodeVisitor):
    """Collects the mutants of one file."""

    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source, self.mutants = file, source, list[Mutant]()
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.lines = (0, 0)
        self.visit(ast.parse(source))

    def place(self, node: ast.AST) -> tuple[int, int]:
        start = self.starts[node.lineno - 1] + node.col_offset
        return start, self.starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.AST) -> str:
        return self.source[slice(*self.place(node))].decode()

    def add(self, operator: str, start: int, end: int, after: str) -> None:
        changed = self.source[:start] + after.encode() + self.source[end:]
        try:
            compile(changed, self.file, "exec")
        except SyntaxError:
            return
        line = self.source.count(b"\n", 0, start) + 1
        before = self.source[start:end].decode()
        given = (self.file, line, start - self.starts[line - 1], operator, before, after, start, end, self.lines)
        self.mutants.append(Mutant(*given))

    def swap(self, op: ast.AST, left: ast.AST, right: ast.AST) -> None:
        """The token of an operator stands somewhere between its operands."""
        if type(op) not in SWAPS:
            return
        token, *others = SWAPS[type(op)]
        between, end = self.place(left)[1], self.place(right)[0]
        at = self.source[between:end].find(token.encode())
        if at >= 0:
            for other in others:
                self.add("operator", between + at, between + at + len(token), other)

    # Which lines a change is run with

    def generic_visit(self, node: ast.AST) -> None:
        outer = self.lines
        if isinstance(node, ast.stmt) and self.inside:
            first = next((n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt)), None)
            last = node.end_lineno if first is None else max(node.lineno, first.lineno - 1)
            self.lines = (node.lineno, last)
        super().generic_visit(node)
        self.lines = outer

    inside = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in GPU_FUNCTIONS:
            return
        outer, self.lines = (self.lines, self.inside), (node.body[0].lineno, node.end_lineno)
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(default)
        self.inside = True
        for statement in node.body:
            self.visit(statement)
        self.lines, self.inside = outer

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt) and not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            opening = self.source[self.place(node)[0] : self.starts[node.lineno]]
            needs_gpu = not isinstance(node, ast.If) and GPU_WORDS.search(opening.decode())
            if re.search(rb"pragma: no cover|TYPE_CHECKING|numba\.njit", opening) or needs_gpu:
                return
        super().visit(node)

    def visit_Import(self, node: Any) -> None:
        pass

    visit_ImportFrom = visit_JoinedStr = visit_Assert = visit_Import

    # The operators

    def visit_Compare(self, node: ast.Compare) -> None:
        for op, left, right in zip(node.ops, (node.left, *node.comparators), node.comparators, strict=False):
            self.swap(op, left, right)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if not any(isinstance(side, ast.JoinedStr) or is_text(side) for side in (node.left, node.right)):
            self.swap(node.op, node.left, node.right)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.swap(node.op, left, right)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, (ast.Not, ast.USub, ast.Invert)):
            self.add("sign", self.place(node)[0], self.place(node.operand)[0], "")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            others = [not value]
        elif isinstance(value, int):
            others = [0, 2] if value == 1 else [value + 1]
        elif isinstance(value, float):
            others = [value * 2 or 1.0]
        else:
            return
        for other in others:
            self.add("constant", *self.place(node), repr(other))

    def visit_If(self, node: Any) -> None:
        test = self.text(node.test)
        if not GPU_WORDS.search(test):
            self.add("condition", *self.place(node.test), f"(not ({test}))")
            self.generic_visit(node)
        else:  # only the branch without a GPU
            for statement in node.body if "!=" in test or "not " in test else node.orelse:
                self.visit(statement)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.add("condition", *self.place(node.test), f"(not ({self.text(node.test)}))")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name == "warn":
            return
        if name in EXTREMES:
            end = self.place(node.func)[1]
            self.add("extreme", end - len(name), end, EXTREMES[name])
        for keyword in node.keywords:
            if keyword.arg is not None and keyword.arg not in COSMETIC:
                start, end = self.place(keyword)
                comma = re.match(rb"\s*,", self.source[end:])
                before = re.search(rb",\s*$", self.source[:start])
                if comma or before is None:
                    end += comma.end() if comma else 0
                else:
                    start = before.start()
                self.add("keyword", start, end, "")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            outer, self.lines = self.lines, (node.lineno, node.end_lineno)
            self.add("return", *self.place(node.value), "None")
            self.lines = outer
        self.generic_visit(node)

    def remove(self, node: ast.stmt) -> None:
        outer, self.lines = self.lines, (node.lineno, node.end_lineno) if self.inside else (0, 0)
        self.add("statement", *self.place(node), "pass")
        self.lines = outer

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.remove(node)
        if not is_text(node.value):
            self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.remove(node)  # and nothing in it: the text of an error is not tested word by word

    visit_Continue = visit_Break = visit_Raise

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.remove(node)
        outer, self.lines = self.lines, (node.lineno, node.end_lineno)
        self.swap(node.op, node.target, node.value)
        self.lines = outer
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if getattr(node.targets[0], "id", "").startswith("__"):  # __all__, __version__
            return
        if self.inside and all(isinstance(target, (ast.Subscript, ast.Attribute)) for target in node.targets):
            self.remove(node)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            outer, self.lines = self.lines, (node.lineno, node.end_lineno) if self.inside else (0, 0)
            self.visit(node.value)
            self.lines = outer


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def all_mutants(only: str) -> list[Mutant]:
    found = []
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        file = path.relative_to(ROOT / PACKAGE).as_posix()
        if fnmatch.fnmatch(file, only) and not any(fnmatch.fnmatch(file, gpu) for gpu in GPU_FILES):
            found += Mutator(file, path.read_bytes()).mutants
    return found


# ------------------------------------------------------------------------------------------------------------------
# Which tests run a line


def environment(copy: Path) -> dict[str, str]:
    return {
        "CI": "1", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
        "TRITON_INTERPRET": "1", "PYTHONPATH": str(copy / "src"), "JAX_COMPILATION_CACHE_DIR": str(copy.parent / "jax"),
        "JAX_PERSISTENT_COMPILATION_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    }  # fmt: skip


def copy_repository(copy: Path) -> None:
    """What git knows of, with its times, by which Numba recognises what it has compiled; leaves caches alone."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    for folder in ("src", "tests"):
        shutil.rmtree(copy / folder, ignore_errors=True)
    for name in filter(None, names):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name)


def make_map(work: Path) -> None:
    """Runs each test file once; those that have not changed, nor any source, are not run again."""
    copy, folder = work / "0", work / "map"
    copy_repository(copy)
    folder.mkdir(exist_ok=True)
    newest = max(path.stat().st_mtime for path in (ROOT / PACKAGE).rglob("*.py"))
    for path in sorted((copy / "tests").glob("test_*.py")):
        data, times = folder / path.stem, folder / f"{path.stem}.xml"
        current = times.exists() and times.stat().st_mtime > max(newest, path.stat().st_mtime)
        if path.stem not in SKIPPED_TESTS and not current:
            print(path.stem, flush=True)
            options = ["--cov=src/diffclust", "--cov-context=test", "--cov-report=", f"--junitxml={times}"]
            subprocess.run(
                [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(path.relative_to(copy))],
                cwd=copy, env={**os.environ, **environment(copy), "COVERAGE_FILE": str(data)},
            )  # fmt: skip


class Tests:
    """Node names of tests, by the lines that they run, with the seconds that they take."""

    def __init__(self, folder: Path) -> None:
        import coverage

        self.seconds: dict[str, float] = {}
        self.runs: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for times in sorted(folder.glob("test_*.xml")):
            for case in xml.etree.ElementTree.parse(times).iter("testcase"):
                if not len(case):  # neither failed nor skipped
                    name = f"tests/{times.stem}.py::{case.get('name')}"
                    self.seconds[name] = float(case.get("time"))
            data = coverage.CoverageData(str(folder / times.stem))
            data.read()
            for path in data.measured_files():
                lines = self.runs[path.split(f"{PACKAGE.as_posix()}/")[-1]]
                for line, contexts in data.contexts_by_lineno(path).items():
                    lines[line] |= {context for context in contexts if context}

    def of(self, mutant: Mutant, budget: float) -> list[str]:
        """Those that may kill the mutant, most likely first; together they take no longer than the budget."""
        lines = self.runs[mutant.file]
        wanted = [lines[line] for line in lines if mutant.lines[0] <= line <= mutant.lines[1] or mutant.lines == (0, 0)]
        contexts = set[str]().union(*wanted)
        names = {context.split("|")[0] for context in contexts}
        # What a fixture did for the first test that needed it, it did for the others of that file.
        files = {context.split("::")[0] for context in contexts if context.endswith("|setup")}
        names |= {name for name in self.seconds if name.split("::")[0] in files}
        table = [each for pattern, given in TESTS.items() if fnmatch.fnmatch(mutant.file, pattern) for each in given]
        if not names:
            table = table or list(ELSEWHERE)
        own = f"test_{Path(mutant.file).stem}"

        def order(name: str) -> tuple[Any, ...]:
            stem = Path(name.split("::")[0]).stem
            return (name not in names, table.index(stem) if stem in table else len(table), stem != own,
                    self.seconds[name])  # fmt: skip

        chosen, total = [], 0.0
        for name in sorted((n for n in self.seconds if n in names or Path(n.split("::")[0]).stem in table), key=order):
            total += self.seconds[name]
            if not chosen or total <= budget:
                chosen.append(name)
        return chosen


# ------------------------------------------------------------------------------------------------------------------
# Running


class Alarm:
    """Ends the process where a test takes three times as long as without a mutant, and a while for compilers.

    Seconds of the processor count, so that a busy machine kills no mutant; a test that only waits has ten minutes more.
    """

    def __init__(self, seconds: dict[str, float], file: str) -> None:
        self.seconds = seconds
        self.more = 150 if any(fnmatch.fnmatch(file, pattern) for pattern in TESTS) else 40

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        limit = 3 * self.seconds.get(nodeid, 10) + self.more
        signal.setitimer(signal.ITIMER_PROF, limit)
        signal.setitimer(signal.ITIMER_REAL, limit + 600)


class Worker:
    """A copy of the repository, in which one mutant at a time is tested, in a process of its own."""

    def __init__(self, copy: Path) -> None:
        self.copy, self.base, self.process = copy, "", None
        copy_repository(copy)
        self.log = copy.parent / f"{copy.name}.log"

    def start(self, mutant: Mutant | None, tests: Sequence[str], *plugins: Any) -> None:
        self.mutant, self.tests, self.plugins, self.started = mutant, tests, plugins, time.monotonic()
        if mutant is not None:
            path = self.copy / PACKAGE / mutant.file
            self.saved = path, path.read_bytes(), path.stat().st_mtime_ns
            path.write_bytes(self.saved[1][: mutant.start] + mutant.after.encode() + self.saved[1][mutant.end :])
        self.process = multiprocessing.get_context("fork").Process(target=self.test)
        self.process.start()

    def test(self) -> None:
        """In the new process, which shares what was imported before it was made."""
        os.setsid()
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(self.copy)
        os.environ.update(environment(self.copy))
        sys.dont_write_bytecode = True
        sys.path[:0] = [str(self.copy / "src"), str(self.copy)]
        runpy.run_path("tests/conftest.py")
        compiled = Path(os.environ["NUMBA_CACHE_DIR"])
        base = self.copy / ".cache" / "base"
        if self.mutant is None:
            base.parent.mkdir(exist_ok=True)
            base.unlink(missing_ok=True)
            base.symlink_to(compiled)
        elif not compiled.exists():  # conftest.py has another folder for changed sources: take over the rest
            shutil.copytree(base.resolve(), compiled)
            for folder, stem, function in stale_functions(self.copy, self.mutant):
                for old in compiled.glob(f"{folder}_*/{stem}.{function}-*"):
                    old.unlink()
        import pytest

        options = ["-q", "-x", "--tb=line", "-p", "no:cacheprovider", f"--basetemp={self.copy}/tmp"]
        code = int(pytest.main([*options, *self.tests], plugins=[OneStamp(), *self.plugins]))
        if self.mutant is not None and compiled != base.resolve():
            shutil.rmtree(compiled, ignore_errors=True)
        os._exit(code)

    def result(self) -> tuple[str, str] | None:
        """What became of the mutant, and by which test; None while tests run."""
        if self.process.is_alive():
            return None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()
        if self.mutant is not None:
            path, source, when = self.saved
            path.write_bytes(source)
            os.utime(path, ns=(when, when))
        code = self.process.exitcode
        log = self.log.read_text(errors="replace")
        named = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - |$)", log, re.MULTILINE)
        if code in (-signal.SIGALRM, -signal.SIGPROF):
            return "timeout", ""
        if code in (4, 5) and "Traceback" not in log and "rror collecting" not in log and "E  " not in log:
            return "error", f"pytest ended with {code}"  # it does not know one of the tests
        return ("survived", "") if code == 0 else ("killed", named[1] if named else f"exit code {code}")


def stale_functions(copy: Path, mutant: Mutant) -> set[tuple[str, str, str]]:
    """(folder, stem, function) of what has to be compiled again: all that mentions the changed statement, or what does.

    Found by name: too many rather than too few.
    """
    statements = []
    for path in (path for pattern in COMPILED for path in (copy / PACKAGE).glob(pattern)):
        for node in ast.parse(path.read_bytes()).body:
            names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            if isinstance(node, ast.FunctionDef):
                if not node.decorator_list and path.stem not in ("noise", "compiled"):
                    continue  # compiled code cannot call it
                calls = [each for each in node.decorator_list if isinstance(each, ast.Call)]
                overloaded = {each.id for call in calls for each in call.args if isinstance(each, ast.Name)}
                names = {node.name, *overloaded}
            mentioned = {getattr(n, "id", getattr(n, "attr", None)) for n in ast.walk(node)}
            changed = path == copy / PACKAGE / mutant.file and node.lineno <= mutant.line <= node.end_lineno
            statements.append((path, names, mentioned, changed))
    stale = set[str]().union(*(names for _, names, _, changed in statements if changed))
    while more := set[str]().union(*(names for _, names, mentioned, _ in statements if mentioned & stale)) - stale:
        stale |= more
    return {(path.parent.name, path.stem, name) for path, names, _, _ in statements for name in names & stale}


class OneStamp:
    """Numba would compile every function of a changed file again. Here :func:`stale_functions` alone decides."""

    def pytest_sessionstart(self) -> None:
        from numba.core import caching

        caching._SourceFileBackedLocatorMixin.get_source_stamp = lambda locator: ""


def check(workers: list[Worker], tests: list[str]) -> None:
    """All of these tests pass without a mutant."""
    for worker in workers:
        worker.start(None, tests)
    for worker in workers:
        while (result := worker.result()) is None:
            time.sleep(0.2)
        assert result[0] == "survived", f"tests fail without a mutant: {result[1]}, see {worker.log}"
        worker.process = None


def run(mutants: list[Mutant], tests: Tests, work: Path, jobs: int, out: Path, budget: float) -> None:
    workers = [Worker(work / str(number)) for number in range(jobs)]
    os.environ.update(environment(work / "0"))
    for name in PRELOADED:
        importlib.import_module(name)
    check(workers, [f"tests/{stem}.py" for stem in WARM])
    new = not out.exists()
    waiting = list(reversed(mutants))
    with out.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(["file", "line", "column", "operator", "before", "after", "result", "by", "seconds"])
        while waiting or any(worker.process for worker in workers):
            for worker in workers:
                if worker.process and (result := worker.result()):
                    seconds = time.monotonic() - worker.started
                    writer.writerow([*worker.mutant.key, *result, f"{seconds:.1f}"])
                    file.flush()
                    print(*worker.mutant.key[:4], repr(worker.mutant.before[:40]), "->", repr(worker.mutant.after[:40]),
                          *result, f"{len(worker.tests)} tests, {seconds:.0f} s", flush=True)  # fmt: skip
                    worker.process = None
                if waiting and worker.process is None:
                    mutant = waiting.pop()
                    chosen = tests.of(mutant, budget)
                    if chosen:
                        worker.start(mutant, chosen, Alarm(tests.seconds, mutant.file))
                    else:
                        writer.writerow([*mutant.key, "survived", "no test runs the line", "0"])
            time.sleep(0.05)
    with out.open(encoding="utf-8") as file:
        killers = {row["by"] for row in csv.DictReader(file)} & tests.seconds.keys()
    if killers:
        check(workers[:1], sorted(killers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--map", action="store_true", help="find out which tests run which line")
    parser.add_argument("--sample", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="*", metavar="GLOB", help="of files below src/diffclust")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tests for a mutant")
    parser.add_argument("--out", type=Path, default=Path("mutation.csv"))
    parser.add_argument("--again", action="store_true", help="test once more what survived or ran out of time")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "diffclust-mutation")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    if given.map:
        make_map(given.work)
        return
    mutants = all_mutants(given.only)
    chosen = random.Random(given.seed).sample(mutants, min(given.sample, len(mutants)))
    print(f"{len(chosen)} of {len(mutants)} mutants")
    rows = list(csv.reader(given.out.open(encoding="utf-8")))[1:] if given.out.exists() else []
    done = {tuple(row[:6]) for row in rows if not (given.again and row[6] in ("survived", "timeout"))}
    run([each for each in chosen if each.key not in done], Tests(given.work / "map"), given.work, given.jobs,
        given.out, given.budget)  # fmt: skip
    last = {tuple(row[:6]): row[6] for row in csv.reader(given.out.open(encoding="utf-8"))}
    results = [last[each.key] for each in chosen]
    killed = sum(result in ("killed", "timeout") for result in results)
    print(f"{killed} of {len(results)} killed: {killed / len(results):.1%}")


if __name__ == "__main__":
    main()
