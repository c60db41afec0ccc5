"""How rounds of rl and optimizer steps go together. Known only once the prompts are counted."""

from dataclasses import dataclass

from ratchet.config import RlSettings, RunConfig
from ratchet.errors import InvalidSetting

_MOST_ROUNDS = 1000  # as of the setting itself, tested


@dataclass(frozen=True)
class StepCounts:
    """The arithmetic of a run: rounds times optimizer steps of a round. ``batch_size`` counts answers."""

    rounds: int
    prompts: int
    answers: int
    batch_size: int
    per_round: int

    @property
    def total(self) -> int:
        """Optimizer steps of the whole run."""
        return self.rounds * self.per_round


def steps_of(rl: RlSettings, prompts: int) -> StepCounts:
    """The steps of a run with so many training prompts; "full" takes as many rounds as the epochs need."""
    taken = min(rl.prompts_per_round, prompts)
    answers = taken * rl.answers_per_prompt
    batch = min(rl.batch_size or answers, answers)
    rounds = -(-rl.epochs * prompts // taken) if rl.rounds == "full" else rl.rounds
    return StepCounts(rounds, taken, answers, batch, -(-answers // batch))


def with_rounds(config: RunConfig, prompts: int) -> tuple[RunConfig, tuple[str, ...]]:
    """The settings with rounds in place of optimizer steps, and what is worth saying about it.

    Args:
        config: Resolved settings.
        prompts: How many training prompts there are.

    Raises:
        InvalidSetting: so many steps are more rounds than a run may have.
    """
    rl, steps = config.rl, config.rl.max_steps
    if steps is None:
        return config, ()
    if steps == -1:
        return _with(config, "full"), ()
    per_round = steps_of(rl, prompts).per_round
    rounds = -(-steps // per_round)
    if rounds > _MOST_ROUNDS:
        raise InvalidSetting(
            f"Optimizer steps is {steps}, which are {rounds} rounds of {per_round}; a run has at most {_MOST_ROUNDS} "
            f"rounds. Choose at most {_MOST_ROUNDS * per_round}, or more steps in a round: more Prompts per round and "
            "a smaller Batch size.",
            field="rl.max_steps",
        )
    if rounds * per_round == steps:
        return _with(config, rounds), ()
    note = f"Optimizer steps is {steps}; a round has {per_round}, so the run has {rounds} rounds with up to "
    return _with(config, rounds), (f"{note}{rounds * per_round} steps.",)


def _with(config: RunConfig, rounds: int | str) -> RunConfig:
    return config.model_copy(update={"rl": config.rl.model_copy(update={"rounds": rounds, "max_steps": None})})
