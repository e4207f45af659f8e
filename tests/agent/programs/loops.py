"""Training loops as users write them, with stamps by hand. Each function is one program; it returns what must not change under the agent.

`python loops.py NAME STEPS` runs one; `python loops.py fork STEPS NAME...` imports torch once, and runs each in a forked process.
"""

import copy
import gc
import hashlib
import itertools
import math
import os
import queue
import random
import sys
import threading
import time
import traceback

import numpy as np
import torch
import torch._dynamo
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import stamps as by_hand
from stamps import answered, phase, step

FOLDER = os.environ.get("STAMPS", ".")
LOSSES = []
KEPT = []
"""Models until the end of the process. torch 2.13 may deadlock where Python frees a DDP model: the destructor of its Gloo group joins a thread that
waits for the interpreter lock, which the freeing thread holds."""


def checkpoint(name, **parts):
    with phase("checkpoint"):
        torch.save({key: part.state_dict() for key, part in parts.items()}, os.path.join(FOLDER, name + ".pt"))


class Images(Dataset):
    """Small images with a costly transform. `cost_s` of one sample."""

    def __init__(self, n=4096, cost_s=0.0001):
        self.n, self.cost_s = n, cost_s

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        time.sleep(self.cost_s)
        values = np.random.default_rng(index)
        return torch.from_numpy(values.standard_normal((3, 12, 12), dtype=np.float32)), index % 10


def convnet(width=24):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Dropout(0.1), nn.Linear(9 * width, 10),
    )  # fmt: skip


def batches(loader):
    """Batches for ever, with the wait stamped."""
    while True:
        iterator = iter(loader)
        while True:
            with phase("data_wait"):
                batch = next(iterator, None)
            if batch is None:
                break
            yield batch


