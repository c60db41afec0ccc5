"""A scripted engine in the real worker, forked instead of started: no worker waits for torch to load.

Real are the worker's process, session and lock, its job, checks, update, checkpoint, journal and heartbeat. The model
is a random one of a few thousand weights, and what it "answers" depends on its adapter, the round, the prompt and the
answer's number: a run that did not go on exactly where it stood would answer otherwise from then on.
"""

import hashlib
import json
import os
import random
import signal
import sys
import time
from dataclasses import replace

from ratchet.config import RunConfig
from ratchet.run.records import Completion
from ratchet.supervisor.executors import directory_of, open_log

ROWS, VALIDATION_ROWS, ROUNDS = 8, 8, 4
_VOCABULARY = 4096


def scripted_config(place, seed=0, **limits):
    """Return the settings of a scripted run; its rows are written under ``place``."""
    place.mkdir(parents=True, exist_ok=True)
    for name, rows, start in (("train", ROWS, 0), ("validation", VALIDATION_ROWS, 50)):
        lines = [{"prompt": f"{n + 1} - {n}", "ground_truth": "1"} for n in range(start, start + rows)]
        (place / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rl = {"rounds": ROUNDS, "prompts_per_round": 2, "answers_per_prompt": 2, "max_answer_tokens": 16}
    return RunConfig.model_validate(
        {
            "data": {"source": "boxed", "path": str(place)},
            "verifier": {"kind": "final_number"},
            "prompt": {"system_prompt": ""},
            "reward": {"format_bonus": "off"},
            "rl": {**rl, "validation_prompts": VALIDATION_ROWS, "no_signal_rounds": 100},
            "limits": limits,
            "seed": seed,
        }
    ).resolved()


class ScriptedSampler:
    """Right answers by chance, and a little time for each, so that kills meet every part of a round."""

    def __init__(self, policy, seconds=0.01):
        self._policy = policy
        self._seconds = seconds

    def sample(self, requests, settings, max_answer_tokens, check):
        from ratchet.engine.sampler import Sampled

        weights = b"".join(tensor.numpy().tobytes() for tensor in self._policy.adapter_state().values())
        adapter = hashlib.sha256(weights).hexdigest()
        for place, request in enumerate(requests):
            for answer in range(request.answers):
                time.sleep(self._seconds)
                check()
                chance = random.Random(f"{adapter} {request.prompt_token_ids} {request.random_key} {answer}")
                tokens = tuple(chance.randrange(10, 200) for _ in range(3))
                text = "1" if chance.random() < 0.5 else "2"
                completion = Completion(tokens, (-1.0,) * 3, (-1.0,) * 3, text, "stop")
                yield Sampled(place, answer, completion)

    def rest(self):
        pass

    def close(self):
        pass


def load():
    """Load all that a worker needs, once, before it is forked."""
    import ratchet.worker.__main__  # noqa: F401 - and with it torch, transformers and PEFT
    from tests.engine.models import tiny_policy

    tiny_policy(fresh=True, vocab_size=_VOCABULARY)


def script_the_engine():
    """Put the scripted policy and sampler in place of the real ones, in a process that is a worker and nothing else."""
    from ratchet.worker import training_job as rl
    from tests.engine.models import tiny_policy

    real_engine = rl.new_engine

    def scripted_engine(*arguments):
        engine = real_engine(*arguments)
        engine.sampler.close()
        return replace(engine, sampler=ScriptedSampler(engine.policy))

    rl.new_engine = scripted_engine
    rl.load_policy = lambda config, chat, files: tiny_policy(fresh=True, vocab_size=_VOCABULARY)


class Forked:
    """A forked worker, as ``subprocess.Popen`` would show it."""

    def __init__(self, pid):
        self.pid = pid
        self._code = None

    def poll(self):
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


class ForkingExecutor:
    """Starts scripted workers as ``LocalExecutor`` starts real ones, by a fork of this process."""

    def start(self, folder, environment):
        lock = folder.take_lock()
        output = open_log(folder)
        pid = os.fork()
        if pid == 0:
            _be_worker(folder, lock, output, environment)
        os.close(lock)
        os.close(output)
        return Forked(pid)


def _close_all_but(lock):
    """Close what a started process would not have open either: the scheduler's own lock, its database."""
    os.closerange(3, lock)
    os.closerange(lock + 1, 4096)


def _be_worker(folder, lock, output, environment):
    code = 70
    try:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        _close_all_but(lock)
        os.chdir(directory_of(folder))
        os.environ.update(environment)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        from ratchet.worker.__main__ import main

        script_the_engine()
        code = main([str(folder.path), str(lock)])
    finally:
        sys.stdout.flush()
        os._exit(code)
