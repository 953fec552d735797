"""Distributed training: the process group, and weights, gradients and optimizer states in FSDP2 shards.

torchrun starts the processes and terminates all of them when one exits; the first one that fails prints the error.
FSDP2 gathers a layer's weights before its forward pass and reduces its gradients after backward. Every rank holds the
whole batch in memory and runs the micro-batches that `micro_batches.py` assigns to it. Losses are sums over rows
divided by counts of the whole optimizer step, so any number of ranks computes the same gradients.
"""

import re
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, distributed, nn

from mathppo.errors import StageFailed
from mathppo.ppo.losses import Stats

# FSDP and DTensor take a second to import: the functions that use them import them.
if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

T = TypeVar("T")

RUN_WITHIN = "run_within"
"""Name of the method that a sharded model gets for `run_within`."""


@dataclass(frozen=True)
class DistContext:
    """Distributed context of this process; every method is a no-op in a single process.

    Args:
        rank: of this process, 0 <= rank < size.
        size: number of processes.
        mesh: device mesh that weights are sharded over; None in a single process.
        group: process group for Python objects, whose timeout allows waits of days.
    """

    rank: int = 0
    size: int = 1
    mesh: "DeviceMesh | None" = None
    group: Any = None

    def broadcast(self, x: Any) -> Any:
        """Return rank 0's object on every rank; the other ranks wait for it."""
        if self.group is None:
            return x
        box = [x]
        distributed.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def gather(self, x: T) -> list[T]:
        """Return the objects of all ranks, by rank, on every rank."""
        if self.group is None:
            return [x]
        found: list[Any] = [None] * self.size
        distributed.all_gather_object(found, x, group=self.group)
        return found

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum over ranks, on the device of `x`."""
        if self.mesh is None:
            return x
        total = x.to(self.mesh.device_type, copy=True)  # NCCL reduces tensors on a GPU only
        distributed.all_reduce(total, group=self.mesh.get_group())
        return total.to(x.device)

    def all_reduce_stats(self, stats: Stats) -> Stats:
        """Add the statistics of all ranks as `ppo.losses.add_stats` adds those of micro-batches."""
        if self.mesh is None:
            return stats
        total = {}
        for name, stat in sorted(stats.items()):
            operation = distributed.ReduceOp.MAX if name.endswith("_max") else distributed.ReduceOp.SUM
            stat = stat.detach().clone()
            distributed.all_reduce(stat, operation, group=self.mesh.get_group())
            total[name] = stat
        return total

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Undo FSDP's division of gradients by the number of ranks: losses are sums over the rows of all ranks."""
        return loss if self.size == 1 else loss * self.size

    def shard(self, model: nn.Module) -> None:
        """Shard a model's weights in place, layer by layer; every rank starts with the same full weights."""
        if self.mesh is None:
            return
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        for layers in (m for m in model.modules() if isinstance(m, nn.ModuleList)):
            for layer in layers:
                fully_shard(layer, mesh=self.mesh)
        fully_shard(model, mesh=self.mesh)
        setattr(model, RUN_WITHIN, _call)
        register_fsdp_forward_method(model, RUN_WITHIN)

    def shard_head(self, model: nn.Module, head: nn.Module, owner: nn.Module) -> None:
        """Shard the head of a model that shares the trunk of `owner`, which is already sharded.

        A forward pass of the model then runs as one of the owner, which gathers the trunk's weights.
        """
        if self.mesh is None:
            return
        from torch.distributed.fsdp import fully_shard

        fully_shard(head, mesh=self.mesh)
        run, forward = getattr(owner, RUN_WITHIN), model.forward
        setattr(model, RUN_WITHIN, run)
        model.forward = lambda *args, **kwargs: run(lambda: forward(*args, **kwargs))


SINGLE_PROCESS = DistContext()

FAILED = "mathppo_failed"
"""Counter in the rendezvous store, which outlives every rank; the first rank that fails reports its error."""

LOST = re.compile("gloo|connection (?:closed|reset)|broken pipe", re.IGNORECASE)
"""Matches torch's plain RuntimeError for a lost rank."""