def plain(steps):
    model = convnet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    test = DataLoader(Images(64), 32)
    for n, (x, y) in zip(range(1, steps + 1), batches(DataLoader(Images(), 16, shuffle=True)), strict=False):
        with phase("forward"):
            loss = F.cross_entropy(answered(model(x)), y)
        with phase("optimizer"):
            optimizer.zero_grad()
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        step()
        schedule.step()
        LOSSES.append(loss.item())
        if n % 10 == 0:
            with phase("logging"):
                print(f"step {n} loss {loss.item():.4f}", flush=True)
        if n % 40 == 0:
            checkpoint("plain", model=model, optimizer=optimizer)
            with phase("eval"):
                model.eval()
                with torch.no_grad():
                    right = sum((model(vx).argmax(-1) == vy).sum().item() for vx, vy in test)
                model.train()
            print("right", right)
    return model


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, 4, c // 4).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary=256, length=32, width=64, layers=2):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks, self.head = nn.ModuleList(Block(width) for _ in range(layers)), nn.Linear(width, vocabulary, bias=False)

    def forward(self, idx, targets=None):
        x = self.tokens(idx) + self.positions(torch.arange(idx.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return logits, None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def nanogpt(steps):
    """A function that makes batches, prefetch between forward and backward, accumulation, evaluation by a decorated function."""
    text = torch.randint(0, 256, (20_000,))

    def get_batch(split):
        with phase("data_wait"):
            at = torch.randint(len(text) - 33, (8,)).tolist()
            time.sleep(0.001)
            return torch.stack([text[i : i + 32] for i in at]), torch.stack([text[i + 1 : i + 33] for i in at])

    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    scaler = torch.amp.GradScaler("cuda", enabled=False)

    @torch.no_grad()
    def estimate_loss():
        model.eval()
        found = torch.stack([model(*get_batch("val"))[1] for _ in range(4)]).mean()
        model.train()
        return found

    x, y = get_batch("train")
    for n in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * 0.5 * (1 + math.cos(math.pi * n / 1000))
        if n % 30 == 0:
            with by_hand.stamps.only("eval"):
                found = estimate_loss()
            with phase("logging"):
                print(f"step {n}: val loss {found:.4f}")
            checkpoint("nano", model=model, optimizer=optimizer)
        for _ in range(2):
            with phase("forward"):
                _, loss = model(x, y)
                loss = loss / 2
            with by_hand.stamps.only("loss"):  # what runs between the model and the backward pass, whatever it is
                x, y = get_batch("train")
            with phase("backward"):
                scaler.scale(loss).backward()
        with phase("optimizer"):
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
        step()
        LOSSES.append(loss.item())
    return model


def accumulation(steps):
    model, loss_function = convnet(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    source = batches(DataLoader(Images(cost_s=0.00005), 8, shuffle=True))
    for _ in range(steps):
        for x, y in itertools.islice(source, 4):
            with phase("forward"):
                loss = loss_function(answered(model(x)), y) / 4
            with phase("backward"):
                loss.backward()
        with phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        step()
        LOSSES.append(loss.item())
    return model


def gan(steps):
    maker = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 432), nn.Tanh())
    judge = nn.Sequential(nn.Linear(432, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1))
    of_maker, of_judge = torch.optim.Adam(maker.parameters(), 2e-4), torch.optim.Adam(judge.parameters(), 2e-4)
    right, wrong = torch.ones(32, 1), torch.zeros(32, 1)
    source = batches(DataLoader(Images(cost_s=0.00003), 32))
    for n, (x, _) in zip(range(steps), source, strict=False):
        with phase("optimizer"):
            of_judge.zero_grad()
        with phase("forward"):
            made = maker(torch.randn(32, 16))
            loss = F.binary_cross_entropy_with_logits(judge(x.flatten(1)), right)
            loss = loss + F.binary_cross_entropy_with_logits(answered(judge(made.detach())), wrong)
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            of_judge.step()
            of_maker.zero_grad()
        with phase("forward"):
            loss2 = F.binary_cross_entropy_with_logits(answered(judge(made)), right)
        with phase("backward"):
            loss2.backward()
        with phase("optimizer"):
            of_maker.step()
        step()
        LOSSES.append(loss.item() + loss2.item())
        if n % 20 == 0:
            with phase("logging"):
                print("D", loss.item(), "G", loss2.item())
    return maker


def lbfgs(steps):
    model = nn.Sequential(nn.Linear(432, 96), nn.Tanh(), nn.Linear(96, 10))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    for x, y in itertools.islice(batches(DataLoader(Images(), 64)), steps):

        def closure(x=x, y=y):
            with phase("optimizer"):
                optimizer.zero_grad()
            with phase("forward"):
                loss = F.cross_entropy(answered(model(x.flatten(1))), y)
            with phase("backward"):
                loss.backward()
            return loss

        with phase("optimizer"):
            loss = optimizer.step(closure)
        step()
        LOSSES.append(loss.item())
    return model


def compiled_model(steps):
    model = torch.compile(convnet(12), backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x, y in itertools.islice(batches(DataLoader(Images(), 16)), steps):
        with phase("forward"):
            loss = F.cross_entropy(answered(model(x)), y)
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        step()
        LOSSES.append(loss.item())
    return model


def compiled_step(steps):
    """The whole step is one compiled function: its parts cannot be told apart, and the whole counts as forward."""
    model = nn.Sequential(nn.Linear(432, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    @torch.compile(backend="aot_eager")
    def train(x, y):
        loss = F.cross_entropy(model(x.flatten(1)), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient
        optimizer.step()
        return loss

    for x, y in itertools.islice(batches(DataLoader(Images(), 32)), steps):
        with phase("forward"):
            loss = train(x, y)
        step()
        LOSSES.append(loss.item())
    return model


class Stream(IterableDataset):
    def __iter__(self):
        for index in itertools.count():
            time.sleep(0.0001)
            values = np.random.default_rng(index)
            yield torch.from_numpy(values.standard_normal((3, 12, 12), dtype=np.float32)), index % 10


def iterable(steps):
    """An IterableDataset with two workers, evaluation and checkpoints."""
    model = convnet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    test = DataLoader(Images(48), 16)
    for n, (x, y) in zip(range(1, steps + 1), batches(DataLoader(Stream(), 16, num_workers=2)), strict=False):
        with phase("optimizer"):
            optimizer.zero_grad(set_to_none=True)
        with phase("forward"):
            loss = F.cross_entropy(answered(model(x)), y)
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
        step()
        LOSSES.append(loss.item())
        if n % 25 == 0:
            with phase("eval"), torch.inference_mode():
                model.eval()
                total = 0.0
                for vx, vy in test:
                    total += F.cross_entropy(model(vx), vy).item()
                model.train()
            with phase("logging"):
                print("val", round(total, 4))
            checkpoint("iterable", model=model, optimizer=optimizer)
    return model


def ddp(steps):
    """One rank of a DistributedDataParallel job with accumulation; torchrun's environment says which."""
    import contextlib

    from torch.distributed import destroy_process_group, init_process_group
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data.distributed import DistributedSampler

    init_process_group("gloo")
    model = DistributedDataParallel(convnet(32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = Images()
    source = batches(DataLoader(data, 16, sampler=DistributedSampler(data, seed=1)))
    gradients, exchanges, send_buffers = 0, False, model._sync_buffers

    def count(_):
        nonlocal gradients
        gradients -= 1
        if exchanges and not gradients:  # after autograd's own work, what is left of the backward pass is the exchange
            torch.autograd.Variable._execution_engine.queue_callback(lambda: by_hand.stamps.goes_on_as("comm"))

    def stamped():
        with phase("comm"):
            send_buffers()

    model._sync_buffers = stamped
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(count)
    for _ in range(steps):
        for micro in range(2):
            x, y = next(source)
            gradients, exchanges = len(list(model.parameters())), micro == 1
            with model.no_sync() if micro == 0 else contextlib.nullcontext():
                with phase("forward"):
                    loss = F.cross_entropy(answered(model(x)), y) / 2
                with phase("backward"):
                    loss.backward()
        with phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        step()
        LOSSES.append(loss.item())
    destroy_process_group()
    return model


# --- loops that are not in the list of the issue ------------------------------------------------------------


def inline_batches(steps):
    """Lines of the loop make the batches. A DataLoader of the program serves only an evaluation before the training."""
    next(iter(DataLoader(Images(64), 16)))
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data, targets = torch.randn(4000, 256), torch.randn(4000, 1)
    for _ in range(steps):
        with phase("data_wait"):
            at = torch.randint(4000, (128,))
            time.sleep(0.002)
            x, y = data[at], targets[at]
        with phase("forward"):
            loss = F.mse_loss(answered(model(x)), y)
        with phase("optimizer"):
            optimizer.zero_grad()
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
        step()
        LOSSES.append(loss.item())
    return model


def prefetch_thread(steps):
    """A thread of the program's own makes batches."""
    ready = queue.Queue(maxsize=2)

    def make():
        for batch in DataLoader(Images(cost_s=0.0002), 16, generator=torch.Generator()):
            ready.put(batch)

    threading.Thread(target=make, daemon=True).start()

    def next_batch():
        with phase("data_wait"):
            return ready.get()

    model = convnet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(min(steps, 200)):
        x, y = next_batch()
        with phase("forward"):
            loss = F.cross_entropy(answered(model(x)), y)
        with phase("optimizer"):
            optimizer.zero_grad()
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
        step()
        LOSSES.append(loss.item())
    return model


def teacher(steps):
    """Distillation: the teacher's pass without gradients is a part of the forward pass."""
    old, model = convnet(32).eval(), convnet(8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, _ in itertools.islice(batches(DataLoader(Images(), 16)), steps):
        with phase("forward"):
            with torch.no_grad():
                wanted = old(x).softmax(-1)
            loss = F.kl_div(answered(model(x)).log_softmax(-1), wanted, reduction="batchmean")
        with phase("optimizer"):
            optimizer.zero_grad()
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
        step()
        LOSSES.append(loss.item())
    return model


def forward_called(steps):
    """The program calls `model.forward` and not the model."""
    model = convnet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in itertools.islice(batches(DataLoader(Images(), 16)), steps):
        with phase("forward"):
            loss = F.cross_entropy(model.forward(x), y)
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        step()
        LOSSES.append(loss.item())
    return model


def within_backward(steps):
    """One optimizer for each parameter, stepped by a hook within backward."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(432, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    optimizers = {p: torch.optim.SGD([p], lr=0.01, foreach=False) for p in model.parameters()}

    def update(parameter):
        with phase("optimizer"):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    for x, y in itertools.islice(batches(DataLoader(Images(), 16)), steps):
        with phase("forward"):
            loss = F.cross_entropy(answered(model(x)), y)
        with phase("backward"):
            loss.backward()
        step()
        LOSSES.append(loss.item())
    return model


def own_gradients(steps):
    """The gradients come from torch.autograd.grad, and the program assigns them."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(432, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    parameters = list(model.parameters())
    for x, y in itertools.islice(batches(DataLoader(Images(), 64)), steps):
        with phase("forward"):
            loss = F.cross_entropy(answered(model(x)), y)
        with phase("backward"):
            gradients = torch.autograd.grad(loss, parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        with phase("optimizer"):
            optimizer.step()
        step()
        LOSSES.append(loss.item())
    return model


def alternating(steps):
    """Two models and two optimizers, which step in turn."""
    pairs = [(model, torch.optim.AdamW(model.parameters(), lr=1e-3)) for model in (convnet(16), convnet(24))]
    for n, (x, y) in zip(range(steps), batches(DataLoader(Images(), 16)), strict=False):
        model, optimizer = pairs[n // 5 % 2]
        with phase("optimizer"):
            optimizer.zero_grad()
        with phase("forward"):
            loss = F.cross_entropy(answered(model(x)), y)
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
        step()
        LOSSES.append(loss.item())
    return nn.ModuleList(model for model, _ in pairs)


def scaled(steps):
    """A gradient scaler under autocast; it leaves out the optimizer's step where a gradient is not finite."""
    model = convnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=20)
    for n, (x, y) in zip(range(steps), batches(DataLoader(Images(), 16)), strict=False):
        with phase("forward"), torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(answered(model(x)), y)
            if n % 10 == 4:
                loss = loss * math.inf
        with phase("backward"):
            scaler.scale(loss).backward()
        with phase("optimizer"):
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
        step()
        with phase("optimizer"):
            scaler.update()
            optimizer.zero_grad()
        LOSSES.append(loss.item())
    return model


def checkpointed(steps):
    """Gradient checkpointing, two loaders in step, an average of the weights; the training runs in a thread."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(432, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    mean = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    class Saving(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint_sequential(self.inner, 2, x, use_reentrant=False)

    saving = Saving()

    def train():
        first, second = batches(DataLoader(Images(), 16)), batches(DataLoader(Images(2048), 16))
        for (x, y), (x2, y2) in itertools.islice(zip(first, second, strict=False), steps):
            with phase("forward"):
                loss = F.cross_entropy(saving(x), y) + F.cross_entropy(answered(saving(x2)), y2)
            with phase("optimizer"):
                optimizer.zero_grad()
            with phase("backward"):
                loss.backward()
            with phase("optimizer"):
                optimizer.step()
            step()
            with torch.no_grad():
                for kept, parameter in zip(mean.parameters(), model.parameters(), strict=True):
                    kept.lerp_(parameter, 0.1)
            LOSSES.append(loss.item())

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    return mean


LOOPS = {
    loop.__name__: loop
    for loop in (
        plain, nanogpt, accumulation, gan, lbfgs, compiled_model, compiled_step, iterable, ddp,
        inline_batches, prefetch_thread, teacher, forward_called, within_backward, own_gradients,
        alternating, scaled, checkpointed,
    )
}  # fmt: skip


def run(name, steps):
    """Run one loop; print digests of its losses and weights."""
    torch.manual_seed(1337)
    random.seed(1337)
    torch.set_num_threads(1)
    model = LOOPS[name](steps)
    KEPT.append(model)
    rank = os.environ.get("RANK", "")
    by_hand.stamps.write(name + rank)
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    losses = f"{name + rank} losses {hashlib.sha256(repr(LOSSES).encode()).hexdigest()[:16]} {len(LOSSES)}\n"
    sys.stdout.flush()
    os.write(1, f"{losses}{name + rank} weights {hashlib.sha256(weights).hexdigest()[:16]}\n".encode())  # whole: two ranks print at once


def in_fork(name, steps, environment):
    """Start a loop in a forked process. Returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    os.environ.update(environment)
    sys.argv[0] = name + environment.get("RANK", "")
    try:
        by_hand.stamps.__init__()
        run(name, steps)
    except BaseException:
        traceback.print_exc()
    finally:
        import atexit

        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(0)


def main():
    """The command line of this program."""
    if sys.argv[1] == "fork":
        gc.freeze()  # a look at all objects would copy the memory of torch into each process
        for name in sys.argv[3:]:
            ranks = [{"RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ["PORT"]} for r in (0, 1)]
            for pid in [in_fork(name, int(sys.argv[2]), environment) for environment in (ranks if name == "ddp" else [{}])]:
                os.waitpid(pid, 0)
    else:
        run(sys.argv[1], int(sys.argv[2]))


if __name__ == "__main__":
    main()
