"""Building the engine of a run from its settings: optimizer, update and sampler with the budgets that are fixed for it.

In one place, so that what is measured (benchmarks/) is what the worker runs. Loads no model and writes no file.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ratchet.config import RunConfig
from ratchet.engine.grading import Grader
from ratchet.engine.logprobs import PLAIN, RowForward, chosen_forward
from ratchet.engine.memory import budget_memory, fitted_budgets, possible_setting, recompute_layers
from ratchet.engine.packing import PackedAnswer
from ratchet.engine.policy import Policy
from ratchet.engine.prepare import Prepared
from ratchet.engine.round_parts import Engine
from ratchet.engine.sampler import Sampler
from ratchet.engine.sampler.choice import BatchKind, Choice, choose, chosen_kind, make_sampler
from ratchet.engine.update import Learner, new_optimizer
from ratchet.models.footprint import Budgets, row_bytes, update_room
from ratchet.readiness.model_checks import longest_given
from ratchet.verifiers import takes_function

# Tokens of a prompt's beginning and end that the trials of the ways to compute use.
_TRIAL_TOKENS = (40, 24)
# Grading goes on beside sampling. Threads mostly wait for processes: metrics and programs run in sandboxes.
_GRADER_THREADS = max(2, min(16, (os.cpu_count() or 1) - 1))


@dataclass(frozen=True)
class EngineBudgets:
    """What decides what is in a batch and how it is computed, so a resumed run needs the same."""

    budgets: Budgets
    forward: RowForward
    batches: BatchKind
    sampler: Choice

    @classmethod
    def fitted(
        cls,
        prepared: Prepared,
        policy: Policy,
        note: Callable[[str], None] = lambda text: None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> "EngineBudgets":
        """Fix what the settings leave open, by the model and the device, at the first start of a run.

        ``note`` gets, in a sentence, what costs time; ``tell`` a line of numbers for each way that was tried.
        """
        config = prepared.config
        prompts = [_shortened(encoded.token_ids) for encoded in prepared.train[:2]]
        # sft and dpo are computed by TRL's output layer over transformers' model, row by row.
        forward = PLAIN if config.tuning else chosen_forward(policy, *_trials(prompts), tell=tell)
        budgets = _budgets(prepared, policy, forward, note)
        return cls(
            budgets=budgets,
            forward=replace(forward, recompute=budgets.gradient_checkpointing),
            batches=chosen_kind(policy, prompts, tell=tell),
            sampler=_choice(config, policy),
        )

    @classmethod
    def scoring(
        cls,
        prepared: Prepared,
        policy: Policy,
        note: Callable[[str], None] = lambda text: None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> "EngineBudgets":
        """Fix what the settings leave open for a job that only answers; arguments as of ``fitted``."""
        config = prepared.config
        longest = max(len(encoded.token_ids) for encoded in prepared.heldout)
        load = policy.memory_load(longest, config.rl.max_answer_tokens)
        return cls(
            budgets=fitted_budgets(load, policy.device, config.rl),
            forward=PLAIN,
            batches=chosen_kind(policy, [_shortened(encoded.token_ids) for encoded in prepared.heldout[:2]], tell=tell),
            sampler=choose(config.sampler, policy.device, policy.files, config.quantization),
        )

    @classmethod
    def stored(cls, record: dict[str, Any]) -> "EngineBudgets":
        """Return the plan that ``as_record`` stored."""
        return cls(
            budgets=Budgets(**record["budgets"]),
            forward=RowForward(**record["forward"]),
            batches=record["batches"],
            sampler=Choice(**record["sampler"]),
        )

    def as_record(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return asdict(self)


def new_engine(
    prepared: Prepared, policy: Policy, plan: EngineBudgets, note: Callable[[str], None] = lambda text: None
) -> Engine:
    """Return the engine of a run, with an optimizer that has seen nothing yet.

    ``note`` gets, in a sentence, what a user should know of the sampler later on.
    """
    config = prepared.config
    if plan.forward.recompute and plan.forward.rows != "decoder":
        recompute_layers(policy.model)
    learner = Learner(
        policy=policy,
        settings=config.rl,
        optimizer=new_optimizer(policy, config.rate, config.optimizer),
        gradient_norm_limit=config.optimizer.gradient_norm_limit,
        micro_batch_tokens=plan.budgets.micro_batch_tokens,
        forward=plan.forward,
        importance_cap=config.sampler.importance_cap if plan.sampler.backend == "vllm" else None,
    )
    return Engine(policy, learner, new_sampler(prepared, policy, plan, note))


def new_sampler(
    prepared: Prepared, policy: Policy, plan: EngineBudgets, note: Callable[[str], None] = lambda text: None
) -> Sampler:
    """Return the sampler of a run; ``note`` as in ``new_engine``."""
    config = prepared.config
    longest = max(len(one.token_ids) for one in (*prepared.train, *prepared.validation, *prepared.heldout))
    return make_sampler(
        plan.sampler.backend,
        plan.batches,
        policy,
        config.sampler,
        plan.budgets.sampling_tokens,
        longest + config.rl.max_answer_tokens,
        note,
    )


def new_grader(prepared: Prepared) -> Grader:
    """What grades a run's answers."""
    config = prepared.config
    return Grader(
        prepared.verifier,
        config.reward,
        config.rl.max_answer_tokens,
        prepared.chat.prefilled_think,
        # A function of the user's need not be safe in several threads.
        threads=1 if config.verifier is None or takes_function(config.verifier) else _GRADER_THREADS,
        watch=prepared.watch,
        watch_threads=_GRADER_THREADS,
    )


