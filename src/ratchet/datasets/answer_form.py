"""Words that ask for an answer in the form that the format bonus looks for. Shared by all sources.

A pattern of the user's own cannot be put into words here; it is asked for like no form at all.
"""

from ratchet.config import FormatKind


def tags_request(what: str) -> str:
    """Ask for reasoning and ``what`` (such as "the final number") in their tags."""
    return (
        f"Reason step by step inside <think></think>, then give only {what} inside <answer></answer>, "
        "with nothing after it."
    )


def form_request(format_kind: FormatKind) -> str:
    """Ask for the form alone, for rows that say themselves what is to be done; nothing where no form is looked for."""
    if format_kind == "tags":
        return tags_request("the final answer")
    return "Give the final answer inside \\boxed{}." if format_kind == "boxed" else ""


def in_form(steps: str, final: str, format_kind: FormatKind) -> str:
    """Write a worked solution the way the form asks for. ``steps`` already ends with the final answer."""
    if format_kind == "tags":
        return f"<think>{steps}</think>\n<answer>{final}</answer>"
    if format_kind == "boxed":
        return f"{steps}\n\\boxed{{{final}}}"
    return steps
