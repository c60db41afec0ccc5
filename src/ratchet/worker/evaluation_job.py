"""An evaluation as a worker makes it: a model or an endpoint answers a benchmark's questions, part by part, to scores.

Each part is on disk before the next one begins, so that a job that was killed or stopped resumes where it was and ends
with the same answers. Trains nothing and keeps no adapter. What is asked and how it is graded was fixed when the
evaluation was made.
"""

import shutil
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from time import perf_counter

import torch

from ratchet.config import EndpointSettings, RunConfig
from ratchet.datasets import benchmark_folders, conversation
from ratchet.endpoint import (
    EndpointAnswer,
    EndpointClient,
    EndpointRequest,
    probe,
    read_key,
)
from ratchet.engine.answering import (
    Asking,
    answer_part,
    given_answer,
    part_size,
    parts_of,
    prepare_questions,
    question_result,
)
from ratchet.engine.build import EngineBudgets, new_grader, new_sampler
from ratchet.engine.grading import Grader
from ratchet.engine.policy import chosen_device, load_policy
from ratchet.errors import Interrupted
from ratchet.evaluation.evaluation import Cost, EvaluationScores, EvaluationSpec, GivenAnswer, QuestionResult
from ratchet.evaluation.evaluation_files import EvaluationFiles
from ratchet.evaluation.scores import cost_of_questions, endpoint_failure, scores_of
from ratchet.run.endings import Ending, status_of
from ratchet.run.events import Answered, Planned, Saving, Scored
from ratchet.run.records import Completion, Grade, Prompt, Rollout, RunResult
from ratchet.verifiers import make_verifier
from ratchet.worker.fixed import fix, from_own_copy
from ratchet.worker.out_of_memory import memory_in_words
from ratchet.worker.session import CountingSampler, Session

# Questions of a part that an endpoint answers: what a kill costs. Many more than are asked at once, so that its end
# holds up little.
_LEAST_QUESTIONS, _ROUNDS = 16, 4
_GRADER_THREADS = 4


def work(session: Session, config: RunConfig) -> RunResult:
    """Answer what is not answered yet, and close the evaluation.

    Raises:
        RatchetError: what failed it; the parts that are answered stay.
    """
    files = EvaluationFiles(session.folder)
    spec = files.spec()
    try:
        message = _in_words(spec, _scored(session, config, files, spec))
    except Interrupted as interrupted:
        ending = interrupted.reason
        message = _given_up(session, ending, files, spec)
        return session.end_without_adapter(status_of(ending, has_adapter=False), ending, message)
    return session.end_without_adapter("completed", "all_rounds", message)


def _scored(session: Session, config: RunConfig, files: EvaluationFiles, spec: EvaluationSpec) -> EvaluationScores:
    _, prompts = benchmark_folders.read(spec.benchmark_hash)
    if spec.only is not None:
        prompts = tuple(prompt for prompt in prompts if prompt.id in set(spec.only))
    session.event(Planned(rounds=spec.questions))
    for sentence in filter(None, (spec.withheld, *spec.notes)):  # known before the first question is asked
        session.note(sentence)
    started = perf_counter()
    answering = (_Local if spec.endpoint is None else _Endpoint)(session, config, spec, prompts)
    try:
        files.refuse_torn(answering.parts, spec.answers_per_question)
        count = len(files.questions())
        for part in range(files.parts_done(), len(answering.parts)):
            session.check()
            before = perf_counter()
            results = answering.answer(part)
            files.write_part(part + 1, results)
            count += len(results)
            session.event(Answered(done=count, of=spec.questions, seconds=round(perf_counter() - before, 3)))
        questions = files.questions()
        seconds = session.folder.state().answered_seconds
        scores = scores_of(
            questions,
            spec.score_columns,
            seconds=round(seconds, 3),
            cost=answering.cost(questions),
            withheld=spec.withheld,
            notes=spec.notes,
        )
    finally:
        answering.close()
    session.folder.log(f"answered questions={spec.questions} seconds={perf_counter() - started:.1f}")
    session.event(Saving())
    files.write_scores(scores)
    session.event(Scored(scores=scores.model_dump(mode="json")))
    # The copy of the adapter has done its work; its checksum is in the record.
    shutil.rmtree(session.folder.start_path, ignore_errors=True)
    return scores


class _Local:
    """A model on this machine answers, a part at a time; ``parts`` are the numbers of each part's questions."""

    def __init__(self, session: Session, config: RunConfig, spec: EvaluationSpec, prompts: Sequence[Prompt]) -> None:
        with session.phase("checking"):
            self._prepared = from_own_copy(prepare_questions(config, prompts), session.folder)
        try:
            with session.phase("loading"):
                session.on_progress("loading", 0, 1)
                policy = load_policy(self._prepared.config, self._prepared.chat, self._prepared.files)
                fixed = fix(session, self._prepared, policy, session.note, EngineBudgets.scoring)
                torch.set_num_threads(fixed["threads"])
                session.plan = EngineBudgets.stored(fixed)
                sampler = new_sampler(self._prepared, policy, session.plan, session.note)
        except BaseException:
            self._prepared.close()
            raise
        for note in self._prepared.notes:
            session.note(note)
        self._session = session
        self._sampler = CountingSampler(sampler, session.on_progress)
        self._grader = replace(new_grader(self._prepared), on_graded=session.progressed)
        self._asking = Asking.of(config, spec.answers_per_question)
        size = part_size(chosen_device(config.device).type, spec.answers_per_question)
        self._parts = parts_of(self._prepared.heldout, size)
        self.parts: Sequence[Sequence[int]] = [[one.prompt.id for one in part] for part in self._parts]

    def answer(self, part: int) -> list[QuestionResult]:
        """Answer the questions of a part, counted from 0, and grade the answers."""
        with memory_in_words(self._session, self._prepared):
            return answer_part(self._sampler, self._grader, self._parts[part], self._asking, self._session.check)

    def cost(self, questions: Sequence[QuestionResult]) -> Cost | None:
        """None: nothing is paid by the token here."""
        return None

    def close(self) -> None:
        """Give back sampler and verifier."""
        self._sampler.close()
        self._prepared.close()


