"""``ratchet compare``: evaluations of the same questions, side by side, with a verdict."""

import json
from pathlib import Path

import click

from ratchet.cli.train_commands import json_option


def compare() -> click.Command:
    """Return the command."""
    return click.Command(
        "compare",
        callback=_compare,
        help="Compare evaluations question by question. The first is what the others are held against; LABEL=ID gives "
        "one a name, such as base=e1 SFT=e2 RL=e3.",
        params=[
            click.Argument(["evaluations"], nargs=-1, required=True, metavar="EVALUATION EVALUATION..."),
            click.Option(["--report"], type=click.Path(path_type=Path), help="Write a page to this file (HTML)."),
            click.Option(["--chart"], type=click.Path(path_type=Path), help="Draw the scores into this file (PNG)."),
            json_option(),
        ],
    )


def _compare(evaluations: tuple[str, ...], report: Path | None, chart: Path | None, as_json: bool) -> None:
    from ratchet.cli.console import console_for
    from ratchet.cli.eval_commands import write_page
    from ratchet.cli.evaluation_tables import print_side_by_side
    from ratchet.service.evaluations.comparisons import compare_evaluations

    table, questions = compare_evaluations(evaluations)
    console = console_for(as_json)
    if as_json:
        click.echo(json.dumps(table.model_dump(mode="json")))
    else:
        print_side_by_side(console, table)
    if report is not None:
        from ratchet.service.reports.evaluation_page import comparison_page

        write_page(comparison_page(table, questions), report)
        console.print(f"Report   {report}", markup=False)
    if chart is not None:
        from ratchet.service.reports.evaluation_plots import write_comparison_chart

        write_comparison_chart(table, chart)
        console.print(f"Chart    {chart}", markup=False)
