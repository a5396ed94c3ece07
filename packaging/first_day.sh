#!/usr/bin/env bash
# Walks the path of a newcomer in a new clone, from an empty home folder, and prints the table of CONTRIBUTING.md.
#   bash packaging/first_day.sh [REPOSITORY]       # default: this checkout, as far as it is committed
set -euo pipefail
repository=${1:-$(cd "$(dirname "$0")/.." && pwd)}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export HOME=$folder/home
mkdir "$HOME"
cd "$folder"

step() { # what, the command as the table shows it, the command
    local start=$SECONDS
    bash -ec "$3" >"$folder/log" 2>&1 || { cat "$folder/log" >&2 && echo "failed: $3" >&2 && exit 1; }
    echo "| $1 | $2 | $((SECONDS - start)) s |"
}

echo "| step | command | time |"
echo "|---|---|---:|"
step "clone" '`git clone`' "git clone -q '$repository' diffclust"
cd diffclust
step "first result" '`make demo`' "make demo"
step "all tools, lint" '`make lint`' "make lint"
step "first test" '`.venv/bin/python -m pytest -q tests/test_forest.py -k ties`' \
    ".venv/bin/python -m pytest -q tests/test_forest.py -k ties"
step "lint, types, fast tests" '`make check`' "make check"
step "hooks" '`make hooks`' "make hooks"
step "first change and its test" 'a sentence of a docstring, `.venv/bin/python -m pytest -q tests/test_metrics.py`' \
    "sed -i '1s/\"\"\"/\"\"\"My first change. /' src/diffclust/metrics.py && .venv/bin/python -m pytest -q tests/test_metrics.py"
step "first commit, hooks run" '`git switch -c my-change`, `git commit -am "My change"`' \
    "git switch -qc my-change && git -c user.name=me -c user.email=me@example.org commit -qam 'My change'"
step "first pull request" '`git format-patch origin/main`, or push to your fork and open it there' \
    "git format-patch origin/HEAD && test -s 0001-My-change.patch"
