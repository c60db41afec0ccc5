"""Loops and experiments: what is carried out in steps, each a run or an evaluation."""
