"""Settings of a run: the only place that knows their ranges, defaults, labels and help.

Flags, YAML files and the settings reference are made from these classes, and the engine receives the very same
frozen object. ``None`` in a field stands for "the usual value for what was chosen elsewhere"; ``resolved`` fills
all of them in, and only a resolved configuration is stored, so that a run never depends on later defaults.

Rules between settings are here too, worded with labels. What needs the data or the machine is checked where those
are read. Reading text (YAML, flags) is in ``config_text.py``.
"""

from ratchet.config.base import Settings, setting, walk_settings
from ratchet.config.data import (
    BoxedData,
    Data,
    DatasetData,
    DeepMathData,
    Gsm8kData,
    MathPairsData,
    PromptSettings,
    ReasoningGymData,
    WorkedExample,
)
from ratchet.config.endpoint_settings import EndpointSettings
from ratchet.config.loop_settings import LoopSettings
from ratchet.config.objectives import DpoSettings, Objective, SftSettings
from ratchet.config.resources import (
    KeepSettings,
    LimitSettings,
    LoraSettings,
    OptimizerSettings,
    Quantization,
    SamplerSettings,
    StartSettings,
)
from ratchet.config.rl import LOSS_DEFAULTS, PRESETS, Loss, RlSettings
from ratchet.config.run import RunConfig, Tracker
from ratchet.verifiers import VerifierSettings
from ratchet.verifiers.classification import ClassificationVerifier
from ratchet.verifiers.code import CodeVerifier
from ratchet.verifiers.composite import CompositePart, CompositeVerifier
from ratchet.verifiers.custom import CustomVerifier
from ratchet.verifiers.final_number import FinalNumberVerifier
from ratchet.verifiers.kinds import PlainVerifierSettings
from ratchet.verifiers.math import MathVerifier
from ratchet.verifiers.math_pairs import MathPairsVerifier
from ratchet.verifiers.numeric import NumericVerifier
from ratchet.verifiers.python_function import PythonVerifier
from ratchet.verifiers.qa import QaVerifier
from ratchet.verifiers.reasoning_gym import ReasoningGymVerifier
from ratchet.verifiers.reward import RewardSettings
from ratchet.verifiers.settings import FormatKind, Read
from ratchet.verifiers.structured_json import StructuredJsonVerifier
from ratchet.verifiers.tool_call import ToolCallVerifier

__all__ = [
    "LOSS_DEFAULTS",
    "PRESETS",
    "BoxedData",
    "ClassificationVerifier",
    "CodeVerifier",
    "CompositePart",
    "CompositeVerifier",
    "CustomVerifier",
    "Data",
    "DatasetData",
    "DeepMathData",
    "DpoSettings",
    "EndpointSettings",
    "FinalNumberVerifier",
    "FormatKind",
    "Gsm8kData",
    "KeepSettings",
    "LimitSettings",
    "LoopSettings",
    "LoraSettings",
    "Loss",
    "MathPairsData",
    "MathPairsVerifier",
    "MathVerifier",
    "NumericVerifier",
    "Objective",
    "OptimizerSettings",
    "PlainVerifierSettings",
    "PromptSettings",
    "PythonVerifier",
    "QaVerifier",
    "Quantization",
    "Read",
    "ReasoningGymData",
    "ReasoningGymVerifier",
    "RewardSettings",
    "RlSettings",
    "RunConfig",
    "SamplerSettings",
    "Settings",
    "SftSettings",
    "StartSettings",
    "StructuredJsonVerifier",
    "ToolCallVerifier",
    "Tracker",
    "VerifierSettings",
    "WorkedExample",
    "setting",
    "walk_settings",
]
