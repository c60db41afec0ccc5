"""What a verifier is: a function from (completion text, prompt) to a Grade, and a check of ground truths."""

from typing import Protocol, runtime_checkable

from ratchet.run.records import Grade, Prompt


class Verifier(Protocol):
    """Checks completions. Holds no state that changes a grade and never sees the policy."""

    def check_ground_truth(self, prompt: Prompt) -> str | None:
        """Say in a few words why no completion could be graded against this ground truth, or None if one could.

        The words never hold the ground truth itself.
        """

    def grade(self, text: str, prompt: Prompt) -> Grade:
        """Grade any text at all, the empty one included, without raising. Safe to call from any thread.

        Raises:
            SandboxUnavailable: the machine cannot run what the verifier runs; nothing is said of the answer.
        """

    def close(self) -> None:
        """Release worker processes, if there are any. The verifier is not used afterwards."""


@runtime_checkable
class Tried(Protocol):
    """A verifier that is not Ratchet's own, and is tried before a model is loaded for it."""

    def load(self) -> None:
        """See that it can be loaded, whatever it then makes of any row. Raises like ``trial``."""

    def trial(self, prompt: Prompt) -> str:
        """Grade a ground truth against itself; return a note for the run's record, which may be empty.

        Raises:
            MetricRefused: it cannot be used, in one sentence.
            SandboxUnavailable: this machine cannot run it.
        """
