"""The rows of a run and what checks them: loaded, and every ground truth gradable by verifier and watch metric."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.config import Objective, RunConfig
from ratchet.datasets import Dataset, few_shot_examples, load
from ratchet.datasets.rows import MOST_NAMED_ROWS
from ratchet.errors import Conflict, IncompatibleData, InvalidSetting
from ratchet.readiness.fault_list import Faults
from ratchet.run.records import Prompt
from ratchet.verifiers import Tried, Verifier, compile_pattern, make_verifier, takes_function
from ratchet.verifiers.base import NoVerifier


@dataclass(frozen=True)
class Rows:
    """The rows of a run with its verifier and its watch metric, None without one; whoever has them closes them.

    ``config`` is resolved, system prompt and few-shot examples included. ``notes`` are whole sentences for the user.
    """

    config: RunConfig
    dataset: Dataset
    verifier: Verifier
    notes: tuple[str, ...]
    watch: Verifier | None = None

    def close(self) -> None:
        """Release what verifier and watch metric hold."""
        self.verifier.close()
        if self.watch:
            self.watch.close()


def open_rows(config: RunConfig, function: Callable[..., Any] | None, faults: Faults) -> Rows | None:
    """Load the rows of a run and check each ground truth; None where rows, verifier or watch metric cannot be had.

    Args:
        config: Settings as given or as stored.
        function: The user's own verifier, for ``verifier.kind`` python.
        faults: Where whatever is wrong goes.
    """
    config = config.resolved()
    dataset: Dataset | None = None
    with faults.gathered():
        if config.reward.format_bonus == "pattern" and config.reward.format_pattern:
            compile_pattern(config.reward.format_pattern)
    checking = _Checking.opened(config, function, faults)
    try:
        with faults.gathered():
            dataset = load(
                config.data,
                validation_prompts=config.rl.validation_prompts,
                format_kind=config.reward.format_bonus or "off",
            )
        if dataset is None or checking.verifier is None or (config.watch and checking.watch is None):
            checking.close()
            return None
        with faults.gathered():
            config = _with_prompt_setup(config, dataset)
        for split, prompts in (("training", dataset.train), ("validation", dataset.validation)):
            with faults.gathered():
                refuse_unanswered(config.objective, prompts, f"{split} rows")
        tried = _tried(checking.verifier, dataset, faults, "verifier", config.objective)
        if checking.watch:
            tried += _tried(checking.watch, dataset, faults, "watch metric", config.objective)
    except BaseException:
        checking.close()
        raise
    return Rows(config, dataset, checking.verifier, (*dataset.notes, *tried), checking.watch)


@dataclass(frozen=True)
class _Checking:
    """What checks answers: None in place of what could not be had, or is not asked for."""

    verifier: Verifier | None
    watch: Verifier | None

    @classmethod
    def opened(cls, config: RunConfig, function: Callable[..., Any] | None, faults: Faults) -> "_Checking":
        verifier = watch = None
        with faults.gathered():
            verifier = _verifier(config, function)
        with faults.gathered():
            watch = _watch(config)
        return cls(verifier, watch)

    def close(self) -> None:
        for one in (self.verifier, self.watch):
            if one:
                one.close()


def _tried(verifier: Verifier, dataset: Dataset, faults: Faults, called: str, objective: Objective) -> list[str]:
    """Check that a verifier can grade the rows, and try it if it is the user's own; return notes on that."""
    for split, prompts in (("training", dataset.train), ("validation", dataset.validation)):
        # What sft and dpo train on is never graded.
        if objective == "rl" or split == "validation":
            with faults.gathered():
                refuse_ungradable(verifier, prompts, f"{split} rows", called)
    tried = ""
    if isinstance(verifier, Tried) and dataset.train:
        with faults.gathered():
            tried = verifier.trial(dataset.train[0])
    return [tried] if tried else []


