"""Ratchet's side of the update alone: ``update`` on made-up groups, held before each step until the parent says go."""

from channel import Channel, Round
from ratchet_parts import digest_of, group, loaded
from workload import made_up_groups

from ratchet.engine.round_parts import has_signal
from ratchet.engine.update import update
from ratchet.run.records import Completion, Group

# Made up like the tokens: near what a model gives a token drawn at random. A single step does not read them but to
# report how far they are from the trainer's.
_LOGPROB = -10.0


def main() -> None:
    channel = Channel()
    order = channel.order
    ratchet = loaded(order["settings"])
    vocabulary = ratchet.engine.policy.model.config.vocab_size
    made_up = made_up_groups(
        order["prompts"], order["answers"], order["prompt_tokens"], order["answer_tokens"], vocabulary
    )
    groups = [
        group(number, tuple(prompt), [_completion(answer) for answer in answers])
        for number, (prompt, answers) in enumerate(made_up)
    ]
    channel.ready(**ratchet.details, digest=digest_of(groups))
    while True:
        clock = channel.wait_for_go()
        learned = update(ratchet.engine.learner, groups, lambda: None)
        wall, busy_cores = clock.read()
        if learned.steps != 1:
            raise RuntimeError("the update took other than one optimizer step")
        channel.done(
            Round(
                seconds=wall,
                busy_cores=busy_cores,
                answer_tokens=learned.tokens,
                prompts_digest=digest_of(groups),
                groups_with_signal=_with_signal(groups),
            )
        )


def _completion(token_ids: list[int]) -> Completion:
    logprobs = (_LOGPROB,) * len(token_ids)
    return Completion(tuple(token_ids), logprobs, logprobs, text="", finish="length")


def _with_signal(groups: list[Group]) -> int:
    return sum(has_signal(one) for one in groups)


if __name__ == "__main__":
    main()
