"""A scripted sampler and verifier over a random tiny model: rounds whose every answer the test has written.

An answer is a word: "right" and "wrong" are graded so, "half" earns 0.5, "?" is unparseable, "..." is cut off, and
"broken" fails the verifier. A script says what is answered in each call of the sampler, greedy or not.
"""

from dataclasses import dataclass, field, replace

from ratchet.config import RewardSettings, RlSettings, RunConfig
from ratchet.datasets import PromptStream
from ratchet.engine.grading import Grader
from ratchet.engine.round_parts import Engine, Task
from ratchet.engine.rounds import train
from ratchet.engine.sampler import Sampled
from ratchet.engine.update import Learner, new_optimizer
from ratchet.run.records import Completion, EncodedPrompt, Grade, Prompt

from .models import random_ids, tiny_policy
from .ways import PACKED_WHOLE

_GRADES = {
    "right": Grade(1.0, "graded"),
    "wrong": Grade(0.0, "graded"),
    "half": Grade(0.5, "graded"),
    "?": Grade(0.0, "unparseable"),
    "broken": Grade(0.0, "failed", failure="execution"),
}


def prompt(number):
    return Prompt(number, ({"role": "user", "content": f"poison-{number}"},), f"poison-truth-{number}")


def completion(word, tokens=3, seed=0):
    ids = random_ids(tokens, seed)
    return Completion(ids, (-1.0,) * tokens, (-0.5,) * tokens, word, "length" if word == "..." else "stop")


class WordVerifier:
    """Grades the words of the script, and writes down that it was asked."""

    def __init__(self, calls):
        self.calls = calls

    def check_ground_truth(self, prompt):
        return None

    def grade(self, text, prompt):
        self.calls.append(("grade", text))
        return _GRADES[text]

    def close(self):
        pass


@dataclass
class ScriptedSampler:
    """Answers from a script. ``training`` and ``validation`` hold one entry a call; the last one goes on for ever.

    An entry of ``training`` is what each prompt is answered with: one list of words for all prompts, or a function of
    the place of the prompt in the round. An entry of ``validation`` is a list of words, one a prompt. An exception
    among them is raised.
    """

    calls: list
    training: list
    validation: list
    requests: list = field(default_factory=list)

    def sample(self, requests, settings, max_answer_tokens, check):
        script = self.validation if settings.greedy else self.training
        words = script.pop(0) if len(script) > 1 else script[0]
        self.calls.append("validate" if settings.greedy else "sample")
        self.requests.append(list(requests))
        check()
        if isinstance(words, BaseException):
            raise words
        for place, request in enumerate(requests):
            for answer in range(request.answers):
                if settings.greedy:
                    word = words[place % len(words)]
                else:
                    word = (words(place) if callable(words) else words)[answer]
                yield Sampled(place, answer, completion(word, seed=answer + 10 * place))
                check()

    def rest(self):
        self.calls.append("rest")

    def close(self):
        self.calls.append("close")


class Rounds:
    """A run of scripted rounds: what it is given, and what it did."""

    def __init__(self, *, training, validation, prompts=4, stop=None, reward=None, report_error=None, watch=None, **rl):
        given = {"rounds": 2, "prompts_per_round": 2, "answers_per_prompt": 2, "max_answer_tokens": 16, **rl}
        self.config = RunConfig(rl=RlSettings(**given)).resolved()
        self.calls = []
        self.reports = []
        self.states = {}
        self.policy = tiny_policy(fresh=True)
        optimizer = new_optimizer(self.policy, 1e-2, self.config.optimizer)
        self.learner = Learner(self.policy, self.config.rl, optimizer, 1.0, 1024, forward=PACKED_WHOLE)
        self.sampler = ScriptedSampler(self.calls, list(training), list(validation))
        self.prompts = [EncodedPrompt(prompt(n), random_ids(4, seed=n)) for n in range(1, prompts + 1)]
        self.stop = stop or (lambda when: None)
        self.report_error = report_error
        self.policy.model.register_forward_pre_hook(lambda module, args: self._note_update())
        self.watch = watch
        self.reward = reward or RewardSettings(format_bonus="off")

    def _note_update(self):
        if self.calls[-1] != "update":
            self.calls.append("update")

    @property
    def task(self):
        grader = Grader(WordVerifier(self.calls), self.reward, 16, prefilled_think=False, threads=1, watch=self.watch)
        self.stream = PromptStream([encoded.prompt for encoded in self.prompts], self.config.seed)
        validation = [EncodedPrompt(prompt(100 + n), random_ids(4, seed=n)) for n in range(4)]
        return Task(self.stream, {e.prompt.id: e for e in self.prompts}, validation, grader)

    def run(self, resumed=None):
        engine = Engine(self.policy, self.learner, self.sampler)
        task = self.task
        if resumed:
            task.stream.restore(resumed.stream_state)
        return train(self.config, engine, task, self._report, self.stop, resumed)

    def _report(self, record, groups, progress):
        self.calls.append(f"report {record.round}")
        if self.report_error and record.round in self.report_error:
            raise self.report_error[record.round]
        self.reports.append((record, groups, replace(progress, records=list(progress.records))))
        self.states[record.round] = self.policy.adapter_state()

    @property
    def records(self):
        return [record for record, _, _ in self.reports]

    @property
    def last(self):
        return self.reports[-1][2]
