"""The decoding step in fixed shapes: the same tokens and log-probabilities as the plain one, and graphs that end in time.

No test here runs a CUDA graph. Those with ``_uncaptured`` or ``Graphs`` run the step itself on the CPU; the last part
replaces CUDA by recorders and looks at the order of calls alone.
"""

import gc
import logging
import weakref
from contextlib import contextmanager
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from ratchet.engine.distribution import GREEDY, SamplingSettings
from ratchet.engine.sampler import SampleRequest, in_process, static_step, transformers_batch
from ratchet.engine.sampler.in_process import InProcessSampler
from ratchet.engine.sampler.static_step import CudaGraphs, StaticSteps, buffer_shape, reason_against
from ratchet.engine.sampler.transformers_batch import TransformersBatches

from ..repeated import matrix
from .models import ARCHITECTURES, EOS, TURN, random_ids, tiny_policy

# Several end ids of 64, so that answers of very different lengths occur within 20 tokens.
END_IDS = (EOS, TURN, 10, 20, 30, 40)
NUCLEUS = SamplingSettings(temperature=0.6, top_p=0.9)
DENSE = [architecture for architecture in ARCHITECTURES if architecture != "mixtral"]


def _uncaptured(step):
    """A capture without a graph: the step itself."""
    return step


def asked(lengths=(3, 9, 5, 1, 14), answers=6, prefix=0):
    return [
        SampleRequest(random_ids(prefix, seed=99) + random_ids(length, seed=number), answers, (7, number))
        for number, length in enumerate(lengths)
    ]


def sampled(policy, batches, requests, settings=NUCLEUS, longest=20):
    stream = InProcessSampler(policy, 1 << 20, batches).sample(requests, settings, longest, lambda: None)
    return {(one.request, one.answer): one.completion for one in stream}


def plain(policy, requests, **settings):
    return sampled(policy, TransformersBatches(policy, graphs=False), requests, **settings)


def assert_same(ours, expected, tolerance=1e-4):
    assert ours.keys() == expected.keys()
    for key, completion in ours.items():
        assert completion.token_ids == expected[key].token_ids
        assert completion.logprobs == pytest.approx(expected[key].logprobs, abs=tolerance, rel=0)
        assert completion.full_logprobs == pytest.approx(expected[key].full_logprobs, abs=tolerance, rel=0)


class Graphs:
    """Captures without CUDA: like a graph's, each one's output is one tensor that the next repetition overwrites.

    ``shapes`` holds the rows and columns of each capture, ``repeats`` how often each was repeated. ``failing`` is the
    capture that fails, ``noise`` what is added to all logits.
    """

    def __init__(self, failing=None, noise=0.0):
        self.failing, self.noise = failing, noise
        self.shapes, self.repeats, self.graphs, self.batches = [], [], [], 0

    def new_capture(self):
        self.batches += 1
        return self.capture

    def capture(self, step):
        if len(self.shapes) == self.failing:
            raise RuntimeError("operation not permitted when stream is capturing")
        keys = step.__self__._cache.layers[0].keys
        self.shapes.append((keys.shape[0], keys.shape[2]))
        self.repeats.append(0)
        number, output = len(self.repeats) - 1, step()

        def repeat():
            self.repeats[number] += 1
            noise = self.noise * torch.arange(output.shape[-1]) % 7
            return output.copy_(step() + noise)

        self.graphs.append(weakref.ref(repeat))
        return repeat


