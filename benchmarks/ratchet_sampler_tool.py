"""Ratchet's side of the sampler alone: prompts with their answers, each of a prescribed length.

A round's time includes merging the adapter, taking it out again and decoding the text. No token counts as the end; the
prescribed lengths are limits of the single answers, which the sampler plans nothing by.
"""

from channel import Channel, Round
from ratchet_parts import loaded
from workload import prompts_digest

from ratchet.engine.distribution import SamplingSettings
from ratchet.engine.sampler import SampleRequest


def main() -> None:
    channel = Channel()
    ratchet = loaded(channel.order["settings"])
    rl = ratchet.prepared.config.rl
    prompts = [one.token_ids for one in ratchet.prepared.train[: rl.prompts_per_round]]
    lengths: list[int] = channel.order["lengths"]
    groups = [
        tuple(lengths[start : start + rl.answers_per_prompt]) for start in _starts(lengths, rl.answers_per_prompt)
    ]
    channel.ready(
        **ratchet.details,
        prompts=prompts,
        prompt_tokens=[len(prompt) for prompt in prompts],
        digest=prompts_digest(prompts),
    )
    settings = SamplingSettings.of(rl)
    for number in range(1_000_000):
        clock = channel.wait_for_go()
        requests = [
            SampleRequest(prompt, rl.answers_per_prompt, random_key=(0, number, place), longest=longest)
            for place, (prompt, longest) in enumerate(zip(prompts, groups, strict=True))
        ]
        stream = ratchet.engine.sampler.sample(requests, settings, rl.max_answer_tokens, lambda: None)
        written = {(one.request, one.answer): one.completion for one in stream}
        wall, busy_cores = clock.read()
        found = [[len(written[r, a].token_ids) for a in range(len(group))] for r, group in enumerate(groups)]
        channel.done(
            Round(
                seconds=wall,
                busy_cores=busy_cores,
                answer_tokens=sum(map(sum, found)),
                prompts_digest=prompts_digest(prompts),
                lengths_kept=found == [list(group) for group in groups],
            )
        )


def _starts(lengths: list[int], step: int) -> range:
    return range(0, len(lengths), step)


if __name__ == "__main__":
    main()
