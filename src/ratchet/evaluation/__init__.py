"""Benchmarks, evaluations, comparisons, experiments and loops as plain data, and what is concluded from them.

Knows no model, verifier, database or clock: numbers and answers in, scores, verdicts and next steps out.
"""
