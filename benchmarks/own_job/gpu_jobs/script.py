"""A training script of a user's own. It knows nothing of gpuconsole. Options choose the model, and the fault that is built in."""

import argparse
import contextlib
import itertools
import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=("gpt", "resnet", "mlp", "chain", "experts"), default="gpt")
parser.add_argument("--seconds", type=float, default=20.0)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--width", type=int, default=768)
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--seq", type=int, default=1024)
parser.add_argument("--precision", choices=("fp32", "tf32", "fp16", "bf16"), default="bf16")
parser.add_argument(
    "--autocast-within", action="store_true", help="autocast around the forward function, as accelerate and Hugging Face's Trainer put it"
)
parser.add_argument(
    "--shards", choices=("", "fsdp2", "offload"), default="", help="FSDP 2 with mixed precision, and with parameters on the host"
)
parser.add_argument("--masks", type=int, default=0, help="selections by a mask in a step: torch waits for the GPU in each")
parser.add_argument("--scalars", action="store_true", help="each block multiplies by a number that it copies to the GPU: torch waits there")
parser.add_argument("--check-blocks", action="store_true", help="each block raises if its result has a NaN: the host reads it from the GPU")
parser.add_argument("--empty-cache", action="store_true", help="the program empties the allocator's cache in each step")
parser.add_argument("--augment", type=int, default=0, help="pointwise operators on the GPU between the batch and the pass")
parser.add_argument("--prepare-ms", type=float, default=0.0, help="Python of the host between the batch and the pass")
parser.add_argument("--attention", choices=("sdpa", "math"), default="sdpa")
parser.add_argument("--optim", choices=("adamw", "loop", "fused"), default="fused")
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--workers", type=int, default=-1, help="-1: the batch is on the GPU already")
parser.add_argument("--in-host-memory", action="store_true", help="batches lie in pageable host memory")
parser.add_argument("--epoch", type=int, default=1_000_000, help="samples of an epoch")
parser.add_argument("--sleep-ms", type=float, default=0.0, help="storage time of a sample")
parser.add_argument("--cpu-ms", type=float, default=0.0, help="CPU time of a sample")
parser.add_argument("--pin", action="store_true")
parser.add_argument("--sync", type=int, default=0, help="calls of item() in a step")
parser.add_argument("--save-every", type=int, default=0)
parser.add_argument("--eval-every", type=int, default=0)
parser.add_argument("--log-every", type=int, default=0)
parser.add_argument("--leak-mb", type=int, default=0)
parser.add_argument("--device", default="cuda")
args = parser.parse_args()

distributed = "RANK" in os.environ
if distributed:
    torch.distributed.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    args.device = f"cuda:{os.environ['LOCAL_RANK']}"
if args.precision == "tf32":
    torch.set_float32_matmul_precision("high")
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = max(1, width // 64)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(self.first(x)).split(c, dim=2))
        if args.attention == "sdpa":
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * (c // self.heads) ** -0.5
            scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1), float("-inf"))
            mixed = F.dropout(F.softmax(scores, dim=-1), 0.1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, c))
        if args.scalars:
            x = x * torch.tensor(0.5, device=x.device)
        x = x + self.down(F.gelu(self.up(self.second(x))))
        if args.check_blocks and torch.isnan(x).any():
            raise ValueError("a block computes NaN")
        return x


class GPT(nn.Module):
    def __init__(self, width, layers, seq, words=50304):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(seq, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) if args.checkpointing else block(x)
        return self.head(self.norm(x))


class Experts(nn.Module):
    """A mixture of experts as scripts write it: `torch.where` finds the tokens of each expert, and waits for the GPU."""

    def __init__(self, width, layers, experts=8):
        super().__init__()
        self.routers = nn.ModuleList(nn.Linear(width, experts) for _ in range(layers))
        self.layers = nn.ModuleList(
            nn.ModuleList(nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(experts))
            for _ in range(layers)
        )

    def forward(self, x):
        for router, experts in zip(self.routers, self.layers, strict=True):
            chosen, out = router(x).argmax(-1), torch.zeros_like(x)
            for number, expert in enumerate(experts):
                (rows,) = torch.where(chosen == number)
                out.index_add_(0, rows, expert(x[rows]).to(out.dtype))
            x = x + out
        return x


class Residual(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outer),
            nn.ReLU(),
            nn.Conv2d(outer, outer, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outer),
        )
        self.short = nn.Identity() if stride == 1 and inner == outer else nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x):
        return F.relu(self.path(x) + self.short(x))


def resnet(width):
    layers, channels = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], width
    for stage in range(4):
        for block in range(2):
            outer = width * 2**stage
            layers.append(Residual(channels, outer, 2 if stage and not block else 1))
            channels = outer
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


class Chain(nn.Module):
    """Products of moderate size with long chains of pointwise operators between them."""

    def __init__(self, width, layers):
        super().__init__()
        self.products = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x):
        for product in self.products:
            x = product(x)
            for _ in range(6):
                x = torch.tanh(x * 1.01 + 0.1) * torch.sigmoid(x)
        return x


