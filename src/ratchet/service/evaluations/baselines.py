"""The baseline of a run: a completed evaluation of its data that supplies verifier and metric where the run names none.

The run then trains on what was measured.
"""

from ratchet.config import DatasetData, MathPairsData, RunConfig, VerifierSettings
from ratchet.datasets.questions import math_pairs_origin
from ratchet.errors import Conflict, InvalidSetting
from ratchet.evaluation.benchmark import ACCURACY, BenchmarkSpec
from ratchet.evaluation.evaluation import Evaluation
from ratchet.run.run_folder import RunFolder
from ratchet.service.evaluations.benchmarks import find_benchmark
from ratchet.service.evaluations.evaluation_catalogue import find_evaluation
from ratchet.verifiers import KINDS

_FIELD = "baseline"


def with_baseline(config: RunConfig) -> RunConfig:
    """Settings with verifier and form of their baseline, where they name none of their own.

    Raises:
        NotFound: there is no such evaluation.
        Conflict: it has not completed.
        InvalidSetting: it is of other data, or its main metric cannot be a reward.
    """
    if not config.baseline:
        return config
    evaluation = find_evaluation(config.baseline)
    if evaluation.scores is None:
        status = evaluation.status.replace("_", " ")
        raise Conflict(f"Baseline {evaluation.id} is {status}: only a completed evaluation can be one.")
    benchmark = find_benchmark(evaluation.benchmark_hash).spec
    _refuse_other_data(config, evaluation, benchmark)
    if config.verifier is not None:
        return config
    asked = RunFolder.at(evaluation.folder).read_config()
    reward = config.reward if "format_bonus" in config.reward.model_fields_set else asked.reward
    return config.model_copy(update={"verifier": _rewarding(asked, evaluation), "reward": reward})


def note_on(baseline: str, *, is_own: bool) -> str:
    """Where a run's verifier comes from: it is the run's own, or its baseline's."""
    if is_own:
        return f"The verifier is this run's own, whatever its baseline {baseline} was measured with."
    return f"Verifier and metric are taken from the baseline {baseline}."


def _refuse_other_data(config: RunConfig, evaluation: Evaluation, benchmark: BenchmarkSpec) -> None:
    """Refuse a baseline that was not measured on the run's own data."""
    data = config.data
    own = f"{data.name}@{data.version}" if isinstance(data, DatasetData) and data.version else ""
    if isinstance(data, MathPairsData):  # of other numbers, or another seed, they are other problems
        own = math_pairs_origin(data)
    source = benchmark.origin.partition(":")[0] if benchmark.source == "built_in" else ""
    is_same = benchmark.origin == own if own else source == data.source
    if not is_same:
        raise InvalidSetting(
            f"Baseline {evaluation.id} was measured on benchmark {benchmark.name}, made from {benchmark.origin}, not "
            f"from this run's data ({own or data.source}). Choose a baseline of the same data.",
            _FIELD,
        )


def _rewarding(asked: RunConfig, evaluation: Evaluation) -> VerifierSettings:
    """The baseline's verifier with its main metric as what is trained on."""
    verifier, main = asked.verifier, evaluation.main_column
    if verifier is None:
        raise ValueError("an evaluation has a verifier")
    if main == ACCURACY or main == getattr(verifier, "metric", None):
        return verifier
    if main in KINDS[verifier.kind].metrics and "metric" in type(verifier).model_fields:
        return verifier.model_copy(update={"metric": main})
    raise InvalidSetting(
        f"The baseline's main metric, {main}, cannot be a reward. Choose a verifier for this run.", "verifier.kind"
    )
