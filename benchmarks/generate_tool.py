"""The sampler alone with transformers' ``model.generate``: batches of so many answers, left-padded, with its cache.

Rows are told to stop at their prescribed length by a stopping criterion, the way ``generate`` itself stops rows at an
end token; what it writes in a row after that is thrown away. The adapter is merged before the clock starts, which
favours ``generate``: TRL does not merge it.
"""

from typing import Any

import torch
from channel import Channel, Round
from peers import policy_model
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList
from workload import prompts_digest


class PrescribedLengths(StoppingCriteria):
    """Tells, for each row, whether its answer has the length that is asked for."""

    def __init__(self, prompt_width: int, lengths: list[int], device: torch.device) -> None:
        self._ends = torch.tensor(lengths, device=device) + prompt_width

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return input_ids.shape[1] >= self._ends


def main() -> None:
    channel = Channel()
    order = channel.order
    model = policy_model(order["model_folder"], merged=order["merged"])
    prompts = [prompt for prompt in order["prompts"] for _ in range(order["answers"])]
    channel.ready(micro_batch=f"{order['batch']} at once")
    while True:
        clock = channel.wait_for_go()
        written: list[list[int]] = []
        for start in range(0, len(prompts), order["batch"]):
            end = start + order["batch"]
            written += generated(model, prompts[start:end], order["lengths"][start:end], order["logprobs"])
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


def generated(model: Any, prompts: list[list[int]], lengths: list[int], logprobs: bool) -> list[list[int]]:
    """Return answers of the prescribed lengths to some prompts."""
    width = max(map(len, prompts))
    input_ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts], device=model.device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=model.device)
    settings = GenerationConfig(
        max_new_tokens=max(lengths),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        pad_token_id=0,
        eos_token_id=None,
        return_dict_in_generate=logprobs,
        output_scores=logprobs,
    )
    with torch.no_grad():
        found = model.generate(
            input_ids=input_ids,
            attention_mask=mask,
            generation_config=settings,
            stopping_criteria=StoppingCriteriaList([PrescribedLengths(width, lengths, model.device)]),
        )
        if logprobs:
            model.compute_transition_scores(found.sequences, found.scores, normalize_logits=True)
            found = found.sequences
    answers = found[:, width:].tolist()
    return [ids[:length] for ids, length in zip(answers, lengths, strict=True)]


if __name__ == "__main__":
    main()
