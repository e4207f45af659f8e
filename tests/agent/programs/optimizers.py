"""Loops whose steps are hard to count: several optimizers, steps that are left out, threads. `python optimizers.py STEPS NAME...` imports torch once,
and runs each in a forked process.

Each loop counts its iterations, and prints the count.
"""

import atexit
import contextlib
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


def one_call_for_both():
    for n in range(STEPS):
        model, optimizer = ((A, of_a), (B, of_b))[n % 2]
        update(model, optimizer, *get_batch())
        yield


def every_five():
    for n, (x, y) in zip(range(STEPS), batches(), strict=False):
        if n // 5 % 2 == 0:
            update(A, of_a, x, y)
        else:
            update(B, of_b, x, y)
        yield


def two_conditions():
    for n, (x, y) in zip(range(STEPS), batches(), strict=False):
        if n < STEPS // 3 or n % 3 == 0:
            update(A, of_a, x, y)
        if n >= STEPS // 3 and n % 3:
            update(B, of_b, x, y)
        yield


def continued():
    n = 0
    while n < STEPS:
        n += 1
        x, y = torch.randn(8, 16), torch.randint(4, (8,))
        if n % 2:
            update(A, of_a, x, y)
            yield
            continue
        update(B, of_b, x, y)
        yield


def second_takes_over():
    for n in range(STEPS):
        x, y = torch.randn(8, 16), torch.randint(4, (8,))
        model, optimizer = (A, of_a) if n < STEPS // 3 else (B, of_b)
        update(model, optimizer, x, y)
        yield


def second_joins_later():
    for n in range(STEPS):
        x, y = torch.randn(8, 16), torch.randint(4, (8,))
        update(A, of_a, x, y)
        if n >= STEPS // 2:
            update(B, of_b, x, y)
        yield