def _choice(config: RunConfig, policy: Policy) -> Choice:
    if config.tuning and config.verifier is None:
        return Choice("in_process", "No answers are sampled, since the run has no verifier.")
    return choose(config.sampler, policy.device, policy.files, config.quantization)


def _budgets(prepared: Prepared, policy: Policy, forward: RowForward, note: Callable[[str], None]) -> Budgets:
    """Decide what the run holds at a time; say so where that costs time."""
    rl = possible_setting(prepared.config.rl, policy.model)
    longest = max(len(encoded.token_ids) for encoded in prepared.train)
    longest_answer = rl.max_answer_tokens
    if prepared.config.tuning:
        # The two answers of a pair are never split either, and each comes with the prompt.
        each = 2 if prepared.config.objective == "dpo" else 1
        longest, longest_answer = each * longest, each * max(longest_given(encoded) for encoded in prepared.train)
    load = policy.memory_load(longest, longest_answer, own_decoder=forward.rows == "decoder")
    budgets = fitted_budgets(load, policy.device, rl)
    if budgets.gradient_checkpointing and rl.gradient_checkpointing == "auto":
        room = update_room(load, budget_memory(policy.device), on_cpu=policy.device.type == "cpu")
        needed = row_bytes(load, rl.micro_batch_tokens or load.longest_row, recomputed=False)
        note(
            f"Gradient checkpointing is on: without it the update would take about {needed / 1e9:.1f} GB of the "
            f"{max(0, room) / 1e9:.1f} GB meant for it. It takes about a third longer so."
        )
    return budgets


def _shortened(prompt: tuple[int, ...]) -> tuple[int, ...]:
    """Return a prompt for a trial: its beginning, which prompts may share, and its end. All of it would take memory."""
    return prompt if len(prompt) <= sum(_TRIAL_TOKENS) else prompt[: _TRIAL_TOKENS[0]] + prompt[-_TRIAL_TOKENS[1] :]


def _trials(prompts: Sequence[tuple[int, ...]]) -> list[list[PackedAnswer]]:
    """Short synthetic answers to some prompts, some with equal beginnings: numbers are compared, not texts."""
    alike = [(prompt, prompt[:length]) for prompt in prompts for length in (5, 3, 4)]
    unlike = [(prompt, prompt[-length:]) for prompt in prompts for length in (5, 3, 4)]
    return [
        [PackedAnswer(prompt, token_ids, number) for number, (prompt, token_ids) in enumerate(pairs)]
        for pairs in (alike, unlike)
    ]
