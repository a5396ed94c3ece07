"""Triton kernels for a GPU: noise made inside, a program for each (problem, draw). Of torch and JAX they know nothing.

**Idea.** The perturbed similarities of a draw are made once, as words of the order of their weights (``weights.py``).
Prim reads one row of them in each round, with its whole state in registers: one 64-bit key for every vertex, its best
edge to the tree. A key holds all that decides between edges, what counts most at the top::

    bit 63   in the tree: sticky under the unsigned maximum of an update, last under the signed one of a choice
    61 - 62  tier, where only edges inside blocks are wanted: 2 the same closure, 1 the same block, 0 all others
    29 - 60  weight, a float32 mapped to an unsigned integer of the same order
     1 - 28  complement of the edge (i, j), i < j, 14 bits each: equal weights go by smaller (i, j)
     0       whether the new vertex is j

so one maximum decides a round, ties included, and the keys of the rounds are the spanning tree. Where all trees grow at
the same time, rounds of Borůvka's algorithm, which do not wait for single rows, take its place. The constrained forest
comes out of that tree (docs/design.md): a walk over its sorted edges joins closures to blocks (``blocks.py``), and what
is then left in pieces is connected, by programs that share the work of a draw (``inside.py``). General cannot-links go
through the greedy itself (``cuda/greedy.py``); which problems have them, only kernels know.

**Cost.** A pair's noise takes some 50 instructions, once. Then a draw is n - 1 rounds of Prim, each of which waits for
one row of words, and takes some 20 instructions a vertex; or about log₂ n rounds of Borůvka, each of which reads all
words. Memory is 4 n² bytes for each draw in flight.

The noise is that of :mod:`diffclust.noise` to the last bit, so kernels run with ``enable_fp_fusion=False``.

The way of a draw: ``weights.py``, ``trees.py``, ``forests.py`` (what is returned of a tree), ``blocks.py``, all three
in ``draws.py``, then ``inside.py``. ``small.py`` is all of that in one launch. ``cuda/`` launches these kernels for
torch, ``xla/kernels.py`` makes them part of a JAX program.
"""
