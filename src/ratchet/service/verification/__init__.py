"""Verifiers before and outside of runs: report cards, metrics of the user's own, grading rows."""
