"""Which of the machine's processes belong to this test run: another one may go on beside it."""

import os
from pathlib import Path


def is_of_another_test(pid):
    """Whether a process descends from a pytest other than this process. Orphans count as ours."""
    while pid not in (0, 1, os.getpid()):
        try:
            if b"pytest" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return True
            _, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")
        except OSError:
            return False
        pid = int(rest.split()[1])
    return False
