"""An endpoint answers a benchmark's questions: asked over the network, graded here by the benchmark's own verifier."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from ratchet.config import EndpointSettings, RunConfig
from ratchet.datasets import conversation
from ratchet.endpoint import (
    EndpointAnswer,
    EndpointClient,
    EndpointRequest,
    probe,
    read_key,
)
from ratchet.engine.answering import given_answer, question_result
from ratchet.engine.grading import Grader
from ratchet.evaluation.evaluation import Cost, EvaluationSpec, GivenAnswer, QuestionResult
from ratchet.evaluation.scores import cost_of_questions, endpoint_failure
from ratchet.run.records import Completion, Grade, Prompt, Rollout
from ratchet.verifiers import make_verifier
from ratchet.worker.session import Session

# Questions of a part: what a kill costs. Many more than are asked at once, so that a part's end holds up little.
_LEAST_QUESTIONS, _ROUNDS = 16, 4
_GRADER_THREADS = 4


class EndpointAnswering:
    """An endpoint that answers; see ``worker/evaluation.py``.

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
