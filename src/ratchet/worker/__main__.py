"""``python -m ratchet.worker FOLDER``: work on the run in that folder; 0 if it ended with an adapter."""

import sys

from ratchet.errors import RatchetError
from ratchet.run_folder import RunFolder
from ratchet.worker import refuse_unconfirmed, run


def main() -> int:
    """Return the exit code."""
    try:
        folder = RunFolder.find(sys.argv[1])
        refuse_unconfirmed(folder)
        result = run(folder)
    except RatchetError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 1
    sys.stdout.write(result.model_dump_json() + "\n")
    return 0 if result.adapter else 1


if __name__ == "__main__":
    sys.exit(main())
