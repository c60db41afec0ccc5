"""All checks of a run before its model loads, and what they found."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from ratchet.config import RunConfig
from ratchet.datasets.encoder import PromptEncoder
from ratchet.datasets.reference_sets import ReferenceSet
from ratchet.datasets.tokens import NotCountable, open_encoder
from ratchet.errors import RatchetError
from ratchet.models.model_files import Place, experts_in, find, model_config, parameter_count, towers_in
from ratchet.readiness.advice import advice, advice_on_rate
from ratchet.readiness.device_checks import (
    device_here,
    refuse_impossible_quantization,
    refuse_missing_sampler,
    refuse_missing_trackers,
    refuse_missing_trl,
)
from ratchet.readiness.fault_list import Faults, raise_all
from ratchet.readiness.leak_checks import (
    DISJOINT_BY_THEMSELVES,
    leak_notes,
    leaks_of,
    refuse_leaks,
    refuse_same_problems,
    same_problems,
)
from ratchet.readiness.model_checks import (
    Fitted,
    Window,
    fit,
    left_out,
    on_experts,
    preset_for_experts,
    refuse_experts,
    window_of,
)
from ratchet.readiness.row_checks import Rows, open_rows
from ratchet.readiness.start_adapter import with_start
from ratchet.readiness.step_counts import with_rounds


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a base model before it loads: its config.json, and its weights' number where files are here."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    parameters: int | None = None


@dataclass(frozen=True)
class Readiness:
    """What the checks of a run found. It can start where there are no faults.

    Attributes:
        config: Resolved; with system prompt and few-shot examples where the rows could be loaded.
        faults: Everything that prevents the start.
        notes: Facts about the data, and what was done about them.
        warnings: What to consider before starting.
        device: Where the run would be, None where that device is not there.
        row_counts: Rows of each split that would be used.
        longest_prompt: Tokens of the longest of them, None where they could not be counted.
        common_prefix: Tokens that all of them begin with, 0 where that is not known.
        window: Tokens that prompt and answer share, None where no limit is known.
        model: The model's own settings, empty where they are not known, and how many weights its files hold.
        rows: The opened rows, for a run that starts now; whoever has the report closes it.
    """

    config: RunConfig
    faults: tuple[RatchetError, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    device: str | None
    row_counts: dict[str, int]
    longest_prompt: int | None
    window: int | None
    rows: Rows | None
    common_prefix: int = 0
    model: ModelFacts = field(default_factory=ModelFacts)

    def raise_faults(self) -> None:
        """Raise the faults, if any: a single one as it is, several as one ``NotReady``."""
        raise_all(self.faults)

    def close(self) -> None:
        """Release what the rows hold."""
        if self.rows:
            self.rows.close()


def check(
    config: RunConfig,
    function: Callable[..., Any] | None = None,
    *,
    own_test: ReferenceSet | None = None,
    benchmarks: Sequence[ReferenceSet] = (),
    faults: Faults | None = None,
    has_rows: bool = True,
) -> Readiness:
    """Make all checks, and report everything that they find.

    Args:
        config: Settings as given or as stored.
        function: The user's own verifier, for ``verifier.kind`` python.
        own_test: The test rows of the run's own data, where it has some.
        benchmarks: What else the user scores on.
        faults: What was found already.
        has_rows: Whether the data and the metric that the settings name are there. Where they are not, which is a fault
            that was found already, what depends on the rows is not checked.
    """
    faults = faults or Faults()
    config = preset_for_experts(config, _experts(config)).resolved()
    start_notes: tuple[str, ...] = ()
    with faults.gathered():
        config, start_notes = with_start(config)
    device = _device(config, faults)
    rows = open_rows(config, function, faults) if has_rows else None
    if rows:
        rows = replace(rows, notes=(*start_notes, *rows.notes))
    try:
        model = _Model.of(config, faults)
        if rows is None:
            return _found(config, faults, device, model)
        return _with_rows(rows, faults, device, model, own_test, benchmarks)
    except BaseException:
        if rows:
            rows.close()
        raise


@dataclass(frozen=True)
class _Model:
    """What is known of the model: nothing where it cannot be found, no encoder where only transformers has one."""

    window: Window | None = None
    encoder: PromptEncoder | None = None
    facts: ModelFacts = field(default_factory=ModelFacts)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: RunConfig, faults: Faults) -> "_Model":
        with faults.gathered():
            place = find(config.model)
            settings = model_config(place, config.revision)
            towers = towers_in(place.name, settings)
            experts = experts_in(settings)
            with faults.gathered():
                refuse_experts(experts, config.ratio_loss)
            encoder, notes = _encoder(config, place, faults)
            notes += left_out(place.name, towers)
            window = None
            with faults.gathered():
                window = window_of(config, settings, encoder.window if encoder else None)
            notes = (*notes, *filter(None, [on_experts(config, experts)]))
            return cls(window, encoder, ModelFacts(settings, parameter_count(place)), notes)
        return cls()


def _device(config: RunConfig, faults: Faults) -> str | None:
    device = None
    with faults.gathered():
        device = device_here(config.device)
    with faults.gathered():
        refuse_missing_sampler(config.sampler)
    with faults.gathered():
        refuse_impossible_quantization(config.quantization, device or "")
    with faults.gathered():
        refuse_missing_trl(config.objective)
    with faults.gathered():
        refuse_missing_trackers(config.trackers)
    return device


def _encoder(config: RunConfig, place: Place, faults: Faults) -> tuple[PromptEncoder | None, tuple[str, ...]]:
    try:
        with faults.gathered():
            return open_encoder(place, config.revision, config.prompt.template_options), ()
    except NotCountable as reason:
        return None, (str(reason),)
    return None, ()


def _with_rows(
    rows: Rows,
    faults: Faults,
    device: str | None,
    model: _Model,
    own_test: ReferenceSet | None,
    benchmarks: Sequence[ReferenceSet],
) -> Readiness:
    config, dataset = rows.config, rows.dataset
    fitted = Fitted()
    has_prompt_setup = not isinstance(config.prompt.few_shot_examples, int)  # a fault is noted otherwise
    if model.encoder and model.window and has_prompt_setup:
        fitted = fit(config, dataset, model.encoder, model.window, faults)
    found: list[str] = []
    is_disjoint = config.data.source in DISJOINT_BY_THEMSELVES
    compared = [one for one in benchmarks if one.is_asked_for or not is_disjoint]
    if compared or not is_disjoint:
        with faults.gathered():
            leaks = leaks_of(dataset, own_test, compared, found)
            found += leak_notes(leaks)
            refuse_leaks(leaks)
    if is_disjoint:
        with faults.gathered():
            refuse_same_problems(same_problems(dataset, [one for one in benchmarks if one.is_benchmark], found))
    counts = {"training": len(dataset.train), "validation": len(dataset.validation), "held-out": len(dataset.heldout)}
    if fitted.train:
        counts = {"training": len(fitted.train), "validation": len(fitted.validation), "held-out": len(fitted.heldout)}
    steps: tuple[str, ...] = ()
    with faults.gathered():
        if counts["training"]:
            config, steps = with_rounds(config, counts["training"])
    parameters = model.facts.parameters
    rate = None if parameters is None else advice_on_rate(config, parameters)
    warnings = [*found, *advice(config, model.encoder, counts["training"], device or ""), *filter(None, [rate])]
    report = _found(config, faults, device, model)
    return replace(
        report,
        notes=(*rows.notes, *fitted.notes, *steps, *report.notes),
        warnings=tuple(warnings),
        row_counts=counts,
        longest_prompt=fitted.longest_prompt or None,
        common_prefix=_common_prefix(fitted),
        rows=replace(rows, notes=(*rows.notes, *found)),
    )


def _found(config: RunConfig, faults: Faults, device: str | None, model: _Model) -> Readiness:
    window = None if model.window is None else model.window.tokens
    return Readiness(config, tuple(faults.found), model.notes, (), device, {}, None, window, None, model=model.facts)


def _common_prefix(fitted: Fitted) -> int:
    prompts = [one.token_ids for one in (*fitted.train, *fitted.validation)]
    if not prompts:
        return 0
    # Of sorted sequences, what the first and the last share is shared by all.
    pairs = zip(min(prompts), max(prompts), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _experts(config: RunConfig) -> int:
    """Experts of a layer of the model; 0 where the model is not there, which is reported elsewhere."""
    try:
        return experts_in(model_config(find(config.model), config.revision))
    except RatchetError:
        return 0
