"""The verifier report card: what the starting model answers, how that is graded, and what adversarial answers reveal.

    64 answers   to training prompts, asked and sampled as in the run, graded by the run's own verifier and reward
    192 more     where all 64 score alike
    probes       answers whose correct verdict is known (``readiness/probes.py``)

A card holds for how answers are scored, the data, the base model, the prompt and the adapter that a run starts from:
these make its key. Whatever else a run sets (rounds, limits, seeds, temperature) leaves the key as it is.

Writes nothing: the service stores, shows and confirms the card. Left out on purpose: nothing is learned, validation
and held-out prompts are not read, and the draws are none of the run's own.
"""

import hashlib
import json
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata

from ratchet.config import Data, DatasetData, MathPairsData, ReasoningGymData, RunConfig
from ratchet.config.base import first_names
from ratchet.datasets import PromptStream
from ratchet.engine.advantages import REWARD_RESOLUTION
from ratchet.engine.build import EngineBudgets, new_grader, new_sampler
from ratchet.engine.distribution import SamplingSettings
from ratchet.engine.grading import Grader, failure_counts, grade_while_sampling, outcome_counts, part_means
from ratchet.engine.policy import device_name, load_policy, pinned_commit
from ratchet.engine.prepare import Prepared
from ratchet.engine.round_parts import has_signal
from ratchet.engine.sampler import Sampled, Sampler, SampleRequest
from ratchet.engine.worth_reading import advice, refusal, worth_reading
from ratchet.models.model_files import SMOLLM2, ModelFiles
from ratchet.readiness.probes import MOST_PROMPTS, run_probes
from ratchet.run.events import OnProgress
from ratchet.run.records import EncodedPrompt, Group
from ratchet.run.report_card import SAMPLED_WITH, CardSetup, Probes, PromptScores, ReportCard

FIRST_ANSWERS = 64
MORE_ANSWERS = 192
_USUAL_GROUP = 8
_BINS = 10
# Prompts beside those that are tried, whose ground truths serve as wrong answers.
_OTHERS = 16


def make_report(prepared: Prepared, on_progress: OnProgress) -> ReportCard:
    """Load the starting model, sample, grade and probe; return the card. The verifier is left open.

    Raises:
        ModelUnavailable, OutOfMemory, SamplerFailed, NotFinite, InvalidSetting: as in a run.
    """
    on_progress("loading", 0, 1)
    policy = load_policy(prepared.config, prepared.chat, prepared.files)
    sampler = new_sampler(prepared, policy, EngineBudgets.fitted(prepared, policy))
    try:
        grader = replace(new_grader(prepared), watch=None)  # the report is of the verifier
        groups, was_extended = drawn(prepared.config, prepared.train, sampler, grader, on_progress)
    finally:
        sampler.close()
    on_progress("probing", 0, 1)
    return card_of(prepared, groups, probed(prepared), was_extended=was_extended)


