"""Ratchet's side of a full round: the engine's own ``train``, held before each round until the parent says go.

A round's time is the wall clock from "go" to the report, less the validation that ``train`` makes after each round.
Nothing else is taken out, and nothing can be skipped: every group must carry a signal or the parent refuses the round.
"""

from collections.abc import Sequence
from typing import Any

from channel import Channel, Clock, Round
from ratchet_parts import common_tokens, loaded, rollout
from workload import prompts_digest

from ratchet.datasets import PromptStream
from ratchet.engine.grading import Grader
from ratchet.engine.round_parts import Task, When
from ratchet.engine.rounds import StopReason, train
from ratchet.run.records import Completion, Group, Prompt, Rollout, RoundRecord


class TokenGrader(Grader):
    """Grades by the tokens alone."""

    def grade(self, completion: Completion, prompt: Prompt) -> Rollout:
        return rollout(completion)


class Stopwatch:
    """Holds ``train`` between rounds and reports each of them."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._clock = Clock()

    def why_stop(self, when: When) -> StopReason | None:
        if when == "between":
            self._clock = self._channel.wait_for_go()
        return None

    def report(self, record: RoundRecord, groups: Sequence[Group], progress: Any) -> None:
        if record.round == 0:
            return
        if record.learned is None or record.learned.steps != 1:
            raise RuntimeError("the round took other than one optimizer step")
        wall, busy_cores = self._clock.read()
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        self._channel.done(
            Round(
                seconds=wall - record.seconds.validation,
                sampling=record.seconds.sampling,
                busy_cores=busy_cores,
                answer_tokens=sum(len(rollout.completion.token_ids) for rollout in rollouts),
                groups_with_signal=record.informative_groups,
                prompts_digest=prompts_digest([group.prompt_token_ids for group in groups]),
            )
        )


def main() -> None:
    channel = Channel()
    ratchet = loaded(channel.order["settings"])
    config = ratchet.prepared.config
    encoded = ratchet.prepared.train[: config.rl.prompts_per_round]
    prompts = [one.token_ids for one in encoded]
    task = Task(
        stream=PromptStream([one.prompt for one in encoded], config.seed),
        encoded={one.prompt.id: one for one in encoded},
        validation=ratchet.prepared.validation,
        grader=TokenGrader(
            ratchet.prepared.verifier, config.reward, config.rl.max_answer_tokens, prefilled_think=False
        ),
    )
    channel.ready(
        **ratchet.details,
        conversations=[_conversation(config.prompt, one.prompt) for one in encoded],
        prompt_tokens=[len(prompt) for prompt in prompts],
        common_tokens=common_tokens(prompts),
        digest=prompts_digest(prompts),
        peer_digest=prompts_digest(prompts[: channel.order["peer_prompts"]]),
    )
    watch = Stopwatch(channel)
    train(config, ratchet.engine, task, watch.report, watch.why_stop)


def _conversation(setup: Any, prompt: Prompt) -> list[dict[str, str]]:
    """Return the messages that TRL renders with the same chat template; the token ids are compared afterwards."""
    system = [{"role": "system", "content": setup.system_prompt}] if setup.system_prompt else []
    examples = [
        {"role": role, "content": text}
        for example in setup.few_shot_examples
        for role, text in (("user", example.user), ("assistant", example.assistant))
    ]
    return [*system, *examples, *(dict(message) for message in prompt.messages)]


if __name__ == "__main__":
    main()
