# Names of torch that a test suite or a patcher compares: the functions, their modules and files, signatures and closures.
import inspect
import logging
import pickle
import threading

import torch
from torch.utils.data import DataLoader, TensorDataset, dataloader

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(160, 8)), batch_size=4)
functions = {
    "call": torch.nn.Module.__call__, "backward": torch.Tensor.backward, "autograd": torch.autograd.backward, "grad": torch.autograd.grad, "save": torch.save,
    "load": torch.load, "iter": DataLoader.__iter__, "next": dataloader._BaseDataLoaderIter.__next__, "init": DataLoader.__init__, "sgd": torch.optim.SGD.step,
    "adamw": torch.optim.AdamW.step, "zero_grad": torch.optim.Optimizer.zero_grad, "clip": torch.nn.utils.clip_grad_norm_, "item": torch.Tensor.item,
    "compile": torch.compile, "handle": logging.Logger.handle, "script": torch.jit.script, "dumps": pickle.Pickler, "thread": threading.Thread.start,
    "synchronize": torch.cuda.synchronize, "to": torch.Tensor.to, "scheduler": torch.optim.lr_scheduler.StepLR.step, "scaler": torch.amp.GradScaler.step,
    "ddp": torch.nn.parallel.DistributedDataParallel.forward, "all_reduce": torch.distributed.all_reduce, "optimizer": torch.optim.Optimizer.__init__,
    "patched": torch.optim.Optimizer._patch_step_function, "hook": torch.optim.Optimizer.profile_hook_step, "setstate": torch.optim.Optimizer.__setstate__,
}  # fmt: skip


def looks(function):
    code = getattr(inspect.unwrap(function), "__code__", None) if inspect.isfunction(function) else None
    file = code.co_filename.rsplit("/", 2)[-2:] if code else None
    own = getattr(function, "__code__", None)
    own_file = own.co_filename.rsplit("/", 1)[-1] if own else None
    free = own.co_freevars if own else None
    return type(function).__name__, getattr(function, "__module__", None), getattr(function, "__qualname__", None), file, own_file, free


for epoch in range(2):
    for (inputs,) in loader:
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
for name, function in functions.items():
    print(name, *looks(function))
print(
    inspect.signature(DataLoader.__init__) == inspect.signature(DataLoader),
    type(iter(loader)).__name__,
    sorted(vars(iter(loader))),
    round(loss.item(), 6),
)
