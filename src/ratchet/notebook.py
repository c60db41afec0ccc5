"""Ratchet from Python: ``ratchet.inspect``, ``ratchet.train`` and ``ratchet.resume``, with a verifier of your own.

    def closeness(answer: str, ground_truth: str) -> float:
        return 1.0 if answer.strip() == ground_truth else 0.0

    settings = {"data": {"source": "boxed", "path": "rows.jsonl"}}
    report = ratchet.inspect(settings, verifier=closeness)  # shows itself in a notebook
    ratchet.confirm_report(report)
    result = ratchet.train(
        settings,
        verifier=closeness,
        on_round=lambda record: print(record.round, record.validation.accuracy),
    )

The function runs in this process and is trusted. The run records its module, name and a hash of its source; such a
run can only be resumed by ``ratchet.resume(folder, verifier=function)``.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ratchet import service
from ratchet.config import CompositeVerifier, PythonVerifier, RunConfig, VerifierSettings
from ratchet.config.changes import with_values
from ratchet.config.config_text import build, read_file
from ratchet.errors import Conflict, InvalidSetting
from ratchet.evaluation.comparison import SideBySide
from ratchet.evaluation.evaluation import Evaluation
from ratchet.run.events import Event, Listener, RoundDone
from ratchet.run.records import RoundRecord, RunResult
from ratchet.verifiers import identity, takes_function

OnRound = Callable[[RoundRecord], None]
VerifierFunction = Callable[..., Any]
Config = RunConfig | Mapping[str, Any] | str | Path


def inspect(config: Config, *, verifier: VerifierFunction | None = None) -> service.Report:
    """Make the report of a run's verifier, data, model and prompt; return it. A notebook shows it as a page.

    Arguments and errors are those of ``train``. It is no run.
    """
    return service.inspect(_settings(config, verifier), function=verifier)


def confirm_report(report: service.Report, *, override: str = "") -> None:
    """Record that you have read a report, so that runs with its verifier, data, model and prompt may start.

    Args:
        report: What ``inspect`` returned.
        override: Why a run may start although the report refuses it, in three words or more.

    Raises:
        Conflict: the report refuses the run and no reason is given, or another report took its place since.
    """
    service.confirm(report, service.Consent("python", override))


def train(
    config: Config,
    *,
    verifier: VerifierFunction | None = None,
    on_round: OnRound | None = None,
    out: str | Path | None = None,
    inspected: bool = False,
    override_report: str = "",
) -> RunResult:
    """Train, and return how the run ended.

    Args:
        config: Settings as an object, as a nested mapping, or as the path of a YAML file.
        verifier: ``f(answer, ground_truth) -> 0..1``, or with the prompt as a third parameter. It takes the place of
            the verifier in the settings; of a composite, that of the part whose kind is python, if there is one.
        on_round: Called after round 0 and after each round, once the round is safe on disk.
        out: The run folder; one under the user's data folder by default.
        inspected: Say that you have read the report of the verifier; one is made where there is none.
        override_report: Why to start although the report refuses the run, in three words or more; with ``inspected``.

    A run that hangs in native code, where no exception reaches, is closed after ``limits.stall_minutes`` and ends this
    process with exit code 4.

    Raises:
        Conflict: the report of the verifier is not confirmed, or refuses the run.
        RatchetError: see ``ratchet.errors``; its message says what to do.
    """
    if out is not None and not isinstance(out, str | Path):
        raise InvalidSetting(f"out is of type {type(out).__name__}; give the path of a folder, or leave it out.", "out")
    settings, listeners = _settings(config, verifier), _listeners(on_round)
    ask = (lambda report: service.Consent("python", override_report)) if inspected else None
    place = Path(out) if out else None
    return service.create_and_train(settings, place, function=verifier, listeners=listeners, ask=ask)


def trial(config: Config, *, verifier: VerifierFunction | None = None, out: str | Path | None = None) -> service.Trial:
    """Try a run for minutes; return what it measured and what the full run would take.

    Arguments and errors are those of ``train``. ``trial.full_run()`` returns the full run's settings.
    """
    settings = _settings(config, verifier)
    return service.run_trial(settings, Path(out) if out else None, function=verifier)


def evaluate(
    subject: str | Path,
    benchmark: str = "",
    *,
    like: Evaluation | str | None = None,
    of_start: bool = False,
    answers: int = 1,
    **changes: object,
) -> Evaluation:
    """Score a run's adapter, a model or an adapter's folder on a benchmark; return what was found.

    Args:
        subject: A run's id or folder, a model's name or folder.
        benchmark: The benchmark's name, such as math-pairs.
        like: In place of a benchmark an evaluation that is there: the same questions, asked and graded alike.
        of_start: Of a run, score what it started from instead, asked as the run asks.
        answers: Answers a question: 1 is greedy, more are sampled.
        changes: Settings that take the place of the run's, by a leaf's name, such as ``max_answer_tokens=64``.

    Raises:
        NotFound: there is no such benchmark or evaluation.
        InvalidSetting: neither of them is given, or both.
        RatchetError: it cannot be evaluated, or what failed it.
    """
    from ratchet.service.evaluations.evaluation_setup import Request
    from ratchet.service.evaluations.evaluations import evaluate, request_like

    if (like is None) == (not benchmark):
        raise InvalidSetting("Give a benchmark, or an evaluation to ask alike (like).", "benchmark")
    texts = {key: str(value) for key, value in changes.items()}
    request = Request(str(subject), benchmark, of_start=of_start, answers=answers, changes=texts)
    if like is not None:
        request = request_like(request, _place(like))
    return evaluate(request)


def compare(*evaluations: Evaluation | str) -> SideBySide:
    """Compare evaluations question by question, each later one with the first; ``comparisons`` hold the verdicts.

    Raises:
        Conflict: they did not ask the same questions in the same way.
    """
    from ratchet.service.evaluations.evaluation_catalogue import compare_evaluations

    return compare_evaluations([_place(one) for one in evaluations])[0]


def _place(evaluation: Evaluation | str) -> str:
    return evaluation if isinstance(evaluation, str) else evaluation.folder


def _settings(config: Config, verifier: VerifierFunction | None) -> RunConfig:
    """The settings, with the identity of the user's own verifier in them."""
    if not isinstance(config, RunConfig | Mapping | str | Path):
        raise InvalidSetting(
            f"The settings are of type {type(config).__name__}; give a RunConfig, a mapping or the path of a YAML file."
        )
    if isinstance(config, str | Path):
        config = build(read_file(Path(config)))
    elif not isinstance(config, RunConfig):
        config = build(config)
    if verifier is not None:
        own = _with_identity(config.verifier, identity(verifier))
        config = with_values(config, {"verifier": own.model_dump(mode="json")})
    return config


