"""Adapters that runs ended with, and the files of runs in storage."""