def drawn(
    config: RunConfig,
    train: Sequence[EncodedPrompt],
    sampler: Sampler,
    grader: Grader,
    on_progress: OnProgress = lambda phase, done, total: None,
) -> tuple[list[Group], bool]:
    """Sample and grade 64 answers, and 192 more where all of them score alike; say whether that was so.

    As many answers a prompt as in the run where 64 can be dealt out so, at most eight, since a prompt's signal depends
    on that. With fewer prompts than it takes each gets more answers.
    """
    encoded = {one.prompt.id: one for one in train}
    stream = PromptStream([one.prompt for one in train], config.seed)
    asked = config.rl.answers_per_prompt
    group = asked if asked <= _USUAL_GROUP and FIRST_ANSWERS % asked == 0 else _USUAL_GROUP

    def draw(ids: Sequence[int], answers: int, *more_key: int) -> list[Group]:
        each = -(-answers // len(ids))
        # Round 0 of a run draws nothing, so no answer of a round is drawn here.
        requests = [SampleRequest(encoded[one].token_ids, each, (config.seed, 0, one, *more_key)) for one in ids]
        samples = sampler.sample(
            requests, SamplingSettings.of(config.rl), config.rl.max_answer_tokens, check=lambda: None
        )
        prompts = [encoded[one].prompt for one in ids]
        rollouts = grade_while_sampling(grader, prompts, _counted(samples, each * len(ids), on_progress), each)
        return [Group(encoded[one].prompt, encoded[one].token_ids, r) for one, r in zip(ids, rollouts, strict=True)]

    first = [prompt.id for prompt in stream.take(FIRST_ANSWERS // group)]
    groups = draw(first, FIRST_ANSWERS)
    if not _all_alike(groups):
        return groups, False
    further = [prompt.id for prompt in stream.take(MORE_ANSWERS // group, exclude=first)]
    if len(further) == MORE_ANSWERS // group:
        return [*groups, *draw(further, MORE_ANSWERS)], True
    return [*groups, *draw([*first, *further], MORE_ANSWERS, 1)], True


def _counted(samples: Generator[Sampled], total: int, on_progress: OnProgress) -> Generator[Sampled]:
    on_progress("inspecting", 0, total)
    with closing(samples):
        for done, sampled in enumerate(samples, start=1):
            yield sampled
            on_progress("inspecting", done, total)


def _all_alike(groups: Sequence[Group]) -> bool:
    rewards = [rollout.reward for group in groups for rollout in group.rollouts]
    return max(rewards) - min(rewards) <= REWARD_RESOLUTION


def probed(prepared: Prepared) -> Probes:
    """Try adversarial answers on some training prompts with the run's verifier."""
    stream = PromptStream([one.prompt for one in prepared.train], prepared.config.seed)
    return run_probes(
        prepared.verifier.grade,
        prepared.config.verifier,
        prepared.config.reward.format_bonus or "off",
        stream.take(MOST_PROMPTS + _OTHERS),
    )


def card_of(prepared: Prepared, groups: Sequence[Group], probes: Probes, *, was_extended: bool) -> ReportCard:
    """Count what was found."""
    made = made_with(prepared)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    count = len(rollouts)
    correctness = [rollout.grade.correctness for rollout in rollouts]
    lengths = [len(rollout.completion.token_ids) for rollout in rollouts]
    outcomes = outcome_counts(rollouts)
    histogram = [0] * _BINS
    for rollout in rollouts:
        # Rewards such as 0.3 are not exact: what is a rounding below a step belongs to it.
        histogram[min(_BINS - 1, int(rollout.reward * _BINS + REWARD_RESOLUTION))] += 1
    right = sum(one == 1 for one in correctness)
    partly = sum(0 < one < 1 for one in correctness)
    card = ReportCard(
        key=report_key(made),
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        made_with=made,
        answers=count,
        was_extended=was_extended,
        scores=[
            PromptScores(
                prompt_id=group.prompt.id, rewards=[r.reward for r in group.rollouts], has_signal=has_signal(group)
            )
            for group in groups
        ],
        histogram=histogram,
        mean_reward=sum(rollout.reward for rollout in rollouts) / count,
        accuracy=sum(correctness) / count,
        right=right,
        partly=partly,
        wrong=outcomes["graded"] - right - partly,
        outcomes=outcomes,
        failures=failure_counts(rollouts),
        format=sum(rollout.format for rollout in rollouts) / count,
        parts=part_means(rollouts),
        mean_tokens=sum(lengths) / count,
        longest_tokens=max(lengths),
        probes=probes,
        worth_reading=worth_reading(groups, has_format=(prepared.config.reward.format_bonus or "off") != "off"),
        advice=[],
        refusal="",
    )
    if _all_alike(groups):
        card = card.model_copy(update={"refusal": refusal(card)})
    return card.model_copy(update={"advice": advice(card, prepared.config)})


_SCHEME = 1  # to be raised when what goes into a key changes
_KEY_DIGITS = 32
_VERSIONS = ("ratchet-rl", "torch", "transformers")


def made_with(prepared: Prepared) -> CardSetup:
    """What a report of this run is made with."""
    config = prepared.config
    if config.verifier is None:
        raise ValueError("the settings are not resolved")
    return CardSetup(
        verifier=config.verifier.model_dump(mode="json"),
        # Shaping is part of how an answer is scored; the reason for its weight is a remark.
        reward=config.reward.model_dump(mode="json", exclude={"format_reason"}),
        data=training_data_hash(prepared),
        model=_base_model(prepared.files, config),
        quantization=config.quantization,
        prompt=first_names("prompt", config.prompt.model_dump(mode="json")),
        start=config.start_from.sha256,
        model_name=config.model,
        source=_source_name(config.data),
        training_prompts=len(prepared.train),
        **{name: getattr(config.rl, name) for name in SAMPLED_WITH},
        seed=config.seed,
        device=device_name(config.device),
        versions={name: metadata.version(name) for name in _VERSIONS},
    )


def report_key(made: CardSetup) -> str:
    """Return the key under which a report is stored and confirmed: 32 hexadecimal digits."""
    parts = made.model_dump(include={"verifier", "reward", "data", "model", "quantization", "prompt"})
    if made.start:  # keys of the base model alone are as they always were
        parts["start"] = made.start
    text = json.dumps([_SCHEME, parts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_DIGITS]


def set_up_key(made: CardSetup) -> str:
    """Return the key of the report on the base model alone: the same for all adapters that a run may start from."""
    return report_key(made.model_copy(update={"start": ""}))


def training_data_hash(prepared: Prepared) -> str:
    """Return a hash over what the training rows hold, in their order, whatever the tokenizer makes of it."""
    digest = hashlib.sha256()
    for encoded in prepared.train:
        prompt = encoded.prompt
        row = [prompt.id, prompt.messages, prompt.ground_truth, sorted(prompt.extras.items())]
        digest.update(json.dumps(row, default=str).encode())
    return f"sha256:{digest.hexdigest()}"


def _source_name(data: Data) -> str:
    """Where the rows come from as people call it: the source, and which dataset, path or task of it."""
    match data:
        case DatasetData():
            return f"{data.source} {data.name}@{data.version}"
        case ReasoningGymData():
            return f"{data.source} {data.task}"
        case MathPairsData():
            return data.source
    return f"{data.source} {data.path}"


def _base_model(files: ModelFiles, config: RunConfig) -> str:
    """Return the fingerprint of a model's files or the commit of a hub id.

    SmolLM2 goes by its name: what its package is converted to depends on the versions of the libraries that do it.
    """
    if files.name == SMOLLM2:
        return SMOLLM2
    if files.identity:
        return files.identity
    return pinned_commit(files.source, config.revision)
