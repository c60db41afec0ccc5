"""How an evaluation is set up: which model, which questions, prompts and sampling, and what grades the answers.

The benchmark's own harness takes precedence, then that of the run that made the model, then the benchmark's defaults.
All of it is fixed in the evaluation's record. Creating and doing evaluations is in ``evaluations.py``.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ratchet.config import EndpointSettings, PromptSettings, RunConfig, StartSettings, VerifierSettings
from ratchet.config.changes import with_values
from ratchet.config.config_text import build
from ratchet.config.endpoint_settings import secret_field
from ratchet.config.setting_words import full_key
from ratchet.datasets import Dataset, benchmark_folders
from ratchet.datasets.tokens import NotCountable, open_encoder
from ratchet.endpoint import EndpointRequest, extra_sent, sampling_sent
from ratchet.errors import Conflict, InvalidSetting, NotFound
from ratchet.evaluation.benchmark import FORMAT, BenchmarkSpec
from ratchet.evaluation.evaluation import CHANGEABLE, EvaluationSpec, Subject, SubjectKind
from ratchet.files import expanded
from ratchet.models.adapter_files import holds_adapter
from ratchet.models.model_files import find, locate, model_config
from ratchet.readiness import Faults, fit, window_of
from ratchet.readiness.start_adapter import with_start
from ratchet.run.refusals import KIND_WORDS
from ratchet.run.run_folder import RunFolder
from ratchet.service.evaluations.benchmark_setup import StoredBenchmark
from ratchet.service.evaluations.benchmarks import find_benchmark
from ratchet.service.runs.registry import find_run
from ratchet.service.runs.storage_paths import settings_of, with_source_found
from ratchet.verifiers import takes_function

MOST_ANSWERS = 64  # a question
_RUN_ID, _JOB_ID = r"[re]\d{6}-\d{6}-[0-9a-f]{4}", r"[lx]\d{6}-\d{6}-[0-9a-f]{4}"
_LEAST_ANSWER = 16  # tokens


@dataclass(frozen=True)
class Request:
    """An evaluation that is wanted.

    Attributes:
        subject: A run (meaning its adapter), an adapter's folder, a model's name or folder; of an endpoint, what
            to call it.
        benchmark: The benchmark's name or content hash.
        of_start: Of a run, evaluate the checkpoint that it started from instead.
        is_merged: Of a model's folder, that it is a merged one.
        answers: Answers a question: 1 is greedy, more are sampled.
        changes: Settings by key that override all others: those in ``CHANGEABLE``.
        endpoint: The endpoint that answers, None for a model on this machine.
        name, project: Labels.
        owner: Which step of a loop or experiment it is.
        config: The settings of the run whose start is meant, where no run has been made of them yet.
        only: The questions to ask, by number; None: all of the benchmark.
        set_up_as: Settings whose prompt, verifier, form, max answer tokens, sampling and quantization replace the
            model's own.
    """

    subject: str
    benchmark: str
    of_start: bool = False
    is_merged: bool = False
    answers: int = 1
    changes: Mapping[str, str] = field(default_factory=dict)
    endpoint: EndpointSettings | None = None
    name: str = ""
    project: str | None = None
    owner: str | None = None
    config: RunConfig | None = None
    set_up_as: RunConfig | None = None
    only: tuple[int, ...] | None = None


def put_together(request: Request) -> tuple[RunConfig, EvaluationSpec]:
    """Settings of an evaluation's model, and what is evaluated. Creates nothing.

    Raises:
        NotFound, Conflict, InvalidSetting, ModelUnavailable: it cannot be evaluated.
    """
    if not 1 <= request.answers <= MOST_ANSWERS:
        raise InvalidSetting(
            f"Answers per question is {request.answers}. Choose 1, which is greedy, to {MOST_ANSWERS}.", "answers"
        )
    _refuse_without_part(request.changes)
    benchmark = find_benchmark(request.benchmark)
    source, subject = _subject(request)
    notes: list[str] = []
    held = source.quantization
    if request.set_up_as is not None:
        source, notes = _set_up_as(source, request.set_up_as, subject, request.answers)
    changes = dict(request.changes)
    verifier = _verifier(benchmark.spec, source)
    if takes_function(verifier):
        raise InvalidSetting(
            "A Python function of this process cannot grade a benchmark. Add it as a metric: ratchet metric add FILE",
            "verifier",
        )
    config = _for_evaluation(source, benchmark.spec, verifier)
    if changes:
        config = with_values(config, changes)
    config = config.resolved()
    if request.project is not None:
        config = config.model_copy(update={"project": request.project})
    if subject.kind == "adapter" and subject.run and config.quantization != held:
        notes.append(
            f"The adapter was trained with quantization {held} and is evaluated with {config.quantization}, so its "
            "answers may differ from those in training."
        )
    if subject.kind == "endpoint":
        _refuse_unsent(config)
    else:
        config, subject = _pinned(config, subject)
        is_given = source.prompt.system_prompt is not None or "rl.max_answer_tokens" in map(full_key, changes)
        config = _fitted(config, benchmark, is_open=not is_given and benchmark.spec.max_answer_tokens is None)
    return config, EvaluationSpec(
        name=request.name,
        benchmark=benchmark.spec.name,
        benchmark_hash=benchmark.content_hash,
        questions_sha256=_questions_sha256(benchmark.spec, request.only),
        questions=benchmark.spec.questions if request.only is None else len(request.only),
        score_columns=_columns(benchmark.spec, config),
        subject=subject,
        setup=_setup(config, request.answers, request.endpoint),
        answers_per_question=request.answers,
        endpoint=None if request.endpoint is None else request.endpoint.model_dump(mode="json"),
        only=request.only,
        notes=tuple(notes),
    )


def _refuse_without_part(changes: Mapping[str, str]) -> None:
    """Refuse settings that would change nothing.

    Raises:
        InvalidSetting: they play no part in an evaluation.
    """
    without = sorted(key for key in map(full_key, changes) if key not in CHANGEABLE)
    if without:
        plays = "plays" if len(without) == 1 else "play"
        raise InvalidSetting(
            f"{', '.join(without)} {plays} no part in an evaluation. You can change: {', '.join(CHANGEABLE)}.",
            without[0],
        )


def _set_up_as(source: RunConfig, set_up_as: RunConfig, subject: Subject, answers: int) -> tuple[RunConfig, list[str]]:
    """A model's settings with another's prompts and sampling, and notes on what of that no endpoint takes."""
    names = ("prompt", "verifier", "reward", "rl", "seed", "quantization")
    asked = source.model_copy(update={name: getattr(set_up_as, name) for name in names})
    if subject.kind != "endpoint":
        return asked, []
    notes = []
    if asked.rl.top_k and answers > 1:
        notes.append(f"Top-k {asked.rl.top_k} of the other evaluation is not sent to an endpoint, which uses its own.")
    if options := asked.prompt.template_options:
        notes.append(
            f"Chat template options ({', '.join(options)}) of the other evaluation are not sent to an endpoint, which "
            "uses its own."
        )
    without = {
        "rl": asked.rl.model_copy(update={"top_k": source.rl.top_k}),
        "prompt": asked.prompt.model_copy(update={"template_options": source.prompt.template_options}),
        "quantization": source.quantization,
    }
    return asked.model_copy(update=without), notes


def _refuse_unsent(config: RunConfig) -> None:
    """Refuse settings of a model on this machine that no request to an endpoint has a field for.

    Raises:
        InvalidSetting: one is set.
    """
    top_k = config.rl.top_k
    if top_k:
        raise InvalidSetting(
            f"Top-k is {top_k}, which is not sent to endpoints. Remove it. If the endpoint supports it, set it as one "
            f"of its Extra fields: extra_body={{top_k: {top_k}}}.",
            "rl.top_k",
        )
    if config.prompt.template_options:
        raise InvalidSetting(
            "Chat template options are set, which are not sent to endpoints. Remove them. If the endpoint supports "
            "them, set them as its Extra fields, such as extra_body={chat_template_kwargs: {...}}.",
            "prompt.template_options",
        )
    if config.quantization != "none":
        raise InvalidSetting(
            f"Quantization is {config.quantization}, but an endpoint decides that itself. Remove it.",
            "quantization",
        )


def _questions_sha256(benchmark: BenchmarkSpec, only: tuple[int, ...] | None) -> str:
    """Hash that identifies a set of questions."""
    if only is None:
        return benchmark.questions_sha256
    return hashlib.sha256(json.dumps([benchmark.questions_sha256, only]).encode()).hexdigest()


def _subject(request: Request) -> tuple[RunConfig, Subject]:
    """Settings that the model comes with, and what it is."""
    if request.endpoint is not None:
        endpoint = request.endpoint
        if named := secret_field(endpoint.extra_body):
            raise InvalidSetting(
                f"Extra fields contain {named}, which looks like a key: settings are stored and shown. Put it into an "
                "environment variable, and set Key variable to its name.",
                "endpoint.extra_body",
            )
        subject = Subject(
            kind="endpoint", name=request.subject or endpoint.model, model=endpoint.model, identity=endpoint.url
        )
        return build({"model": endpoint.model, "device": "cpu"}), subject
    if request.config is not None:
        return _start_of(request.config)
    run = _run(request.subject)
    if run is not None:
        return _of_run(run, request)
    place = expanded(request.subject)
    if request.of_start:
        raise NotFound(f"There is no run {request.subject}. Only the start of a run can be evaluated.")
    if holds_adapter(place):
        base = dict(request.changes).get("model")
        if base is None:
            raise InvalidSetting(
                f"{request.subject} is an adapter without its run. Name its base model: --model NAME.",
                "model",
            )
        config = build({"model": base, "start_from": {"adapter": str(place)}})
        return config, Subject(kind="adapter", name=place.name, model=base)
    kind: SubjectKind = "merged" if request.is_merged else "base"
    return build({"model": request.subject}), Subject(kind=kind, name=place.name, model=request.subject)


def _run(name: str) -> RunFolder | None:
    """The run of that id or in that folder, None where no run is meant.

    Raises:
        NotFound: what is named like a run is not there, or it is a loop or an experiment.
    """
    if re.fullmatch(_JOB_ID, name):
        raise NotFound(f"{name} is a loop or an experiment. Name one of its runs instead.")
    try:
        return find_run(name)
    except NotFound:
        if re.fullmatch(_RUN_ID, name):
            raise
        return None


def _of_run(run: RunFolder, request: Request) -> tuple[RunConfig, Subject]:
    config = settings_of(run)
    if run.kind != "full":
        raise Conflict(f"{run.run_id} is {KIND_WORDS[run.kind]}, which keeps no adapter.")
    if request.of_start:
        if config.start_from.adapter is not None:  # the copy that the run was started from
            start = config.start_from.model_copy(update={"adapter": str(run.start_path)})
            config = config.model_copy(update={"start_from": start})
        return _start_of(config)
    config = config.model_copy(update={"start_from": StartSettings(adapter=run.run_id)})
    return config, Subject(kind="adapter", name=run.run_id, model=config.model, run=run.run_id)


def _start_of(config: RunConfig) -> tuple[RunConfig, Subject]:
    """What a run of these settings starts from: the base model, or an adapter on it."""
    start = config.start_from
    if start.adapter is None:
        return config, Subject(kind="base", name=Path(config.model).name, model=config.model)
    return config, Subject(
        kind="adapter", name=start.run or Path(start.adapter).name, model=config.model, run=start.run or None
    )


def _verifier(benchmark: BenchmarkSpec, source: RunConfig) -> VerifierSettings:
    """The benchmark's verifier; where it leaves open what to extract the answer from, as the run's."""
    own, theirs = benchmark.verifier, source.verifier
    if own.read is None and theirs is not None and theirs.kind == own.kind and theirs.read is not None:
        return own.model_copy(update={"read": theirs.read})
    return own


def _for_evaluation(source: RunConfig, benchmark: BenchmarkSpec, verifier: VerifierSettings) -> RunConfig:
    """A model's settings with the harness, verifier and form that it is evaluated with."""
    own, usual = benchmark.harness, benchmark.usual
    is_of_run = source.prompt.system_prompt is not None
    given = source.prompt
    system_prompt = own.system_prompt if own.system_prompt is not None else given.system_prompt
    examples = own.worked_examples
    if examples is None and is_of_run and isinstance(given.few_shot_examples, tuple):
        examples = given.few_shot_examples
    prompt = PromptSettings(
        system_prompt=usual.system_prompt or "" if system_prompt is None else system_prompt,
        few_shot_examples=(usual.worked_examples or ()) if examples is None else examples,
        template_options=given.template_options,
    )
    is_same_kind = source.verifier is not None and source.verifier.kind == verifier.kind
    reward = benchmark.reward if benchmark.reward.format_bonus is not None or not is_same_kind else source.reward
    longest = benchmark.max_answer_tokens
    rl = source.rl if longest is None else source.rl.model_copy(update={"max_answer_tokens": longest})
    limits = source.limits.model_copy(
        update={"time_hours": None, "cost_cap": None, "price_per_hour": None, "target_percent": None}
    )
    return source.model_copy(
        update={
            "objective": "rl",
            "prompt": prompt,
            "verifier": verifier,
            "watch": None,
            "reward": reward.model_copy(update={"overlong_buffer_tokens": None}),
            "rl": rl,
            "limits": limits,
            "trackers": (),
        }
    )