def _with_identity(settings: VerifierSettings | None, function: PythonVerifier) -> VerifierSettings:
    """A verifier with the user's function in it: as the part of a composite that asks for one, else as all."""
    if isinstance(settings, CompositeVerifier) and takes_function(settings):
        parts = [
            part.model_copy(update={"verifier": _with_identity(part.verifier, function)})
            if isinstance(part.verifier, PythonVerifier)
            else part
            for part in settings.parts
        ]
        return settings.model_copy(update={"parts": tuple(parts)})
    return function.model_copy(update={"read": settings.read if settings else None})


def resume(
    run_or_folder: str | Path, *, verifier: VerifierFunction | None = None, on_round: OnRound | None = None
) -> RunResult:
    """Resume a run that was killed or stopped, from its last finished round.

    Raises:
        Conflict: the run is over, or the verifier is not the function that it was started with.
    """
    if verifier is not None:
        _refuse_other_function(service.find_run(str(run_or_folder)).read_config(), verifier)
    return service.resume(str(run_or_folder), function=verifier, listeners=_listeners(on_round))


def _refuse_other_function(config: RunConfig, verifier: VerifierFunction) -> None:
    stored, given = _function_in(config.verifier), identity(verifier)
    if stored is None:
        raise Conflict("This run has a built-in verifier. Resume it without a function.")
    # Where Python cannot show a function's source its name is all there is to go by.
    by_name = (stored.module, stored.name) == (given.module, given.name)
    if stored.source_hash != given.source_hash or not (stored.source_hash or by_name):
        raise Conflict(
            f"This run was started with {stored.module}.{stored.name}, whose source has changed since, or with "
            f"another function than {given.module}.{given.name}, so resuming would not reproduce the same result."
        )


def _function_in(settings: VerifierSettings | None) -> PythonVerifier | None:
    """The function of the user's own that a verifier is or has as a part, None where there is none."""
    kinds = [part.verifier for part in settings.parts] if isinstance(settings, CompositeVerifier) else [settings]
    return next((one for one in kinds if isinstance(one, PythonVerifier)), None)


def _listeners(on_round: OnRound | None) -> list[Listener]:
    if on_round is not None and not callable(on_round):
        kind = type(on_round).__name__
        raise InvalidSetting(f"on_round is of type {kind}; give a function of a round's record.", "on_round")
    if on_round is None:
        return []

    def on_event(event: Event) -> None:
        if isinstance(event, RoundDone):
            on_round(event.record)

    return [Listener(on_event)]
