"""Outputs of a CUDA graph fed back as inputs, without a GPU: the tree manager's own code over memory that is reused.

The pool is an ordinary one here. What a GPU's pool does to the outputs of the previous generation is done by hand: a
generation that begins overwrites them with NaN, and makes them refuse their address where a test looks for that.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch._inductor import compile_fx, config, cudagraph_trees, output_code, utils
from torch._inductor.cudagraph_trees import CUDAGraphTreeManager, ExecutionState, FunctionID
from torch.utils._ordered_set import OrderedSet

OVERWRITTEN = "accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run"


class OnGpu(torch.Tensor):
    """A tensor that claims to be on a GPU, and whose address can be taken away."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    is_cuda = True
    invalid = False

    def data_ptr(self) -> int:
        if self.invalid:
            raise RuntimeError(OVERWRITTEN)
        return super().data_ptr()


def on_gpu(x: Tensor) -> Tensor:
    return torch.Tensor._make_subclass(OnGpu, x)


@contextlib.contextmanager
def nothing(*_: object, **__: object) -> Iterator[None]:
    yield


class Manager(CUDAGraphTreeManager):
    """A tree manager that only warms up, and whose pool hands out the memory of the last generation at once."""

    def __init__(self, models: dict[int, Callable], mutated: tuple[int, ...] = ()):
        self.graph = object()
        self.current_gen = -1
        self.generation = 0
        self._current_node = None
        self.path_state = ExecutionState.NONE
        self.running_forwards_with_pending_backwards = False
        self.has_live_user_visible_output_cloning = False
        self.debug_checkpointing_counter = 0
        self.device_index = 0
        self.cuda_graphs_thread_pool = (0, 1)
        self.stream = None
        self.mode = None
        self.compile_id = None
        self.ids_to_funcs = {FunctionID(number): _wrapped(number, f, mutated) for number, f in models.items()}
        self.ids_to_stack_traces = defaultdict(lambda: [None] * 4)
        self.id_to_mode = defaultdict(lambda: cudagraph_trees.CompilationMode.INFERENCE)
        self.id_to_compile_id = defaultdict(lambda: None)
        self.warmed_up_functions = OrderedSet()
        self.warned_functions = OrderedSet()
        self.warned_mutation = OrderedSet()
        self.non_cudagraph_managed_mutation_hint = defaultdict(lambda: defaultdict(bool))
        self.num_rerecord = defaultdict(lambda: defaultdict(int))
        self.warmup_node_counter = iter(range(100))

    def get_curr_generation(self) -> int:
        return self.generation

    def _update_non_cudagraph_managed_mutation(self, function_id: FunctionID, inputs: list) -> None:
        pass

    def dealloc_current_path_weakrefs(self) -> None:
        for node in self.current_node._path_from_root:
            for reference in node.tensor_weakrefs:
                output = None if reference is None else reference()
                if output is not None:
                    output.fill_(torch.nan)
                    output.invalid = True

    def step(self, number: int, *inputs: Tensor) -> list[Tensor]:
        """One partition of a compiled call."""
        return self.run(list(inputs), FunctionID(number))


def _wrapped(number: int, model: Callable, mutated: tuple[int, ...]) -> SimpleNamespace:
    return SimpleNamespace(
        model=model,
        constants=(),
        id=FunctionID(number),
        mutated_input_idxs=mutated,
        static_input_idxs=(),
        user_visible_output_idxs=frozenset(),
        kernel_free_cudagraph=False,
    )


@pytest.fixture(autouse=True)
def no_gpu() -> Iterator[None]:
    managers = (
        "_use_cuda_memory_pool_manager",
        "disable_conv_cache_emptying",
        "clear_cublas_manager",
        "_update_current_stream_external_object",
        "ControlFlowOpWarmupDispatchMode",
        "get_history_recording",
    )
    present = [name for name in managers if hasattr(cudagraph_trees, name)]  # torch 2.11 has fewer
    with (
        mock.patch.multiple(cudagraph_trees, **dict.fromkeys(present, nothing)),
        mock.patch.object(torch.cuda, "device", nothing),
        config.patch({"triton.force_cudagraphs_warmup": True, "triton.slow_path_cudagraph_asserts": False}),
    ):
        yield


def boxed(f: Callable[..., tuple[Tensor, ...]]) -> Callable[[list], list[Tensor]]:
    """A model as Inductor makes it: it empties the list of its inputs."""

    def run(inputs: list) -> list[Tensor]:
        arguments = list(inputs)
        inputs.clear()
        return [on_gpu(y) for y in f(*(x.as_subclass(torch.Tensor) for x in arguments))]

    return run


