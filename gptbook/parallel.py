"""Several processes that train one model: each takes its rows of every batch, and all make the same step.

`torchrun --nproc-per-node 2 -m gptbook train` starts them. All draw the same batches and take different rows of them,
and the mean of their gradients is the gradient of the whole batch. The first process alone measures, writes and prints.
Where nothing has been joined, a process is alone: then every function here gives back what it was given.
"""

import contextlib
from datetime import timedelta

import torch
import torch.distributed as dist


@contextlib.contextmanager
def joined():
    """Inside, this process is one of those that torchrun started with it.

    Messages between CPUs go by gloo, those between GPUs by nccl. Nothing happens where torchrun did not start it.
    """
    if not (dist.is_available() and dist.is_torchelastic_launched()):
        yield
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    dist.init_process_group(backend, timeout=timedelta(hours=12))  # a measurement may let the others wait for long
    try:
        yield
    finally:
        dist.destroy_process_group()


def size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this one is, counted from 0."""
    return dist.get_rank() if size() > 1 else 0


def is_first() -> bool:
    """Whether this is the process that measures, writes and prints."""
    return rank() == 0


def begin(model, batch_size: int):
    """Give all processes the weights of the first; call it when the model is on its device and about to learn.

    What is drawn at random from here on, dropout's masks, differs from process to process. Raises ValueError if the
    batch cannot be shared in equal parts, or if the device cannot take part.
    """
    if size() == 1:
        return
    device = next(model.parameters()).device
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device {device.type}: several processes train on cpu or cuda: choose one, or one process")
    if batch_size % size():
        raise ValueError(
            f"batch_size {batch_size} cannot be shared by {size()} processes in equal parts: start as many as divide it"
        )
    with torch.no_grad():
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)
    if not is_first():  # a resumed run has put the first one's random state into all
        torch.manual_seed(int(torch.randint(2**62, ())) + rank())
    dist.barrier()  # nobody still reads the folder of the run when the first one begins to write there


def share(batch):
    """This process's rows of a batch (B, T): (B/size, T)."""
    rows = len(batch) // size()
    return batch[rank() * rows : (rank() + 1) * rows]


def average_gradients(model):
    """Put the mean over all processes in place of each gradient: they travel as one long row, which is quicker."""
    if size() == 1:
        return
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    row = torch.cat([gradient.flatten() for gradient in gradients])  # (N,)
    dist.all_reduce(row)
    row /= size()
    for gradient, part in zip(gradients, row.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def mean(numbers):
    """The mean over all processes of each of the numbers (K,): of the losses of their rows, those of whole batches."""
    if size() == 1:
        return numbers
    numbers = numbers.clone()
    dist.all_reduce(numbers)
    return numbers / size()


def any_of(flag: bool) -> bool:
    """Whether any process says so: all of them get the same answer, and leave a loop together."""
    if size() == 1:
        return flag
    said = torch.tensor(int(flag), dtype=torch.int32)
    dist.all_reduce(said, dist.ReduceOp.MAX)
    return bool(said)


def from_first(function, *given):
    """What `function(*given)` gives, or raises, in the first process, in all of them: the others do not run it."""
    if size() == 1:
        return function(*given)
    said = [None, None]
    if is_first():
        try:
            said = [function(*given), None]
        except Exception as error:  # whatever it is, the others must not wait for what never comes
            said = [None, error]
    dist.broadcast_object_list(said, 0)
    result, error = said
    if error is not None:
        raise error
    return result