def two_loops():
    for x, y in itertools.islice(batches(), STEPS // 2):
        update(A, of_a, x, y)
        yield
    for x, y in itertools.islice(batches(), STEPS - STEPS // 2):
        update(B, of_b, x, y)
        yield


def epochs_in_turn():
    for _ in range(STEPS // 40):
        for x, y in itertools.islice(batches(), 20):
            update(A, of_a, x, y)
            yield
        for x, y in itertools.islice(batches(), 20):
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


def one_loss():
    for n, (x, y) in zip(range(STEPS), batches(), strict=False):
        F.cross_entropy(A(x) + B(x), y).backward()
        if n % 2:
            of_b.step()
        of_a.step()
        of_a.zero_grad()
        of_b.zero_grad()
        yield


def ensemble():
    for x, y in itertools.islice(batches(), STEPS):
        for model, optimizer in ((A, of_a), (B, of_b), (C, of_c)):
            update(model, optimizer, x, y)
        yield


def meta_learning():
    for _ in range(STEPS):
        for _ in range(2):
            fast = nn.Linear(16, 4)
            inner = torch.optim.SGD(fast.parameters(), 0.1)
            for _ in range(3):
                update(fast, inner, *get_batch())
        update(A, of_a, *get_batch())
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


def by_own_class():
    """Two backward passes for each update, an evaluation now and then, `zero_grad` of the module after the update."""
    for n, (x, y) in zip(range(STEPS), batches(), strict=False):
        for _ in range(2):
            F.cross_entropy(A(x), y).backward()
        with torch.no_grad():
            for p in A.parameters():
                p.sub_(p.grad, alpha=0.1)
        A.zero_grad(set_to_none=False)
        if n % 10 == 5:
            with torch.no_grad():
                print(end=str(A(x).sum().item())[:0])
        yield


def by_tensors():
    """Weights that belong to no module, and no call of a module."""
    a, b = torch.randn((), requires_grad=True), torch.randn((), requires_grad=True)
    x = torch.linspace(-1, 1, 100)
    for _ in range(STEPS):
        loss = (a + b * x - x.sin()).square().sum()
        loss.backward()
        with torch.no_grad():
            for p in (a, b):
                p -= 1e-3 * p.grad
                p.grad = None
        yield


def after_looks_at_gradients():
    """First the gradients are only looked at, and zeroed: these passes train nothing."""
    for _ in range(20):
        x, y = get_batch()
        F.cross_entropy(A(x), y).backward()
        A.zero_grad()
    for x, y in itertools.islice(batches(), STEPS):
        F.cross_entropy(A(x), y).backward()
        for p in A.parameters():
            p.data.sub_(p.grad, alpha=0.1)
        A.zero_grad()
        yield


def then_an_optimizer():
    """The first half updates the weights without an optimizer."""
    optimizer = None
    for n, (x, y) in zip(range(STEPS), batches(), strict=False):
        if n == STEPS // 2:
            A.zero_grad()
            optimizer = torch.optim.SGD(A.parameters(), 0.1)
        F.cross_entropy(A(x), y).backward()
        if optimizer is None:
            with torch.no_grad():
                for p in A.parameters():
                    p -= 0.1 * p.grad
            A.zero_grad()
        else:
            optimizer.step()
            optimizer.zero_grad()
        yield


def gradients_before_the_optimizer():
    """Backward passes that train nothing, more of them than the agent waits for; then a training."""
    for _ in range(100):
        x, y = get_batch()
        F.cross_entropy(A(x), y).backward()
    A.zero_grad()
    optimizer = torch.optim.SGD(A.parameters(), 0.1)
    for _ in range(STEPS):
        update(A, optimizer, *get_batch())
        yield


def few_gradients_before_the_optimizer():
    x, y = get_batch()
    F.cross_entropy(A(x), y).backward()
    optimizer = torch.optim.SGD(A.parameters(), 0.1)
    for x, y in itertools.islice(batches(), STEPS):
        update(A, optimizer, x, y)
        yield


def folds():
    """A new model for each fold, while the one before still exists. The first updates of a further fold are one step: nothing shows them."""
    models = []
    for fold in range(3):
        models.append(nn.Linear(16, 4))
        for n, (x, y) in zip(range(STEPS), batches(), strict=False):
            F.cross_entropy(models[-1](x), y).backward()
            update_by_hand(models[-1])
            if not (fold and n < 7):
                yield


def folds_that_end():
    """A new model for each fold, in place of the one before."""
    for _ in range(3):
        model = nn.Linear(16, 4)
        for x, y in itertools.islice(batches(), STEPS):
            F.cross_entropy(model(x), y).backward()
            update_by_hand(model)
            yield


def update_by_hand(model):
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p -= 0.1 * p.grad
    model.zero_grad()


def frozen_later():
    """The smallest weights are frozen after a while."""
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(6)), nn.Linear(16, 4))
    for n, (x, y) in zip(range(2 * STEPS), batches(), strict=False):
        if n == STEPS:
            for layer in model:
                layer.bias.requires_grad_(False)
        F.cross_entropy(model(x), y).backward()
        update_by_hand(model)
        if not STEPS <= n < STEPS + 7:
            yield


def many_micro_batches():
    for n in range(5):
        for _ in range(150 if n else 1):
            F.cross_entropy(A(torch.randn(8, 16)), torch.randint(4, (8,))).backward()
        update_by_hand(A)
        yield


def sparse_gradients():
    model = nn.Sequential(nn.EmbeddingBag(10, 4, sparse=True), nn.Linear(4, 4))
    for _ in range(STEPS):
        F.cross_entropy(model(torch.randint(10, (8, 3))), torch.randint(4, (8,))).backward()
        update_by_hand(model)
        yield


def cast_after_a_pass():
    """A first pass shows the shapes, then the model gets another type."""
    F.cross_entropy(A(get_batch()[0]), get_batch()[1]).backward()
    A.bfloat16().zero_grad()
    for _ in range(STEPS):
        x, y = get_batch()
        F.cross_entropy(A(x.bfloat16()), y).backward()
        update_by_hand(A)
        yield


def by_data_only():
    """As old tutorials write it: no version changes."""
    a, b = torch.randn(16, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    for _ in range(STEPS):
        x, y = get_batch()
        F.cross_entropy(x @ a + b, y).backward()
        for w in (a, b):
            w.data -= 0.1 * w.grad.data
            w.grad.data.zero_()
        yield


def inputs_first():
    """The first backward passes give gradients to inputs only. Of the next ones, the third is looked at."""
    for _ in range(3):
        x, y = get_batch()
        x.requires_grad_()
        F.cross_entropy(A(x), y).backward(inputs=x)
        del x
    for n in range(STEPS):
        F.cross_entropy(A(get_batch()[0]), get_batch()[1]).backward()
        update_by_hand(A)
        if n >= 2:
            yield


def gradients_between():
    """In the middle, more than a thousand backward passes update nothing. What is left of them ends with the gradients: a step."""
    for n in range(STEPS):
        if n == STEPS // 2:
            for _ in range(1100):
                F.cross_entropy(A(get_batch()[0]), get_batch()[1]).backward()
            A.zero_grad()
            yield
        F.cross_entropy(A(get_batch()[0]), get_batch()[1]).backward()
        update_by_hand(A)
        yield


def fails_first():
    """The first backward pass raises an exception."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(3).sum().backward()
    for _ in range(STEPS):
        F.cross_entropy(A(get_batch()[0]), get_batch()[1]).backward()
        update_by_hand(A)
        yield


WITHOUT_OPTIMIZER = (
    folds,
    folds_that_end,
    frozen_later,
    many_micro_batches,
    sparse_gradients,
    cast_after_a_pass,
    by_data_only,
    inputs_first,
    fails_first,
    gradients_between,
    after_looks_at_gradients,
    by_data,
    by_own_class,
    by_tensors,
    then_an_optimizer,
    gradients_before_the_optimizer,
    few_gradients_before_the_optimizer,
)
LOOPS = {
    loop.__name__: loop
    for loop in (
        even_and_odd, one_call_for_both, every_five, two_conditions, continued, second_takes_over, second_joins_later, two_loops,
        epochs_in_turn, critic_first, critic_last, every_fifth, actor_and_critic, one_loss, ensemble, meta_learning, step_fails,
        left_out_by_a_scaler, left_out_at_first, in_a_thread, without_passes, *WITHOUT_OPTIMIZER,
    )
}  # fmt: skip


def run(name):
    global A, B, C, of_a, of_b, of_c
    torch.manual_seed(0)
    A, B, C = nn.Linear(16, 4), nn.Linear(16, 4), nn.Linear(16, 4)
    if LOOPS[name] not in WITHOUT_OPTIMIZER:
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
