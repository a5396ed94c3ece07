"""How large the package is: lines of code by area at two commits, both in today's format.

    python benchmarks/size.py e69c75f HEAD

A line of code has something else than a docstring or a comment. The old commit switched the formatter off in 141
places, so its files are formatted first. It needs git and ruff.
"""

import ast
import io
import re
import subprocess
import sys
import tarfile
import tokenize

# The first pattern that fits the path of a file says its area: first those with the same job then and now, then those
# with the same job and more, then what did not exist at e69c75f.
AREAS = {
    "bindings, several ranks": r"(bindings/(?!triton)|distributed)",
    "similarities, expectations, stability": r"(gradients|perturbed|similarity|stability)",
    "solvers for CPU and JAX": r"solvers/(cpu/(?!__|walk)|xla/(?!choice|host|ke|la)|tree)",
    "trees from points": r"solvers/points/(boruvka|cpu|cuda|metrics|neighbours|progress|reachability|tiles)",
    "training loop, checkpoints, fleets": r"training/(callbacks|checkpoints|fleet|loop)",
    "report: pictures, maps, sliders, file": r"report/(cuts|images|maps|rows|slider|write)",
    "operators, losses, constraints, modules": r"(__init__|_typing|constraints|forest|frameworks|groups|losses|metric"
    r"|nn|noise|problems|validation)",
    "contract of solvers, CUDA, search": r"solvers/(__|base|checks|compiled|ref|points/(__|search)|cpu/__"
    r"|(cuda|kernels)/(?!ahead|blocks|closures|draws|helper|inside|similarity|weights))",
    "estimators": r"(all_cuts|cluster|embedding|linkage|partition)",
    "training: settings, batches, network": r"(training/(?!steps|retraining)|backbones)",
    "tables": r"tables(.py|/(__init__|arrays|frames|known|read|table))",
    "runs": r"runs(.py|/(?!again|describe|place))",
    "report: what it shows": r"report/",
    "command line": r"(__main__|bench|cli|files|messages)",
    "speed: walks, kernels, forks": r"(solvers/(cpu|cuda|kernels|points|xla)|bindings/|training/steps|processes"
    r"|threads)",
    "any noise, edge lists": r"solvers/",
    "which cut, how many, how sure": r"(colouring|confidence|cuts|evidence|how_many|novelty|placing|samples|votes"
    r"|training/)",
    "asking, doubt, refits": r"(answers|continuation|doubt|knowledge|mistakes|suggestions|runs/again)",
    "cells, texts, pictures, columns": "",
}


def code_lines(source):
    layout = {"COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER"}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {n for t in tokens if tokenize.tok_name[t.type] not in layout for n in range(t.start[0], t.end[0] + 1)}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def by_area(commit):
    archive = subprocess.run(["git", "archive", commit, "src"], capture_output=True, check=True).stdout
    found = dict.fromkeys(AREAS, 0)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for file in files:
            if file.name.endswith(".py"):
                source = re.sub(r"  # fmt: skip", "", files.extractfile(file).read().decode())
                ruff = ["ruff", "format", "--line-length", "120", "-"]
                source = subprocess.run(ruff, input=source, capture_output=True, check=True, text=True).stdout
                path = file.name.removeprefix("src/diffclust/")
                found[next(area for area, pattern in AREAS.items() if re.match(pattern, path))] += code_lines(source)
    return found


if __name__ == "__main__":
    then, now = map(by_area, sys.argv[1:3])
    for area in AREAS:
        print(f"| {area} | {then[area]:,} | {now[area]:,} |")
    print(f"| all | {sum(then.values()):,} | {sum(now.values()):,} |")