# --- the step against the plain one ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "dtype", "tolerance", "prefix"),
    matrix(
        [
            *((architecture, torch.float32, 1e-4) for architecture in DENSE),
            # Gemma 2's attention computes in float32 whatever the model does.
            *((architecture, torch.float64, 1e-9) for architecture in DENSE if architecture != "gemma2"),
        ],
        [0, 13],
        ci=lambda architecture, dtype, _, prefix: (
            (prefix == 13 and (dtype == torch.float64 or architecture == "gemma2"))
            or (architecture == "llama" and dtype == torch.float32)
            or (architecture, dtype, prefix) == ("gemma3", torch.float64, 0)
        ),
    ),
)
def test_answers_are_those_of_the_plain_step(architecture, dtype, tolerance, prefix, monkeypatch):
    policy = tiny_policy(architecture, dtype=dtype, end_ids=END_IDS)
    requests = asked(prefix=prefix)
    monkeypatch.setattr(in_process, "_WORTH_SHARING_TOKENS", 1)
    expected = plain(policy, requests)
    assert len({len(completion.token_ids) for completion in expected.values()}) > 3
    # All at once; rows that are refilled, in buffers of few columns, so that they are rebuilt again and again.
    every = [(256, 4096, 64), (4, 40, 5), (11, 4096, 3)]
    for rows, prefill, columns in every if architecture == "llama" else every[1:2]:
        monkeypatch.setattr(in_process, "_MOST_ROWS", {"cpu": rows})
        monkeypatch.setattr(in_process, "_PREFILL_TOKENS", {"cpu": prefill})
        monkeypatch.setattr(static_step, "_COLUMNS", columns)
        graphs = Graphs()
        assert_same(
            sampled(policy, TransformersBatches(policy, True, graphs.new_capture), requests), expected, tolerance
        )
        longest = max(len(completion.token_ids) for completion in expected.values())
        assert sum(graphs.repeats) >= longest - 1  # no step was a plain one
        assert columns == 64 or len(graphs.shapes) > 2


@pytest.mark.parametrize("architecture", DENSE)
def test_every_step_gives_the_logits_of_the_plain_one(architecture):
    # Prompts of 3, 9 and 5 tokens; after four steps the second leaves and two others come, one longer than all.
    policy = tiny_policy(architecture)
    prompts = [random_ids(length, seed=length) for length in (3, 9, 5)]
    seen = []
    for graphs in (False, True):
        found = []
        with TransformersBatches(policy, graphs, lambda: _uncaptured).batch((), 8) as batch:
            computed = batch.prefill(prompts)
            batch.admit(computed, [0, 1, 2, 1])
            for step in range(12):
                if step == 4:
                    batch.keep(torch.tensor([0, 2, 3]))
                    batch.advance(torch.tensor([7, 8, 9]))
                    found.append(batch.logits)
                    batch.admit(batch.prefill([random_ids(30, seed=5), random_ids(2, seed=6)]), [1, 0])
                    found.append(batch.logits)
                batch.advance(torch.arange(batch.logits.shape[0]) + step + 5)
                found.append(batch.logits)
        seen.append(found)
    assert [logits.shape[0] for logits in seen[1]] == [4] * 4 + [3] + [5] * 9
    for expected, ours in zip(*seen, strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0)


def test_logits_stay_what_they_are_when_the_graphs_output_is_overwritten():
    policy = tiny_policy()
    with TransformersBatches(policy, True, Graphs().new_capture).batch((), 8) as batch:
        batch.admit(batch.prefill([random_ids(4)]), [0] * 8)  # all places taken, in order: nothing is left to sort out
        kept = []
        for step in range(3):
            batch.advance(torch.full((8,), 5 + step))
            kept.append((batch.logits, batch.logits.clone()))
    assert all(torch.equal(logits, copy) for logits, copy in kept)
    assert not torch.equal(kept[0][0], kept[2][0])


