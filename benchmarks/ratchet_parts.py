"""What Ratchet's programs share: the engine as the worker builds it, from settings as a user would write them."""

from dataclasses import dataclass
from typing import Any

from workload import prompts_digest, reward

from ratchet.config import RunConfig
from ratchet.engine.build import EngineBudgets, new_engine
from ratchet.engine.policy import load_policy
from ratchet.engine.prepare import Prepared, prepare
from ratchet.engine.round_parts import Engine
from ratchet.run.records import Completion, Grade, Group, Prompt, Rollout


@dataclass(frozen=True)
class Loaded:
    """An engine with what it was built from."""

    prepared: Prepared
    engine: Engine
    plan: EngineBudgets

    @property
    def details(self) -> dict[str, Any]:
        """What the parent is told of it. ``model_folder`` is for the other tools and is not stored."""
        text = self.engine.policy.model.config.get_text_config(decoder=True)
        return {
            "model_folder": self.prepared.files.source,
            "model_shape": {
                "layers": text.num_hidden_layers,
                "hidden": text.hidden_size,
                "intermediate": text.intermediate_size,
                "heads": text.num_attention_heads,
                "key_value_heads": text.num_key_value_heads,
                "head_width": getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
                "vocabulary": text.vocab_size,
            },
            "trained_weights": sum(weight.numel() for weight in self.engine.policy.parameters),
            "micro_batch": f"{self.plan.budgets.micro_batch_tokens} tokens",
            "rows": self.plan.forward.rows,
            "batches": self.plan.batches,
        }


def loaded(settings: dict[str, Any]) -> Loaded:
    """Load a model and build its engine. No token ends an answer: all answers are as long as they may be."""
    prepared = prepare(RunConfig.model_validate(settings))
    policy = load_policy(prepared.config, prepared.chat, prepared.files)
    prepared.chat.end_ids = frozenset()
    plan = EngineBudgets.fitted(prepared, policy)
    return Loaded(prepared, new_engine(prepared, policy, plan), plan)


def rollout(completion: Completion) -> Rollout:
    """Grade by the tokens alone. Ratchet's own grader would score these answers 0, since all are cut off."""
    value = reward(completion.token_ids)
    return Rollout(completion, Grade(value, "graded"), format=0.0, reward=value)


def group(number: int, prompt_token_ids: tuple[int, ...], completions: list[Completion]) -> Group:
    """Return a group of answers to a made-up prompt."""
    prompt = Prompt(number, ({"role": "user", "content": ""},), "")
    return Group(prompt, prompt_token_ids, tuple(rollout(completion) for completion in completions))


def common_tokens(prompts: list[tuple[int, ...]]) -> int:
    """How many tokens all prompts begin with alike."""
    shortest = min(len(prompt) for prompt in prompts)
    return next((n for n in range(shortest) if len({prompt[n] for prompt in prompts}) > 1), shortest)


def digest_of(groups: list[Group]) -> str:
    """What prompts and answers of some groups hash to."""
    return prompts_digest([[*g.prompt_token_ids, *r.completion.token_ids] for g in groups for r in g.rollouts])
