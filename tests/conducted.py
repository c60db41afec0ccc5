"""A conductor over jobs that are faked: each writes into its run folder what a real worker would, at once.

What is real: database, run folders, checks, the start from an adapter, the journal and how it is taken in.
"""

import json
import os
import shutil
from contextlib import closing
from functools import partial
from zlib import crc32

from ratchet.config import LoopSettings
from ratchet.datasets import benchmark_folders
from ratchet.evaluation.evaluation import GivenAnswer, QuestionResult
from ratchet.evaluation.evaluation_files import EvaluationFiles
from ratchet.evaluation.experiment import ExperimentSpec
from ratchet.evaluation.scores import scores_of
from ratchet.files import ratchet_home, write_atomically
from ratchet.models.adapter_files import weights_sha256
from ratchet.models.model_files import locate
from ratchet.run.end_stalled_run import close_stalled_run
from ratchet.run.endings import AT_WORK
from ratchet.run.events import Answered, Planned, RoundDone, RunEnded, RunStarted, Scored
from ratchet.run.records import RoundRecord, Seconds, Validation
from ratchet.run.run_folder import RunFolder
from ratchet.service.evaluations import benchmarks
from ratchet.service.jobs.conductor import Conductor, find_job, list_jobs, resume_job, stop_job
from ratchet.service.jobs.experiments import Experiment, create_experiment
from ratchet.service.jobs.job_steps import this_home
from ratchet.service.jobs.loops import Loop, LoopSpec, create_loop
from ratchet.store import Database, RunStore
from ratchet.supervisor.ingest import ingest

from .adapters import tiny_adapter
from .small_runs import small

QUESTIONS = 40
find_loop, list_loops, stop_loop, resume_loop = (
    partial(do, Loop) for do in (find_job, list_jobs, stop_job, resume_job)
)
find_experiment, list_experiments, stop_experiment, resume_experiment = (
    partial(do, Experiment) for do in (find_job, list_jobs, stop_job, resume_job)
)
CONFIRMED = {"key": "confirmed elsewhere"}
KILLED = 9
# How a faked job may end, apart from its whole course: (status, ending, whether there is an adapter).
ENDS = {
    "done": ("completed", "all_rounds", True),
    "early": ("stopped_early", "out_of_memory", True),
    "failed": ("failed", "error", False),
}


def make_adapter(path):
    """Save an adapter as the settings of ``small`` ask for it; whoever fakes a run takes a copy with other weights."""
    return tiny_adapter(path, rank=8)


def pairs(name="pairs", heldout=QUESTIONS, **settings):
    """Keep a benchmark of Math Pairs with few questions; return its content hash."""
    return benchmarks.add_built_in("math-pairs", {"heldout": heldout, **settings}, name=name).benchmark.content_hash


def config(**changes):
    return small(**changes).resolved()


def loop_spec(benchmark=None, changes=None, **settings):
    """Return a loop over small runs, by default on a benchmark of few questions."""
    return LoopSpec(
        settings=LoopSettings(**settings),
        config=config(**(changes or {})),
        benchmark_hash=benchmark or pairs(),
        confirmation=CONFIRMED,
        home=this_home(),
    )


def enter_loop(changes=None, **settings):
    return create_loop(loop_spec(None, changes, **settings))


def experiment_spec(*benchmarks, changes=None, **given):
    """Return an experiment with small runs, by default on a benchmark of few questions."""
    fields = {"confirmation": CONFIRMED, "seeds": (0,), "home": this_home()}
    of = {"config": config(**(changes or {})), "benchmarks": benchmarks or (pairs(),)}
    return ExperimentSpec(**of, **{**fields, **given})


def enter_experiment(*benchmarks, name="", **given):
    return create_experiment(experiment_spec(*benchmarks, **given), name=name)


