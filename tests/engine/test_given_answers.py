"""The losses of sft and dpo: by hand, against TRL's trainers on the same rows, and whole runs against theirs."""

import warnings
from math import log

import pytest
import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from transformers import get_scheduler

from ratchet.config import DatasetData, DpoSettings, RunConfig, SftSettings
from ratchet.datasets import PromptStream
from ratchet.engine.given_answers import (
    DpoLoss,
    SftLoss,
    add_output_layer,
    examples_of,
    micro_batches,
    number_of_steps,
    pairs_of,
    rate_at,
    rows_per_step,
    steps_of_round,
)
from ratchet.engine.grading import Grader
from ratchet.engine.logprobs import PLAIN
from ratchet.engine.round_parts import Engine, Task
from ratchet.engine.tuning import train
from ratchet.engine.update import Learner, new_optimizer
from ratchet.errors import Interrupted, NotFinite, OutOfMemory
from ratchet.run.records import EncodedPrompt, Prompt, Validation
from ratchet.verifiers.base import NoVerifier

from ..repeated import matrix
from .models import EOS, random_ids, tiny_policy

LENGTHS = [(5, 4, 3), (9, 2, 6), (3, 7, 1), (12, 1, 9), (6, 5, 5), (4, 3, 2), (8, 6, 4)]
# In float32 the two add up in another order.
CLOSE = {"atol": 1e-6, "rtol": 1e-5}


def rows_of(lengths=LENGTHS):
    """Return rows with random prompts and answers of the given lengths, each answer with its end."""
    return [
        EncodedPrompt(
            Prompt(number, (), ""),
            random_ids(prompt, number),
            (*random_ids(chosen, 100 + number), EOS),
            (*random_ids(rejected, 200 + number), EOS),
        )
        for number, (prompt, chosen, rejected) in enumerate(lengths, start=1)
    ]


def loss_of(kind, policy):
    add_output_layer(policy)
    return SftLoss(policy) if kind == "sft" else DpoLoss(policy, beta=0.3)


def logprob(policy, row, answer):
    """Return the summed log-probability of an answer, from the model's logits alone."""
    ids = torch.tensor([*row.token_ids, *answer])
    logits = policy.model(input_ids=ids[None]).logits[0, :-1].double()
    taken = logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0]
    return float(taken[len(row.token_ids) - 1 :].sum())


def test_prompts_are_masked_and_the_token_that_ends_an_answer_counts():
    row = EncodedPrompt(Prompt(1, (), ""), (20, 21, 22), (30, 31, EOS))
    assert examples_of([row]) == [{"input_ids": [20, 21, 22, 30, 31, EOS], "labels": [-100, -100, -100, 30, 31, EOS]}]


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma2", "gpt_neox", "phi", "mixtral"])
@torch.no_grad()
def test_the_loss_of_demonstrations_is_the_mean_over_all_their_tokens(architecture):
    policy, rows = tiny_policy(architecture), rows_of()
    expected = -sum(logprob(policy, row, row.demonstration_ids) for row in rows)
    expected /= sum(len(row.demonstration_ids) for row in rows)
    assert float(loss_of("sft", policy).share(rows, rows).loss) == pytest.approx(expected, rel=1e-5)


@torch.no_grad()
def test_the_loss_of_preferences_compares_with_the_policy_at_the_start():
    policy, rows = tiny_policy(), rows_of()
    share = loss_of("dpo", policy).share(rows, rows)
    margins = []
    for row in rows:
        moved = [logprob(policy, row, answer) for answer in (row.demonstration_ids, row.rejected_ids)]
        with policy.as_reference():
            start = [logprob(policy, row, answer) for answer in (row.demonstration_ids, row.rejected_ids)]
        margins.append(0.3 * ((moved[0] - start[0]) - (moved[1] - start[1])))
    margins = torch.tensor(margins)
    assert float(share.loss) == pytest.approx(float(torch.log1p(torch.exp(-margins)).mean()), rel=1e-5)
    assert share.margin_sum == pytest.approx(float(margins.sum()), rel=1e-4)
    assert 0 < share.preferred < len(rows)
    assert share.preferred == int((margins > 0).sum())


@torch.no_grad()
def test_a_policy_that_has_not_moved_has_the_loss_log_two_and_no_margin():
    policy, rows = tiny_policy(fresh=True), rows_of()
    share = loss_of("dpo", policy).share(rows, rows)
    assert (float(share.loss), share.margin_sum, share.preferred) == (pytest.approx(log(2)), 0.0, 0)


