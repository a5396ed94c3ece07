"""The paper's experiments and ours: recipes over the one training loop. Not in the wheel."""