class _NothingWaits(TorchDispatchMode):
    """Refuses what makes the CPU wait for the device, or copies from it: neither can be in a graph."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name()
        waits = ("_local_scalar_dense", "is_nonzero", "::nonzero", "masked_select", "unique", "::equal", "lift_fresh")
        assert not any(part in name for part in waits), name
        if "::index.Tensor" in name or "index_put" in name:
            assert all(one is None or one.dtype != torch.bool for one in args[1]), name
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("architecture", DENSE)
def test_nothing_in_the_step_waits_for_the_device(architecture):
    policy = tiny_policy(architecture)

    def capture(step):
        step()  # what is done in the first call alone, warm-up does on a GPU

        def repeat():
            with _NothingWaits():
                return step()

        return repeat

    with TransformersBatches(policy, True, lambda: capture).batch((), 8) as batch:
        batch.admit(batch.prefill([random_ids(4), random_ids(9)]), [0, 1])
        batch.advance(torch.tensor([5, 6]))
        batch.advance(torch.tensor([7, 8]))
        assert batch._static is not None


def test_what_waits_is_noticed():
    flags = torch.tensor([True, False])
    for waiting in (lambda: int(torch.ones(1)), lambda: flags.nonzero(), lambda: torch.ones(2)[flags]):
        with pytest.raises(AssertionError), _NothingWaits():
            waiting()


# --- shapes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "end", "present", "shape"),
    [
        (1, 10, (0, 0), (8, 128)),  # 10 + 64, in 64s
        (9, 64, (0, 0), (16, 128)),
        (130, 600, (0, 0), (144, 768)),  # multiples of 256 / 16 = 16; 600 + 150
        (1000, 0, (0, 0), (1024, 64)),  # multiples of 64
        (130, 600, (144, 768), (144, 768)),
        (120, 600, (144, 768), (144, 768)),  # 120 of 144 places: nothing is gained
        (104, 600, (144, 768), (104, 768)),  # 104 of 144: less than three quarters
        (145, 600, (144, 768), (160, 768)),
        (144, 704, (144, 768), (144, 768)),  # just 64 columns are free
        (144, 705, (144, 768), (144, 896)),
        (144, 400, (144, 768), (144, 512)),
    ],
)
def test_shapes_worked_by_hand(rows, end, present, shape):
    assert buffer_shape(rows, end, present) == shape


@given(
    rows=st.integers(1, 5000), end=st.integers(0, 9000), present=st.tuples(st.integers(0, 5000), st.integers(0, 9000))
)
def test_shapes_hold_what_is_needed_and_not_much_more(rows, end, present):
    has_rows, has_columns = buffer_shape(rows, end, present)
    assert has_rows >= rows
    assert has_columns >= end + 64
    assert has_rows < max(8, rows * 1.125) / 0.75 + 64
    assert has_columns < (end + max(64, end / 4) + 64) / 0.75
    assert buffer_shape(rows, end, (has_rows, has_columns)) == (has_rows, has_columns)


def test_steps_are_captured_again_when_buffers_are_replaced_and_only_then(monkeypatch):
    # 40 answers in 16 places; 70 tokens each but the last of 40. The prompt has 10 tokens, so columns run from 10.
    policy = tiny_policy(end_ids=(999,))
    monkeypatch.setattr(in_process, "_MOST_ROWS", {"cpu": 16})
    graphs = Graphs()
    batches = TransformersBatches(policy, True, graphs.new_capture)
    sampled(policy, batches, asked((10,), 40), longest=70)
    # 16 + 16 answers in 10 + 64 = 74 columns, in 64s: 128. Then the 8 last ones, in half the places.
    assert graphs.shapes == [(16, 128), (8, 128)]
    assert graphs.repeats == [2 * 69, 69]
    sampled(policy, batches, asked((10,), 1), longest=200)
    # 10 + 64 in 64s; 128 + 64, 192 + 64; and once in every batch, whose weights are elsewhere.
    assert graphs.shapes[2:] == [(8, 128), (8, 192), (8, 256)]
    assert graphs.batches == 2


def test_rows_that_leave_one_by_one_do_not_make_a_graph_each(monkeypatch):
    policy = tiny_policy(end_ids=END_IDS)
    monkeypatch.setattr(in_process, "_MOST_ROWS", {"cpu": 256})
    graphs = Graphs()
    completions = sampled(policy, TransformersBatches(policy, True, graphs.new_capture), asked(answers=40))
    assert len({len(completion.token_ids) for completion in completions.values()}) > 10
    rows = [shape[0] for shape in graphs.shapes]
    assert rows[0] >= 180
    assert rows == sorted(rows, reverse=True)
    assert all(after <= 0.75 * before for before, after in pairwise(rows))


# --- what is captured, and what is not -------------------------------------------------------------------------------


def test_graphs_are_off_where_there_is_no_cuda():
    with TransformersBatches(tiny_policy()).batch((), 8) as batch:
        assert batch._static is None


def test_graphs_cannot_be_asked_for_where_there_is_no_cuda():
    with pytest.raises(ValueError, match="the device is cpu"):
        TransformersBatches(tiny_policy(), graphs=True)


def test_nothing_speaks_against_dense_models():
    assert [reason_against(tiny_policy(architecture)) for architecture in DENSE] == [None] * len(DENSE)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (lambda: tiny_policy("mixtral"), "mixture of experts"),
        (
            lambda: tiny_policy(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
            "follow the longest row",
        ),
    ],
)
def test_models_that_wait_within_a_step_are_not_captured(policy, reason, caplog):
    caplog.set_level(logging.INFO)
    policy = policy()
    graphs = Graphs()
    batches = TransformersBatches(policy, True, graphs.new_capture)
    assert reason in caplog.text
    assert_same(sampled(policy, batches, asked()), plain(policy, asked()))
    assert graphs.shapes == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda policy: policy.model.config.__setattr__("_attn_implementation_internal", "flash_attention_2"), "flash"),
        (lambda policy: policy.model.config.__setattr__("layer_types", ["chunked_attention"] * 2), "chunked_attention"),
        (lambda policy: policy.model.get_base_model().__setattr__("is_quantized", True), "quantized"),
    ],
)
def test_other_reasons_against_it(change, reason):
    policy = tiny_policy()
    change(policy)
    assert reason in reason_against(policy)


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("failing", [0, 1, 3])
def test_a_capture_that_fails_is_the_last_one(failing, monkeypatch, caplog):
    policy = tiny_policy(end_ids=END_IDS)
    monkeypatch.setattr(in_process, "_MOST_ROWS", {"cpu": 4})
    monkeypatch.setattr(static_step, "_COLUMNS", 4)
    graphs = Graphs(failing)
    batches = TransformersBatches(policy, True, graphs.new_capture)
    expected = plain(policy, asked())
    assert_same(sampled(policy, batches, asked()), expected)
    assert len(graphs.shapes) == failing
    (said,) = warnings_of(caplog)
    assert "not permitted when stream is capturing" in said
    assert_same(sampled(policy, batches, asked()), expected)
    assert (len(graphs.shapes), graphs.batches) == (failing, 1)
    assert len(warnings_of(caplog)) == 1


@pytest.mark.parametrize("noise", [0.05, float("nan")])
def test_steps_that_compute_something_else_are_not_used(noise, caplog):
    policy = tiny_policy(end_ids=END_IDS)
    graphs = Graphs(noise=noise)
    batches = TransformersBatches(policy, True, graphs.new_capture)
    for _ in range(2):
        assert_same(sampled(policy, batches, asked()), plain(policy, asked()))
    assert graphs.repeats == [1]
    (said,) = warnings_of(caplog)
    assert "Log-probabilities differ by" in said


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_reads_the_mask_otherwise_is_noticed(dtype, monkeypatch, caplog):
    policy = tiny_policy(dtype=dtype, end_ids=END_IDS)
    sampled(policy, TransformersBatches(policy, True, lambda: _uncaptured), asked())
    assert warnings_of(caplog) == []
    monkeypatch.setattr(static_step.StaticStep, "_masks", lambda self, visible: 0.0 * visible[:, None, None])
    sampled(policy, TransformersBatches(policy, True, lambda: _uncaptured), asked())
    assert "Log-probabilities differ by" in warnings_of(caplog)[0]


@pytest.mark.parametrize("how", ["to its end", "given up"])
def test_no_graph_outlives_the_weights_it_reads(how):
    policy = tiny_policy(end_ids=END_IDS)
    graphs = Graphs()
    batches = TransformersBatches(policy, True, graphs.new_capture)
    stream = InProcessSampler(policy, 1 << 20, batches).sample(asked(), NUCLEUS, 20, lambda: None)
    for _ in range(20):
        next(stream)
    gc.collect()
    assert [graph() is not None for graph in graphs.graphs] == [False] * (len(graphs.graphs) - 1) + [True]
    if how == "given up":
        stream.close()
    else:
        list(stream)
    gc.collect()
    assert not any(graph() for graph in graphs.graphs)


def test_a_batch_that_is_kept_keeps_no_graph():
    policy, graphs = tiny_policy(), Graphs()
    with TransformersBatches(policy, True, graphs.new_capture).batch((), 8) as batch:
        batch.admit(batch.prefill([random_ids(4)]), [0])
        batch.advance(torch.tensor([5]))
    gc.collect()
    assert batch.logits.shape[0] == 1
    assert not graphs.graphs[0]()


def test_an_adapter_that_changed_is_in_the_next_answers():
    policy = tiny_policy(end_ids=END_IDS)
    batches = TransformersBatches(policy, True, Graphs().new_capture)
    before = sampled(policy, batches, asked(), GREEDY)
    with torch.no_grad():
        for parameter in policy.parameters:
            parameter.mul_(1.5)
    after = sampled(policy, batches, asked(), GREEDY)
    assert_same(after, plain(policy, asked(), settings=GREEDY))
    assert any(after[key].token_ids != before[key].token_ids for key in before)


# --- the order of calls, without CUDA --------------------------------------------------------------------------------


@pytest.fixture
def cuda(monkeypatch):
    """Replace what CudaGraphs uses of CUDA; return the list of what was called."""
    calls = []

    class Stream:
        def __init__(self, name="side"):
            self.name = name

        def wait_stream(self, other):
            calls.append(f"{self.name} waits for {other.name}")

    class Graph:
        made = 0

        def __init__(self):
            Graph.made += 1
            self.number = Graph.made

        def pool(self):
            return f"memory of {self.number}"

        def replay(self):
            calls.append(f"replay {self.number}")

    @contextmanager
    def block(name):
        calls.append(f"begin {name}")
        try:
            yield
        finally:
            calls.append(f"end {name}")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream("current"))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: block(stream.name))
    monkeypatch.setattr(torch.cuda, "device", lambda device: block(str(device)))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, pool, capture_error_mode: block(f"{graph.number} in {pool}"))
    return calls


def test_steps_warm_up_beside_and_are_captured_once_in_the_memory_of_the_one_before(cuda):
    graphs = CudaGraphs(torch.device("cuda", 1))

    def step():
        cuda.append("step")
        return torch.zeros(1)

    first = graphs(step)
    warm_up = [
        "begin cuda:1",
        "side waits for current",
        "begin side",
        *["step"] * 3,
        "end side",
        "current waits for side",
    ]
    assert cuda == [*warm_up, "begin 1 in None", "step", "end 1 in None", "end cuda:1"]
    cuda.clear()
    assert first() is first()
    assert cuda == ["replay 1", "replay 1"]
    cuda.clear()
    graphs(step)()
    assert cuda[-5:] == ["begin 2 in memory of 1", "step", "end 2 in memory of 1", "end cuda:1", "replay 2"]


def test_a_step_that_cannot_be_captured_says_so(cuda):
    def step():
        if cuda[-1].startswith("begin 1"):
            raise RuntimeError("not permitted")
        return torch.zeros(1)

    with pytest.raises(RuntimeError, match="not permitted"):
        CudaGraphs(torch.device("cuda", 0))(step)
    assert cuda[-2:] == ["end 1 in None", "end cuda:0"]


def test_on_cuda_graphs_are_on_and_the_fallback_is_the_plain_step(cuda, monkeypatch, caplog):
    # The policy says that it is on a GPU; its tensors are on the CPU.
    policy = tiny_policy(end_ids=END_IDS)
    expected = plain(policy, asked())

    class Device:
        type = "cuda"

    monkeypatch.setattr(transformers_batch, "CudaGraphs", lambda device: Graphs(failing=0).capture)
    policy.device, real = Device(), policy.device
    batches, without = TransformersBatches(policy), TransformersBatches(policy, graphs=False)
    policy.device = real
    assert isinstance(batches._steps, StaticSteps)
    assert without._steps is None
    assert_same(sampled(policy, batches, asked()), expected)
    assert len(warnings_of(caplog)) == 1
