"""Runs from start to end, from outside: start, resume, follow, list, derive new ones."""
