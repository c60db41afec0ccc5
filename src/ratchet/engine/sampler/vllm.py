"""The vLLM sampler: answers written by a vLLM engine that shares the machine, and the GPU, with the update.

The engine is in this process and holds the base model; the policy's adapter reaches it as a folder under a new number
whenever it has changed: under an old number vLLM keeps the weights it has. Before a folder is handed over its
files are read back, since an adapter that cannot be read leaves the engine spinning. After any fault the engine is
thrown away, started again, and asked for what was missing: every answer has a seed of its own, so the second try
continues where the first one ended. A second fault in the same call ends the run.

Log-probabilities are under the sampling distribution (``processed_logprobs``); those under the temperature alone are
unknown where top-k or top-p truncate.

Left out on purpose: no tokenizer in the engine, no servers, no several GPUs. vLLM is imported here alone, and late.
"""

import gc
import hashlib
import logging
import math
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from ratchet.engine.distribution import SamplingSettings
from ratchet.engine.memory import is_out_of_memory
from ratchet.engine.policy import ADAPTER, Policy
from ratchet.engine.sampler import NOT_FINITE, Sampled, SampleRequest
from ratchet.errors import NotFinite, OutOfMemory, RatchetError, SamplerFailed
from ratchet.files import disk_full_as_error
from ratchet.models.adapter_files import ADAPTER_WEIGHTS
from ratchet.run.records import Completion

log = logging.getLogger(__name__)

# The sizes vLLM knows for the widest adapter (MaxLoRARanks in its vllm/config/lora.py).
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
# Answers under way at a time, at most: beyond it a GPU gains nothing, and its buffers grow.
_MOST_ANSWERS = 256
# Set unless the user has: read by vLLM when it is imported or an engine starts.
_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",  # nothing leaves the machine
    "VLLM_HOST_IP": "127.0.0.1",  # else it asks the network which address it has
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; by itself it takes a share of all memory
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the trainer's threads are not to be moved
}
_TRIES = 2
_WITHOUT = "choose Generation backend in_process"


class _EngineFault(Exception):
    """Something came out of the engine that is not an answer. The cause is what it was."""


@dataclass(frozen=True)
class _Adapter:
    """An adapter that the engine was given: its number there, and what its weights hash to."""

    number: int
    digest: bytes


