"""Ratchet: train language models with verifiable rewards on your own machine, and be told honestly whether it helped.

    import ratchet
    result = ratchet.train({"model": "tiny", "rl": {"rounds": 6}})

Nothing heavy is imported until a run starts.
"""

import os
from typing import TYPE_CHECKING, Any

# Here, because OpenMP reads it when torch is loaded, and this file runs before any other of ours. With busy cores,
# threads that spin at barriers wait for ones that are not scheduled: waiting passively was measured to be 10 to 20
# times faster there. GNU's OpenMP, which torch brings, may spin for a few microseconds first: waking a sleeping thread
# takes longer than a small product, which this makes up to five times faster, and busy cores lose nothing by it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
# oneDNN keeps what it prepared for each shape of a product, by default for 1,024. The number of rows changes with
# nearly every step, so several hundred megabytes were kept for shapes that do not come again. It is no slower so.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256")
# Forked processes would warn about the tokenizers' threads, which are of no use here.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

if TYPE_CHECKING:
    from ratchet.config import RunConfig as RunConfig
    from ratchet.evaluation.comparison import SideBySide as SideBySide
    from ratchet.evaluation.evaluation import Evaluation as Evaluation
    from ratchet.notebook import compare as compare
    from ratchet.notebook import confirm_report as confirm_report
    from ratchet.notebook import evaluate as evaluate
    from ratchet.notebook import inspect as inspect
    from ratchet.notebook import resume as resume
    from ratchet.notebook import train as train
    from ratchet.notebook import trial as trial
    from ratchet.run.records import RunResult as RunResult

_NAMES = {
    "config": ("RunConfig",),
    "evaluation.comparison": ("SideBySide",),
    "evaluation.evaluation": ("Evaluation",),
    "notebook": ("compare", "confirm_report", "evaluate", "inspect", "resume", "train", "trial"),
    "run.records": ("RunResult",),
}
_HOMES = {name: f"ratchet.{module}" for module, names in _NAMES.items() for name in names}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'ratchet' has no attribute {name!r}")
