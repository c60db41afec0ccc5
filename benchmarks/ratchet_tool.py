"""Ratchet's side of a pair: the engine's own ``train``, held before each round until the parent says go.

A round's time is the wall clock from "go" to the report, less the validation that ``train`` makes after each round.
Nothing else is taken out, and nothing can be skipped: every group must carry a signal or the parent refuses the round.
"""

import time
from collections.abc import Sequence
from typing import Any

from channel import Channel, Round
from workload import prompts_digest, reward

from ratchet.config import RunConfig
from ratchet.datasets import PromptStream
from ratchet.engine.logprobs import can_pack
from ratchet.engine.memory import fitted_budgets
from ratchet.engine.packing import PackedAnswer
from ratchet.engine.policy import Policy, load_policy
from ratchet.engine.prepare import Prepared, prepare
from ratchet.engine.rounds import Engine, StopReason, Task, When, train
from ratchet.engine.sampler.in_process import InProcessSampler
from ratchet.engine.update import Learner, new_optimizer
from ratchet.records import Completion, Grade, Group, Prompt, Rollout, RoundRecord


class TokenGrader:
    """Grades by the tokens alone. Ratchet's own grader would score these answers 0, since all are cut off."""

    threads = 2

    def grade(self, completion: Completion, prompt: Prompt) -> Rollout:
        value = reward(completion.token_ids)
        return Rollout(completion, Grade(value, "graded"), format=0.0, reward=value)


class Stopwatch:
    """Holds ``train`` between rounds and reports each of them."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._started = self._cpu_started = 0.0

    def why_stop(self, when: When) -> StopReason | None:
        if when == "between":
            self._started, self._cpu_started = self._channel.wait_for_go()
        return None

    def report(self, record: RoundRecord, groups: Sequence[Group], progress: Any) -> None:
        if record.round == 0:
            return
        if record.learned is None or record.learned.steps != 1:
            raise RuntimeError("the round took other than one optimizer step")
        wall = time.perf_counter() - self._started
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        self._channel.done(
            Round(
                seconds=wall - record.seconds.validation,
                sampling=record.seconds.sampling,
                busy_cores=(time.process_time() - self._cpu_started) / wall,
                answer_tokens=sum(len(rollout.completion.token_ids) for rollout in rollouts),
                groups_with_signal=record.informative_groups,
                prompts_digest=prompts_digest([group.prompt_token_ids for group in groups]),
            )
        )


def main() -> None:
    channel = Channel()
    prepared = prepare(RunConfig.model_validate(channel.order["settings"]))
    config = prepared.config
    policy = load_policy(config, prepared.chat, prepared.files)
    # Answers of equal length in both tools: no token ends an answer here, and TRL's end token is never drawn.
    prepared.chat.end_ids = frozenset()
    encoded = prepared.train[: config.rl.prompts_per_round]
    engine, details = new_engine(prepared, policy)
    task = Task(
        stream=PromptStream([one.prompt for one in encoded], config.seed),
        encoded={one.prompt.id: one for one in encoded},
        validation=prepared.validation,
        grader=TokenGrader(),
    )
    channel.ready(
        model_folder=prepared.files.source,
        system_prompt=config.prompt.system_prompt,
        conversations=[conversation(config.prompt.system_prompt, one.prompt) for one in encoded],
        prompt_tokens=[len(one.token_ids) for one in encoded],
        trained_weights=sum(weight.numel() for weight in policy.parameters),
        **details,
    )
    watch = Stopwatch(channel)
    train(config, engine, task, watch.report, watch.why_stop)


def new_engine(prepared: Prepared, policy: Policy) -> tuple[Engine, dict[str, Any]]:
    """Build learner and sampler as the worker does at the start of a run."""
    config = prepared.config
    longest = max(len(one.token_ids) for one in prepared.train)
    budgets = fitted_budgets(policy.memory_load(longest, config.rl.max_answer_tokens), policy.device, config.rl)
    prompts = [one.token_ids for one in prepared.train[:2]]
    trial = [PackedAnswer(prompt, prompt[-length:], length) for prompt in prompts for length in (5, 3, 4)]
    packs = can_pack(policy, trial)
    learner = Learner(
        policy=policy,
        settings=config.rl,
        optimizer=new_optimizer(policy, config.learning_rate, config.optimizer),
        gradient_norm_limit=config.optimizer.gradient_norm_limit,
        micro_batch_tokens=budgets.micro_batch_tokens,
        plain_rows=not packs,
    )
    engine = Engine(policy, learner, InProcessSampler(policy, budgets.sampling_tokens))
    return engine, {"micro_batch": budgets.micro_batch_tokens, "packed": packs}


def conversation(system_prompt: str | None, prompt: Prompt) -> list[dict[str, str]]:
    """Return the messages that TRL renders with the same chat template; the token ids are compared afterwards."""
    system = [{"role": "system", "content": system_prompt}] if system_prompt else []
    return [*system, *(dict(message) for message in prompt.messages)]


if __name__ == "__main__":
    main()