class Stage:
    """Loops and experiments, a conductor over them, and jobs that do as a test says.

    Attributes:
        shares: Step -> share of its questions answered right; else that of its round, or of its kind.
        ungraded: Step -> share of its answers that could not be graded.
        ends: Step -> how each of its tries ends, a key of ``ENDS``; "done" where nothing is said.
        order: The steps in the order in which they were worked on, without their owner.
    """

    def __init__(self, adapter):
        self.store = RunStore(Database())
        self.adapter = adapter
        self.shares = {}
        self.ends = {}
        self.ungraded = {}
        self.order = []
        self.said = []
        self.conductor = Conductor(self.store, self.said.append)

    def close(self):
        self.store._database.close()

    def pass_(self):
        self.conductor.step()

    def work(self):
        """Take the oldest job that waits and do all of it; tell whether there was one."""
        run = self.begin()
        if run is None:
            return False
        self.finish(run)
        return True

    def begin(self):
        """Take the oldest job that waits and begin it; return it."""
        run = self.store.claim("here", "cpu0", lambda run: True)
        if run is None:
            return None
        folder = RunFolder(run.folder)
        folder.append_event(RunStarted(run=run.id, resumed=False))
        return ingest(self.store, run, folder)

    def finish(self, run):
        """Do all of a job that was begun."""
        folder, step = RunFolder(run.folder), step_of(run)
        self.order.append(step)
        ends = self.ends.get(step, [])
        end = ends.pop(0) if ends else "done"
        if run.kind == "evaluation":
            self._evaluate(folder, step, end)
        else:
            self._train(folder, end)
        ingest(self.store, self.store.get(run.id), folder)

    def stop_at_work(self):
        """End what was begun and asked to stop as a worker does: a run that has an adapter keeps it."""
        for run in self.store.all(statuses=AT_WORK):
            folder = RunFolder(run.folder)
            if folder.stop_path.exists():
                close_stalled_run(folder, "stopped", "Stopped as asked.")
                ingest(self.store, run, folder)

    def first_round(self, run):
        """Let a run that was begun score its start and keep an adapter."""
        folder = RunFolder(run.folder)
        self._keep_adapter(folder)
        ingest(self.store, self.store.get(run.id), folder)

    def until_ended(self, find, passes=60):
        """Take passes, a job between two of them, until what ``find`` returns has ended; return it."""
        for _ in range(passes):
            self.pass_()
            one = find()
            if one.stored.ended_at is not None:
                return one
            self.work()
        raise AssertionError(f"does not end: {self.said}, {self.order}")

    def steps(self, owner):
        """Return step -> its jobs, oldest first."""
        found = {}
        for run in self.store.owned_by(owner):
            found.setdefault(step_of(run), []).append(run)
        return found

    def folders(self):
        """Return the names of all run folders."""
        return sorted(place.name for place in (ratchet_home() / "runs").glob("*"))

    def _evaluate(self, folder, step, end):
        files = EvaluationFiles(folder)
        spec = files.spec()
        folder.append_event(Planned(rounds=spec.questions))
        if end != "done":
            _closed(folder, *ENDS[end][:2])
            return
        _, prompts = benchmark_folders.read(spec.benchmark_hash)
        asked = [prompt for prompt in prompts if spec.only is None or prompt.id in spec.only]
        right = round(self._share(step) * len(asked))
        failed = round(self.ungraded.get(step, 0) * len(asked))
        results = [
            _answered(prompt, place < right, has_failed=place >= len(asked) - failed)
            for place, prompt in enumerate(asked)
        ]
        files.write_part(1, results)
        folder.append_event(Answered(done=len(results), of=spec.questions, seconds=1.0))
        scores = scores_of(results, spec.score_columns, seconds=1.0, cost=None)
        files.write_scores(scores)
        folder.append_event(Scored(scores=scores.model_dump(mode="json")))
        shutil.rmtree(folder.start_path, ignore_errors=True)
        _closed(folder, "completed", "all_rounds")

    def _share(self, step):
        if step in self.shares:
            return self.shares[step]
        first, _, rest = step.partition("/")
        return self.shares.get(first, self.shares.get(rest, 0.5))

    def _train(self, folder, end):
        status, ending, has_adapter = ENDS[end]
        if has_adapter:
            self._keep_adapter(folder)
        checksum = weights_sha256(folder.adapter_path) if has_adapter else None
        _closed(folder, status, ending, adapter_sha256=checksum, best_round=0, best_accuracy=0.5)

    def _keep_adapter(self, folder):
        record = folder.read_run()
        model = locate(folder.read_config().model).identity
        folder.write_run({**record, "fixed": {"model_identity": model, "device": "cpu"}})
        folder.append_event(Planned(rounds=1, prompts=8))
        validation = Validation(prompts=4, accuracy=0.5, reward=0.0, outcomes={"graded": 4})
        first = RoundRecord(round=0, validation=validation, best_round=0, best_accuracy=0.5, seconds=Seconds(total=2.0))
        folder.append_event(RoundDone(record=first))
        folder.adapter_path.mkdir(exist_ok=True)
        for file in self.adapter.iterdir():
            content = file.read_bytes()
            if file.suffix == ".safetensors":  # the last weight tells one run's adapter from another's
                number = crc32(folder.run_id.encode()) % 2**20
                content = content[:-4] + number.to_bytes(4, "little")
            if file.suffix != ".md":
                write_atomically(folder.adapter_path / file.name, content)


def step_of(run):
    """Return which step a job is, without its owner and the number of its try."""
    return "/".join(run.owner.split("/")[2:-1])


def _closed(folder, status, ending, **fields):
    message = {"completed": "All of it is done."}.get(status, f"It ended by {ending}.")
    folder.append_event(RunEnded(status=status, ending=ending, message=message, seconds=1.0, rounds_done=0, **fields))


def _answered(prompt, is_right, has_failed):
    share = float(is_right and not has_failed)
    answer = GivenAnswer(
        text=prompt.ground_truth if is_right else "0", correctness=share, reward=share, format=1.0,
        outcome="failed" if has_failed else "graded", failure="time" if has_failed else None, tokens=3, seconds=0.1,
        group="failed" if has_failed else "right" if is_right else "wrong",
    )  # fmt: skip
    return QuestionResult(
        question=prompt.id, prompt=list(prompt.messages), ground_truth=prompt.ground_truth,
        difficulty=prompt.extras.get("difficulty"), answers=[answer],
    )  # fmt: skip


def spec_of(run):
    return EvaluationFiles(RunFolder(run.folder)).spec()


def start_of(run):
    """Return the settings of a job's model: the run whose adapter it starts from, "" for the base model."""
    return json.loads((run.folder / "config.json").read_text())["start_from"]["run"]


def step_killed_before_write(number):
    """Take a pass in a process of its own that is gone before its so-many-th write; tell whether it came to that."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            left = [number]

            def counting(write):
                def counted(*arguments, **options):
                    left[0] -= 1
                    if left[0] == 0:
                        os._exit(KILLED)
                    return write(*arguments, **options)

                return counted

            for name in ("replace", "rename", "mkdir", "unlink", "rmdir"):
                setattr(os, name, counting(getattr(os, name)))
            Database.write = counting(Database.write)
            with closing(Database()) as database:
                Conductor(RunStore(database), lambda line: None).step()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, KILLED)
    return code == KILLED
