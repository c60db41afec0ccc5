"""Settings of a loop: how often it trains and evaluates, and what ends it. What it trains is a run's settings."""

from ratchet.config.base import Settings, setting


class LoopSettings(Settings):
    """Rounds of training and evaluation, until a target, a plateau or the last round."""

    name: str = setting("", max_length=100, label="Name", help="Name of the loop.")
    score_column: str = setting(
        "accuracy",
        min_length=1,
        max_length=100,
        label="Score column",
        help="The benchmark's score by which rounds are compared.",
    )
    target_percent: float | None = setting(
        None,
        gt=0,
        le=100,
        label="Loop target",
        unit="percent",
        help="The loop ends as soon as a round scores this on the selection half of the benchmark. Empty: none.",
    )
    max_rounds: int = setting(
        8,
        ge=1,
        le=100,
        label="Max rounds",
        unit="rounds",
        help="Runs that the loop trains at most; the start is not counted.",
    )
    patience: int = setting(
        2,
        ge=1,
        le=100,
        label="Patience",
        unit="rounds",
        help="The loop ends after this many scored rounds in a row without a sign of gain over those before. With 1, "
        "noise alone ends about a third of the loops that gain 5 points per round.",
    )
    reclaims_storage: bool = setting(
        True,
        label="Reclaim storage",
        help="Removes merged exports of rounds that are not the best. Adapters are always kept.",
    )
    seed: int = setting(
        0,
        ge=0,
        le=2**31 - 1,
        label="Loop seed",
        help="Decides how the benchmark is split into the selection half and the held-out half.",
    )