def _pinned(config: RunConfig, subject: Subject) -> tuple[RunConfig, Subject]:
    """Find the adapter that is evaluated and pin it by its checksum; check that the base model is there."""
    config, _ = with_start(with_source_found(config))
    files = locate(config.model)
    start = config.start_from
    identity = files.identity or f"{files.source}@{config.revision}"
    pinned = {"model": config.model, "revision": config.revision, "identity": identity, "sha256": start.sha256}
    return config, subject.model_copy(update={**pinned, "run": start.run or None})


def _fitted(config: RunConfig, benchmark: StoredBenchmark, *, is_open: bool) -> RunConfig:
    """Check that every question fits the context length with max answer tokens.

    Where nobody has set these (``is_open``), they are lowered to what fits.

    Raises:
        InvalidSetting, IncompatibleData, ModelUnavailable: what does not fit, or the model is not there.
    """
    place = find(config.model)
    settings = model_config(place, config.revision)
    try:
        encoder = open_encoder(place, config.revision, config.prompt.template_options)
    except NotCountable:  # only transformers can count this model's tokens: the worker will
        return config
    _, prompts = benchmark_folders.read(benchmark.content_hash)
    rows = Dataset((), (), prompts, instruction="", examples=(), notes=())

    def fit_all(asked: RunConfig) -> int | None:
        faults = Faults()
        window = window_of(asked, settings, encoder.window)
        fitted = fit(asked, rows, encoder, window, faults)
        faults.raise_any()
        return None if window.tokens is None else window.tokens - fitted.longest_prompt

    if not is_open:
        fit_all(config)
        return config
    room = fit_all(_with_longest(config, _LEAST_ANSWER))
    return config if room is None or room >= config.rl.max_answer_tokens else _with_longest(config, room)


