"""Which of the sampled answers are worth a person's time, and what a report's numbers advise. No tensors here."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from statistics import median_low

from ratchet.config import RunConfig
from ratchet.engine.advantages import REWARD_RESOLUTION
from ratchet.run.diagnosis import FAILURE_LIMIT, Counts, of_answers, why_all_alike
from ratchet.run.display import whole
from ratchet.run.records import Group, Rollout
from ratchet.run.report_card import ReportCard, Why, WorthReading

MOST_WORTH_READING = 20
# Parts of a grade, or one of them and the correctness, that are further apart than this disagree.
_DISAGREEMENT = 0.5

_Entry = tuple[Group, Rollout]


def worth_reading(groups: Sequence[Group], has_format: bool) -> list[WorthReading]:
    """Return up to 20 answers: the best and the worst, and those whose findings do not go together.

    Every reason has its turn, so that none crowds out the others; of the same words to the same prompt one is enough.
    ``has_format``: whether there is a form that earns a bonus.
    """
    entries = list(_distinct(groups))
    reasons = _reasons(has_format, [rollout for _, rollout in entries])
    lists = {why: _in_turn([e for e in entries if wanted(e[1])], order) for why, wanted, order in reasons}
    chosen: dict[tuple[int, int], tuple[Why, _Entry]] = {}
    while any(lists.values()) and len(chosen) < MOST_WORTH_READING:
        for why in reversed(lists):  # what is odd before what is merely good or bad
            waiting = [entry for entry in lists[why] if _place(entry) not in chosen]
            if waiting and len(chosen) < MOST_WORTH_READING:
                chosen[_place(waiting[0])] = (why, waiting[0])
            lists[why] = waiting[1:]
    shown_first = list(lists)
    found = sorted(chosen.values(), key=lambda pair: shown_first.index(pair[0]))
    return [_shown(why, group, rollout) for why, (group, rollout) in found]


def _place(entry: _Entry) -> tuple[int, int]:
    return id(entry[0]), id(entry[1])


def _distinct(groups: Sequence[Group]) -> Iterator[_Entry]:
    """Yield every answer that no earlier one to its prompt equals."""
    for group in groups:
        for rollout in {rollout.completion.text: rollout for rollout in reversed(group.rollouts)}.values():
            yield group, rollout


def _in_turn(entries: list[_Entry], order: Callable[[Rollout], float]) -> list[_Entry]:
    """Return entries by rising order, equals from different prompts first."""
    seen: Counter[tuple[int, float]] = Counter()
    keyed = []
    for group, rollout in entries:
        number = order(rollout)
        keyed.append((number, seen[id(group), number], (group, rollout)))
        seen[id(group), number] += 1
    return [entry for _, _, entry in sorted(keyed, key=lambda key: key[:2])]


def _reasons(
    has_format: bool, rollouts: Sequence[Rollout]
) -> list[tuple[Why, Callable[[Rollout], bool], Callable[[Rollout], float]]]:
    """Return why an answer may be worth reading, which ones are meant, and a number by which they rise."""

    def is_graded(rollout: Rollout) -> bool:
        return rollout.grade.outcome == "graded"

    # High, low and long are so beside the others: what is like most of them is not worth a place for that.
    graded = [rollout for rollout in rollouts if is_graded(rollout)]
    mean_reward = sum(rollout.reward for rollout in graded) / max(1, len(graded))
    usual_tokens = median_low([len(rollout.completion.token_ids) for rollout in graded] or [0])

    def as_they_come(rollout: Rollout) -> float:
        return 0.0

    return [
        ("highest score", lambda r: is_graded(r) and r.reward >= mean_reward - REWARD_RESOLUTION, lambda r: -r.reward),
        ("lowest score", lambda r: is_graded(r) and r.reward < mean_reward - REWARD_RESOLUTION, lambda r: r.reward),
        (
            "longest",
            lambda r: is_graded(r) and len(r.completion.token_ids) > usual_tokens,
            lambda r: -len(r.completion.token_ids),
        ),
        (
            "in the form, but wrong",
            lambda r: has_format and is_graded(r) and r.format == 1 and r.grade.correctness == 0,
            as_they_come,
        ),
        (
            "right, but not in the form",
            lambda r: has_format and r.grade.correctness == 1 and r.format == 0,
            as_they_come,
        ),
        ("parts disagree", lambda r: _spread(r) > _DISAGREEMENT, lambda r: -_spread(r)),
        ("unparseable", lambda r: r.grade.outcome == "unparseable", as_they_come),
        ("failed", lambda r: r.grade.outcome == "failed", as_they_come),
        ("cut off", lambda r: r.grade.outcome == "cut_off", as_they_come),
    ]


def _spread(rollout: Rollout) -> float:
    numbers = [rollout.grade.correctness, *rollout.grade.parts.values()]
    return max(numbers) - min(numbers) if rollout.grade.outcome == "graded" else 0.0


def _shown(why: Why, group: Group, rollout: Rollout) -> WorthReading:
    return WorthReading(
        why=why,
        prompt_id=group.prompt.id,
        prompt=whole(group.prompt.messages[-1]["content"]),
        ground_truth=whole(group.prompt.ground_truth),
        text=whole(rollout.completion.text),
        reward=rollout.reward,
        correctness=rollout.grade.correctness,
        format=rollout.format,
        parts=dict(rollout.grade.parts),
        outcome=rollout.grade.outcome,
        failure=rollout.grade.failure,
        tokens=len(rollout.completion.token_ids),
    )


def advice(card: ReportCard, config: RunConfig) -> list[str]:
    """What the numbers of a report suggest, the most pressing first. Numbers and settings only."""
    counts = _counts(card)
    found = [
        one
        for one in of_answers(counts, config.rl.max_answer_tokens)
        if not (card.refusal and one.code == "dead_signal")
    ]
    return [*(one.advice for one in found), *_advice_of_probes(card)]


def _counts(card: ReportCard) -> Counts:
    return Counts(card.outcomes, card.accuracy, card.mean_reward, len(card.scores), card.signal_prompts, card.failures)


def _advice_of_probes(card: ReportCard) -> Iterator[str]:
    passed = [f"{r.what} ({r.wrong} of {r.tried})" for r in card.probes.results if r.wrong and not r.must_pass]
    rejected = [f"{r.what} ({r.wrong} of {r.tried})" for r in card.probes.results if r.wrong and r.must_pass]
    failed = [f"{r.what} ({r.failed} of {r.tried})" for r in card.probes.results if r.failed]
    if passed:
        yield f"The verifier accepts wrong answers (false positives), which a model may learn: {'; '.join(passed)}."
    if rejected:
        yield f"The verifier rejects correct answers (false negatives): {'; '.join(rejected)}."
    if failed:
        limit = f"A run ends when it fails on more than {FAILURE_LIMIT:.0%} of the answers."
        yield f"The verifier fails on adversarial answers: {'; '.join(failed)}. {limit}"


def refusal(card: ReportCard) -> str:
    """Say why a run of answers that all score alike is refused, and what to do."""
    cause, remedy = why_all_alike(_counts(card))
    return f"All {card.answers} answers of the starting model scored {card.mean_reward:.2f}: {cause}. {remedy}"
