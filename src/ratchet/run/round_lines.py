"""A round as lines of text: what goes into its rollouts file, and its one line, numbers only, in the run's log."""

from typing import Any

from ratchet.run.records import Group, Rollout, RoundRecord, Validation


def watch_value(rollout: Rollout) -> float | None:
    """What the watch metric gives an answer; None without one, or where it failed."""
    grade = rollout.watch
    if grade is None or grade.outcome == "failed":
        return None
    return grade.correctness if grade.score is None else grade.score


def _watched(rollout: Rollout) -> dict[str, Any]:
    """What an answer's line says of the watch metric, nothing without one."""
    grade = rollout.watch
    if grade is None:
        return {}
    return {"watch": watch_value(rollout), "watch_outcome": grade.outcome, "watch_failure": grade.failure}


def rollout_row(group: Group) -> dict[str, Any]:
    """A prompt's line of a rollouts file."""
    return {
        "prompt_id": group.prompt.id,
        "prompt": list(group.prompt.messages),
        "ground_truth": group.prompt.ground_truth,
        "answers": [
            {
                "text": rollout.completion.text,
                "reward": rollout.reward,
                "correctness": rollout.grade.correctness,
                "format": rollout.format,
                "parts": dict(rollout.grade.parts),
                "outcome": rollout.grade.outcome,
                "failure": rollout.grade.failure,
                "tokens": len(rollout.completion.token_ids),
                **_watched(rollout),
            }
            for rollout in group.rollouts
        ],
    }


def scored(validation: Validation) -> str:
    """Return for people what a round is ranked by: the accuracy, without a verifier the loss."""
    return f"{validation.accuracy:.1%}" if validation.accuracy is not None else f"loss {validation.loss:.4f}"


def _number(value: float | None, digits: int = 5) -> str:
    return "none" if value is None else f"{value:.{digits}f}"


def log_line(record: RoundRecord) -> str:
    """A round's line in the log: numbers only."""
    learned, seconds = record.learned, record.seconds
    parts = [f"round={record.round}"]
    if record.reward is not None and learned is not None:
        cut_off, unparseable, failed = (record.outcomes.get(o, 0) for o in ("cut_off", "unparseable", "failed"))
        parts += [
            f"reward={record.reward:.4f}",
            f"signal={record.signal_fraction:.3f}",
            f"cut_off={cut_off} unparseable={unparseable} failed={failed}",
            f"steps={learned.steps} skipped={learned.skipped_steps}",
            f"loss={_number(learned.loss)}",
        ]
        if learned.importance_mean is not None and learned.sampler_gap is not None:
            parts.append(
                f"gap={learned.sampler_gap:.2e} importance={learned.importance_mean:.4f} "
                f"largest={learned.importance_max:.4f} capped={learned.importance_capped:.4f}"
            )
    elif learned is not None:
        parts += [f"steps={learned.steps} skipped={learned.skipped_steps}", f"loss={_number(learned.loss)}"]
    validation = record.validation
    if validation.loss is not None:
        parts.append(f"validation_loss={validation.loss:.5f}")
    if validation.margin is not None:
        parts.append(f"margin={validation.margin:.5f} preferred={_number(validation.preferred)}")
    for name, watch, failures in (
        ("watch", record.watch, record.watch_failures),
        ("validation_watch", record.validation.watch, record.validation.watch_failures),
    ):
        if watch is not None:
            parts.append(f"{name}={watch:.4f}")
        if failures:
            parts.append(f"{name}_failed={sum(failures.values())}")
    parts += [
        f"validation={_number(validation.accuracy, 4)} best_round={record.best_round}",
        f"sampling={seconds.sampling:.1f} grading={seconds.grading:.1f} update={seconds.update:.1f} "
        f"validating={seconds.validation:.1f} seconds={seconds.total:.1f}",
    ]
    return " ".join(parts)
