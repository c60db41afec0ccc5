"""transformers and PEFT, imported without what only other kinds of work need; and their unwanted messages, kept quiet.

Importing them loads bitsandbytes, torch's compiler, its sharded tensors and every loss of computer vision, whatever the
job: two thirds of the time. Here each of these is loaded once it is used: bitsandbytes by ``load_bitsandbytes``, for
quantized models; the rest by the first call of a function that transformers has taken from it. Where a version takes
something else, or these were imported before, everything works as without this module, only more slowly.

transformers' table of weights is left out too: what is missing is refused in a sentence.

``from_files`` is the one way to load anything that belongs to a model.
"""

import gc
import importlib
import importlib.util
import logging
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from operator import attrgetter
from types import ModuleType
from typing import Any

# What transformers takes names from that no job uses, unless it calls one of them: the compiler, and sharded models.
# Losses: all of ``transformers.loss`` but the table of them.
_LATER = (
    "torch._dynamo",
    "torch._dynamo._trace_wrapped_higher_order_op",
    "torch.distributed._composable.fsdp",
    "torch.distributed.checkpoint.hf_storage",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.distributed.tensor._utils",
    "torch.distributed.tensor.placement_types",
)
_MARKS = ("allow_in_graph", "assume_constant_result", "disable", "graph_break")
_LOSSES, _LOSS_TABLE = "transformers.loss", "loss_utils"
# accelerate's questions about Amazon's training service load its client.
_UNUSED = ("bitsandbytes", "boto3")
_NOT_NEEDED = "Failed to load CPU gemm_4bit_forward"


def from_files(kind: Any, source: str, **keywords: Any) -> Any:
    """Load a model, tokenizer or configuration of transformers; Python code among its files is never run.

    Args:
        kind: What has ``from_pretrained``, such as ``AutoTokenizer``.
        source: A folder or hub id.
        keywords: Of ``from_pretrained``.
    """
    return kind.from_pretrained(source, trust_remote_code=False, **keywords)


def load_libraries() -> None:
    """Import transformers' models and PEFT, without bitsandbytes; see ``load_bitsandbytes`` for when it is needed."""
    try:
        with ExitStack() as stack:
            stack.enter_context(_uncollected())
            for package in _UNUSED:
                if package not in sys.modules:
                    stack.enter_context(_hidden(package))
            stack.enter_context(lightly())
            importlib.import_module("transformers.modeling_utils")
            importlib.import_module("peft")
            _has_bitsandbytes()  # PEFT remembers the answer: no
    except ImportError:  # a version that takes more from them than names
        importlib.import_module("peft")
        load_bitsandbytes()
    _leave_optimizers_uncompiled()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep Python from searching for garbage while the block imports a million objects and makes none."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def lightly() -> Iterator[None]:
    """Put off, for the block, what importing transformers and loading a model would import without using it."""
    importlib.import_module("torch")  # whole, before anything is put off
    with ExitStack() as stack:
        for module in (*_LATER, *_losses()):
            stack.enter_context(_put_off(module))
        yield


@contextmanager
def without_compiler() -> Iterator[None]:
    """Keep the block from loading torch's compiler only to tell it something, as a step of an optimizer does."""
    with _put_off("torch._dynamo"):
        yield


def load_bitsandbytes() -> None:
    """Import bitsandbytes, if it is installed, and have PEFT know that it is there.

    On processors with AVX512-BF16 it asks the package ``kernels``, if there is one, to fetch code from the hub, which
    nobody asked for.
    """
    if importlib.util.find_spec("bitsandbytes") is None:
        return
    if "bitsandbytes" not in sys.modules:
        # It then says that the kernel is missing; ``quantization.py`` keeps that kernel from being used.
        logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(_is_needed)
        with _hidden("kernels"):
            importlib.import_module("bitsandbytes")
    imports = importlib.import_module("peft.import_utils")
    for name in ("is_bnb_available", "is_bnb_4bit_available"):
        forget = getattr(getattr(imports, name, None), "cache_clear", None)
        if forget is not None:
            forget()


