"""Answering the questions of a benchmark: what an evaluation has before weights load, and its parts, one by one.

A part is a fixed piece of the questions, so that whoever goes on after a kill makes the same batches and gets the same
bytes. Writes nothing; knows neither folder nor scores.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from time import perf_counter

from ratchet.config import RunConfig
from ratchet.datasets import Dataset
from ratchet.engine.distribution import GREEDY, SamplingSettings
from ratchet.engine.grading import Grader, grade_while_sampling
from ratchet.engine.policy import load_chat
from ratchet.engine.prepare import Prepared
from ratchet.engine.sampler import Sampled, Sampler, SampleRequest
from ratchet.evaluation.evaluation import GivenAnswer, QuestionResult
from ratchet.evaluation.groups import group_of
from ratchet.models.model_files import model_config, towers_in
from ratchet.readiness import Faults, fit, left_out, window_of
from ratchet.run.records import EncodedPrompt, Prompt, Rollout
from ratchet.verifiers import make_verifier

# Answers of a part. On a GPU a batch has to be large to be fast; on a CPU a part is what a kill costs.
_CPU_ANSWERS, _GPU_ANSWERS = 128, 1024


def prepare_questions(config: RunConfig, prompts: Sequence[Prompt]) -> Prepared:
    """Make the job of an evaluation ready: verifier, tokenizer, and every question as token ids that fit the window.

    Raises:
        InvalidSetting, IncompatibleData, ModelUnavailable, SandboxUnavailable: what is wrong.
    """
    if config.verifier is None:
        raise ValueError("the settings are not resolved")
    faults = Faults()
    chat, files = load_chat(config)
    settings = model_config(files, config.revision)
    window = window_of(config, settings, chat.prompts.window)
    # An evaluation answers whatever its model was trained by.
    asked = config.model_copy(update={"objective": "rl"})
    rows = Dataset((), (), tuple(prompts), instruction="", examples=(), notes=())
    fitted = fit(asked, rows, chat.prompts, window, faults)
    faults.raise_any()
    verifier = make_verifier(config.verifier, prefer_answer_tag=config.reward.format_bonus == "tags")
    notes = (*left_out(files.name, towers_in(files.name, settings)), *fitted.notes)
    return Prepared(asked, verifier, chat, files, (), (), fitted.heldout, notes)


def part_size(device: str, answers_per_question: int) -> int:
    """How many questions make a part on a device of this kind."""
    answers = _CPU_ANSWERS if device == "cpu" else _GPU_ANSWERS
    return max(1, answers // answers_per_question)


def parts_of(questions: Sequence[EncodedPrompt], size: int) -> list[Sequence[EncodedPrompt]]:
    """Return the questions in parts of this size, the last one with what is left."""
    return [questions[start : start + size] for start in range(0, len(questions), size)]


@dataclass(frozen=True)
class Asking:
    """How questions are asked: one greedy answer each, or several sampled ones; ``seed`` draws them."""

    answers: int
    sampling: SamplingSettings
    max_answer_tokens: int
    seed: int

    @classmethod
    def of(cls, config: RunConfig, answers: int) -> "Asking":
        """How an evaluation of these settings asks for so many answers a question."""
        sampling = GREEDY if answers == 1 else SamplingSettings.of(config.rl)
        return cls(answers, sampling, config.rl.max_answer_tokens, config.seed)


def answer_part(
    sampler: Sampler, grader: Grader, questions: Sequence[EncodedPrompt], asking: Asking, check: Callable[[], None]
) -> list[QuestionResult]:
    """Answer some questions and grade the answers; return them in the order given."""
    requests = [
        SampleRequest(one.token_ids, asking.answers, random_key=(asking.seed, 0, one.prompt.id)) for one in questions
    ]
    latencies: dict[tuple[int, int], float] = {}
    stream = _timed(sampler.sample(requests, asking.sampling, asking.max_answer_tokens, check), latencies)
    graded = grade_while_sampling(
        replace(grader, watch=None), [one.prompt for one in questions], stream, asking.answers
    )
    return [
        question_result(
            one.prompt,
            len(one.token_ids),
            [given_answer(rollout, latencies[place, number]) for number, rollout in enumerate(rollouts)],
        )
        for place, (one, rollouts) in enumerate(zip(questions, graded, strict=True))
    ]


def question_result(prompt: Prompt, prompt_tokens: int | None, answers: Sequence[GivenAnswer]) -> QuestionResult:
    """Return a question with its answers."""
    difficulty = prompt.extras.get("difficulty")
    return QuestionResult(
        question=prompt.id,
        prompt=[{"role": turn["role"], "content": turn["content"]} for turn in prompt.messages],
        ground_truth=prompt.ground_truth,
        difficulty=difficulty if isinstance(difficulty, str | int | float) else None,
        prompt_tokens=prompt_tokens,
        answers=list(answers),
    )


def given_answer(rollout: Rollout, seconds: float, tokens: int | None = None) -> GivenAnswer:
    """Return a graded answer as an evaluation keeps it; ``tokens`` where it was not written here."""
    text, grade = rollout.completion.text, rollout.grade
    return GivenAnswer(
        text=text,
        correctness=grade.correctness,
        reward=rollout.reward,
        format=rollout.format,
        parts=dict(grade.parts),
        outcome=grade.outcome,
        failure=grade.failure,
        tokens=tokens if tokens is not None else len(rollout.completion.token_ids) or None,
        seconds=round(seconds, 4),
        group=group_of(text, grade.outcome, grade.correctness),
    )


def _timed(stream: Generator[Sampled], latencies: dict[tuple[int, int], float]) -> Generator[Sampled]:
    """Yield what a sampler yields, and note after how many seconds each answer was finished."""
    started = perf_counter()
    with closing(stream):
        for sampled in stream:
            latencies[sampled.request, sampled.answer] = perf_counter() - started
            yield sampled
