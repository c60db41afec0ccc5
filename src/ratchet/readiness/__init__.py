"""Whether a run can start: everything that is checked before a model loads, without torch and transformers.

``check`` makes all checks, for drafts, ``ratchet train --check`` and the start of a run. The engine's ``prepare`` makes
those that a run depends on by the very same functions, with the tokenizer that the run is trained with.
"""

from ratchet.readiness.advice import advice, advice_on_rate, highest_reward
from ratchet.readiness.check import Readiness, check
from ratchet.readiness.fault_list import Faults
from ratchet.readiness.model_checks import Fitted, Window, fit, left_out, preset_for_experts, refuse_experts, window_of
from ratchet.readiness.row_checks import Rows, open_rows

__all__ = [
    "Faults",
    "Fitted",
    "Readiness",
    "Rows",
    "Window",
    "advice",
    "advice_on_rate",
    "check",
    "fit",
    "highest_reward",
    "left_out",
    "open_rows",
    "preset_for_experts",
    "refuse_experts",
    "window_of",
]
