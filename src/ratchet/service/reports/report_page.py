"""A verifier report card as one HTML page that needs nothing else; ``pages.py`` says what that takes."""

from typing import Any

from ratchet.run.report_card import PARSE_FAILURE_WARNING, PASS_MARK, ReportCard
from ratchet.service.reports.pages import PAGE, figure, render, settings_text, svg

_WIDTH_INCHES = 7.2
_MOST_PROMPTS_DRAWN = 32


def page(card: ReportCard) -> str:
    """A report card as a page."""
    return render("report_page", card=card, histogram=_histogram(card), prompts=_prompts(card), **_words(card))


def _words(card: ReportCard) -> dict[str, Any]:
    made = card.made_with
    return {
        "warns_of_parsing": card.share("unparseable") > PARSE_FAILURE_WARNING,
        "warning_share": PARSE_FAILURE_WARNING,
        "pass_mark": PASS_MARK,
        "source": made.verifier.get("source", ""),
        "left_out": list(card.probes.left_out.items()),
        "must_fail": [result for result in card.probes.results if not result.must_pass],
        "must_pass": [result for result in card.probes.results if result.must_pass],
        "made": [
            ("Base model", made.model_name),
            ("Fingerprint or commit", made.model),
            ("Quantization", made.quantization),
            ("Adapter", f"sha256 {made.start}" if made.start else "none"),
            ("Verifier", settings_text({name: value for name, value in made.verifier.items() if name != "source"})),
            ("Reward", settings_text(made.reward)),
            ("Data", f"{made.source}, {made.training_prompts:,} training prompts"),
            ("Data hash", made.data),
            ("System prompt", made.prompt.get("system_prompt") or "none"),
            ("Few-shot examples", str(len(made.prompt.get("worked_examples") or ()))),
            ("Sampling", f"temperature {made.temperature:g}, top-p {made.top_p:g}, top-k {made.top_k or 'off'}"),
            ("Max answer tokens", f"{made.max_answer_tokens:,}"),
            ("Device", made.device),
            ("Versions", ", ".join(f"{name} {version}" for name, version in made.versions.items())),
        ],
    }


def _histogram(card: ReportCard) -> Any:
    drawn, axes = figure(_WIDTH_INCHES, 3.0, PAGE)
    edges = [step / 10 for step in range(10)]
    bars = axes.bar(edges, card.histogram, width=0.094, align="edge", color=PAGE.accent)
    axes.bar_label(bars, labels=[str(n) if n else "" for n in card.histogram], color=PAGE.ink, fontsize=10, padding=2)
    axes.set(xlim=(0, 1), ylim=(0, max(card.histogram) * 1.15), xlabel="reward")
    axes.set_xticks([step / 10 for step in range(0, 11, 2)])
    axes.set_yticks([])  # every bar has its number
    return svg(drawn, "How many answers scored how much, in ten steps from 0 to 1", "wide")


def _prompts(card: ReportCard) -> Any:
    """Draw every prompt as a row, a dot for each answer at its reward; dots at one place grow with their number."""
    scores = card.scores[:_MOST_PROMPTS_DRAWN]
    drawn, axes = figure(_WIDTH_INCHES, 0.9 + 0.26 * len(scores), PAGE)
    for row, score in enumerate(scores):
        counts = {reward: score.rewards.count(reward) for reward in sorted(set(score.rewards))}
        axes.plot([min(counts), max(counts)], [row, row], color=PAGE.line, linewidth=2, zorder=1)
        sizes = [18 + 130 * number / len(score.rewards) for number in counts.values()]
        axes.scatter(
            list(counts), [row] * len(counts), s=sizes, color=PAGE.accent if score.has_signal else PAGE.line, zorder=2
        )
    axes.set(xlim=(-0.05, 1.05), ylim=(len(scores) - 0.4, -0.6), xlabel="reward")
    axes.set_yticks(range(len(scores)), [str(score.prompt_id) for score in scores])
    return svg(drawn, "The rewards of each prompt's answers; prompts whose answers all scored alike are faint", "wide")
