"""``python -m ratchet.worker FOLDER [LOCK]``: work on the run in that folder; 0 if it ended with what it was for.

LOCK is the number of the open file in which whoever started this process handed the folder's lock down.
"""

import gc
import sys

from ratchet.errors import RatchetError
from ratchet.run.endings import ending_of
from ratchet.run.events import NotStarted, RunEnded
from ratchet.run.refusals import refuse_unconfirmed
from ratchet.run.run_folder import RunFolder
from ratchet.worker.job import places_of, run


def main(arguments: list[str]) -> int:
    """Exit code."""
    gc.freeze()  # what is imported stays: no round searches it for garbage, nor does the end
    try:
        folder = RunFolder.at(arguments[0])
    except (RatchetError, IndexError) as error:
        sys.stderr.write(f"Error: {error if isinstance(error, RatchetError) else 'Name the folder of a run.'}\n")
        return 1
    lock = int(arguments[1]) if len(arguments) > 1 else None
    events_before = len(list(folder.events()))
    try:
        refuse_unconfirmed(folder)
        result = run(folder, lock=lock)
    except RatchetError as error:
        sys.stderr.write(f"Error: {error}\n")
        _say_refused(folder, error, events_before)
        return 1
    except Exception as error:
        # Not the exception's text: it may quote what a model wrote.
        sys.stderr.write(f"Error: {type(error).__name__} at {places_of(error)}\n")
        return 1
    sys.stdout.write(result.model_dump_json() + "\n")
    return 0 if result.adapter or result.status == "completed" else 1


def _say_refused(folder: RunFolder, error: RatchetError, events_before: int) -> None:
    """Write into the journal why this process refused the run, unless it has just written how the run ended."""
    new = list(folder.events())[events_before:]
    if not any(isinstance(event, RunEnded) for event in new):
        folder.append_event(NotStarted(message=str(error), ending=ending_of(error)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
