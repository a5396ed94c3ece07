"""The package: what its metadata says, and what is in the built files.

``make release`` builds them and names their folder in DIFFCLUST_DIST; without it, what needs them is skipped.
"""

import os
import re
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
README = (ROOT / "README.md").read_text("utf-8")
HERE = "https://github.com/diffclust/diffclust"


def built(pattern):
    if "DIFFCLUST_DIST" not in os.environ:
        pytest.skip("DIFFCLUST_DIST does not name a folder of built files")
    (path,) = Path(os.environ["DIFFCLUST_DIST"]).glob(pattern)
    return path


def test_metadata_is_complete():
    assert PROJECT["authors"] == [{"name": "diffclust contributors"}]
    assert {"Homepage", "Documentation", "Repository", "Issues", "Changelog"} <= set(PROJECT["urls"])
    assert all(address.startswith("https://") for address in PROJECT["urls"].values())
    lowest = PROJECT["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {lowest}" in PROJECT["classifiers"]


def test_versions_of_python_agree():
    supported = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    span = f"Python {supported[0]} to {supported[-1]}"
    for page in ("README.md", "CONTRIBUTING.md", "docs/start.md"):
        assert span in (ROOT / page).read_text("utf-8"), page
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8")
    tested = re.findall(r'"(3\.\d+)"', workflow.split("matrix:")[1].split("runs-on")[0])
    assert set(supported) <= set(tested)
    limits = (ROOT / "docs" / "limits.md").read_text("utf-8")
    assert [version for version in tested if version not in supported and f"Python {version}" not in limits] == []


def test_pinned_triton_is_the_one_that_pinned_torch_asks_for():
    """PyPI's torch asks for one version exactly; the CPU build, which we may have here, asks for none."""
    pins = dict(re.findall(r"^(torch|triton)==(\S+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE))
    asked = {"2.13.0": "3.7.1"}  # see https://pypi.org/project/torch; add a line with each new pin
    assert pins["triton"] == asked.get(pins["torch"]), pins


def test_all_is_every_extra_for_users():
    extras = PROJECT["optional-dependencies"]
    assert extras["all"] == ["diffclust[cells,fit,jax,metric-learning,neighbors,text]"]
    assert "diffclust[torch]" in extras["fit"]


def test_the_script_tries_every_extra_for_users():
    text = (ROOT / "packaging" / "try_extras.py").read_text("utf-8")
    tried = set(re.findall(r'^    "([\w-]+)": ', text, re.MULTILINE)) | {"all"}
    assert tried == {"core", "all", "torch", "jax", "fit", "cells", "text", "neighbors", "metric-learning"}


def test_readme_is_short():
    assert len(README.splitlines()) <= 120


def test_readme_shows_on_pypi():
    """There, relative addresses lead nowhere."""
    addresses = re.findall(r"\]\(([^)\s]+)\)", README)
    assert addresses
    assert [address for address in addresses if not address.startswith(("https://", "#"))] == []


def test_addresses_of_the_repository_are_files_of_it():
    pages = [README, *(path.read_text("utf-8") for path in (ROOT / "docs").rglob("*.md"))]
    for page in pages:
        for path in re.findall(rf"{HERE}/(?:blob|tree)/main/([^)#\s]+)", page):
            assert (ROOT / path).exists(), path
        for path in re.findall(r"https://raw\.githubusercontent\.com/diffclust/diffclust/main/([^)\s]+)", page):
            assert (ROOT / path).exists(), path


def test_conda_recipe_asks_for_what_the_package_asks_for():
    recipe = (ROOT / "packaging" / "recipe" / "recipe.yaml").read_text("utf-8")
    run = recipe.split("  run:\n")[1].split("  run_constraints:")[0]
    asked = {line.strip(" -").replace(" ", "") for line in run.splitlines() if "python" not in line.split(">=")[0]}
    assert asked - {""} == {line.replace(" ", "") for line in PROJECT["dependencies"]}


def test_contents_of_the_wheel():
    with zipfile.ZipFile(built("*.whl")) as wheel:
        names = wheel.namelist()
        metadata = wheel.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    sources = ROOT / "src"
    expected = {
        path.relative_to(sources).as_posix()
        for path in (sources / "diffclust").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".nbi", ".nbc")
    }
    packaged = {name for name in names if ".dist-info/" not in name}
    assert packaged == expected
    assert "diffclust/py.typed" in packaged
    assert "diffclust/report/page/template.html" in packaged
    assert "License-Expression: Apache-2.0" in metadata
    assert "Author: diffclust contributors" in metadata


def test_contents_of_the_sdist():
    with tarfile.open(built("*.tar.gz")) as sdist:
        names = {name.split("/", 1)[1] for name in sdist.getnames() if "/" in name}
    for needed in ("pyproject.toml", "PKG-INFO", "LICENSE", "Makefile", "constraints.txt", "tests/conftest.py",
                   "docs/conf.py", "examples/two_moons.py", "results/README.md", "benchmarks/loss.py"):  # fmt: skip
        assert needed in names
    assert not [name for name in names if name.startswith(("docs/gallery", "docs/reference", "docs/live", ".venv"))]
