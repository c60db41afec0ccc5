"""What this machine can do at most, with as many threads as the tools have.

For each model, the linear parts of a forward pass and nothing else, over all its layers with weights of their own, as
many as do not fit a cache in the model; and copying memory. The best of several passes counts.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from channel import Channel
from torch import Tensor
from torch.nn.functional import linear
from work import PASS_TOKENS, Shape

_COPY_BYTES = 256 << 20
_SECONDS = 0.4
_LEAST_PASSES = 3


@torch.inference_mode()
def main() -> None:
    channel = Channel()
    shapes = {name: Shape(**values) for name, values in channel.order["shapes"].items()}
    channel.ready()
    channel.wait_for_go()
    models = {name: _passes(shape) for name, shape in shapes.items()}
    channel.report(models=models, copy_bytes_per_second=_copy_rate())


def _passes(shape: Shape) -> dict[str, Any]:
    """Return multiply-adds a second of the layers and of the output layer, by the tokens of a pass."""
    layers = [[_matrix(outputs, inputs) for inputs, outputs in shape.linears] for _ in range(shape.layers)]
    output = _matrix(shape.vocabulary, shape.hidden)
    found = {}
    for tokens in PASS_TOKENS:
        inputs = {width: _matrix(tokens, width) for width, _ in shape.linears}
        trunk = _best_seconds(lambda inputs=inputs: _forward(layers, inputs))
        last = inputs[shape.hidden]
        head = _best_seconds(lambda last=last: linear(last, output))
        found[str(tokens)] = {
            "trunk_rate": tokens * shape.trunk / trunk,
            "output_rate": tokens * shape.output / head,
        }
    return found


def _forward(layers: list[list[Tensor]], inputs: dict[int, Tensor]) -> None:
    for weights in layers:
        for weight in weights:
            linear(inputs[weight.shape[1]], weight)


def _copy_rate() -> float:
    """Return bytes copied a second; each is read once and written once."""
    source, target = (torch.ones(_COPY_BYTES // 4) for _ in range(2))
    return _COPY_BYTES / _best_seconds(lambda: target.copy_(source))


def _best_seconds(work: Callable[[], Any]) -> float:
    work()
    taken: list[float] = []
    while len(taken) < _LEAST_PASSES or sum(taken) < _SECONDS:
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return min(taken)


def _matrix(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns)


if __name__ == "__main__":
    main()