def gradient(policy, loss):
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, policy.parameters)])


@pytest.mark.parametrize("kind", ["sft", "dpo"])
@pytest.mark.parametrize("budget", [1, 30, 10_000])
def test_micro_batches_add_up_to_the_loss_of_the_step(kind, budget):
    policy, rows = tiny_policy(), rows_of()
    loss = loss_of(kind, policy)
    batches = list(micro_batches(loss, rows, budget))
    assert sorted(row.prompt.id for batch in batches for row in batch) == [row.prompt.id for row in rows]
    assert all(len(batch) == 1 or len(batch) * max(map(loss.tokens, batch)) <= budget for batch in batches)
    assert (len(batches) == 1) == (budget == 10_000)
    whole = gradient(policy, loss.share(rows, rows).loss)
    parts = sum(gradient(policy, loss.share(batch, rows).loss) for batch in batches)
    torch.testing.assert_close(parts, whole, **CLOSE)


@pytest.fixture
def quiet_trl():
    """Say nothing of what TRL's trainers do inside: theirs is the oracle, and not what is tested."""
    with warnings.catch_warnings():
        # Each is of accelerate or transformers' trainer, about a setting that the test leaves at its default.
        warnings.filterwarnings("ignore", module=r"(accelerate|transformers|torch|trl)\b.*")
        yield


