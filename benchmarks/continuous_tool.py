"""The sampler alone with transformers' continuous batching, each request with its own number of new tokens.

Its cache is made and warmed up before the clock starts, which favours it. ``num_blocks`` is enough for all answers at
once: left to itself it would size the cache from the machine's free memory.
"""

import time
from typing import Any

from channel import Channel, Clock, Round
from peers import policy_model
from transformers import ContinuousBatchingConfig, GenerationConfig
from workload import prompts_digest

_PAGE = 16
_GIVE_UP_SECONDS = 3600


def main() -> None:
    channel = Channel()
    order = channel.order
    model = policy_model(order["model_folder"], merged=True)
    prompts = [prompt for prompt in order["prompts"] for _ in range(order["answers"])]
    longest = max(map(len, prompts)) + max(order["lengths"])
    config = ContinuousBatchingConfig(
        page_size=_PAGE,
        num_blocks=len(prompts) * (-(-longest // _PAGE) + 1),
        max_batch_tokens=order["step_tokens"],
        return_logprobs=order["logprobs"],
        seed=0,
    )
    settings = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, pad_token_id=0, eos_token_id=-1)
    channel.ready(micro_batch=f"{order['step_tokens']} tokens a step")
    while True:
        channel.wait_for_go()
        with model.continuous_batching_context_manager(settings, continuous_batching_config=config) as manager:
            clock = Clock()
            written = _written(manager, prompts, order["lengths"])
            wall, busy_cores = clock.read()
        channel.done(
            Round(
                seconds=wall,
                busy_cores=busy_cores,
                answer_tokens=sum(map(len, written)),
                prompts_digest=prompts_digest(prompts),
                lengths_kept=[len(ids) for ids in written] == order["lengths"],
            )
        )


def _written(manager: Any, prompts: list[list[int]], lengths: list[int]) -> list[list[int]]:
    names = [
        manager.add_request(prompt, max_new_tokens=length, eos_token_id=-1)
        for prompt, length in zip(prompts, lengths, strict=True)
    ]
    found: dict[str, list[int]] = {}
    give_up = time.monotonic() + _GIVE_UP_SECONDS
    while len(found) < len(names):
        result = manager.get_result(timeout=1)
        if result is not None and result.is_finished():
            if result.error:
                raise RuntimeError(result.error)
            found[result.request_id] = result.generated_tokens
        if result is None and (not manager.is_running() or time.monotonic() > give_up):
            raise RuntimeError("continuous batching ended before all answers were written")
    return [found[name] for name in names]


if __name__ == "__main__":
    main()
