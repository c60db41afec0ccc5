"""What parts of an experiment do not go together: refused before anything is measured.

A difference is a training's own only if both sides are of one base model, and the left one is what was trained from.
"""

from ratchet.config import RunConfig
from ratchet.errors import Conflict, InvalidSetting
from ratchet.evaluation.evaluation import Evaluation, EvaluationSpec
from ratchet.evaluation.experiment import ExperimentSettings
from ratchet.readiness.start_adapter import with_start
from ratchet.service.adapters.resolve_start import with_source_found
from ratchet.service.runs.registry import find_run


def refuse_contradictions(settings: ExperimentSettings) -> None:
    """Refuse parts of an experiment that do not go together."""
    if settings.adapter_of is not None:
        find_run(settings.adapter_of)
        if settings.sft is not None or len(settings.seeds) > 1:
            raise InvalidSetting(
                f"The adapter of run {settings.adapter_of} is to be scored as it is, so there is nothing to train by "
                "an SFT stage or by several seeds. Leave these out, or the adapter.",
                "adapter_of",
            )
    if settings.sft is not None:
        _refuse_other_stage(settings.sft, settings.config)
    for benchmark, baseline in settings.baselines.items():
        if benchmark not in settings.benchmarks:
            raise Conflict(
                f"Evaluation {baseline} cannot be the baseline: it is on none of the benchmarks of this experiment. "
                "Leave it out to measure one."
            )
    if settings.sft is not None and settings.sft.objective != "sft":
        raise InvalidSetting(
            f"The settings of the SFT stage have Objective {settings.sft.objective}. Set objective: sft in its file.",
            "objective",
        )


def _refuse_other_stage(sft: RunConfig, config: RunConfig) -> None:
    """Refuse an SFT stage that the training cannot go on from, or that begins elsewhere than the experiment."""
    for name, label in (("model", ""), ("revision", "revision "), ("quantization", "quantization ")):
        one, other = getattr(sft, name), getattr(config, name)
        if one != other:
            raise InvalidSetting(
                f"The SFT stage trains {label}{one}, but the experiment trains {label}{other}, which is to go on from "
                "its adapter. Choose the same model, revision and quantization.",
                name,
            )
    if _start_sha256(sft) != _start_sha256(config):
        places = [one.start_from.run or one.start_from.adapter or "the base model" for one in (sft, config)]
        raise InvalidSetting(
            f"The SFT stage starts from {places[0]}, but the experiment from {places[1]}, so that the gain of the one "
            "would be counted for the other. Let both start from the same.",
            "start_from.adapter",
        )


def _start_sha256(config: RunConfig) -> str:
    """Return the checksum of the adapter that settings start from, "" for a new one."""
    return with_start(with_source_found(config)).config.start_from.sha256


def refuse_other_origin(run: str, config: RunConfig, spec: EvaluationSpec) -> None:
    """Refuse to score a run's adapter against something that it was not trained from."""
    source = find_run(run).read_config().start_from
    if source.sha256 != config.start_from.sha256:
        raise InvalidSetting(
            f"Run {run} was trained from {source.run or source.adapter or 'the base model'}, but this experiment "
            f"measures {spec.subject.name} first, so the difference would not be that run's. Take the settings of the "
            f"run itself: ratchet experiment start {run} --adapter-of {run}",
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
    """Refuse a baseline that is no measurement of what the experiment starts from, asked in the same way."""
    why = ""
    measured, start = ((one.kind, one.identity, one.sha256) for one in (baseline.subject, spec.subject))
    if baseline.scores is None:
        why = f"it is {baseline.status}, not completed"
    elif baseline.questions_sha256 != spec.questions_sha256:
        why = "its questions are others"
    elif measured != start:
        why = f"it is of {baseline.subject.name}, which is not what this experiment starts from"
    elif parts := [
        name for name in {**spec.setup, **baseline.setup} if baseline.setup.get(name) != spec.setup.get(name)
    ]:
        why = f"it was asked with another {parts[0]}"
    if why:
        raise Conflict(f"Evaluation {baseline.id} cannot be the baseline: {why}. Leave it out to measure one.")
