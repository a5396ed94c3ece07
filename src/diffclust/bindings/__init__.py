"""Expectations over draws for each framework: the same three functions, `values`, `adjacency` and `connectivity`.

A binding connects a solver to a framework's automatic differentiation. The formulas it registers are those of
``perturbed.py``.
"""
