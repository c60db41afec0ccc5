"""A scripted sampler in the real worker: the tiny model learns for real from answers that a test has written.

Every row's reference is 12, so that "right" and "wrong" need no arithmetic. Prompts, references and answers hold
``CANARY``, a word that may stand in the rollouts and nowhere else.
"""

import json
from dataclasses import replace

from ratchet import worker
from ratchet.config.config_text import build
from ratchet.engine.sampler import Sampled
from ratchet.run.records import Completion
from ratchet.run.run_folder import RunFolder
from ratchet.worker import Listener, training_job

from .small_runs import adapter_bytes, ended

CANARY = "zebrafish"
WORDS = {"right": f"{CANARY} 12", "wrong": f"{CANARY} 13", "?": CANARY, "...": f"{CANARY} 1"}
# Of four validation prompts so many are right; the last entry goes on for ever.
ALL_RIGHT, HALF_RIGHT, NONE_RIGHT = ["right"] * 4, ["right", "right", "wrong", "wrong"], ["wrong"] * 4
MIXED = ["right", "wrong"]


class ScriptedSampler:
    """Answers from a script: one list of words for each prompt of a call in training, one word a prompt in validation.

    An exception in its place is raised; a function is called and returns the words.
    """

    def __init__(self, training, validation):
        self.training, self.validation = list(training), list(validation)

    def sample(self, requests, settings, max_answer_tokens, check):
        script = self.validation if settings.greedy else self.training
        words = script.pop(0) if len(script) > 1 else script[0]
        check()
        words = words() if callable(words) else words
        if isinstance(words, BaseException):
            raise words
        for place, request in enumerate(requests):
            for answer in range(request.answers):
                word = words[place % len(words)] if settings.greedy else words[answer % len(words)]
                if word != "lost":
                    yield Sampled(place, answer, completion(word, place + answer))
                check()

    def rest(self):
        pass

    def close(self):
        pass


def completion(word, seed):
    ids = (10 + seed % 5, 20, 30)
    return Completion(ids, (-1.0,) * 3, (-0.5,) * 3, WORDS[word], "length" if word == "..." else "stop")


def settings_of(folder, **changes):
    """Write rows and return the settings of a run on them; settings are given by dotted or short names."""
    rows = folder / "rows"
    rows.mkdir(parents=True)
    for name, numbers in (("train", range(1, 9)), ("validation", range(11, 15))):
        lines = ({"prompt": f"{CANARY} ({n} + 1)", "ground_truth": f"{CANARY} 12"} for n in numbers)
        (rows / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = {
        "model": "tiny",
        "data": {"source": "boxed", "path": str(rows)},
        "verifier": {"kind": "final_number"},
        "prompt": {"system_prompt": ""},
        "reward": {"format_bonus": "off"},
        "rl": {"rounds": 3, "prompts_per_round": 2, "answers_per_prompt": 2, "max_answer_tokens": 16},
        "learning_rate": 2e-3,
    }
    return build(given, {name.replace("__", "."): str(value) for name, value in changes.items()})


class ScriptedRun:
    """A run whose answers are written by a test. ``kept`` holds the adapter's bytes at each round that was the best."""

    def __init__(self, folder, monkeypatch, *, training=(MIXED,), validation=(NONE_RIGHT,), config=None, **changes):
        self.config = config or settings_of(folder, **changes)
        self.folder = RunFolder.create(self.config, folder / "run")
        self.sampler = ScriptedSampler(training, validation)
        self.policy = None
        self.kept = {}
        self.events = []
        self.after_round = lambda number: None
        new_engine = training_job.new_engine

        def scripted(prepared, policy, plan, note):
            self.policy = policy
            return replace(new_engine(prepared, policy, plan, note), sampler=self.sampler)

        monkeypatch.setattr(training_job, "new_engine", scripted)

    def watch(self, on_progress=lambda phase, done, total: None):
        def on_event(event):
            self.events.append(event)
            if event.event == "round":
                record = event.record
                if record.best_round == record.round:
                    self.kept[record.round] = adapter_bytes(self.folder)
                self.after_round(record.round)

        return Listener(on_event=on_event, on_progress=on_progress)

    def run(self, on_progress=lambda phase, done, total: None, **options):
        return worker.run(self.folder, listeners=[self.watch(on_progress)], **options)

    @property
    def ended(self):
        return ended(self.folder)
