"""An evaluation as a worker makes it: a model or an endpoint answers a benchmark's questions, part by part, to scores.

Each part is on disk before the next one begins, so that a job that was killed or stopped resumes where it was and ends
with the same answers. Trains nothing and keeps no adapter. What is asked and how it is graded was fixed when the
evaluation was made.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Protocol

import torch

from ratchet.config import RunConfig
from ratchet.datasets import benchmark_folders
from ratchet.engine.answering import Asking, answer_part, part_size, parts_of, prepare_questions
from ratchet.engine.build import EngineBudgets, new_grader, new_sampler
from ratchet.engine.policy import chosen_device, load_policy
from ratchet.engine.prepare import Prepared
from ratchet.errors import Interrupted
from ratchet.evaluation.evaluation import Cost, EvaluationScores, EvaluationSpec, QuestionResult
from ratchet.evaluation.evaluation_files import EvaluationFiles
from ratchet.evaluation.scores import scores_of
from ratchet.run.endings import Ending, status_of
from ratchet.run.events import Answered, Planned, RunEnded, Saving, Scored
from ratchet.run.records import Prompt, RunResult
from ratchet.worker.asking_endpoint import EndpointAnswering
from ratchet.worker.fixed import fix, from_own_copy
from ratchet.worker.out_of_memory import memory_in_words
from ratchet.worker.session import CountingSampler, Session


class Answering(Protocol):
    """What answers a benchmark's questions, a part at a time; ``parts`` are the numbers of each part's questions."""

    parts: Sequence[Sequence[int]]

    def answer(self, part: int) -> list[QuestionResult]:
        """Answer the questions of a part, counted from 0, and grade the answers."""
        ...

    def cost(self, questions: Sequence[QuestionResult]) -> Cost | None:
        """What the answers cost; None where nothing is paid for them."""
        ...

    def close(self) -> None:
        """Give back everything."""
        ...


def work(session: Session, config: RunConfig) -> RunResult:
    """Answer what is not answered yet, and close the evaluation.

    Raises:
        RatchetError: what failed it; the parts that are answered stay.
    """
    files = EvaluationFiles(session.folder)
    spec = files.spec()
    ending: Ending = "all_rounds"
    try:
        scores = _scored(session, config, files, spec)
        message = _in_words(spec, scores)
    except Interrupted as interrupted:
        ending = interrupted.reason
        message = _given_up(session, ending, files, spec)
    return _closed(session, ending, message)


def _scored(session: Session, config: RunConfig, files: EvaluationFiles, spec: EvaluationSpec) -> EvaluationScores:
    _, prompts = benchmark_folders.read(spec.benchmark_hash)
    if spec.only is not None:
        prompts = tuple(prompt for prompt in prompts if prompt.id in set(spec.only))
    session.event(Planned(rounds=spec.questions))
    for sentence in filter(None, (spec.withheld, *spec.notes)):  # known before the first question is asked
        session.note(sentence)
    started = perf_counter()
    answering = _answering(session, config, spec, prompts)
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


def _answering(session: Session, config: RunConfig, spec: EvaluationSpec, prompts: Sequence[Prompt]) -> Answering:
    if spec.endpoint is not None:
        return EndpointAnswering(session, config, spec, prompts)
    return _LocalAnswering(session, config, spec, prompts)


class _LocalAnswering:
    """A model on this machine answers."""

    def __init__(self, session: Session, config: RunConfig, spec: EvaluationSpec, prompts: Sequence[Prompt]) -> None:
        with session.phase("checking"):
            self._prepared = _prepared(session, config, prompts)
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
        """Answer the questions of a part; see ``Answering``."""
        with memory_in_words(self._session, self._prepared):
            return answer_part(self._sampler, self._grader, self._parts[part], self._asking, self._session.check)

    def cost(self, questions: Sequence[QuestionResult]) -> Cost | None:
        """None: nothing is paid by the token here."""
        return None

    def close(self) -> None:
        """Give back sampler and verifier."""
        self._sampler.close()
        self._prepared.close()


def _prepared(session: Session, config: RunConfig, prompts: Sequence[Prompt]) -> Prepared:
    return from_own_copy(prepare_questions(config, prompts), session.folder)


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


def _closed(session: Session, ending: Ending, message: str) -> RunResult:
    folder = session.folder
    result = RunResult(
        run=folder.run_id,
        folder=str(folder.path),
        status="completed" if ending == "all_rounds" else status_of(ending, has_adapter=False),
        ending=ending,
        message=message,
        rounds_done=0,
        seconds=round(session.budget.elapsed, 3),
    )
    session.event(RunEnded.of(result, None))
    folder.log(f"evaluation ended ending={ending} seconds={result.seconds}")
    return result