def refuse_ungradable(verifier: Verifier, prompts: Sequence[Prompt], what: str, called: str = "verifier") -> None:
    """Refuse rows whose ground truth no answer could be graded against.

    ``what`` is such as "training rows", and ``called`` is what the verifier is to the run.

    Raises:
        IncompatibleData: there are such rows, up to 20 of them named by number, or there are none at all.
    """
    if not prompts:
        raise IncompatibleData(f"There are no {what}. Give a dataset with rows for training and validation.")
    reasons = [(prompt.id, reason) for prompt in prompts if (reason := verifier.check_ground_truth(prompt))]
    if reasons:
        rows_by_reason: dict[str, list[int]] = {}
        for row, reason in reasons[:MOST_NAMED_ROWS]:
            rows_by_reason.setdefault(reason, []).append(row)
        named = "; ".join(f"{_rows(rows)}: {reason}" for reason, rows in rows_by_reason.items())
        raise IncompatibleData(
            f"{len(reasons)} of {len(prompts)} {what} have a reference that the {called} cannot check: "
            f"{named}. Correct the rows or choose another {called}."
        )


def refuse_unanswered(objective: Objective, prompts: Sequence[Prompt], what: str) -> None:
    """Refuse rows without the answers that the objective learns from; ``what`` is such as "training rows".

    Raises:
        IncompatibleData: there are such rows, up to 20 of them named by number, or there are no rows at all.
    """
    if objective == "rl":
        return
    if not prompts:
        raise IncompatibleData(f"There are no {what}. Give a dataset with rows for training and validation.")
    lacking = [prompt.id for prompt in prompts if _lacks(objective, prompt)]
    if not lacking:
        return
    named = ", ".join(map(str, lacking[:MOST_NAMED_ROWS]))
    more = f" and {len(lacking) - MOST_NAMED_ROWS:,} more" if len(lacking) > MOST_NAMED_ROWS else ""
    if objective == "sft":
        missing = "demonstration (messages that end with the assistant's, or a column completion)"
        way_out = "Add the whole answers, or choose Objective rl, which takes prompts and a verifier"
    else:
        missing = "pair of answers (columns chosen and rejected)"
        way_out = "Give preference pairs, or choose another Objective: sft for demonstrations, rl for a verifier"
    raise IncompatibleData(
        f"Objective is {objective}, but {len(lacking):,} of {len(prompts):,} {what} have no {missing}: "
        f"{'row' if len(lacking) == 1 else 'rows'} {named}{more}. {way_out}."
    )


def _lacks(objective: Objective, prompt: Prompt) -> bool:
    return not prompt.demonstration or (objective == "dpo" and not prompt.rejected)


def _rows(numbers: Sequence[int]) -> str:
    """Row numbers in words, such as "row 3" or "rows 3, 4 and 9"."""
    *others, last = map(str, numbers)
    return f"rows {', '.join(others)} and {last}" if others else f"row {last}"


def _with_prompt_setup(config: RunConfig, dataset: Dataset) -> RunConfig:
    given = config.prompt.system_prompt
    prompt = config.prompt.model_copy(
        update={
            "system_prompt": dataset.instruction if given is None else given,
            "few_shot_examples": few_shot_examples(config.prompt, dataset),
        }
    )
    return config.model_copy(update={"prompt": prompt})


def _verifier(config: RunConfig, function: Callable[..., Any] | None) -> Verifier:
    settings = config.verifier
    if settings is None and config.objective != "rl":
        return NoVerifier()
    if settings is None:
        raise ValueError("the settings are not resolved")
    if takes_function(settings) and function is None:
        raise Conflict(
            "The verifier is a Python function of your own, which is not stored with the run. Start or resume it from "
            "Python: ratchet.resume(folder, verifier=function)."
        )
    return make_verifier(settings, prefer_answer_tag=config.reward.format_bonus == "tags", function=function)


def _watch(config: RunConfig) -> Verifier | None:
    """Open the watch metric, if there is one.

    Raises:
        InvalidSetting: it is the verifier itself, which would tell nothing, or a function that is not stored.
    """
    settings = config.watch
    if settings is None:
        return None
    if takes_function(settings):
        raise InvalidSetting(
            "Watch metric is a Python function, which only a verifier can be. Add it as a metric (ratchet metric add) "
            "and set watch.kind custom and watch.metric NAME.",
            field="watch.kind",
        )
    if settings == config.verifier:
        raise InvalidSetting(
            f"Watch metric and verifier are the same ({settings.kind}, with the same settings), so they would always "
            "rise together. Choose another watch metric, or leave it out.",
            field="watch",
        )
    return make_verifier(settings, prefer_answer_tag=config.reward.format_bonus == "tags")
