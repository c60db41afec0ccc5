"""What stands for a verifier where a run has none: sft and dpo need no answers graded."""

from ratchet.run.records import Grade, Prompt


class NoVerifier:
    """Refuses no row, since no answer will be graded against it. Whether a run has a verifier its settings say."""

    def check_ground_truth(self, prompt: Prompt) -> str | None:
        """Find nothing wrong."""
        return None

    def grade(self, text: str, prompt: Prompt) -> Grade:
        """Never called: unknown is not wrong.

        Raises:
            ValueError: it was called.
        """
        raise ValueError("this run has no verifier, so nothing can be graded")

    def close(self) -> None:
        """Release nothing."""
