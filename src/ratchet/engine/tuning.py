"""Learning from given answers, sft and dpo, in the rounds of ``rounds.py``: a slice of the steps, then a score.

    round 0   score the starting adapter on the validation sample
    round n   take its share of the steps; score the validation sample; keep the adapter if it is the best

A round is what is scored, stored and resumed from; the steps are the same however many rounds they are cut into. A
score is the mean loss over the validation sample and, where the run has a verifier, the accuracy of greedy answers to
it, as in rl. Rounds are ranked by accuracy, without a verifier by loss. Rows come in the order of a ``PromptStream``:
each exactly once an epoch.

Knows, as ``rounds.py``, no folder, clock policy, database or web. The losses are in ``given_answers.py``.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from time import perf_counter

import torch

from ratchet.config import RunConfig
from ratchet.engine.checkpoint import Progress
from ratchet.engine.given_answers import (
    DpoLoss,
    GivenLoss,
    SftLoss,
    Share,
    add_output_layer,
    micro_batches,
    number_of_steps,
    rate_at,
    rows_per_step,
    steps_of_round,
)
from ratchet.engine.grading import refuse_failing_verifier
from ratchet.engine.memory import out_of_memory_as
from ratchet.engine.policy import Policy
from ratchet.engine.round_parts import (
    Engine,
    Report,
    Task,
    When,
    best_after,
    checker,
    number_of_rounds,
    reported,
    round_zero,
    score,
)
from ratchet.engine.update import Learner, StepSums, apply_gradient, same_sums_each_time
from ratchet.errors import StopReason
from ratchet.run.display import counted
from ratchet.run.endings import Ending, target_reached
from ratchet.run.records import EncodedPrompt, Group, RoundRecord, Seconds, Validation

Check = Callable[[], None]


def train(
    config: RunConfig,
    engine: Engine,
    task: Task,
    report: Report,
    why_stop: Callable[[When], StopReason | None],
    resumed: Progress | None = None,
    on_step: Callable[[int, int], None] = lambda done, total: None,
) -> Ending:
    """Run the rounds that are left; return how it ended. The best adapter is in what ``report`` received.

    Arguments and errors are those of ``rounds.train``; ``report`` is given the greedy answers to the validation sample
    where there is a verifier. ``on_step`` gets how many of the round's steps are done.
    """
    settings = config.tuning
    if settings is None:
        raise ValueError("objective rl learns in rounds.py")
    loss = _loss(config, engine.policy)
    check = checker(why_stop)

    def is_target_reached() -> bool:
        return target_reached(progress.records[-1].best_accuracy, config.limits.target_percent)

    progress = resumed or round_zero(engine, task, report, lambda: _validated(config, engine, task, loss, 0, check)[0])
    rows = len(task.encoded)
    steps, rounds = number_of_steps(settings, rows), number_of_rounds(config, rows)
    for number in range(progress.rounds_done + 1, rounds + 1):
        if is_target_reached():
            return "target"
        if reason := why_stop("between"):
            return reason
        started = perf_counter()
        engine.learner.skipped_in_a_row = progress.skipped_in_a_row
        engine.sampler.rest()
        sums, tokens = StepSums(), 0
        slice_ = steps_of_round(number, rounds, steps)
        for done, step in enumerate(slice_):
            on_step(done, len(slice_))
            left = settings.epochs * rows - step * rows_per_step(settings, rows)
            taken = task.stream.take(min(rows_per_step(settings, rows), left))
            tokens += _step(
                engine.learner,
                loss,
                [task.encoded[prompt.id] for prompt in taken],
                rate_at(step, steps, config.rate, settings),
                sums,
                check,
            )
        on_step(len(slice_), len(slice_))
        updated_at = perf_counter()
        validation, groups = _validated(config, engine, task, loss, number, check)
        ended = perf_counter()
        timing = Seconds(update=updated_at - started, validation=ended - updated_at, total=ended - started)
        record = RoundRecord(
            round=number,
            validation=validation,
            **best_after(number, validation, progress.records),
            seconds=timing,
            learned=sums.learned(tokens=tokens),
        )
        progress = reported(engine, task, progress, record, groups, report)
    return "target" if is_target_reached() else "all_rounds"


def _loss(config: RunConfig, policy: Policy) -> GivenLoss:
    add_output_layer(policy)
    return SftLoss(policy) if config.objective == "sft" else DpoLoss(policy, config.dpo.beta)


def _step(
    learner: Learner, loss: GivenLoss, step: Sequence[EncodedPrompt], rate: float, sums: StepSums, check: Check
) -> int:
    """Accumulate the gradient of one step over its micro-batches and apply it; return how many tokens it learned from.

    Raises:
        NotFinite: for the second time in a row.
        OutOfMemory: with stage "update".
    """
    for group in learner.optimizer.param_groups:
        group["lr"] = rate
    learner.optimizer.zero_grad(set_to_none=True)
    total = 0.0
    for rows in micro_batches(loss, step, learner.micro_batch_tokens):
        check()
        with _out_of_memory_explained(loss, rows), same_sums_each_time():
            share = loss.share(rows, step).loss
            share.backward()  # type: ignore[no-untyped-call]
        total += share.item()
    if not apply_gradient(learner, total, sums, " or a lower Gradient norm limit"):
        return 0
    return sum(len(row.demonstration_ids) + len(row.rejected_ids) for row in step)


def _out_of_memory_explained(loss: GivenLoss, rows: Sequence[EncodedPrompt]) -> AbstractContextManager[None]:
    """Turn a failed allocation inside the block into OutOfMemory that says how large the micro-batch was."""
    smaller = "a smaller Micro batch, " if len(rows) > 1 else ""
    return out_of_memory_as(
        "update",
        f"The update does not fit in this device's memory: a micro-batch of {counted(len(rows), 'row')}, "
        f"{loss.tokens(rows[-1])} tokens in the longest. Choose {smaller}Gradient checkpointing on, a shorter Context "
        "length with Over-long rows leave_out, or a device with more memory.",
    )


def _validated(
    config: RunConfig, engine: Engine, task: Task, loss: GivenLoss, number: int, check: Check
) -> tuple[Validation, list[Group]]:
    """Score the validation sample; return the score and, where a verifier graded them, the answers.

    Raises:
        VerifierFailing: the verifier failed on more than a tenth of the answers.
    """
    rows = task.validation
    mean, margin, preferred = 0.0, 0.0, 0
    with torch.no_grad():
        for some in micro_batches(loss, rows, engine.learner.micro_batch_tokens):
            check()
            with _out_of_memory_explained(loss, some):
                share: Share = loss.share(some, rows)
            mean += share.loss.item()
            margin += share.margin_sum
            preferred += share.preferred
    found = Validation(prompts=len(rows), loss=mean)
    if config.objective == "dpo":
        found = found.model_copy(update={"margin": margin / len(rows), "preferred": preferred / len(rows)})
    if config.verifier is None:
        return found, []
    scored, rollouts = score(engine.sampler, task.grader, rows, config.rl.max_answer_tokens, check)
    groups = [Group(e.prompt, e.token_ids, (rollout,)) for e, rollout in zip(rows, rollouts, strict=True)]
    refuse_failing_verifier(groups, number, config.verifier.title)
    losses = found.model_dump(include={"loss", "margin", "preferred"})
    return scored.model_copy(update=losses), groups
