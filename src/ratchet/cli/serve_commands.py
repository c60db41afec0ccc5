"""``ratchet serve``: the keeper on the terminal, a line for each thing it does."""

import click


def serve() -> click.Command:
    """Return the command."""
    return click.Command(
        "serve",
        callback=_serve,
        help="Work off the queue of runs: start each when a GPU or a CPU slot is free, go on with those whose worker "
        "died, end those that hang. Ctrl-C ends this command and leaves the runs at work; the next ratchet serve "
        "follows them again.",
        params=[
            click.Option(
                ["--cpu-slots"],
                type=click.IntRange(min=0, max=64),
                default=1,
                help="How many runs may use the CPU at a time (1).",
            ),
            click.Option(
                ["--gpus"],
                type=click.IntRange(min=0, max=64),
                help="How many GPUs to use, one run each; by default as many as nvidia-smi shows.",
            ),
            click.Option(["--stop-runs"], is_flag=True, help="When told to end, end the runs at work in good order."),
        ],
    )


def _serve(cpu_slots: int, gpus: int | None, stop_runs: bool) -> None:
    from ratchet.server import serve_runs

    serve_runs(cpu_slots=cpu_slots, gpus=gpus, stop_runs=stop_runs, show=click.echo)
