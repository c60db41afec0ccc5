"""What libraries do or say unasked, and how it is kept from happening.

bitsandbytes is imported, where it is installed, before PEFT does: quietly, and without a look outside this machine.
transformers' table of weights is left out: what is missing is refused in a sentence.

Loads neither of them, nor torch, by itself: ``load_bitsandbytes`` does.
"""

import importlib
import importlib.util
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_NOT_NEEDED = "Failed to load CPU gemm_4bit_forward"


def _is_needed(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_NOT_NEEDED)


def load_bitsandbytes() -> None:
    """Import bitsandbytes, if it is installed.

    PEFT imports it for every model, quantized or not. On processors with AVX512-BF16 it then asks the package
    ``kernels``, if there is one, to fetch code from the hub, which nobody asked for.
    """
    if importlib.util.find_spec("bitsandbytes") is None or "bitsandbytes" in sys.modules:
        return
    # It then says that the kernel is missing; ``quantization.py`` keeps that kernel from being used.
    logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(_is_needed)
    with _absent("kernels"):
        importlib.import_module("bitsandbytes")


@contextmanager
def without_load_report() -> Iterator[None]:
    """Keep transformers from printing a table of every weight that a checkpoint has beyond the model, or lacks."""
    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(_is_no_load_report)
    try:
        yield
    finally:
        logger.removeFilter(_is_no_load_report)


def _is_no_load_report(record: logging.LogRecord) -> bool:
    return "LOAD REPORT" not in str(record.msg)


@contextmanager
def _absent(package: str) -> Iterator[None]:
    """Make a package look as if it were not installed."""
    known = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == package}
    for name in known:
        del sys.modules[name]
    sys.modules[package] = None  # type: ignore[assignment] # the documented way to make an import fail
    try:
        yield
    finally:
        del sys.modules[package]
        sys.modules.update(known)
