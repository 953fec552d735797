"""Several processes that train one learner: weights, gradients and optimizer states in shards, one on each rank.

torchrun starts the processes, and ends all when one has ended; the one that fails first says why. FSDP2 gathers a
layer's weights before its pass and adds up its gradients after it. Every rank holds the whole batch in memory and runs
the passes that `micro_batches.py` deals to it; losses are sums over rows divided by counts of the whole step, so that
the gradients of any number of ranks are those of one.
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

WITHIN = "run_within"
"""Name of the method that a sharded model gets for `within`."""


@dataclass(frozen=True)
class Ranks:
    """The processes that share the work, as one of them sees it.

    Args:
        rank: its number, 0 <= rank < size.
        size: how many there are.
        mesh: what weights are sharded over; None where there is one process only.
        group: what objects are sent over, by processes that may wait for days.
    """

    rank: int = 0
    size: int = 1
    mesh: "DeviceMesh | None" = None
    group: Any = None

    def share(self, x: Any) -> Any:
        """Give every rank what the first one has; the others wait for it."""
        if self.group is None:
            return x
        box = [x]
        distributed.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def gather(self, x: T) -> list[T]:
        """Give every rank what all of them have, by rank."""
        if self.group is None:
            return [x]
        found: list[Any] = [None] * self.size
        distributed.all_gather_object(found, x, group=self.group)
        return found

    def add(self, x: Tensor) -> Tensor:
        """Give the sum over ranks, on the device of `x`."""
        if self.mesh is None:
            return x
        total = x.to(self.mesh.device_type, copy=True)  # NCCL adds what is on a GPU only
        distributed.all_reduce(total, group=self.mesh.get_group())
        return total.to(x.device)

    def add_stats(self, stats: Stats) -> Stats:
        """Give the statistics of all ranks from those of each; see `ppo.losses`."""
        if self.mesh is None:
            return stats
        total = {}
        for name, stat in sorted(stats.items()):
            operation = distributed.ReduceOp.MAX if name.endswith("_max") else distributed.ReduceOp.SUM
            stat = stat.detach().clone()
            distributed.all_reduce(stat, operation, group=self.mesh.get_group())
            total[name] = stat
        return total

    def scaled(self, loss: Tensor) -> Tensor:
        """Undo FSDP's division by the number of ranks: a loss is a sum over rows, on whichever rank they are."""
        return loss if self.size == 1 else loss * self.size

    def shard(self, model: nn.Module) -> None:
        """Shard a model's weights in place, layer by layer; each rank has the same whole weights before."""
        if self.mesh is None:
            return
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        for layers in (m for m in model.modules() if isinstance(m, nn.ModuleList)):
            for layer in layers:
                fully_shard(layer, mesh=self.mesh)
        fully_shard(model, mesh=self.mesh)
        setattr(model, WITHIN, _call)
        register_fsdp_forward_method(model, WITHIN)

    def shard_head(self, model: nn.Module, head: nn.Module, owner: nn.Module) -> None:
        """Shard the head of a model whose trunk is that of `owner`, which is sharded already.

        A pass of the model is then one of the owner, whose weights are gathered around it.
        """
        if self.mesh is None:
            return
        from torch.distributed.fsdp import fully_shard

        fully_shard(head, mesh=self.mesh)
        run, forward = getattr(owner, WITHIN), model.forward
        setattr(model, WITHIN, run)
        model.forward = lambda *args, **kwargs: run(lambda: forward(*args, **kwargs))


ALONE = Ranks()


FAILED = "mathppo_failed"
"""Counter in the store that outlives any rank: the first one that fails says why, the others only end."""

LOST = re.compile("gloo|connection (?:closed|reset)|broken pipe", re.IGNORECASE)
"""What torch says, as a plain RuntimeError, where another rank is gone."""

PATIENCE = timedelta(days=365)
"""How long ranks wait for the first one, which may be at a warm start or an evaluation."""


@contextmanager
def join(kind: str = "") -> Iterator[Ranks]:
    """Join the processes that torchrun started; one that it did not start is alone.

    An error on one rank ends all of them: it leaves at once, the others' next exchange with it fails, and torchrun ends
    those that compute. One of them passes its error on, the others exit with 1 and say nothing.

    Args:
        kind: of the device that the models are on, "cpu" or "cuda"; "" = a GPU where there is one.

    Raises:
        StageFailed: another rank is gone without a word, or torchrun ended this one.
    """
    if not distributed.is_torchelastic_launched():
        yield ALONE
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.rendezvous import rendezvous

    kind = kind or ("cuda" if torch.cuda.is_available() else "cpu")
    store, rank, size = next(rendezvous("env://"))
    distributed.init_process_group("nccl" if kind == "cuda" else "gloo", store=store, rank=rank, world_size=size)
    before = signal.signal(signal.SIGTERM, _end)
    # A head's logits are a view of a matrix product's; FSDP warns of work in place on them, of which there is none.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
    try:
        if kind == "cuda":
            torch.cuda.set_device(rank % torch.cuda.device_count())
        # Whoever waits here may wait for the first rank to write, for longer than a group's own ten minutes.
        group: Any = distributed.new_group(backend="gloo", timeout=PATIENCE)
        yield ALONE if size == 1 else Ranks(rank, size, init_device_mesh(kind, (size,)), group)
        # Leave together: a rank that takes its connections down while another still works can abort either.
        distributed.barrier(group)
        distributed.destroy_process_group()
    except BaseException as error:
        is_first = _fails_first(store)
        if kind == "cpu":  # NCCL would wait for the others first; its connections end with the process
            distributed.destroy_process_group()
        if not is_first:
            raise SystemExit(1) from error
        if isinstance(error, distributed.DistError) or (type(error) is RuntimeError and LOST.search(str(error))):
            raise StageFailed(
                f"rank {rank}: expected {size} processes, lost one that ended without a word, as one that is killed or "
                "runs out of memory does; what was finished is kept: run the same command again to go on"
            ) from error
        raise
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _fails_first(store: Any) -> bool:
    """Tell whether no other rank has failed before, as far as can be known."""
    try:
        return store.add(FAILED, 1) == 1
    except distributed.DistError:  # torchrun, which keeps the store, is gone itself
        return True


def _end(number: int, frame: object) -> None:
    raise StageFailed(
        "ended by torchrun, because it was told to or because another process has ended; what was finished is kept: "
        "run the same command again to go on"
    )


def _call(function: Callable[[], Any]) -> Any:
    return function()


def within(model: nn.Module, function: Callable[[], T]) -> T:
    """Call a function that uses parts of a model, such as its trunk alone, as a forward pass of the model.

    What is in shards is gathered around the call, for FSDP knows of no pass but that of the whole model.
    """
    return getattr(model, WITHIN, _call)(function)


def whole(x: Tensor) -> Tensor:
    """Give a tensor as it would be without shards; every rank has to ask."""
    from torch.distributed.tensor import DTensor

    return x.full_tensor() if isinstance(x, DTensor) else x


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    """Give a model's weights without shards, by name; what is tied stays one tensor. Every rank has to ask."""
    state = model.state_dict(keep_vars=True)
    gathered = {id(tensor): whole(tensor.detach()) for tensor in state.values()}
    return {name: gathered[id(tensor)] for name, tensor in state.items()}


def like(x: Tensor, model: Tensor) -> Tensor:
    """Give a whole tensor in shards where `model` is in shards, as it is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(model, DTensor):
        return x.to(model.device)
    return distribute_tensor(x.to(model.device), model.device_mesh, model.placements)
