"""``ratchet bench leaderboard | power``: who does best on a benchmark, and what its questions can tell apart."""

import json
from dataclasses import asdict

import click

from ratchet.cli.train_commands import json_option


def commands() -> list[click.Command]:
    """Return the commands, for the group of benchmarks."""
    return [
        click.Command(
            "leaderboard",
            callback=_leaderboard,
            help="Show a benchmark's evaluations, the best first.",
            params=[
                click.Argument(["name"]),
                click.Option(["--project"], metavar="LABEL", help="Only this project's."),
                json_option(),
            ],
        ),
        click.Command(
            "power",
            callback=_power,
            help="Say how many questions it takes to tell a gain from chance.",
            params=[
                click.Option(["--gain"], type=float, required=True, metavar="POINTS", help="The gain, in points."),
                click.Option(
                    ["--base"],
                    type=float,
                    default=50.0,
                    metavar="PERCENT",
                    help="How often the model is right (50).",
                ),
                click.Option(["--questions"], type=int, metavar="N", help="What so many questions can tell."),
                click.Option(["--benchmark", "-b"], metavar="NAME", help="What this benchmark's questions can tell."),
                json_option(),
            ],
        ),
    ]


def _leaderboard(name: str, project: str | None, as_json: bool) -> None:
    from ratchet.cli.console import console_for
    from ratchet.cli.evaluation_tables import print_leaderboard
    from ratchet.service.evaluations.evaluations import leaderboard

    ranked = leaderboard(name, project)
    if as_json:
        click.echo(json.dumps({"benchmark": name, "evaluations": [one.model_dump(mode="json") for one in ranked]}))
        return
    print_leaderboard(console_for(as_json), name, ranked)


def _power(gain: float, base: float, questions: int | None, benchmark: str | None, as_json: bool) -> None:
    from ratchet.service.evaluations.power_planning import plan_power

    plan = plan_power(gain, base, questions, benchmark)
    if as_json:
        click.echo(json.dumps(asdict(plan)))
        return
    click.echo(
        f"A gain of {gain:g} points over {base:g} percent takes about {plan.needed:,} questions to be told from chance "
        f"in four of five evaluations; {plan.needed_at_worst:,} if right answers of the two had nothing in common."
    )
    if plan.questions is not None and plan.chance is not None:
        smallest = (
            "" if plan.smallest is None else f" The smallest gain they show is about {100 * plan.smallest:.1f} points."
        )
        click.echo(f"With {plan.questions:,} questions it is seen in {plan.chance:.0%} of evaluations.{smallest}")