@cache
def _losses() -> list[str]:
    spec = importlib.util.find_spec(_LOSSES)
    folders = spec.submodule_search_locations if spec is not None else None
    names = [module.name for module in pkgutil.iter_modules(folders or [])]
    return [f"{_LOSSES}.{name}" for name in names if name != _LOSS_TABLE]


@contextmanager
def without_load_report() -> Iterator[None]:
    """Keep transformers from printing a table of every weight that a checkpoint has beyond the model, or lacks."""
    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(_is_no_load_report)
    try:
        yield
    finally:
        logger.removeFilter(_is_no_load_report)


class _Later:
    """A name of a module that is imported when the name is first used: called, looked into or inherited from."""

    def __init__(self, module: str, real: Callable[[ModuleType], Any]) -> None:
        self._later_module, self._later_real = module, real

    def _real(self) -> Any:
        return self._later_real(_real_module(self._later_module))

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        if self._is_put_off():  # such as ``Shard(0)`` in a table that is filled as a library is imported
            real = self._later_real
            return _Later(self._later_module, lambda module: real(module)(*inputs, **keywords))
        return self._real()(*inputs, **keywords)

    def _is_put_off(self) -> bool:
        return isinstance(sys.modules.get(self._later_module), _LaterModule)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked of everything, such as by ``inspect``
            raise AttributeError(name)
        return getattr(self._real(), name)

    def __getitem__(self, key: Any) -> Any:
        return self._real()[key]

    def __contains__(self, key: Any) -> bool:
        return key in self._real()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._real())

    def __instancecheck__(self, instance: Any) -> bool:
        # Before the module is imported nothing can be an instance.
        is_imported = self._later_module in sys.modules and not self._is_put_off()
        return is_imported and isinstance(instance, self._real())

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._real(),)

    def __or__(self, other: Any) -> Any:  # in annotations
        return Any

    __ror__ = __or__


class _LaterModule(ModuleType):
    """Stands for a module while others are imported that take names from it.

    What they tell the compiler about functions, as these are defined or run, goes nowhere: nothing here is compiled.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # it is no package, and has no file
            raise AttributeError(name)
        if name in _MARKS:
            return _unmarked
        return _Later(self.__name__, attrgetter(name))


def _real_module(name: str) -> ModuleType:
    if isinstance(sys.modules.get(name), _LaterModule):
        del sys.modules[name]
    return importlib.import_module(name)


@contextmanager
def _put_off(name: str) -> Iterator[None]:
    """Import a module inside the block only if something else than a name is taken from it, else when it is used."""
    if name not in sys.modules:
        sys.modules[name] = stand_in = _LaterModule(name)
        parent, _, last = name.rpartition(".")
        package = sys.modules.get(parent)
        # PEFT looks there, also after the block; importing the real module replaces it.
        if package is not None and last not in vars(package) and not hasattr(package, "__getattr__"):
            setattr(package, last, stand_in)
    try:
        yield
    finally:
        if isinstance(sys.modules.get(name), _LaterModule):
            del sys.modules[name]


def _unmarked(function: Any = None, *options: Any, **more: Any) -> Any:
    return _unmarked if function is None else function


def _has_bitsandbytes() -> bool:
    imports = importlib.import_module("peft.import_utils")
    return any([getattr(imports, name, bool)() for name in ("is_bnb_available", "is_bnb_4bit_available")])


def _leave_optimizers_uncompiled() -> None:
    """Have torch's optimizers not load the compiler to ask it to leave them alone, as long as nothing is compiled."""
    if "torch._dynamo" in sys.modules:
        return
    optimizer = importlib.import_module("torch.optim.optimizer").Optimizer
    for name in ("add_param_group", "load_state_dict", "state_dict", "zero_grad"):
        function = getattr(getattr(optimizer, name), "__wrapped__", None)
        if function is not None:
            function.__dynamo_disable = function  # what torch._disable_dynamo looks for first


def _is_needed(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_NOT_NEEDED)


def _is_no_load_report(record: logging.LogRecord) -> bool:
    return "LOAD REPORT" not in str(record.msg)


@contextmanager
def _hidden(package: str) -> Iterator[None]:
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
