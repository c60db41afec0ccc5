"""Trackers: each round's numbers also go to TensorBoard, trackio, W&B or MLflow, where a run asks for them.

Each tracker is a process of its own (``python -m ratchet.tracking NAME FOLDER``) that reads the run's journal: a
library that fails, hangs or takes over signals costs the run nothing. The worker starts and watches it
(``worker/tracker_processes.py``). Prompts, answers and references are no part of what is sent, nor are the settings'
texts.

Knows neither torch nor the engine, and loads no tracker's library before a process is one tracker's.
"""

from importlib.util import find_spec

from ratchet.config import Tracker

INSTALL = "pip install 'ratchet-rl[tracking]'"


def is_installed(tracker: Tracker) -> bool:
    """Whether a tracker's library is installed. Its package has the same name, MLflow's also mlflow-skinny."""
    spec = find_spec(tracker)
    return spec is not None and spec.origin is not None  # a folder of that name, such as wandb leaves, is no package
