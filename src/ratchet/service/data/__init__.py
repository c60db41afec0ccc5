"""Datasets of the user's own: versions, their checks and their names."""