def make_model():
    if args.model == "gpt":
        return GPT(args.width, args.layers, args.seq)
    if args.model == "resnet":
        return resnet(args.width)
    if args.model == "experts":
        return Experts(args.width, args.layers)
    if args.model == "chain":
        return Chain(args.width, args.layers)
    layers = [module for _ in range(args.layers) for module in (nn.Linear(args.width, args.width), nn.ReLU())]
    return nn.Sequential(*layers)


def shape_of_sample():
    return {"gpt": (args.seq,), "resnet": (3, args.seq, args.seq)}.get(args.model, (args.width,))


class Samples(Dataset):
    """Samples whose making takes storage time and CPU time."""

    def __len__(self):
        return args.epoch

    def __getitem__(self, index):
        if args.sleep_ms:
            time.sleep(args.sleep_ms / 1e3)
        end = time.thread_time() + args.cpu_ms / 1e3
        while time.thread_time() < end:
            sum(range(200))
        if args.model == "gpt":
            return torch.zeros(args.seq, dtype=torch.long), torch.zeros(args.seq, dtype=torch.long)
        return torch.zeros(shape_of_sample()), torch.tensor(index % 10)


class InHostMemory(Dataset):
    """Batches that lie in pageable memory of the host."""

    def __init__(self):
        self.x, self.y = torch.zeros(args.batch, *shape_of_sample()), torch.arange(args.batch) % 10

    def __len__(self):
        return args.epoch

    def __getitem__(self, index):
        return self.x, self.y


def batches():
    if args.workers < 0 and not args.in_host_memory:
        x, y = next(iter(DataLoader(Samples(), args.batch)))
        there = x.to(args.device), y.to(args.device)
        while True:
            yield there
    if args.in_host_memory:
        loader = DataLoader(InHostMemory(), batch_size=None)
    else:
        loader = DataLoader(Samples(), args.batch, num_workers=args.workers, pin_memory=args.pin)
    while True:
        for x, y in loader:
            yield x.to(args.device, non_blocking=args.pin), y.to(args.device, non_blocking=args.pin)


def loss_of(model, x, y):
    for _ in range(args.augment):
        x = x * 1.01 + 0.1
    end = time.perf_counter() + args.prepare_ms / 1e3
    while time.perf_counter() < end:
        sum(range(100))
    around = args.precision in ("bf16", "fp16") and not args.autocast_within and not args.shards
    with torch.autocast("cuda", torch.bfloat16 if args.precision == "bf16" else torch.float16) if around else contextlib.nullcontext():
        out = model(x)
        if args.model == "gpt":
            return F.cross_entropy(out.view(-1, out.shape[-1]), y.view(-1))
        return F.cross_entropy(out, y) if args.model == "resnet" else out.float().square().mean()


model = make_model().to(args.device if args.shards != "offload" else "cpu")
if args.autocast_within:
    model.forward = torch.autocast("cuda", torch.bfloat16)(model.forward)
if args.shards:
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    settings = {
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16),
        "offload_policy": CPUOffloadPolicy() if args.shards == "offload" else OffloadPolicy(),
    }
    for block in getattr(model, "blocks", ()):
        fully_shard(block, **settings)
    fully_shard(model, **settings)
elif distributed:
    model = nn.parallel.DistributedDataParallel(model, device_ids=[int(os.environ["LOCAL_RANK"])])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=args.optim == "adamw", fused=args.optim == "fused")
began, step, leaked = None, 0, []
for x, y in batches():
    optimizer.zero_grad()
    loss = loss_of(model, x, y)
    loss.backward()
    for _ in range(args.masks):
        x[x > 0]
    for _ in range(args.sync):
        loss.item()
        torch.cuda.synchronize()
    optimizer.step()
    step += 1
    if args.empty_cache:
        torch.cuda.empty_cache()
    if args.log_every and step % args.log_every == 0:
        print(step, loss.item(), flush=True)
        with open("log.txt", "a") as log:
            log.write(f"{step} {time.time()}\n" * 200)
            log.flush()
            os.fsync(log.fileno())
    if args.save_every and step % args.save_every == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "checkpoint.pt")
    if args.eval_every and step % args.eval_every == 0:
        model.eval()
        with torch.no_grad():
            for x, y in itertools.islice(DataLoader(Samples(), args.batch), 2 * args.eval_every):
                loss_of(model, x.to(args.device), y.to(args.device))
        torch.cuda.synchronize()
        model.train()
    if args.leak_mb:
        leaked.append(torch.empty(args.leak_mb << 20, dtype=torch.uint8, device=args.device))
    if began is None:
        torch.cuda.synchronize()
        began = time.perf_counter()
    if not distributed and time.perf_counter() - began > args.seconds:
        break
    if distributed and step % 5 == 0:  # all processes make the same number of steps
        store = torch.distributed.distributed_c10d._get_default_store()
        if torch.distributed.get_rank() == 0 and time.perf_counter() - began > args.seconds and not store.check(["last"]):
            store.set("last", str(step + 10))
        if store.check(["last"]) and step >= int(store.get("last")):
            break
torch.cuda.synchronize()
print("steps", step, flush=True)
if distributed:
    torch.distributed.destroy_process_group()
