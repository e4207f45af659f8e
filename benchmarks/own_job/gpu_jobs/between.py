"""Run one of a user's own training scripts, by name. Each script works between the phases of a
step, on the GPU. The scripts do not use gpuconsole. The last four scripts have a fault: between the
phases, the GPU has no work.

    python between.py NAME [--seconds 20]
"""

import argparse
import copy
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH, SEQ, WORDS, WIDTH = 16, 256, 8192, 768
JOBS = {}


def job(function):
    JOBS[function.__name__] = function
    return function


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        split = self.qkv(self.first(x)).split(c, dim=2)
        q, k, v = (part.view(b, t, c // 64, 64).transpose(1, 2) for part in split)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.second(x))))


class GPT(nn.Module):
    def __init__(self, layers=6, width=WIDTH):
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, WORDS, bias=False)

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Timer:
    """Says when the seconds of training are over; the first step does not count."""

    def __init__(self, seconds):
        self.seconds, self.began = seconds, None

    def over(self):
        if self.began is None:
            torch.cuda.synchronize()
            self.began = time.perf_counter()
        return time.perf_counter() - self.began > self.seconds


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def batches():
    data = TensorDataset(torch.zeros(64 * BATCH, SEQ + 1, dtype=torch.long))
    loader = DataLoader(data, batch_size=BATCH, pin_memory=True)
    while True:
        for (batch,) in loader:
            yield batch


def loss_of(model, tokens, kind=torch.bfloat16):
    with torch.autocast("cuda", kind):
        out = model(tokens[:, :-1])
        return F.cross_entropy(out.flatten(0, 1), tokens[:, 1:].flatten())


def updated(model, optimizer, tokens):
    loss = loss_of(model, tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss


@job
def average(timer):
    model = GPT().cuda()
    mean, optimizer, total = copy.deepcopy(model), adam(model), 0.0
    for batch in batches():
        loss = updated(model, optimizer, batch.cuda(non_blocking=True))
        with torch.no_grad():
            for new, old in zip(model.parameters(), mean.parameters(), strict=True):
                old.lerp_(new, 0.001)
        total += loss.item()
        if timer.over():
            return


@job
def swa(timer):
    model = GPT().cuda()
    mean, optimizer = torch.optim.swa_utils.AveragedModel(model), adam(model)
    for batch in batches():
        updated(model, optimizer, batch.cuda(non_blocking=True))
        mean.update_parameters(model)
        if timer.over():
            return


@job
def target(timer):
    """Q learning with a replay buffer and a target network on the GPU."""
    net = nn.Sequential(nn.Linear(256, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU())
    net = net.append(nn.Linear(4096, 64)).cuda()
    aim, optimizer = copy.deepcopy(net), adam(net)
    states = torch.zeros(200_000, 256, device="cuda")
    while not timer.over():
        chosen = torch.randint(0, 199_999, (16384,), device="cuda")
        now, then = states[chosen], states[chosen + 1]
        with torch.autocast("cuda", torch.bfloat16):
            with torch.no_grad():
                wanted = 0.99 * aim(then).max(1).values
            loss = F.smooth_l1_loss(net(now).max(1).values, wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for new, old in zip(net.parameters(), aim.parameters(), strict=True):
                old.mul_(0.995).add_(new, alpha=0.005)


def images():
    """Whole batches in page-locked memory: the host has little to do for them."""
    data = TensorDataset(torch.zeros(8, 128, 3, 96, 96), torch.zeros(8, 128, dtype=torch.long))
    kept = list(DataLoader(data, batch_size=None, pin_memory=True))
    while True:
        yield from DataLoader(kept, batch_size=None)


def convolutions():
    def block(inner, outer, stride):
        layer = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        return nn.Sequential(layer, nn.BatchNorm2d(outer), nn.ReLU())

    layers = [block(3, 128, 2), block(128, 256, 1), block(256, 512, 2), block(512, 512, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100))


@job
def augmented(timer):
    model = convolutions().cuda().to(memory_format=torch.channels_last)
    optimizer = adam(model)
    for x, y in images():
        x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        turn = torch.eye(2, 3, device="cuda").repeat(len(x), 1, 1)
        for _ in range(3):
            grid = F.affine_grid(turn, x.shape, align_corners=False)
            x = F.grid_sample(x, grid, align_corners=False)
        x = (x + 0.1 * torch.randn_like(x)).clamp(0, 1)
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if timer.over():
            return


@job
def mixed_up(timer):
    model, optimizer = convolutions().cuda(), None
    optimizer = adam(model)
    for x, y in images():
        x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        order, share = torch.randperm(len(x), device="cuda"), torch.rand(len(x), device="cuda")
        wide = share.view(-1, 1, 1, 1)
        x = wide * x + (1 - wide) * x[order]
        with torch.autocast("cuda", torch.bfloat16):
            out = model(x)
            each = F.cross_entropy(out, y, reduction="none") * share
            loss = (each + F.cross_entropy(out, y[order], reduction="none") * (1 - share)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if timer.over():
            return


@job
def simulation(timer):
    """A policy that learns from a simulation on the GPU."""
    policy = nn.Sequential(nn.Linear(1024, 4096), nn.Tanh(), nn.Linear(4096, 4096), nn.Tanh())
    policy = policy.append(nn.Linear(4096, 1024)).cuda()
    optimizer, world = adam(policy), torch.zeros(1024, 1024, device="cuda")
    state = torch.zeros(16384, 1024, device="cuda")
    while not timer.over():
        with torch.no_grad():
            for _ in range(24):
                state = torch.tanh(state @ world + state)
        with torch.autocast("cuda", torch.bfloat16):
            loss = (policy(state) - state).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@job
def static_buffer(timer):
    model = GPT().cuda()
    optimizer = adam(model)
    static = torch.zeros(BATCH, SEQ + 1, dtype=torch.long, device="cuda")
    table = torch.zeros(4096, 4096, device="cuda", dtype=torch.bfloat16)
    for batch in batches():
        static.copy_(batch, non_blocking=True)
        for _ in range(8):
            table @ table
        updated(model, optimizer, static)
        if timer.over():
            return


@job
def adversaries(timer):
    maker, judge = GPT(4).cuda(), GPT(3).cuda()
    of_maker, of_judge = adam(maker), adam(judge)
    for batch in batches():
        tokens = batch.cuda(non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16):
            made = maker(tokens).argmax(-1)
            loss = judge(tokens).float().mean() - judge(made).float().mean()
        loss.backward()
        of_judge.step()
        of_judge.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = maker(tokens).float().square().mean()
        loss.backward()
        of_maker.step()
        of_maker.zero_grad()
        if timer.over():
            return


@job
def accumulated(timer):
    model = GPT(4).cuda()
    optimizer, stream = adam(model), batches()
    while not timer.over():
        for _ in range(4):
            (loss_of(model, next(stream).cuda(non_blocking=True)) / 4).backward()
        optimizer.step()
        optimizer.zero_grad()


@job
def metrics(timer):
    model = GPT().cuda()
    optimizer, table = adam(model), torch.zeros(WORDS, device="cuda")
    right = torch.zeros((), device="cuda")
    for step, batch in enumerate(batches(), 1):
        tokens = batch.cuda(non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16):
            out = model(tokens[:, :-1]).flatten(0, 1)
            loss = F.cross_entropy(out, tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            best = out.detach().topk(5, dim=-1).indices
            hits = best == tokens[:, 1:].flatten()[:, None]
            right += hits.float().sum()
            table.scatter_add_(0, best[:, 0], hits[:, 0].float())
        if step % 20 == 0:
            print(step, right.item(), flush=True)
        if timer.over():
            return


@job
def on_gpu_data(timer):
    model, data = GPT().cuda(), torch.zeros(4096, SEQ + 1, dtype=torch.long, device="cuda")
    optimizer = adam(model)
    while not timer.over():
        order = torch.randperm(len(data), device="cuda")
        for begin in range(0, len(data), BATCH):
            updated(model, optimizer, data[order[begin : begin + BATCH]])
            if timer.over():
                return


@job
def prefetched(timer):
    model = GPT().cuda()
    optimizer, side, stream = adam(model), torch.cuda.Stream(), batches()

    def ahead():
        with torch.cuda.stream(side):
            return next(stream).cuda(non_blocking=True)

    following = ahead()
    while not timer.over():
        torch.cuda.current_stream().wait_stream(side)
        tokens, following = following, ahead()
        tokens.record_stream(torch.cuda.current_stream())
        updated(model, optimizer, tokens)


@job
def scaled(timer):
    model = GPT().cuda()
    optimizer, scaler = adam(model), torch.amp.GradScaler("cuda")
    for batch in batches():
        loss = loss_of(model, batch.cuda(non_blocking=True), torch.float16)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if timer.over():
            return


@job
def clipped(timer):
    model = GPT().cuda()
    optimizer, norms = adam(model), []
    for batch in batches():
        loss_of(model, batch.cuda(non_blocking=True)).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
        optimizer.zero_grad()
        if timer.over():
            return


@job
def evaluated(timer):
    model = GPT().cuda()
    optimizer, held = adam(model), next(batches()).cuda()
    for step, batch in enumerate(batches(), 1):
        updated(model, optimizer, batch.cuda(non_blocking=True))
        if step % 40 == 0:
            model.eval()
            with torch.no_grad():
                print(step, sum(loss_of(model, held) for _ in range(3)).item(), flush=True)
            model.train()
        if timer.over():
            return


@job
def distilled(timer):
    teacher, model = GPT(8).cuda().to(torch.bfloat16).eval(), GPT(4).cuda()
    optimizer = adam(model)
    for batch in batches():
        tokens = batch.cuda(non_blocking=True)
        with torch.no_grad():
            wanted = teacher(tokens).softmax(-1).float()
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.kl_div(model(tokens).log_softmax(-1), wanted, reduction="batchmean")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if timer.over():
            return


@job
def rate_finder(timer):
    model = GPT().cuda()
    optimizer, smooth, best, kept = adam(model), 0.0, [], copy.deepcopy(model.state_dict())
    for step, batch in enumerate(batches()):
        for group in optimizer.param_groups:
            group["lr"] = 1e-7 * 1.05 ** (step % 200)
        loss = updated(model, optimizer, batch.cuda(non_blocking=True))
        smooth = 0.9 * smooth + 0.1 * loss.item()
        best.append((smooth, group["lr"]))
        if step % 200 == 199:
            model.load_state_dict(kept)
        if timer.over():
            return


def busy_python(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        sum(range(100))


@job
def average_on_host(timer):
    model = GPT().cuda()
    mean, optimizer = [p.detach().cpu() for p in model.parameters()], adam(model)
    for batch in batches():
        updated(model, optimizer, batch.cuda(non_blocking=True))
        for old, new in zip(mean, model.parameters(), strict=True):
            old.lerp_(new.detach().cpu(), 0.001)
        if timer.over():
            return


@job
def python_between(timer):
    model = GPT().cuda()
    optimizer, total = adam(model), 0.0
    for batch in batches():
        total += updated(model, optimizer, batch.cuda(non_blocking=True)).item()
        busy_python(0.3)
        if timer.over():
            return


class Tokenizes(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = GPT()

    def tokenize(self, tokens):
        busy_python(0.5)
        return tokens

    def forward(self, tokens):
        return self.model(self.tokenize(tokens))


@job
def python_in_forward(timer):
    model = Tokenizes().cuda()
    optimizer = adam(model)
    for batch in batches():
        updated(model, optimizer, batch.cuda(non_blocking=True))
        if timer.over():
            return


@job
def many_reads(timer):
    model = GPT().cuda()
    optimizer, total = adam(model), 0.0
    for batch in batches():
        updated(model, optimizer, batch.cuda(non_blocking=True))
        for value in torch.zeros(150, device="cuda"):
            total += value.mul(2).item()
        if timer.over():
            return


parser = argparse.ArgumentParser()
parser.add_argument("name", choices=sorted(JOBS))
parser.add_argument("--seconds", type=float, default=20.0)
chosen = parser.parse_args()
torch.manual_seed(0)
JOBS[chosen.name](Timer(chosen.seconds))
torch.cuda.synchronize()
