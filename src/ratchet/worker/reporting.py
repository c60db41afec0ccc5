"""How a finished round gets onto the disk, in an order that a kill cannot hurt: rollouts, checkpoint, journal."""

from collections.abc import Callable, Sequence

import torch

from ratchet.config import KeepSettings
from ratchet.engine import checkpoint
from ratchet.engine.checkpoint import Progress
from ratchet.engine.policy import Policy
from ratchet.files import write_atomically
from ratchet.run.records import Group, RoundRecord
from ratchet.run.round_lines import log_line, rollout_row
from ratchet.worker.after_round import Following
from ratchet.worker.session import Session


def reporter(
    session: Session, policy: Policy, optimizer: torch.optim.AdamW, keep: KeepSettings
) -> Callable[[RoundRecord, Sequence[Group], Progress], None]:
    """Return what stores a finished round: rollouts, then the checkpoint with the record, then the event.

    Rollouts that ``keep`` does not ask for are removed after that.
    """
    following = Following(session)

    def report(record: RoundRecord, groups: Sequence[Group], progress: Progress) -> None:
        with session.writing:
            write(record, groups, progress)
        following.after_round()

    def write(record: RoundRecord, groups: Sequence[Group], progress: Progress) -> None:
        folder = session.folder
        record = record.model_copy(update={"cost": session.budget.cost})
        is_best = record.best_round == record.round
        if groups:
            folder.write_rollouts(record.round, (rollout_row(group) for group in groups))
        dropped = folder.rollouts_to_drop(keep)
        oldest = folder.oldest_rollouts(dropped)
        if oldest is not None and oldest > 1:
            record = record.model_copy(update={"oldest_rollouts": oldest})
        progress.records[-1] = record
        if is_best:
            # Written before the checkpoint and put in place after it: on a full disk both stay those of one round.
            folder.stage_adapter(policy.adapter_files(progress.best_state))
        content = checkpoint.packed(progress, policy, optimizer, session.budget.elapsed)
        write_atomically(folder.checkpoint_path, content)
        session.progress = progress
        if is_best:
            folder.put_adapter()
        if record.round:
            session.budget.record_round(record.seconds.total)
        folder.log(log_line(record))
        session.event("round", record=record.model_dump())
        # Last, now that the round is safe: what a kill leaves here the next round removes.
        folder.drop_rollouts(dropped)

    return report