def trainer_of(kind, policy, rows, folder, settings, rate=1e-2):
    """Return TRL's trainer over the same model, taking the rows in the order given."""
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    common = {
        "output_dir": str(folder),
        "report_to": "none",
        "use_cpu": True,
        "per_device_train_batch_size": settings.batch_size,
        "num_train_epochs": 1,
        "learning_rate": rate,
        "lr_scheduler_type": settings.schedule,
        "warmup_steps": settings.warmup_share,
        "max_grad_norm": 1.0,
        "weight_decay": 0.0,
        "save_strategy": "no",
        "logging_strategy": "no",
        "gradient_checkpointing": False,
        "bf16": False,
        "max_length": None,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    if kind == "sft":
        base = SFTTrainer
        config = SFTConfig(**common, dataset_kwargs={"skip_prepare_dataset": True})
        data = examples_of(rows)
    else:
        base, config, data = DPOTrainer, DPOConfig(**common, beta=0.3), pairs_of(rows)

    class InOrder(base):
        def _prepare_dataset(self, dataset, *_, **__):
            return dataset

        def _get_train_sampler(self, *_, **__):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    return InOrder(
        model=policy.model, args=config, train_dataset=Dataset.from_list(data), processing_class=policy.chat.tokenizer
    )


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_loss_and_gradient_are_those_of_trls_trainer(kind, tmp_path, quiet_trl):
    rows, ours, theirs = rows_of(), tiny_policy(), tiny_policy()
    loss = loss_of(kind, ours).share(rows, rows).loss
    trainer = trainer_of(kind, theirs, rows, tmp_path, SftSettings())
    if kind == "dpo":  # its reference is a copy of the adapter it was given; ours starts from a new one
        theirs.model.delete_adapter("ref")
    batch = trainer.data_collator(list(trainer.train_dataset))
    expected = trainer.compute_loss(theirs.model, batch)
    torch.testing.assert_close(loss, expected, **CLOSE)
    torch.testing.assert_close(gradient(ours, loss), gradient(theirs, expected), **CLOSE)


def config_of(kind, **settings):
    tuning = {"batch_size": 3, "evaluations": 2, "epochs": 2, **settings}
    return RunConfig(
        objective=kind,
        data=DatasetData(name="given"),
        learning_rate=1e-2,
        sft=SftSettings(**tuning) if kind == "sft" else SftSettings(),
        dpo=DpoSettings(**tuning, beta=0.3) if kind == "dpo" else DpoSettings(),
    ).resolved()


class Resting:
    """A sampler for runs that sample nothing."""

    def rest(self):
        pass


def engine_of(config, policy, budget=40):
    optimizer = new_optimizer(policy, config.rate, config.optimizer)
    learner = Learner(policy, config.rl, optimizer, config.optimizer.gradient_norm_limit, budget, PLAIN)
    return Engine(policy, learner, Resting())


def task_of(config, rows, validation=None):
    stream = PromptStream([row.prompt for row in rows], config.seed)
    grader = Grader(NoVerifier(), config.reward, config.rl.max_answer_tokens, prefilled_think=False)
    return Task(stream, {row.prompt.id: row for row in rows}, validation or rows[:3], grader)


def run_of(config, policy, rows, why_stop=lambda when: None, resumed=None, budget=40):
    """Run a whole objective; return its ending and what was reported."""
    reported = []

    def report(record, groups, progress):
        reported.append((record, groups, progress))

    ending = train(config, engine_of(config, policy, budget), task_of(config, rows), report, why_stop, resumed)
    return ending, reported


@pytest.mark.parametrize(
    ("kind", "schedule", "warmup"),
    matrix(
        ["sft", "dpo"],
        [("linear", 0.0), ("cosine", 0.4)],
        ci=lambda kind, schedule, _: (kind, schedule) in (("sft", "linear"), ("dpo", "cosine")),
    ),
)
def test_a_whole_run_ends_with_the_adapter_of_trls_trainer(kind, schedule, warmup, tmp_path, quiet_trl):
    config = config_of(kind, schedule=schedule, warmup_share=warmup)
    settings, rows = config.tuning, rows_of()
    ours, theirs = tiny_policy(fresh=True), tiny_policy(fresh=True)
    ending, _ = run_of(config, ours, rows)
    assert ending == "all_rounds"
    stream, order = PromptStream([row.prompt for row in rows], config.seed), []
    steps = number_of_steps(settings, len(rows))
    assert steps == 5  # 14 rows: four steps of three and one of two
    while len(order) < settings.epochs * len(rows):
        taken = stream.take(min(settings.batch_size, settings.epochs * len(rows) - len(order)))
        order += [rows[prompt.id - 1] for prompt in taken]
    trainer = trainer_of(kind, theirs, order, tmp_path, settings)
    trainer.train()
    assert trainer.state.global_step == steps
    start, state, expected = (one.adapter_state() for one in (tiny_policy(fresh=True), ours, theirs))
    assert sum(float((state[name] - start[name]).abs().sum()) for name in state) > 1
    for name in state:
        torch.testing.assert_close(state[name], expected[name], atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_each_round_has_its_slice_its_loss_and_the_best_adapter(kind):
    config = config_of(kind, evaluations=3)
    policy = tiny_policy(fresh=True)
    ending, reported = run_of(config, policy, rows_of())
    records = [record for record, _, _ in reported]
    assert (ending, [record.round for record in records]) == ("all_rounds", [0, 1, 2, 3])
    assert [record.learned and record.learned.steps for record in records] == [None, 1, 2, 2]
    assert all(record.validation.accuracy is None and record.best_accuracy is None for record in records)
    assert all(not groups for _, groups, _ in reported)
    losses = [record.validation.loss for record in records]
    best = losses.index(min(losses))
    assert records[-1].best_round == best > 0
    assert reported[best][2].best_state is reported[-1][2].best_state
    if kind == "dpo":
        assert losses[0] == pytest.approx(log(2))
        assert records[0].validation.margin == 0 < records[-1].validation.margin
    else:
        assert records[0].validation.margin is None


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_how_rows_are_cut_into_rounds_changes_no_step(kind):
    states = []
    for evaluations in (1, 4, 50):
        policy = tiny_policy(fresh=True)
        _, reported = run_of(config_of(kind, evaluations=evaluations), policy, rows_of())
        assert len(reported) == 1 + min(evaluations, 5)
        states.append(policy.adapter_state())
    for state in states[1:]:
        assert all(torch.equal(state[name], states[0][name]) for name in state)


def test_a_round_is_given_up_between_micro_batches():
    asked = []

    def why_stop(when):
        asked.append(when)
        return "time_limit" if len(asked) > 15 else None

    reported = []
    config, policy, rows = config_of("sft"), tiny_policy(fresh=True), rows_of()
    with pytest.raises(Interrupted) as stopped:
        train(config, engine_of(config, policy, 1), task_of(config, rows), lambda *one: reported.append(one), why_stop)
    assert stopped.value.reason == "time_limit"
    assert len(reported) == 2
    assert asked.count("within") > asked.count("between") == 2


def test_a_step_that_is_not_finite_is_left_out_and_two_in_a_row_end_the_run(monkeypatch):
    config, rows = config_of("sft", evaluations=5, epochs=2), rows_of()
    broken = []
    share = SftLoss.share

    def breaking(self, some, step):
        found = share(self, some, step)
        if torch.is_grad_enabled() and len(broken) in when and some is not step:
            found = type(found)(found.loss * float("nan"))
        return found

    def counted(learner, loss, step, rate, sums, check):
        tokens = original(learner, loss, step, rate, sums, check)
        broken.append(rate)
        return tokens

    from ratchet.engine import tuning

    original = tuning._step
    monkeypatch.setattr(SftLoss, "share", breaking)
    monkeypatch.setattr(tuning, "_step", counted)
    when = {1, 3}
    _, reported = run_of(config, tiny_policy(fresh=True), rows)
    assert [(r.learned.steps, r.learned.skipped_steps) for r, _, _ in reported[1:]] == [
        (1, 0),
        (0, 1),
        (1, 0),
        (0, 1),
        (1, 0),
    ]
    assert reported[2][0].learned.loss is None
    broken.clear()
    when = {2, 3}
    with pytest.raises(NotFinite, match="two steps in a row"):
        run_of(config, tiny_policy(fresh=True), rows)


def test_out_of_memory_says_how_large_the_micro_batch_was(monkeypatch):
    def failing(*_):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    config, rows = config_of("sft"), rows_of()
    monkeypatch.setattr("ratchet.engine.given_answers.label_logprobs", failing)
    with pytest.raises(
        OutOfMemory, match=r"of 2 rows, 11 tokens in the longest\. Choose a smaller Micro batch"
    ) as told:
        run_of(config, tiny_policy(fresh=True), rows, budget=22)
    assert told.value.stage == "update"
    with pytest.raises(OutOfMemory, match=r"of 1 row, 10 tokens in the longest\. Choose Gradient checkpointing on"):
        run_of(config, tiny_policy(fresh=True), rows, budget=1)


TUNING = st.builds(
    SftSettings,
    epochs=st.integers(1, 5),
    batch_size=st.integers(1, 40),
    schedule=st.sampled_from(["linear", "cosine", "constant"]),
    warmup_share=st.floats(0, 0.5),
    evaluations=st.integers(1, 30),
)


@given(TUNING, st.integers(1, 60), st.integers(0, 3))
def test_every_row_comes_up_once_an_epoch_whatever_the_batch(settings, count, seed):
    prompts = [Prompt(number, (), "") for number in range(1, count + 1)]
    stream = PromptStream(prompts, seed)
    size, steps = rows_per_step(settings, count), number_of_steps(settings, count)
    taken = []
    for step in range(steps):
        batch = stream.take(min(size, settings.epochs * count - step * size))
        assert len({prompt.id for prompt in batch}) == len(batch) > 0
        taken += [prompt.id for prompt in batch]
    assert sorted(taken) == sorted(settings.epochs * [prompt.id for prompt in prompts])


@given(TUNING, st.integers(1, 200))
def test_the_rounds_share_all_steps_evenly(settings, steps):
    rounds = min(settings.evaluations, steps)
    slices = [steps_of_round(number, rounds, steps) for number in range(1, rounds + 1)]
    assert [step for slice_ in slices for step in slice_] == list(range(steps))
    assert max(map(len, slices)) - min(map(len, slices)) <= 1


@pytest.mark.parametrize("steps", [1, 7, 20])
@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
@pytest.mark.parametrize("warmup", [0.0, 0.25, 0.5])
def test_rates_are_those_of_transformers(steps, schedule, warmup):
    settings = SftSettings(schedule=schedule, warmup_share=warmup)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    name = "constant_with_warmup" if schedule == "constant" else schedule
    warmup_steps = -int(-warmup * steps // 1)  # rounded up
    theirs = get_scheduler(name, optimizer, num_warmup_steps=warmup_steps, num_training_steps=steps)
    for step in range(steps):
        assert rate_at(step, steps, 0.3, settings) == pytest.approx(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()


def test_a_linear_schedule_worked_by_hand():
    # Ten steps, two of warm-up: 0 and a half, then eight from the whole rate down to an eighth of it.
    settings = SftSettings(schedule="linear", warmup_share=0.2)
    rates = [rate_at(step, 10, 8.0, settings) for step in range(10)]
    assert rates == [0, 4, 8, 7, 6, 5, 4, 3, 2, 1]


def test_validations_rank_by_accuracy_and_without_one_by_lower_loss():
    def graded(accuracy, loss):
        return Validation(prompts=4, accuracy=accuracy, loss=loss)

    assert graded(0.5, 2.0).beats(graded(0.25, 1.0))
    assert not graded(0.5, 1.0).beats(graded(0.5, 2.0))
    assert Validation(prompts=4, loss=1.0).beats(Validation(prompts=4, loss=2.0))
    assert not Validation(prompts=4, loss=1.0).beats(Validation(prompts=4, loss=1.0))
    with pytest.raises(ValueError, match="cannot be ranked"):
        graded(0.5, 1.0).beats(Validation(prompts=4, loss=2.0))
