"""Learning from demonstrations (SFT) and from preferences (DPO). RL has a file of its own."""

from typing import Literal

from ratchet.config.base import Settings, setting

Objective = Literal["rl", "sft", "dpo"]

# Learning rates that go with each objective where the user sets none. rl: twenty steps at the 5e-6 that is usual for
# full fine-tuning move a LoRA adapter nowhere (measured); sft and dpo: what TRL's documentation uses for LoRA and DPO.
RATE_DEFAULTS: dict[Objective, float] = {"rl": 1e-4, "sft": 2e-4, "dpo": 5e-6}

_EPOCHS_HELP = "How often each training row is used."
_BATCH_HELP = "Rows per optimizer step."
_SCHEDULE_HELP = "Learning rate schedule: linear or cosine decay to 0, or constant."
_EVALUATIONS_HELP = (
    "How often the validation sample is scored, evenly over the run. Each time ends a round: the best adapter so far "
    "is kept, and an interrupted run resumes from there."
)


class SftSettings(Settings):
    """Learning from demonstrations: the last assistant message of each row is what the model should have written."""

    epochs: int = setting(3, ge=1, le=100, label="Epochs (SFT)", unit="epochs", help=_EPOCHS_HELP)
    batch_size: int = setting(16, ge=1, le=4096, label="Batch size (SFT)", unit="rows", help=_BATCH_HELP)
    schedule: Literal["linear", "cosine", "constant"] = setting("linear", label="Schedule (SFT)", help=_SCHEDULE_HELP)
    warmup_share: float = setting(
        0.0, ge=0, le=0.5, label="Warm-up (SFT)", help="Share of the steps over which the learning rate rises from 0."
    )
    evaluations: int = setting(6, ge=1, le=1000, label="Evaluations (SFT)", unit="rounds", help=_EVALUATIONS_HELP)


class DpoSettings(Settings):
    """Learning from preferences (Rafailov et al. 2023, arXiv:2305.18290): the chosen answer over the rejected one."""

    beta: float = setting(
        0.1,
        gt=0,
        le=10,
        label="Beta (DPO)",
        help="Strength of the KL penalty towards the starting policy: less lets the policy move further.",
    )
    epochs: int = setting(1, ge=1, le=100, label="Epochs (DPO)", unit="epochs", help=_EPOCHS_HELP)
    batch_size: int = setting(16, ge=1, le=4096, label="Batch size (DPO)", unit="pairs", help=_BATCH_HELP)
    schedule: Literal["linear", "cosine", "constant"] = setting("linear", label="Schedule (DPO)", help=_SCHEDULE_HELP)
    warmup_share: float = setting(
        0.0, ge=0, le=0.5, label="Warm-up (DPO)", help="Share of the steps over which the learning rate rises from 0."
    )
    evaluations: int = setting(4, ge=1, le=1000, label="Evaluations (DPO)", unit="rounds", help=_EVALUATIONS_HELP)
