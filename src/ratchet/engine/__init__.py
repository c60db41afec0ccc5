"""The engine: everything that needs torch, transformers and PEFT. Read ``rounds.py`` first.

It knows no folder layout, clock policy, database or web: what it reports goes through functions it is given.
"""

from ratchet.engine.third_party import load_libraries

load_libraries()  # before any of the engine's modules imports them
