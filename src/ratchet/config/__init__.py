"""Settings of a run: the only place that knows their ranges, defaults, labels and help.

Flags, YAML files and the settings reference are made from these classes, and the engine receives the very same
frozen object. ``None`` in a field stands for "the usual value for what was chosen elsewhere"; ``resolved`` fills
all of them in, and only a resolved configuration is stored, so that a run never depends on later defaults.

Rules between settings are here too, worded with labels. What needs the data or the machine is checked where those
are read. Reading text (YAML, flags) is in ``config_text.py``.
"""

from ratchet.config.base import Settings as Settings
from ratchet.config.base import walk_settings as walk_settings
from ratchet.config.data import BoxedData as BoxedData
from ratchet.config.data import Data as Data
from ratchet.config.data import DatasetData as DatasetData
from ratchet.config.data import DeepMathData as DeepMathData
from ratchet.config.data import Gsm8kData as Gsm8kData
from ratchet.config.data import MathPairsData as MathPairsData
from ratchet.config.data import PromptSettings as PromptSettings
from ratchet.config.data import ReasoningGymData as ReasoningGymData
from ratchet.config.data import WorkedExample as WorkedExample
from ratchet.config.endpoint_settings import EndpointSettings as EndpointSettings
from ratchet.config.objectives import LOSS_DEFAULTS as LOSS_DEFAULTS
from ratchet.config.objectives import PRESETS as PRESETS
from ratchet.config.objectives import DpoSettings as DpoSettings
from ratchet.config.objectives import Loss as Loss
from ratchet.config.objectives import Objective as Objective
from ratchet.config.objectives import RlSettings as RlSettings
from ratchet.config.objectives import SftSettings as SftSettings
from ratchet.config.resources import KeepSettings as KeepSettings
from ratchet.config.resources import LimitSettings as LimitSettings
from ratchet.config.resources import LoopSettings as LoopSettings
from ratchet.config.resources import LoraSettings as LoraSettings
from ratchet.config.resources import OptimizerSettings as OptimizerSettings
from ratchet.config.resources import Quantization as Quantization
from ratchet.config.resources import SamplerSettings as SamplerSettings
from ratchet.config.resources import StartSettings as StartSettings
from ratchet.config.run import RunConfig as RunConfig
from ratchet.config.run import Tracker as Tracker
from ratchet.verifiers import VerifierSettings as VerifierSettings
from ratchet.verifiers.classification import ClassificationVerifier as ClassificationVerifier
from ratchet.verifiers.code import CodeVerifier as CodeVerifier
from ratchet.verifiers.composite import CompositePart as CompositePart
from ratchet.verifiers.composite import CompositeVerifier as CompositeVerifier
from ratchet.verifiers.custom import CustomVerifier as CustomVerifier
from ratchet.verifiers.final_number import FinalNumberVerifier as FinalNumberVerifier
from ratchet.verifiers.math import MathVerifier as MathVerifier
from ratchet.verifiers.math_pairs import MathPairsVerifier as MathPairsVerifier
from ratchet.verifiers.numeric import NumericVerifier as NumericVerifier
from ratchet.verifiers.python_function import PythonVerifier as PythonVerifier
from ratchet.verifiers.qa import QaVerifier as QaVerifier
from ratchet.verifiers.reasoning_gym import ReasoningGymVerifier as ReasoningGymVerifier
from ratchet.verifiers.reward import RewardSettings as RewardSettings
from ratchet.verifiers.settings import FormatKind as FormatKind
from ratchet.verifiers.structured_json import StructuredJsonVerifier as StructuredJsonVerifier
from ratchet.verifiers.tool_call import ToolCallVerifier as ToolCallVerifier