@pytest.mark.patch("fed-back-outputs")
def test_one_graph():
    manager = Manager({0: boxed(lambda x, v: (x + v, v * 2))})
    x, v = on_gpu(torch.ones(3)), on_gpu(torch.ones(3))
    for generation in range(3):
        manager.generation = generation
        x, v = manager.step(0, x, v)
    assert x.tolist() == [8.0] * 3
    assert v.tolist() == [8.0] * 3


def test_values_are_not_cloned_within_a_generation():
    seen = []
    manager = Manager({0: boxed(lambda x: (x + 1,)), 1: lambda inputs: seen.append(inputs.pop()) or []})
    (x,) = manager.step(0, on_gpu(torch.ones(3)))
    manager.current_gen = manager.generation
    manager.step(1, x)
    assert seen[0] is x


def test_an_input_that_is_written_to_is_not_cloned():
    seen = []
    manager = Manager({0: lambda inputs: [seen.append(inputs.pop()) or on_gpu(torch.ones(3))]}, mutated=(0,))
    (x,) = manager.step(0, on_gpu(torch.ones(3)))
    manager.generation = 1
    manager.step(0, x)
    assert seen[1] is x


def test_an_input_from_elsewhere_is_not_cloned():
    seen = []
    manager = Manager({0: lambda inputs: [seen.append(inputs.pop()) or on_gpu(torch.ones(3))]})
    manager.step(0, on_gpu(torch.ones(3)))
    manager.generation = 1
    other = on_gpu(torch.ones(3))
    manager.step(0, other)
    assert seen[1] is other


@pytest.fixture
def two_partitions() -> Iterator[tuple[Manager, Callable[[list], list[Tensor]]]]:
    """A compiled call of two partitions, the second of which reads the second input; alignment is checked as ever."""
    manager = Manager({0: boxed(lambda x: (x + 1,)), 1: boxed(lambda v, x: (v + x,))})
    aligned: list[Callable] = []

    def first_call(model: Callable, inputs: list, static: tuple, *, number: int) -> tuple[Callable, object]:
        run = lambda values: manager.run(values, FunctionID(number))  # noqa: E731
        return run, run(inputs)

    def cudagraphify(model: Callable, static_input_idxs: tuple[int, ...], **_: object) -> Callable:
        number = len(aligned)
        aligned.append(cudagraph_trees.cudagraphify_impl(model, [], static_input_idxs, number=number))
        return aligned[-1]

    def call(inputs: list) -> list[Tensor]:
        x, v = inputs
        inputs.clear()
        (x,) = aligned[0]([x])
        (v,) = aligned[1]([v, x])
        return [x, v]

    graph = SimpleNamespace(
        cudagraph_info=SimpleNamespace(
            cudagraph_fail_reasons=[], placeholders=[], stack_traces=[None], user_visible_output_idxs=()
        ),
        partition_maps=[0, 1],
        current_callable=call,
        recursively_apply_fns=lambda fns: [f(None) for f in fns],
        fx_kwargs=defaultdict(lambda: False),
        mutated_input_idxs=OrderedSet(),
        device_idxs=[0],
        kernel_free_cudagraph=False,
    )
    metadata = SimpleNamespace(
        static_input_idxs=(),
        stack_traces=None,
        constants={},
        placeholders=[],
        mutated_input_idxs=(),
        user_visible_output_idxs=(),
    )
    with (
        mock.patch.object(compile_fx, "cudagraphify", cudagraphify),
        mock.patch.object(cudagraph_trees, "cudagraphify", first_call),
        mock.patch.object(cudagraph_trees, "get_manager", lambda *_, **__: manager),
        mock.patch.object(output_code, "get_partition_cudagraph_metadata", lambda *_: metadata),
        mock.patch.object(output_code, "CudagraphMetadata", lambda *_: metadata),
        mock.patch.object(compile_fx, "is_gpu", lambda device: True),
        mock.patch.object(utils, "is_gpu", lambda device: True),
    ):
        output_code.cudagraph_partition_post_compile([], graph, utils.BoxedBool(True), {}, None)
        yield manager, graph.current_callable


@pytest.mark.patch("fed-back-outputs")
def test_two_partitions(two_partitions: tuple[Manager, Callable]):
    """The first partition takes the memory that the second still reads; the second checks alignment before it runs."""
    manager, call = two_partitions
    x, v = on_gpu(torch.ones(3)), on_gpu(torch.ones(3))
    for generation in range(4):
        manager.generation = generation
        x, v = call([x, v])
    assert x.tolist() == [5.0] * 3
    assert v.tolist() == [1.0 + 2 + 3 + 4 + 5] * 3
