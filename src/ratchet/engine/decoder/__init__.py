"""A decoder of our own for the models most people train: same weights, same numbers, less time and memory.

``weights`` reads a transformers model with its adapter, ``attention`` and ``layer`` compute packed rows forward and
backward, ``decoding`` writes one token after another.
"""
