"""Loops whose steps are hard to count: several optimizers, steps that are left out, threads. `python optimizers.py STEPS NAME...` imports torch once,
and runs each in a forked process.

Each loop counts its iterations, and prints the count.
"""

import atexit
import gc
import itertools
import math
import os
import sys
import threading
import traceback

import torch
import torch._dynamo  # the first optimizer imports it in 1 s: once here, not in each forked process
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = int(sys.argv[1])
DATA = TensorDataset(torch.randn(512, 16), torch.randint(4, (512,)))
A = B = C = of_a = of_b = of_c = None


def batches():
    while True:
        yield from DataLoader(DATA, 8)


def get_batch():
    return torch.randn(8, 16), torch.randint(4, (8,))


def update(model, optimizer, x, y):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def even_and_odd():
    for n in range(STEPS):
        x, y = torch.randn(8, 16), torch.randint(4, (8,))
        if n % 2 == 0:
            of_a.zero_grad()
            F.cross_entropy(A(x), y).backward()
            of_a.step()
        else:
            of_b.zero_grad()
            F.cross_entropy(B(x), y).backward()
            of_b.step()
        yield


def second_takes_over():
    for n in range(STEPS):
        x, y = torch.randn(8, 16), torch.randint(4, (8,))
        model, optimizer = (A, of_a) if n < STEPS // 3 else (B, of_b)
        update(model, optimizer, x, y)
        yield


def two_loops():
    for x, y in itertools.islice(batches(), STEPS // 2):
        update(A, of_a, x, y)
        yield
    for x, y in itertools.islice(batches(), STEPS - STEPS // 2):
        update(B, of_b, x, y)
        yield


def critic_first():
    source = batches()
    for _ in range(STEPS):
        for _ in range(5):
            update(A, of_a, *next(source))
        update(B, of_b, *get_batch())
        yield


def critic_last():
    for _ in range(STEPS):
        update(B, of_b, *get_batch())
        for _ in range(3):
            update(A, of_a, *get_batch())
        yield


def every_fifth():
    for n, (x, y) in zip(range(STEPS), batches(), strict=False):
        update(A, of_a, x, y)
        if n % 5 == 0:
            update(B, of_b, x, y)
        yield


def actor_and_critic():
    for n in range(STEPS):
        x, y = get_batch()
        update(A, of_a, x, y)
        if n % 2:
            update(B, of_b, x, y)
            update(C, of_c, x, y)
        yield


def ensemble():
    for x, y in itertools.islice(batches(), STEPS):
        for model, optimizer in ((A, of_a), (B, of_b), (C, of_c)):
            update(model, optimizer, x, y)
        yield


def step_fails():
    """A step that raises an exception is none; the loop goes on."""
    fails = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([fails], 0.1)
    fails.grad = torch.ones(3).to_sparse()  # the foreach implementation takes no sparse gradient
    optimizer.param_groups[0].update(foreach=True, maximize=True, weight_decay=0.1, nesterov=True, momentum=0.9)
    for n, (x, y) in zip(range(STEPS), batches(), strict=False):
        if n % 7 == 3:
            try:
                optimizer.step()
            except RuntimeError:
                pass
            else:
                raise AssertionError("this step should fail")
        update(A, of_a, x, y)
        yield


def left_out_by_a_scaler():
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for n, (x, y) in zip(range(STEPS), batches(), strict=False):
        loss = F.cross_entropy(A(x), y) * (math.inf if n % 10 == 4 else 1)
        scaler.scale(loss).backward()
        scaler.step(of_a)
        scaler.update()
        of_a.zero_grad()
        yield


def left_out_at_first():
    """A large scale: the first steps have gradients that are not finite, as usual with fp16."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for n, (x, y) in zip(range(STEPS), batches(), strict=False):
        loss = F.cross_entropy(A(x), y)
        scaler.scale(loss * math.inf if n < 3 else loss).backward()
        scaler.step(of_a)
        scaler.update()
        of_a.zero_grad()
        yield


def in_a_thread():
    """The training thread ends before the process."""

    def train():
        for x, y in itertools.islice(batches(), STEPS):
            update(A, of_a, x, y)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    yield from range(STEPS)


def without_passes():
    """No module is called, and no backward pass of autograd runs."""
    weights = torch.zeros(16, 4)
    weights.grad = torch.zeros(16, 4)
    optimizer = torch.optim.SGD([weights], 0.1)
    for x, y in itertools.islice(batches(), STEPS):
        weights.grad.copy_(x.T @ (torch.softmax(x @ weights, 1) - F.one_hot(y, 4)) / 8)
        optimizer.step()
        yield


# --- no optimizer: the program updates its weights ------------------------------------------------------------


def by_data():
    """The gradients are dropped before the backward pass, and the update goes by way of `.data`."""
    for _ in range(STEPS):
        x, y = get_batch()
        loss = F.cross_entropy(A(x), y)
        for p in A.parameters():
            p.grad = None
        loss.backward()
        for p in A.parameters():
            p.data += -0.1 * p.grad
        yield


def lbfgs():
    """The closure runs several times in a step."""
    optimizer = torch.optim.LBFGS(A.parameters(), lr=0.1, max_iter=4)
    for x, y in itertools.islice(batches(), STEPS):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = F.cross_entropy(A(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
        yield


def accumulates():
    for _ in range(STEPS):
        for x, y in itertools.islice(batches(), 3):
            F.cross_entropy(A(x), y).backward()
        of_a.step()
        of_a.zero_grad()
        yield


def in_backward():
    """An optimizer for each parameter steps within the backward pass."""
    optimizers = {p: torch.optim.SGD([p], 0.1) for p in A.parameters()}

    def step(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in A.parameters():
        p.register_post_accumulate_grad_hook(step)
    for x, y in itertools.islice(batches(), STEPS):
        F.cross_entropy(A(x), y).backward()
        yield


LOOPS = {
    loop.__name__: loop
    for loop in (
        even_and_odd, second_takes_over, two_loops, critic_first, critic_last, every_fifth, actor_and_critic, ensemble, step_fails, left_out_by_a_scaler,
        left_out_at_first, in_a_thread, without_passes, by_data, lbfgs, accumulates, in_backward,
    )
}  # fmt: skip


def run(name):
    global A, B, C, of_a, of_b, of_c
    torch.manual_seed(0)
    A, B, C = nn.Linear(16, 4), nn.Linear(16, 4), nn.Linear(16, 4)
    if name not in ("by_data", "lbfgs", "in_backward"):
        of_a, of_b = torch.optim.SGD(A.parameters(), 0.01), torch.optim.Adam(B.parameters(), 0.001)
    if name in ("actor_and_critic", "ensemble"):
        of_c = torch.optim.AdamW(C.parameters(), 0.001)
    sys.argv[0] = name
    print(name, sum(1 for _ in LOOPS[name]()), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    gc.freeze()  # a look at all objects would copy the memory of torch into each process
    for name in sys.argv[2:] or LOOPS:
        pid = os.fork()
        if pid == 0:
            try:
                run(name)
            except BaseException:
                traceback.print_exc()
            atexit._run_exitfuncs()
            os._exit(0)
        os.waitpid(pid, 0)