def most_answers(sampling_tokens: int, window_tokens: int) -> int:
    """How many answers may be written at a time, each with its prompt of so many tokens at most; one always."""
    return max(1, min(_MOST_ANSWERS, sampling_tokens // window_tokens))


class VllmSampler:
    """Samples with a vLLM engine, which starts with the first call. See ``Sampler``."""

    def __init__(
        self,
        policy: Policy,
        gpu_memory_share: float,
        sampling_tokens: int,
        window_tokens: int,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._policy = policy
        self._memory_share = gpu_memory_share
        self._window_tokens = window_tokens
        self._most_answers = most_answers(sampling_tokens, window_tokens)
        self._note = note
        self._folder = tempfile.TemporaryDirectory(prefix="ratchet-adapter-")
        self._engine: Any = None
        self._asleep = False
        self._adapter: _Adapter | None = None
        self._adapters_made = 0

    def sample(
        self,
        requests: Sequence[SampleRequest],
        settings: SamplingSettings,
        max_answer_tokens: int,
        check: Callable[[], None],
    ) -> Generator[Sampled]:
        """Yield every answer once, in the order in which they finish. See ``Sampler``."""
        missing = {
            (number, answer): None for number, request in enumerate(requests) for answer in range(request.answers)
        }
        for tries in range(1, _TRIES + 1):
            try:
                with closing(self._answers(requests, list(missing), settings, max_answer_tokens, check)) as answers:
                    for sampled in answers:
                        del missing[sampled.request, sampled.answer]
                        yield sampled
                return
            except _EngineFault as fault:
                self._throw_engine_away()
                self._judge(fault.__cause__ or fault, tries, len(missing))

    def rest(self) -> None:
        """Let the engine move its weights to main memory and drop its cache. On a CPU there is nothing to gain."""
        if self._engine is None or self._asleep or self._policy.device.type != "cuda":
            return
        try:
            self._engine.sleep(level=1)
            self._asleep = True
        except Exception as error:  # whatever an engine raises: it is dead, and the next call starts another
            log.warning("vllm sleep failed type=%s", type(error).__name__)
            self._throw_engine_away()

    def close(self) -> None:
        """Shut the engine down and remove the adapter's files."""
        self._throw_engine_away()
        self._folder.cleanup()

    @property
    def _memory_remedy(self) -> str:
        if self._policy.device.type == "cuda":
            return f"another Memory share of vLLM (it is {self._memory_share:g})"
        return "another VLLM_CPU_KVCACHE_SPACE (in GiB)"

    def _judge(self, cause: BaseException, tries: int, missing: int) -> None:
        """Say that the engine is started again, or raise what the run ends with."""
        kind = type(cause).__name__
        log.warning("vllm engine failed type=%s try=%d missing=%d", kind, tries, missing)
        if is_out_of_memory(cause):
            raise OutOfMemory(
                "Sampling with vLLM does not fit in this device's memory. Choose fewer Answers per prompt, a shorter "
                f"Max answer tokens, {self._memory_remedy} or a device with more memory, or {_WITHOUT}.",
                "sampling",
            ) from cause
        if tries == _TRIES:
            raise SamplerFailed(
                f"The vLLM engine failed twice in one round of answers ({kind}), the second time after it had been "
                f"started again; {missing} answers were missing. Resume the run, or {_WITHOUT}."
            ) from cause
        self._note(f"The vLLM engine failed ({kind}) and was started again; {missing} answers were asked for again.")

    def _answers(
        self,
        requests: Sequence[SampleRequest],
        wanted: Sequence[tuple[int, int]],
        settings: SamplingSettings,
        max_answer_tokens: int,
        check: Callable[[], None],
    ) -> Generator[Sampled]:
        """Ask the engine for some answers and yield them as they finish; what is left is aborted at the end."""
        check()
        engine, adapter = self._ready()
        under_way = {f"{request}-{answer}": (request, answer) for request, answer in wanted}
        try:
            with _engine_faults():
                # A resumed run starts with an empty cache; what is held must not decide how a prompt is computed.
                engine.reset_prefix_cache()
                for name, (request, answer) in under_way.items():
                    engine.add_request(
                        name,
                        {"prompt_token_ids": list(requests[request].prompt_token_ids)},
                        self._parameters(requests[request], answer, settings, max_answer_tokens),
                        lora_request=adapter,
                    )
            while under_way:
                check()
                # It also draws from torch's own generator, for nothing: every answer has a seed.
                with _engine_faults(), torch.random.fork_rng(devices=[]):
                    outputs = engine.step()
                for output in outputs:
                    if output.finished:
                        request, answer = under_way.pop(output.request_id)
                        yield Sampled(request, answer, self._completion(output.outputs[0], settings))
        except _EngineFault:
            under_way.clear()  # a dead engine is asked for nothing, not even to stop
            raise
        finally:
            self._abort(list(under_way))

    def _abort(self, names: list[str]) -> None:
        if names and self._engine is not None:
            try:
                self._engine.abort_request(names)
            except Exception:  # it cannot be told what to leave out: the next call starts another
                self._throw_engine_away()

    def _parameters(
        self, request: SampleRequest, answer: int, settings: SamplingSettings, max_answer_tokens: int
    ) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        drawn: dict[str, Any] = {"temperature": 0.0}
        if not settings.greedy:
            drawn = {"temperature": settings.temperature, "top_p": settings.top_p, "top_k": settings.top_k}
            drawn["seed"] = _seed((*request.random_key, answer))
        return SamplingParams(
            **drawn,
            max_tokens=request.limit(answer, max_answer_tokens),
            stop_token_ids=sorted(self._policy.chat.end_ids),
            logprobs=0,  # of the drawn token alone
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _completion(self, output: Any, settings: SamplingSettings) -> Completion:
        token_ids = tuple(output.token_ids)
        logprobs = tuple(at[token].logprob for token, at in zip(token_ids, output.logprobs, strict=True))
        if not all(map(math.isfinite, logprobs)):
            raise NotFinite(NOT_FINITE)
        stopped = token_ids[-1] in self._policy.chat.end_ids
        return Completion(
            token_ids=token_ids,
            logprobs=logprobs,
            full_logprobs=None if settings.truncates else logprobs,
            text=self._policy.chat.decode(list(token_ids[:-1] if stopped else token_ids)),
            finish="stop" if stopped else "length",
        )

    def _ready(self) -> tuple[Any, Any]:
        """Return the engine, started and awake, and what to call the policy's adapter as it is now."""
        from vllm.lora.request import LoRARequest

        if self._engine is None:
            self._engine = self._started()
        weights = self._policy.adapter_files(self._policy.adapter_state())
        digest = hashlib.sha256(weights[ADAPTER_WEIGHTS]).digest()
        with _engine_faults():
            if self._asleep:
                torch.cuda.empty_cache()  # what the update no longer needs is the engine's again
                self._engine.wake_up()
                self._asleep = False
        if self._adapter is None or self._adapter.digest != digest:
            self._hand_over(weights, digest)
        adapter = self._adapter
        assert adapter is not None
        return self._engine, LoRARequest(f"policy-{adapter.number}", adapter.number, str(self._path(adapter.number)))

    def _hand_over(self, files: dict[str, bytes], digest: bytes) -> None:
        """Give the engine the adapter under a number it has not heard of, and let go of the one before."""
        from vllm.lora.request import LoRARequest

        for earlier in Path(self._folder.name).iterdir():
            shutil.rmtree(earlier)
        self._adapters_made += 1
        number = self._adapters_made
        path = self._path(number)
        write_adapter(path, files)
        with _engine_faults():
            if self._adapter is not None:
                self._engine.remove_lora(self._adapter.number)
            self._adapter = None
            self._engine.add_lora(LoRARequest(f"policy-{number}", number, str(path)))
        self._adapter = _Adapter(number, digest)

    def _path(self, number: int) -> Path:
        return Path(self._folder.name) / str(number)

    def _started(self) -> Any:
        """Start an engine.

        Raises:
            SamplerFailed: it does not start, which a second try would not change.
            OutOfMemory: for want of memory.
        """
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        # Whatever the user has: an engine in a process of its own gets the run's Ctrl-C too, and when it is killed vLLM
        # 0.32 waits for its answers for ever (seen). In this process it can only die with the run, which resumes.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        try:
            from vllm import EngineArgs, LLMEngine

            with _process_as_it_was():
                return LLMEngine.from_engine_args(EngineArgs(**self._engine_arguments()))
        except Exception as error:
            self._throw_engine_away()
            if is_out_of_memory(error):
                raise OutOfMemory(
                    f"vLLM does not fit in this device's memory. Choose {self._memory_remedy} or a device with more "
                    f"memory, or {_WITHOUT}.",
                    "sampling",
                ) from error
            raise SamplerFailed(
                f"vLLM does not start: {_first_line(error)}. If that speaks of memory, choose {self._memory_remedy} or "
                f"lower Max answer tokens; else {_WITHOUT}."
            ) from error

    def _engine_arguments(self) -> dict[str, Any]:
        policy = self._policy
        on_gpu = policy.device.type == "cuda"
        rank = policy.model.peft_config[ADAPTER].r
        return {
            "model": policy.files.source,
            "revision": None if policy.files.identity else policy.identity,
            "trust_remote_code": False,
            "skip_tokenizer_init": True,
            "generation_config": "vllm",  # not the model's own sampling defaults
            "dtype": str(policy.model.dtype).removeprefix("torch."),
            "max_model_len": self._window_tokens,
            "max_num_seqs": self._most_answers,
            "enable_lora": True,
            "max_lora_rank": next(size for size in _RANKS if size >= rank),
            "max_loras": 1,
            "max_cpu_loras": 1,
            "logprobs_mode": "processed_logprobs",
            "seed": 0,
            "gpu_memory_utilization": self._memory_share,
            "enable_sleep_mode": on_gpu,
            "enforce_eager": not on_gpu,
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
        }

    def _throw_engine_away(self) -> None:
        """Shut the engine down and forget it, in whatever state it is."""
        engine, self._engine = self._engine, None
        self._adapter, self._asleep = None, False
        if engine is None:
            return
        with suppress(Exception):
            engine.engine_core.shutdown()
        del engine
        with suppress(Exception):
            from vllm.distributed import cleanup_dist_env_and_memory

            cleanup_dist_env_and_memory()
        gc.collect()


def write_adapter(path: Path, files: dict[str, bytes]) -> None:
    """Write an adapter's folder and read its weights back: what the engine cannot read would leave it spinning.

    Raises:
        NotFinite: a weight is NaN or infinite.
        SamplerFailed: what was read is not what was written.
        DiskFull: it has no room.
    """
    with disk_full_as_error(path):
        path.mkdir(0o700)
        for name, content in files.items():
            (path / name).write_bytes(content)
    if any((path / name).read_bytes() != content for name, content in files.items()):
        raise SamplerFailed(f"The adapter's files in {path.parent} are not what was written there. Check the disk.")
    if not all(bool(torch.isfinite(tensor).all()) for tensor in load_file(path / ADAPTER_WEIGHTS).values()):
        raise NotFinite(
            "The adapter holds a number that is not finite (NaN or infinity). Choose a lower Learning rate."
        )


def _seed(key: tuple[int, ...]) -> int:
    """Return the seed of one answer, below 2**63, from its own key alone."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ": ".join([type(error).__name__, *lines[:1]])[:300].rstrip(".")


@contextmanager
def _engine_faults() -> Iterator[None]:
    """Mark whatever the engine raises in the block as its own fault."""
    try:
        yield
    except RatchetError:
        raise
    except Exception as error:
        raise _EngineFault from error


@contextmanager
def _process_as_it_was() -> Iterator[None]:
    """Put back, after the block, what an engine sets for the whole process: the update relies on its own."""
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    precision, grad = torch.get_float32_matmul_precision(), torch.is_grad_enabled()
    drawn, drawn_by_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(drawn)
        np.random.set_state(drawn_by_numpy)
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        torch.set_grad_enabled(grad)
