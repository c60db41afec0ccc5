"""Benchmarks and evaluations: make, run, list and compare them."""
