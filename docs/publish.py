"""Puts a built site into the folder of its version on the branch gh-pages, with a list of all versions.

python docs/publish.py build/site/html v0.1.0 FOLDER    # FOLDER becomes a checkout of gh-pages; it is pushed

``switcher.json`` feeds the menu of versions. The start page of the branch leads to the newest tag, or else to ``dev``.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

URL = os.environ.get("DIFFCLUST_DOCS_URL", "https://diffclust.github.io/diffclust")


def version_key(name: str) -> list[int]:
    """v0.10.0 is newer than v0.9.0."""
    return [int(number) for number in re.findall(r"\d+", name)]


def place(site: Path, version: str, pages: Path) -> None:
    """The files, without git."""
    shutil.rmtree(pages / version, ignore_errors=True)
    shutil.copytree(site, pages / version)
    tags = sorted((path.name for path in pages.glob("v*") if path.is_dir()), key=version_key, reverse=True)
    newest = tags[0] if tags else "dev"
    versions = [name for name in ("dev", *tags) if (pages / name).is_dir()]
    entries = [{"version": name, "url": f"{URL}/{name}/", "preferred": name == newest} for name in versions]
    (pages / "switcher.json").write_text(json.dumps(entries, indent=2) + "\n", "utf-8")
    start = f'<!doctype html><meta http-equiv="refresh" content="0; url={newest}/"><a href="{newest}/">diffclust</a>\n'
    (pages / "index.html").write_text(start, "utf-8")
    (pages / ".nojekyll").touch()


def git(*arguments: str, at: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A command of git, which may fail."""
    return subprocess.run(["git", *arguments], cwd=at, text=True, capture_output=True)


def main(site: Path, version: str, pages: Path) -> None:
    """The files in a checkout of the branch, committed and pushed."""
    git("fetch", "origin", "gh-pages")
    if git("worktree", "add", str(pages), "origin/gh-pages").returncode:  # the first time
        subprocess.run(["git", "worktree", "add", "--orphan", "-b", "gh-pages", str(pages)], check=True)
    place(site, version, pages)
    git("add", "--all", at=pages)
    who = ["-c", "user.name=docs", "-c", "user.email=docs@users.noreply.github.com"]
    subprocess.run(["git", *who, "commit", "--quiet", "-m", f"Site of {version}"], cwd=pages, check=True)
    subprocess.run(["git", "push", "origin", "HEAD:gh-pages"], cwd=pages, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