def _with_longest(config: RunConfig, tokens: int) -> RunConfig:
    return config.model_copy(update={"rl": config.rl.model_copy(update={"max_answer_tokens": tokens})})


def _columns(benchmark: BenchmarkSpec, config: RunConfig) -> tuple[str, ...]:
    has_form = (config.reward.format_bonus or "off") != "off"
    return tuple(column for column in benchmark.score_columns if column != FORMAT or has_form)


def _setup(config: RunConfig, answers: int, endpoint: EndpointSettings | None) -> dict[str, Any]:
    """What must be the same for two evaluations to be comparable, by the names people know.

    Quantization none and no extra fields are left out: so a model here compares with an endpoint, and with what was
    evaluated before there were these parts.
    """
    verifier = {} if config.verifier is None else config.verifier.model_dump(mode="json")
    if source := verifier.pop("source", ""):
        verifier["source_sha256"] = hashlib.sha256(source.encode()).hexdigest()
    reward, rl = config.reward, config.rl
    examples: Sequence[Any] = (
        config.prompt.few_shot_examples if isinstance(config.prompt.few_shot_examples, tuple) else ()
    )
    return {
        "System prompt": config.prompt.system_prompt or "",
        "Few-shot examples": [example.model_dump(mode="json") for example in examples],
        "Chat template options": dict(config.prompt.template_options),
        "Verifier": verifier,
        "Format": {"form": reward.format_bonus or "off", "pattern": reward.format_pattern},
        "Max answer tokens": rl.max_answer_tokens,
        "Answers per question": answers,
        **_model_setup(config, answers, endpoint),
    }


def _model_setup(config: RunConfig, answers: int, endpoint: EndpointSettings | None) -> dict[str, Any]:
    """Parts of a setup that differ in kind between a model here and an endpoint."""
    rl = config.rl
    if endpoint is None:
        sampled = {"temperature": rl.temperature, "top_p": rl.top_p, "top_k": rl.top_k, "seed": config.seed}
        held = {} if config.quantization == "none" else {"Quantization": config.quantization}
        return {"Sampling": "greedy" if answers == 1 else sampled, **held}
    request = EndpointRequest(
        question=0,
        messages=(),
        max_answer_tokens=rl.max_answer_tokens,
        answers=answers,
        temperature=0.0 if answers == 1 else rl.temperature,
        top_p=rl.top_p,
        seed=config.seed,
    )
    extra = extra_sent(endpoint, request)
    return {"Sampling": sampling_sent(endpoint, request), **({"Extra fields": extra} if extra else {})}
