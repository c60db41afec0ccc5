"""``ratchet serve``: the scheduler on the terminal, a line for each thing it does."""

import click

from ratchet.server import serve_runs


@click.command
@click.option(
    "--cpu-slots",
    type=click.IntRange(min=0, max=64),
    default=1,
    help="How many runs may use the CPU at a time (1).",
)
@click.option(
    "--gpus",
    type=click.IntRange(min=0, max=64),
    help="How many GPUs to use, one run each; by default as many as nvidia-smi shows.",
)
@click.option("--stop-runs", is_flag=True, help="When told to end, stop the running runs cleanly first.")
def serve(cpu_slots: int, gpus: int | None, stop_runs: bool) -> None:
    """Run the scheduler.

    It starts each queued run when a GPU or a CPU slot is free, resumes those whose worker died, and ends those that
    hang. Ctrl-C ends this command and leaves the runs running; the next ratchet serve follows them again.
    """
    serve_runs(cpu_slots=cpu_slots, gpus=gpus, stop_runs=stop_runs, show=click.echo)
