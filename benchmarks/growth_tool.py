"""Ratchet alone at one size: sampling and one update on made-up prompts, a round for each "go"."""

import time

from channel import Channel
from ratchet_parts import group, loaded
from workload import made_up_tokens

from ratchet.engine.distribution import SamplingSettings
from ratchet.engine.round_parts import has_signal
from ratchet.engine.sampler import SampleRequest
from ratchet.engine.update import update


def main() -> None:
    channel = Channel()
    order = channel.order
    ratchet = loaded(order["settings"])
    rl = ratchet.prepared.config.rl
    vocabulary = ratchet.engine.policy.model.config.vocab_size
    prompts = [
        tuple(made_up_tokens(1 + number, order["prompt_tokens"], vocabulary)) for number in range(order["prompts"])
    ]
    details = {key: value for key, value in ratchet.details.items() if key != "model_folder"}
    channel.ready(**details)
    for number in range(1_000_000):
        clock = channel.wait_for_go()
        started = time.perf_counter()
        requests = [
            SampleRequest(prompt, rl.answers_per_prompt, random_key=(0, number, place))
            for place, prompt in enumerate(prompts)
        ]
        stream = ratchet.engine.sampler.sample(requests, SamplingSettings.of(rl), rl.max_answer_tokens, lambda: None)
        written = {(one.request, one.answer): one.completion for one in stream}
        sampled = time.perf_counter() - started
        groups = [
            group(place, prompt, [written[place, answer] for answer in range(rl.answers_per_prompt)])
            for place, prompt in enumerate(prompts)
        ]
        if not all(has_signal(one) for one in groups):
            raise RuntimeError("a group had no signal")
        learned = update(ratchet.engine.learner, groups, lambda: None)
        wall, busy_cores = clock.read()
        if learned.steps != 1 or learned.tokens != len(requests) * rl.answers_per_prompt * rl.max_answer_tokens:
            raise RuntimeError("the round was not the whole work")
        del written, groups  # as in a run: the next round's answers are written without this one's in memory
        channel.report(seconds=wall, sampling=sampled, busy_cores=busy_cores, answer_tokens=learned.tokens)


if __name__ == "__main__":
    main()