OBJECT_TIMEOUT = timedelta(days=365)
"""Longest wait for rank 0, which may be busy with a warm start or an evaluation."""


@contextmanager
def join(kind: str = "") -> Iterator[DistContext]:
    """Join the process group of torchrun; yield `SINGLE_PROCESS` if torchrun did not start this process.

    An error on one rank ends all of them: the rank exits at once, the next collective of the others fails, and torchrun
    terminates the rest. The first rank that fails raises its error, the others exit with 1 and print nothing.

    Args:
        kind: device type of the models, "cpu" or "cuda"; "" = cuda if available.

    Raises:
        StageFailed: another rank was lost without an error, or torchrun terminated this one.
    """
    if not distributed.is_torchelastic_launched():
        yield SINGLE_PROCESS
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.rendezvous import rendezvous

    kind = kind or ("cuda" if torch.cuda.is_available() else "cpu")
    store, rank, size = next(rendezvous("env://"))
    distributed.init_process_group("nccl" if kind == "cuda" else "gloo", store=store, rank=rank, world_size=size)
    before = signal.signal(signal.SIGTERM, _on_sigterm)
    # The head's logits are a view of a matrix product; FSDP warns about in-place operations on it, and there are none.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
    try:
        if kind == "cuda":
            torch.cuda.set_device(rank % torch.cuda.device_count())
        # A rank may wait for rank 0 to write for longer than the default timeout of ten minutes.
        group: Any = distributed.new_group(backend="gloo", timeout=OBJECT_TIMEOUT)
        yield SINGLE_PROCESS if size == 1 else DistContext(rank, size, init_device_mesh(kind, (size,)), group)
        # Without the barrier, a rank that closes its connections while another still works can abort either.
        distributed.barrier(group)
        distributed.destroy_process_group()
    except BaseException as error:
        is_first = _fails_first(store)
        if kind == "cpu":  # NCCL would wait for the others; its connections close with the process
            distributed.destroy_process_group()
        if not is_first:
            raise SystemExit(1) from error
        if isinstance(error, distributed.DistError) or (type(error) is RuntimeError and LOST.search(str(error))):
            raise StageFailed(
                f"rank {rank}: expected {size} processes, lost one that exited without an error, as a process does "
                "that is killed or runs out of memory; finished work is kept: run the same command again to resume"
            ) from error
        raise
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _fails_first(store: Any) -> bool:
    """Return True if no other rank has failed before, as far as the store knows."""
    try:
        return store.add(FAILED, 1) == 1
    except distributed.DistError:  # torchrun, which serves the store, has exited
        return True


def _on_sigterm(number: int, frame: object) -> None:
    raise StageFailed(
        "terminated by torchrun, because torchrun was stopped or another process exited; finished work is kept: run "
        "the same command again to resume"
    )


def _call(function: Callable[[], Any]) -> Any:
    return function()


def run_within(model: nn.Module, function: Callable[[], T]) -> T:
    """Call a function that uses parts of a model, such as its trunk alone, as a forward pass of the model.

    FSDP gathers sharded weights only around forward passes of the whole model.
    """
    return getattr(model, RUN_WITHIN, _call)(function)


def full_tensor(x: Tensor) -> Tensor:
    """Return a tensor without shards; a collective, called on every rank."""
    from torch.distributed.tensor import DTensor

    return x.full_tensor() if isinstance(x, DTensor) else x


def full_state(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's weights without shards, by name; tied weights stay one tensor. Called on every rank."""
    state = model.state_dict(keep_vars=True)
    gathered = {id(tensor): full_tensor(tensor.detach()) for tensor in state.values()}
    return {name: gathered[id(tensor)] for name, tensor in state.items()}


def shard_like(x: Tensor, other: Tensor) -> Tensor:
    """Return a full tensor on the device and in the shards of `other`."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(other, DTensor):
        return x.to(other.device)
    return distribute_tensor(x.to(other.device), other.device_mesh, other.placements)