class _Endpoint:
    """An endpoint answers, asked over the network, graded here by the benchmark's own verifier; as ``_Local``.

    Raises:
        InvalidSetting, ModelUnavailable: the endpoint cannot be asked, or does not know the model.
    """

    def __init__(self, session: Session, config: RunConfig, spec: EvaluationSpec, prompts: Sequence[Prompt]) -> None:
        if spec.endpoint is None or config.verifier is None:
            raise ValueError("no endpoint to ask")
        self._settings = EndpointSettings.model_validate(spec.endpoint)
        self._session, self._config, self._spec = session, config, spec
        key = read_key(self._settings)
        with session.phase("asking_endpoint"):
            probe(self._settings, key, session.check)
        self._client = EndpointClient(self._settings, key)
        self._verifier = make_verifier(config.verifier, prefer_answer_tag=config.reward.format_bonus == "tags")
        self._grader = Grader(self._verifier, config.reward, config.rl.max_answer_tokens, prefilled_think=False)
        size = max(_LEAST_QUESTIONS, _ROUNDS * self._settings.concurrency)
        self._parts = [prompts[start : start + size] for start in range(0, len(prompts), size)]
        self.parts: Sequence[Sequence[int]] = [[prompt.id for prompt in part] for part in self._parts]

    def answer(self, part: int) -> list[QuestionResult]:
        """Ask the questions of a part and grade the answers as they come."""
        prompts = self._parts[part]
        by_id = {prompt.id: prompt for prompt in prompts}
        count, total = self._spec.answers_per_question, len(prompts) * self._spec.answers_per_question
        answers: dict[tuple[int, int], tuple[EndpointAnswer, Future[GivenAnswer]]] = {}
        self._session.on_progress("scoring", 0, total)
        with ThreadPoolExecutor(_GRADER_THREADS, thread_name_prefix="grader") as pool:
            stream = self._client.answer_all([self._request(prompt) for prompt in prompts], self._session.check)
            try:
                for one in stream:
                    graded = pool.submit(self._graded, one, by_id[one.question])
                    answers[one.question, one.answer] = one, graded
                    self._session.on_progress("scoring", len(answers), total)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            finally:
                stream.close()
        return [self._result(prompt, [answers[prompt.id, number] for number in range(count)]) for prompt in prompts]

    def cost(self, questions: Sequence[QuestionResult]) -> Cost | None:
        """What the answers' tokens cost, None where the endpoint does not count them."""
        return cost_of_questions(self._settings, questions)

    def close(self) -> None:
        """Give back the verifier; no request is under way between two parts."""
        self._verifier.close()

    def _request(self, prompt: Prompt) -> EndpointRequest:
        rl, setup = self._config.rl, self._config.prompt
        examples = setup.few_shot_examples
        if isinstance(examples, int):
            raise ValueError("the few-shot examples are not resolved")
        count = self._spec.answers_per_question
        return EndpointRequest(
            question=prompt.id,
            messages=conversation(prompt, system_prompt=setup.system_prompt or "", examples=examples),
            max_answer_tokens=rl.max_answer_tokens,
            answers=count,
            temperature=0.0 if count == 1 else rl.temperature,
            top_p=rl.top_p,
            seed=self._config.seed,
        )

    def _graded(self, one: EndpointAnswer, prompt: Prompt) -> GivenAnswer:
        completion = Completion((), (), None, one.text, one.finish)
        if one.failure is None:
            rollout = self._grader.grade(completion, prompt)
        else:
            rollout = Rollout(
                completion, Grade(0.0, "failed", failure=endpoint_failure(one.failure)), format=0.0, reward=0.0
            )
        return given_answer(rollout, one.seconds, one.answer_tokens)

    def _result(
        self, prompt: Prompt, answers: Sequence[tuple[EndpointAnswer, "Future[GivenAnswer]"]]
    ) -> QuestionResult:
        counted = [one.prompt_tokens for one, _ in answers if one.prompt_tokens is not None]
        return question_result(prompt, counted[0] if counted else None, [graded.result() for _, graded in answers])


def _in_words(spec: EvaluationSpec, scores: EvaluationScores) -> str:
    main = scores.columns[0]
    name = main.name.replace("_", " ")
    value = f"{name} {main.value:.1%} (95 % interval {main.low:.1%} to {main.high:.1%})"
    return f"All {spec.questions} questions are answered: {value}."


def _given_up(session: Session, ending: Ending, files: EvaluationFiles, spec: EvaluationSpec) -> str:
    done = len(files.questions())
    why = session.stalled or ("The time limit was over." if ending == "time_limit" else "Stopped as asked.")
    more = f"Resume with: ratchet eval resume {session.folder.run_id}" if ending != "time_limit" else ""
    return f"{why} {done} of {spec.questions} questions are answered and kept. {more}".rstrip()
