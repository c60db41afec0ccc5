"""What the model answered in a round: all prompts in a list, the first ones open. Rendering alone."""

from typing import Any

from rich.console import Console
from rich.markup import escape

from ratchet.run.display import shortened, visible

PROMPT_CHARACTERS, ANSWER_CHARACTERS = 1000, 600
_LISTED_CHARACTERS = 50


def print_round(console: Console, title: str, rows: list[dict[str, Any]], *, opened: int, full: bool) -> None:
    """Print a round's samples: the first ``opened`` prompts with every answer, the others in one line each."""
    console.print(f"[bold]Samples of {escape(title)}[/bold]: {len(rows)} prompts")
    for row in rows[:opened]:
        _print_prompt(console, row, full)
    closed = rows[opened:]
    if closed:
        console.print(f"\n[bold]{len(closed)} more prompts[/bold] (open them with --prompts {len(rows)})")
        for row in closed:
            line = shown(" ".join(row["prompt"][-1]["content"].split()), _LISTED_CHARACTERS, full=False)
            console.print(f"Prompt {row['prompt_id']:<6} {_mean(row):.2f} mean reward  {line}")
    if not full and any(_is_cut(row) for row in rows[:opened]):
        console.print("\nLong texts are shortened; --full shows all of them.")


def _print_prompt(console: Console, row: dict[str, Any], full: bool) -> None:
    *before, last = row["prompt"]
    answers = row["answers"]
    console.print(f"\n[bold]Prompt {row['prompt_id']}[/bold]  {shown(last['content'], PROMPT_CHARACTERS, full=full)}")
    for message in before:
        text = shown(message["content"], PROMPT_CHARACTERS, full=full)
        console.print(f"[dim]  {escape(str(message['role'])):<9}[/dim] {text}")
    console.print(f"Reference  {shown(row['ground_truth'], ANSWER_CHARACTERS, full=full)}")
    for number, answer in enumerate(answers, start=1):
        color = "green" if answer["correctness"] == 1 else "red"
        console.print(f"[{color}]{number:>2}  {answer['reward']:.2f}[/{color}]  {escape(_tags(answer))}")
        console.print(f"    {shown(answer['text'], ANSWER_CHARACTERS, full=full)}")


def _tags(answer: dict[str, Any]) -> str:
    """Return outcome, failure and the numbers that the score was made of."""
    tags = [str(answer["outcome"]).replace("_", " ")]
    if answer.get("failure"):
        tags[0] += f" ({answer['failure']})"
    tags.append(f"correctness {answer['correctness']:.2f}")
    if answer.get("format"):
        tags.append(f"format {answer['format']:.2f}")
    tags += [f"{name.replace('_', ' ')} {value:.2f}" for name, value in (answer.get("parts") or {}).items()]
    if "tokens" in answer:
        tags.append(f"{answer['tokens']} tokens")
    return ", ".join(tags)


def _mean(row: dict[str, Any]) -> float:
    return float(sum(answer["reward"] for answer in row["answers"]) / len(row["answers"]))


def _is_cut(row: dict[str, Any]) -> bool:
    answers = any(len(answer["text"]) > ANSWER_CHARACTERS for answer in row["answers"])
    return answers or any(len(message["content"]) > PROMPT_CHARACTERS for message in row["prompt"])


def shown(text: str, limit: int, *, full: bool) -> str:
    """Return a text as it may be printed: no markup, no control characters that a terminal would obey."""
    clean = visible(text)
    return escape(clean if full else shortened(clean, limit))
