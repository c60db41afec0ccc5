"""The engine: everything that needs torch, transformers and PEFT. Read ``rounds.py`` first.

It knows no folder layout, clock policy, database or web: what it reports goes through functions it is given.
"""

import os

# Before torch is imported: with busy cores, threads that spin at barriers wait for ones that are not scheduled.
# Waiting passively was measured to be 10 to 20 times faster there and costs nothing on idle machines.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
