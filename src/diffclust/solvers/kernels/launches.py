"""How kernels are launched, whatever launches them."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

MAX_POINTS = 1 << 14  # an index has 14 bits in a key
MAX_GRID = (1 << 16) - 1  # programs along the second axis of a launch
INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))  # by NumPy, in tests without a GPU


def launch(num_warps: int) -> dict[str, Any]:
    """The options of a launch."""
    # A fused multiplication and addition would round once instead of twice: other noise than on other devices.
    return {"num_warps": num_warps, "num_stages": 1, "enable_fp_fusion": False}


def warps_for(n: int) -> int:
    """Warps of a program that grows the tree of n points: what was fastest on an H200."""
    for warps, largest in ((2, 64), (4, 128), (8, 256), (16, 512), (8, 1024), (16, 4096)):
        if n <= largest:
            return warps
    return 32


def warps_inside(block: int) -> tuple[int, int]:
    """How wide most vectors of ``grow_units`` are, and warps of its programs."""
    narrow = min(max(32, block // 4), 512)
    return narrow, 1 if narrow <= 64 else narrow // 32  # a point a thread: more would be loaded one after another


def by_rounds(n: int, n_trees: int, multiprocessors: int) -> bool:
    """Whether trees grow by rounds of Borůvka's algorithm, see ``trees.py``.

    That is faster than Prim's alone where all trees grow at the same time. Where they do not, Prim's takes fewer
    registers, so that more of them fit.
    """
    at_once = multiprocessors * max(1, 256 // triton.next_power_of_2(n))
    return 1 < n <= 2048 and n_trees <= at_once
