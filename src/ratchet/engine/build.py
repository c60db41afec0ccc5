"""Building the engine of a run from its settings: optimizer, update and sampler with the budgets that are fixed for it.

In one place, so that what is measured (benchmarks/) is what the worker runs. Loads no model and writes no file.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ratchet.config import RunConfig
from ratchet.engine.logprobs import RowForward, chosen_forward
from ratchet.engine.memory import Budgets, fitted_budgets
from ratchet.engine.packing import PackedAnswer
from ratchet.engine.policy import Policy
from ratchet.engine.prepare import Prepared
from ratchet.engine.rounds import Engine
from ratchet.engine.sampler.decoder_batch import BatchKind, batches_of, chosen_kind
from ratchet.engine.sampler.in_process import InProcessSampler
from ratchet.engine.update import Learner, new_optimizer


@dataclass(frozen=True)
class Plan:
    """What decides what is in a batch and how it is computed, so a resumed run needs the same."""

    budgets: Budgets
    forward: RowForward
    batches: BatchKind

    @classmethod
    def fitted(cls, prepared: Prepared, policy: Policy) -> "Plan":
        """Fix what the settings leave open, by the model and the device, at the first start of a run."""
        rl = prepared.config.rl
        fitted = fitted_budgets(policy.model.config, policy.device, policy.model.dtype, policy.merged_bytes)
        budgets = Budgets(
            micro_batch_tokens=rl.micro_batch_tokens or fitted.micro_batch_tokens,
            sampling_tokens=rl.sampling_tokens or fitted.sampling_tokens,
        )
        prompts = [encoded.token_ids for encoded in prepared.train[:2]]
        return cls(budgets, chosen_forward(policy, _trial_answers(prompts)), chosen_kind(policy, prompts))

    @classmethod
    def stored(cls, record: dict[str, Any]) -> "Plan":
        """Return the plan that ``as_record`` stored."""
        return cls(Budgets(**record["budgets"]), RowForward(**record["forward"]), record["batches"])

    def as_record(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return asdict(self)


def new_engine(config: RunConfig, policy: Policy, plan: Plan) -> Engine:
    """Return the engine of a run, with an optimizer that has seen nothing yet."""
    learner = Learner(
        policy=policy,
        settings=config.rl,
        optimizer=new_optimizer(policy, config.learning_rate, config.optimizer),
        gradient_norm_limit=config.optimizer.gradient_norm_limit,
        micro_batch_tokens=plan.budgets.micro_batch_tokens,
        forward=plan.forward,
    )
    batches = batches_of(plan.batches, policy)
    return Engine(policy, learner, InProcessSampler(policy, plan.budgets.sampling_tokens, batches))


def _trial_answers(prompts: Sequence[tuple[int, ...]]) -> list[PackedAnswer]:
    """Return short made-up answers to some prompts: the self-checks compare numbers, not texts."""
    return [
        PackedAnswer(prompt, tuple(prompt[-length:]), number)
        for number, (prompt, length) in enumerate((p, n) for p in prompts for n in (5, 3, 4))
    ]
