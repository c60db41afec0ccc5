"""Parts of an experiment that do not fit together: refused before anything is measured.

A difference measures the training only if both sides have one base model, and the left one is what was trained from.
"""

from ratchet.config import RunConfig
from ratchet.errors import Conflict, InvalidSetting
from ratchet.evaluation.evaluation import Evaluation, EvaluationSpec
from ratchet.evaluation.experiment import ExperimentSpec
from ratchet.readiness.start_adapter import with_start
from ratchet.service.runs.registry import find_run
from ratchet.service.runs.storage_paths import with_source_found


def refuse_contradictions(spec: ExperimentSpec) -> None:
    """Refuse parts of an experiment that do not go together."""
    if spec.adapter_of is not None:
        find_run(spec.adapter_of)
        if spec.sft is not None or len(spec.seeds) > 1:
            raise InvalidSetting(
                f"The adapter of run {spec.adapter_of} is scored as it is, so there is nothing to train with an SFT "
                "stage or several seeds. Remove these, or --adapter-of.",
                "adapter_of",
            )
    if spec.sft is not None:
        _refuse_other_stage(spec.sft, spec.config)
    for benchmark, baseline in spec.baselines.items():
        if benchmark not in spec.benchmarks:
            raise Conflict(
                f"Evaluation {baseline} cannot be the baseline: it is on none of this experiment's benchmarks. "
                "Remove it to measure one."
            )
    if spec.sft is not None and spec.sft.objective != "sft":
        raise InvalidSetting(
            f"The SFT stage has Objective {spec.sft.objective}. Set objective: sft in its file.",
            "objective",
        )


def _refuse_other_stage(sft: RunConfig, config: RunConfig) -> None:
    """Refuse an SFT stage that the training cannot continue from, or that begins elsewhere than the experiment."""
    for name, label in (("model", ""), ("revision", "revision "), ("quantization", "quantization ")):
        one, other = getattr(sft, name), getattr(config, name)
        if one != other:
            raise InvalidSetting(
                f"The SFT stage trains {label}{one}, but the experiment trains {label}{other}, which continues from "
                "its adapter. Choose the same model, revision and quantization.",
                name,
            )
    if _start_sha256(sft) != _start_sha256(config):
        places = [one.start_from.run or one.start_from.adapter or "the base model" for one in (sft, config)]
        raise InvalidSetting(
            f"The SFT stage starts from {places[0]}, but the experiment from {places[1]}, so the gain of one would "
            "be counted for the other. Start both from the same.",
            "start_from.adapter",
        )


def _start_sha256(config: RunConfig) -> str:
    """Checksum of the adapter that settings start from, "" for a new one."""
    return with_start(with_source_found(config)).config.start_from.sha256


def refuse_other_origin(run: str, config: RunConfig, spec: EvaluationSpec) -> None:
    """Refuse to score a run's adapter against something that it was not trained from."""
    source = find_run(run).read_config().start_from
    if source.sha256 != config.start_from.sha256:
        raise InvalidSetting(
            f"Run {run} was trained from {source.run or source.adapter or 'the base model'}, but this experiment "
            f"measures {spec.subject.name} first, so the difference would not be that run's. Use the run's own "
            f"settings: ratchet experiment start {run} --adapter-of {run}",
            "adapter_of",
        )


def refuse_other_base(
    run: str, start: tuple[RunConfig, EvaluationSpec], of_run: tuple[RunConfig, EvaluationSpec]
) -> None:
    """Refuse to score a run's adapter on another base model than the experiment measures."""
    (ours, our_spec), (theirs, their_spec) = start, of_run
    if our_spec.subject.identity != their_spec.subject.identity or ours.quantization != theirs.quantization:
        raise InvalidSetting(
            f"The adapter of run {run} is on {theirs.model} ({_held(theirs)}), but this experiment measures "
            f"{ours.model} ({_held(ours)}): other weights, so the difference would not be that run's. Choose the same.",
            "adapter_of",
        )


def _held(config: RunConfig) -> str:
    return f"revision {config.revision}, quantization {config.quantization}"


def refuse_other_baseline(baseline: Evaluation, spec: EvaluationSpec) -> None:
    """Refuse a baseline that is not a measurement, with the same set-up, of what the experiment starts from."""
    why = ""
    measured, start = ((one.kind, one.identity, one.sha256) for one in (baseline.subject, spec.subject))
    if baseline.scores is None:
        why = f"it is {baseline.status}, not completed"
    elif baseline.questions_sha256 != spec.questions_sha256:
        why = "its questions differ"
    elif measured != start:
        why = f"it is of {baseline.subject.name}, which is not what this experiment starts from"
    elif parts := [
        name for name in {**spec.setup, **baseline.setup} if baseline.setup.get(name) != spec.setup.get(name)
    ]:
        why = f"its {parts[0]} differs"
    if why:
        raise Conflict(f"Evaluation {baseline.id} cannot be the baseline: {why}. Remove it to measure one.")
