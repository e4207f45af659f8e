"""Small training programs, each with one habit that a watched job must keep. `PROGRAMS` is the
table.

A program is text. It starts with BEGIN (torch, a model, an optimizer) unless it begins on its own,
and ends with `facts.end(...)`. It trains `STEPS` steps with pauses of `PAUSE_S`, so that the agent
has time to count FLOPs, to look for functions that make batches, and to change to light steps.
"""

from __future__ import annotations

from typing import NamedTuple

BEGIN = """
import os, sys, time
import torch, facts
from facts import STEPS, PAUSE_S
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Dropout(0.1),
    torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
def train(x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    time.sleep(PAUSE_S)
    return loss.item()
"""
LOOP = """
for step in range(STEPS):
    loss = train(torch.randn(8, 16))
    if step % 40 == 0: print(step, loss)
"""
END = """
facts.end(model=model, optimizer=optimizer)
"""
DATA = """
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8 * STEPS // 4
    def __getitem__(self, n):
        time.sleep(PAUSE_S / 4)
        return torch.full((16,), float(n % 7)) + torch.arange(16.0) / 16
"""
EPOCHS = """
for epoch in range(4):
    for x in loader: loss = train(x)
    print(epoch, loss)
"""


class Program(NamedTuple):
    """`text`: the code. `changes`: what may be tried in it besides watching, as after `--try`.
    `needs`: modules without which it cannot run. `command`: how it is started; {python} and
    {program} stand for the interpreter and the file. `exit`: the code with which it ends; None
    where any code is right. `python`: the oldest version of Python that runs it. `design`: what may
    differ by design, with the reason. `asks`: the program prints what may differ where workers load
    ahead, so its changes are made without the permission, and refused."""

    text: str
    changes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    file: str = "program.py"
    command: str = "{python} {program}"
    exit: int | None = None
    python: str = "3.11"
    design: tuple[tuple[str, str], ...] = ()
    asks: bool = False


def plain(before: str = "", after: str = "", loop: str = LOOP) -> Program:
    """The plain loop, with code before and after it."""
    return Program(BEGIN + before + loop + after + END, ("optim=adamw_foreach",))


def loading(
    before: str = "loader = torch.utils.data.DataLoader(Data(), batch_size=8)\n",
    loop: str = EPOCHS,
    after: str = "",
    data: str = DATA,
) -> Program:
    """A loop over a DataLoader."""
    return Program(
        BEGIN + data + before + loop + after + END, ("num_workers=2", "optim=adamw_foreach")
    )


def whole(text: str, *needs: str, changes: tuple[str, ...] = ()) -> Program:
    return Program(text, changes, needs)


PROGRAMS: dict[str, Program] = {
    # --- loops ------------------------------------------------------------------------------------
    "plain": plain(),
    "in a function": plain(
        loop="def main():\n    for step in range(STEPS): train(torch.randn(8, 16))\nmain()\n"
    ),
    "in a class": plain(
        loop=(
            "class Trainer:\n    def fit(self):\n        for step in range(STEPS):"
            " train(torch.randn(8, 16))\nTrainer().fit()\n"
        )
    ),
    "recursive": plain(
        loop=(
            "def go(n):\n    if n: train(torch.randn(8, 16)); go(n - 1)\n"
            "sys.setrecursionlimit(3000)\ngo(STEPS)\n"
        )
    ),
    "while with break": plain(
        loop=(
            "step = 0\nwhile True:\n    train(torch.randn(8, 16)); step += 1\n    if step == STEPS:"
            " break\n"
        )
    ),
    "generator of batches": plain(
        "def batches():\n    for _ in range(STEPS): yield torch.randn(8, 16)\n",
        loop="for x in batches(): train(x)\n",
    ),
    "generator that stays": plain(
        "def batches():\n    while True: yield torch.randn(8, 16)\nsource = batches()\n",
        loop="for _ in range(STEPS): train(next(source))\n",
    ),
    "position of a generator": plain(
        (
            "import inspect\ndef batches():\n    for i in range(STEPS): yield torch.randn(8, 16)\n"
            "source = batches()\n"
        ),
        loop=(
            "for x in source: train(x); last = inspect.getgeneratorlocals(source)['i']\n"
            "print(last)\n"
        ),
    ),
    "recursive batch": plain(
        "def batch(n): return torch.randn(8, 16) if n == 0 else batch(n - 1)\n",
        loop="for _ in range(STEPS): train(batch(450))\n",
    ),
    "caller's frame": plain(
        "def batch():\n    return torch.full((8, 16), float(sys._getframe(1).f_locals['i'] % 5))\n",
        loop="for i in range(STEPS): train(batch())\n",
    ),
    "stack level": plain(
        (
            "import warnings, logging\nwarnings.simplefilter('always')\n"
            "logging.basicConfig(stream=sys.stdout, format='%(lineno)d %(funcName)s %(message)s')\n"
            "def batch(i):\n    if i % 50 == 0: warnings.warn('new epoch', stacklevel=2);"
            " logging.warning('batch', stacklevel=2)\n    return torch.randn(8, 16)\n"
        ),
        loop="for i in range(STEPS): train(batch(i))\n",
    ),
    "code of a function": plain(
        (
            "import hashlib\ndef batch(): return torch.randn(8, 16)\n"
            "key = lambda: hashlib.sha1(batch.__code__.co_code).hexdigest()\n"
        ),
        loop="first = key()\nfor i in range(STEPS): train(batch())\nprint(first == key())\n",
    ),
    "modules loaded again": plain(
        "def batch(): import json; return torch.full((8, 16), float(len(json.dumps([1]))))\n",
        loop=(
            "for i in range(STEPS):\n    train(batch())\n    if i == 60:\n        for name in [n"
            " for n, m in sys.modules.items() if getattr(m, '__file__', None) and '/site-packages/'"
            " not in m.__file__ and '/lib/python' not in m.__file__ and n not in ('__main__',"
            " 'facts')]: del sys.modules[name]\n"
        ),
    ),
    "accumulated": plain(
        loop=(
            "for step in range(STEPS):\n    (model(torch.randn(8, 16)).square().mean() /"
            " 2).backward()\n    if step % 2: optimizer.step(); optimizer.zero_grad()\n"
            "    time.sleep(PAUSE_S)\n"
        )
    ),
    "two optimizers": plain(
        "second = torch.optim.SGD(model[0].parameters(), lr=1e-3)\n",
        loop="for step in range(STEPS): train(torch.randn(8, 16)); second.step()\n",
    ),
    "closure": plain(
        "optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)\n",
        loop=(
            "def closure():\n    optimizer.zero_grad(); loss = model(x).square().mean();"
            " loss.backward(); return loss\nfor step in range(STEPS // 4): x = torch.randn(8, 16);"
            " optimizer.step(closure); time.sleep(PAUSE_S)\n"
        ),
    ),
    "closure that raises": plain(
        loop=(
            "def closure(): raise RuntimeError('no loss')\n"
            "for step in range(STEPS):\n    train(torch.randn(8, 16))\n    if step % 30 == 29:\n"
            "        try: optimizer.step(closure)\n        except RuntimeError as e: print(e)\n"
        )
    ),
    "clipped, scheduled": plain(
        "scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)\n",
        loop=(
            "for step in range(STEPS):\n    optimizer.zero_grad(); model(torch.randn(8,"
            " 16)).square().mean().backward()\n"
            "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0); optimizer.step();"
            " scheduler.step(); time.sleep(PAUSE_S)\nprint(scheduler.get_last_lr())\n"
        ),
    ),
    "evaluation": plain(
        loop=(
            "for step in range(STEPS):\n    train(torch.randn(8, 16))\n    if step % 20 == 0:\n"
            "        model.eval()\n        with torch.no_grad(): print(model(torch.ones(4,"
            " 16)).sum().item())\n        model.train()\n"
        )
    ),
    "evaluation without no_grad": plain(
        loop=(
            "for step in range(STEPS):\n    train(torch.randn(8, 16))\n    if step % 20 == 0:"
            " model.eval(); print(model(torch.ones(4, 16)).sum().item()); model.train()\n"
        )
    ),
    "no optimizer": plain(
        loop=(
            "for step in range(STEPS):\n    loss = model(torch.randn(8, 16)).square().mean();"
            " loss.backward()\n    with torch.no_grad():\n        for p in model.parameters(): p -="
            " 1e-3 * p.grad; p.grad = None\n    time.sleep(PAUSE_S)\n"
        )
    ),
    "gradients by hand": plain(
        loop=(
            "for step in range(STEPS):\n    grads = torch.autograd.grad(model(torch.randn(8,"
            " 16)).square().mean(), list(model.parameters()))\n    for p, g in"
            " zip(model.parameters(), grads): p.grad = g\n    optimizer.step();"
            " time.sleep(PAUSE_S)\n"
        )
    ),
    "second derivatives": plain(
        loop=(
            "for step in range(STEPS):\n    x = torch.randn(8, 16, requires_grad=True)\n    g, ="
            " torch.autograd.grad(model(x).sum(), x, create_graph=True)\n    optimizer.zero_grad();"
            " g.square().mean().backward(); optimizer.step(); time.sleep(PAUSE_S)\n"
        )
    ),
    "two models": plain(
        "other = torch.nn.Linear(1, 16)\nsecond = torch.optim.Adam(other.parameters())\n",
        loop=(
            "for step in range(STEPS):\n    train(torch.randn(8, 16))\n    second.zero_grad();"
            " model(other(torch.ones(8, 1))).mean().backward(); second.step()\n"
        ),
        after="print(facts.digest(other.state_dict()))\n",
    ),
    "moving average": plain(
        (
            "ema = torch.optim.swa_utils.AveragedModel(model,"
            " multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))\n"
        ),
        loop="for step in range(STEPS): train(torch.randn(8, 16)); ema.update_parameters(model)\n",
        after="print(facts.digest(ema.state_dict()))\n",
    ),
    "sharpness-aware": plain(
        loop=(
            "for step in range(STEPS):\n    x = torch.randn(8, 16)\n    optimizer.zero_grad();"
            " model(x).square().mean().backward()\n    with torch.no_grad(): moved = [p.grad * 0.01"
            " for p in model.parameters()]; [p.add_(m) for p, m in zip(model.parameters(),"
            " moved)]\n    optimizer.zero_grad(); model(x).square().mean().backward()\n    with"
            " torch.no_grad(): [p.sub_(m) for p, m in zip(model.parameters(), moved)]\n"
            "    optimizer.step(); time.sleep(PAUSE_S)\n"
        )
    ),
    "optimizer of its own": plain(
        "class Own(torch.optim.Optimizer):\n    def __init__(self, params):"
        " super().__init__(params, {'lr': 1e-3})\n    @torch.no_grad()\n    def step(self,"
        " closure=None):\n        for group in self.param_groups:\n            for p in"
        " group['params']: p -= group['lr'] * p.grad\noptimizer = Own(model.parameters())\n"
    ),
    "step hooks of its own": plain(
        (
            "count = []\noptimizer.register_step_pre_hook(lambda o, a, k: count.append(1))\n"
            "optimizer.register_step_post_hook(lambda o, a, k: count.append(2))\n"
        ),
        "print(len(count), count[:4])\n",
    ),
    "hooks of modules": plain(
        (
            "seen = []\nmodel.register_forward_hook(lambda m, i, o: seen.append(tuple(o.shape)))\n"
            "model.register_full_backward_hook(lambda m, i, o: seen.append(len(o)))\n"
        ),
        "print(len(seen), seen[:4])\n",
    ),
    "global hooks": plain(
        (
            "seen = []\nh = torch.nn.modules.module.register_module_forward_hook(lambda m, i, o:"
            " seen.append(type(m).__name__))\n"
        ),
        "print(len(seen), seen[:5])\n",
    ),
    # --- forms of models --------------------------------------------------------------------------
    "call that is decorated": plain(
        "class Twice:\n    def __init__(self, f): self.f = f\n    def __get__(self, obj, objtype):"
        " return lambda *a, **k: self.f(obj, *a, **k)\n"
        "class Net(torch.nn.Module):\n    def __init__(self): super().__init__(); self.layer ="
        " torch.nn.Linear(16, 1)\n    def forward(self, x): return self.layer(x)\n    __call__ ="
        " Twice(torch.nn.Module.__call__)\n"
        "model = Net(); optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n"
    ),
    "outputs of a class of its own": plain(
        (
            "class Out(tuple):\n    def __new__(cls, a, b): return super().__new__(cls, (a, b))\n"
            "class Net(torch.nn.Module):\n    def __init__(self): super().__init__(); self.layer ="
            " torch.nn.Linear(16, 1)\n    def forward(self, x): y = self.layer(x); return Out(y,"
            " y)\nmodel = Net(); optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n"
        ),
        loop=(
            "for step in range(STEPS):\n    optimizer.zero_grad(); model(torch.randn(8,"
            " 16))[0].square().mean().backward(); optimizer.step(); time.sleep(PAUSE_S)\n"
        ),
    ),
    "attributes that print": plain(
        (
            "class Net(torch.nn.Sequential):\n    count = 0\n    def parameters(self,"
            " recurse=True): Net.count += 1; return super().parameters(recurse)\n"
            "model = Net(*model)\noptimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n"
        ),
        "print(Net.count)\n",
    ),
    "thousands of modules": plain(
        (
            "model = torch.nn.Sequential(model, torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in"
            " range(3000)))\nrun = model[0]\n"
        ),
        loop=(
            "for step in range(STEPS):\n    optimizer.zero_grad(); run(torch.randn(8,"
            " 16)).square().mean().backward(); optimizer.step(); time.sleep(PAUSE_S)\n"
        ),
    ),
    "shared weights": plain(
        "model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16,"
        " 16))\nmodel[2].weight = model[0].weight\n"
        "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n"
    ),
    "frozen parts": plain("for p in model[0].parameters(): p.requires_grad_(False)\n"),
    "double precision": plain(
        "torch.set_default_dtype(torch.float64)\nmodel.double()\n"
        "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n"
    ),
    "autocast": plain(
        loop=(
            "for step in range(STEPS):\n    optimizer.zero_grad()\n    with torch.autocast('cpu',"
            " torch.bfloat16): loss = model(torch.randn(8, 16)).square().mean()\n"
            "    loss.backward(); optimizer.step(); time.sleep(PAUSE_S)\n"
        )
    ),
    "generator in the model": plain(
        (
            "import random\nclass Net(torch.nn.Module):\n    def __init__(self):"
            " super().__init__(); self.layer = torch.nn.Linear(16, 1); self.rng ="
            " random.Random(0)\n    def forward(self, x): return self.layer(x) *"
            " self.rng.random()\nmodel = Net(); optimizer = torch.optim.AdamW(model.parameters(),"
            " lr=1e-3)\n"
        ),
        "print(model.rng.random())\n",
    ),
    "NumPy generator in the model": plain(
        (
            "import numpy\nclass Net(torch.nn.Module):\n    def __init__(self): super().__init__();"
            " self.layer = torch.nn.Linear(16, 1); self.rng = numpy.random.default_rng(0)\n    def"
            " forward(self, x): return self.layer(x) * float(self.rng.random())\n"
            "model = Net(); optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n"
        ),
        "print(model.rng.random())\n",
    ),
    "batch norm": plain(
        "model.insert(1, torch.nn.BatchNorm1d(32))\n"
        "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n"
    ),
    "parametrized": plain(
        "torch.nn.utils.parametrizations.weight_norm(model[0])\n"
        "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n"
    ),
    "module without __init__": plain("odd = torch.nn.Linear.__new__(torch.nn.Linear)\n"),
    "class without hash": plain(
        "class Kind(type):\n    __hash__ = None\nclass Thing(metaclass=Kind): pass\n"
        "thing = Thing()\n"
    ),
    "LSTM": plain(
        (
            "model = torch.nn.LSTM(16, 8, batch_first=True)\n"
            "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n"
        ),
        loop=(
            "for step in range(STEPS):\n    optimizer.zero_grad(); model(torch.randn(4, 5,"
            " 16))[0].square().mean().backward(); optimizer.step(); time.sleep(PAUSE_S)\n"
        ),
    ),
    "convolutions": Program(
        BEGIN
        + (
            "model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(),"
            " torch.nn.LazyLinear(1))\nmodel(torch.zeros(1, 3, 6, 6))\n"
            "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n"
            "for step in range(STEPS): train(torch.randn(2, 3, 6, 6))\n"
        )
        + END,
        ("channels_last=true", "optim=adamw_foreach"),
    ),
    "convolutions of two kinds": Program(
        BEGIN
        + (
            "model = torch.nn.ModuleList([torch.nn.Conv2d(3, 4, 3), torch.nn.Conv3d(3, 4, 3)])\n"
            "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n"
            "for step in range(STEPS):\n    optimizer.zero_grad(); (model[0](torch.randn(1, 3, 5,"
            " 5)).mean() + model[1](torch.randn(1, 3, 4, 4, 4)).mean()).backward();"
            " optimizer.step(); time.sleep(PAUSE_S)\n"
        )
        + END,
        ("channels_last=true", "optim=adamw_foreach"),
    ),
    # --- torch's own machines ---------------------------------------------------------------------
    "compiled, fullgraph": plain("model = torch.compile(model, fullgraph=True, backend='eager')\n"),
    "compiled in place": plain("model.compile(backend='eager')\n"),
    "compiled block": plain("model[0].compile(backend='eager', fullgraph=True)\n"),
    "compiled step": plain(
        (
            "fast = torch.compile(lambda x: model(x).square().mean(), backend='eager',"
            " fullgraph=True)\n"
        ),
        loop=(
            "for step in range(STEPS):\n    optimizer.zero_grad(); fast(torch.randn(8,"
            " 16)).backward(); optimizer.step(); time.sleep(PAUSE_S)\n"
        ),
    ),
    "compiled late": plain(
        loop=(
            "for step in range(STEPS):\n    if step == 60: model.compile(backend='eager')\n"
            "    train(torch.randn(8, 16))\n"
        )
    ),
    "scripted": plain(
        "model = torch.jit.script(model)\noptimizer = torch.optim.AdamW(model.parameters(),"
        " lr=1e-3)\n"
    ),
    "traced": plain(
        "model.eval()\nmodel = torch.jit.trace(model, torch.ones(8, 16))\n"
        "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n"
    ),
    "fx": plain(
        "import torch.fx\n",
        "print(torch.fx.symbolic_trace(torch.nn.Sequential(*model)).code.count('('))\n",
    ),
    "fx of a trained model": plain(
        (
            "import torch.fx\nclass Outer(torch.nn.Module):\n    def __init__(self):"
            " super().__init__(); self.inner = model\n    def forward(self, x): return"
            " self.inner(x)\n"
        ),
        loop=(
            "for step in range(STEPS):\n    train(torch.randn(8, 16))\n    if step == 60:"
            " print(len(list(torch.fx.symbolic_trace(Outer()).graph.nodes)))\n"
        ),
    ),
    "export": plain(
        after=(
            "model.eval()\nprint(len(torch.export.export(model, (torch.ones(8,"
            " 16),)).graph.nodes))\n"
        )
    ),
    "functional": plain(
        (
            "from torch.func import functional_call, grad\n"
            "params = dict(model.named_parameters())\nmodel.eval()\n"
        ),
        loop=(
            "for step in range(STEPS):\n    g = grad(lambda p, x: functional_call(model, p,"
            " (x,)).square().mean())(params, torch.randn(8, 16))\n    for name in params:"
            " params[name].grad = g[name]\n    optimizer.step(); time.sleep(PAUSE_S)\n"
        ),
    ),
    "vmap": plain(after="print(torch.vmap(lambda x: x.sum())(torch.ones(3, 4)).tolist())\n"),
    "dispatch mode": plain(
        (
            "from torch.utils._python_dispatch import TorchDispatchMode\n"
            "class Count(TorchDispatchMode):\n    n = 0\n    def __torch_dispatch__(self, f, types,"
            " args=(), kwargs=None): Count.n += 1; return f(*args, **(kwargs or {}))\n"
        ),
        "print(Count.n)\n",
        loop="with Count():\n    for step in range(STEPS): train(torch.randn(8, 16))\n",
    ),
    "function mode": plain(
        (
            "from torch.overrides import TorchFunctionMode\n"
            "class Count(TorchFunctionMode):\n    n = 0\n    def __torch_function__(self, f, types,"
            " args=(), kwargs=None): Count.n += 1; return f(*args, **(kwargs or {}))\n"
        ),
        "print(Count.n)\n",
        loop="with Count():\n    for step in range(STEPS): train(torch.randn(8, 16))\n",
    ),
    "tensor subclass": plain(
        (
            "class Mine(torch.Tensor):\n    n = 0\n    @classmethod\n    def"
            " __torch_function__(cls, f, types, args=(), kwargs=None): Mine.n += 1; return"
            " super().__torch_function__(f, types, args, kwargs or {})\n"
        ),
        "print(Mine.n)\n",
        loop="for step in range(STEPS): train(torch.randn(8, 16).as_subclass(Mine))\n",
    ),
    "anomaly mode": plain("torch.autograd.set_detect_anomaly(True)\n"),
    "deterministic": plain("torch.use_deterministic_algorithms(True)\n"),
    "checkpointing": plain(
        "from torch.utils.checkpoint import checkpoint\n",
        loop=(
            "for step in range(STEPS):\n    optimizer.zero_grad(); checkpoint(model, torch.randn(8,"
            " 16), use_reentrant=False).square().mean().backward(); optimizer.step();"
            " time.sleep(PAUSE_S)\n"
        ),
    ),
    "autograd function": plain(
        (
            "class Double(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):"
            " return x * 2\n    @staticmethod\n    def backward(ctx, g): return g * 2\n"
        ),
        loop=(
            "for step in range(STEPS):\n    optimizer.zero_grad();"
            " Double.apply(model(torch.randn(8, 16))).square().mean().backward(); optimizer.step();"
            " time.sleep(PAUSE_S)\n"
        ),
    ),
    "saved tensor hooks": plain(
        "n = []\n",
        "print(len(n))\n",
        loop=(
            "with torch.autograd.graph.saved_tensors_hooks(lambda t: (n.append(1), t)[1], lambda t:"
            " t):\n    for step in range(STEPS): train(torch.randn(8, 16))\n"
        ),
    ),
    "profiler of torch": plain(
        "from torch.profiler import profile, schedule\n",
        loop=(
            "with profile(schedule=schedule(wait=5, warmup=2, active=3)) as prof:\n    for step in"
            " range(STEPS // 4): train(torch.randn(8, 16)); prof.step()\n"
            "print(len(prof.events()) > 0)\n"
        ),
    ),
    "inference mode": plain(
        after="with torch.inference_mode(): print(model.eval()(torch.ones(2, 16)).is_inference())\n"
    ),
    "deep copy and pickle": plain(
        "import copy, io\n",
        (
            "again = copy.deepcopy(model); buffer = io.BytesIO(); torch.save(model.state_dict(),"
            " buffer)\nprint(facts.digest(again.state_dict()), len(buffer.getvalue()))\n"
        ),
    ),
    "checkpoints": plain(
        loop=(
            "for step in range(STEPS):\n    train(torch.randn(8, 16))\n    if step % 40 == 39:"
            " torch.save({'model': model.state_dict(), 'optimizer': optimizer.state_dict(), 'step':"
            " step}, 'last.pt')\n"
        ),
        after="print(torch.load('last.pt')['step'], os.path.getsize('last.pt'))\n",
    ),
    "resumed": plain(
        loop=(
            "for step in range(STEPS):\n    train(torch.randn(8, 16))\n    if step == 60:"
            " optimizer.load_state_dict(optimizer.state_dict());"
            " model.load_state_dict(model.state_dict())\n"
        )
    ),
    "distributed, one process": plain(
        (
            "import torch.distributed as dist\nos.environ.update(MASTER_ADDR='127.0.0.1',"
            " MASTER_PORT=str(20000 + os.getpid() % 20000))\n"
            "dist.init_process_group('gloo', rank=0, world_size=1)\n"
            "model = torch.nn.parallel.DistributedDataParallel(model)\n"
        ),
        "dist.destroy_process_group()\n",
    ),
    # --- loaders ----------------------------------------------------------------------------------
    "loader": loading(),
    "loader in the header": loading(
        "",
        (
            "for epoch in range(4):\n    for x in torch.utils.data.DataLoader(Data(),"
            " batch_size=8): loss = train(x)\n    print(epoch, loss)\n"
        ),
    ),
    "loader by a generator": loading(
        "def batches():\n    yield from torch.utils.data.DataLoader(Data(), batch_size=8)\n",
        "for epoch in range(4):\n    for x in batches(): loss = train(x)\n    print(epoch, loss)\n",
    ),
    "iterator that outlives its loader": loading(
        "",
        (
            "for epoch in range(4):\n    it = iter(torch.utils.data.DataLoader(Data(),"
            " batch_size=8))\n    for x in it: train(x)\n"
        ),
    ),
    "first batch only": loading(
        "loader = torch.utils.data.DataLoader(Data(), batch_size=8, shuffle=True)\n",
        "for step in range(STEPS // 2): train(next(iter(loader)))\n",
    ),
    "two loaders in turn": loading(
        (
            "a, b = (torch.utils.data.DataLoader(Data(), batch_size=8, shuffle=True) for _ in"
            " range(2))\n"
        ),
        "for epoch in range(3):\n    for x, y in zip(a, b): train(x + y)\n",
    ),
    "loader for validation": loading(
        (
            "loader = torch.utils.data.DataLoader(Data(), batch_size=8)\n"
            "valid = torch.utils.data.DataLoader(Data(), batch_size=8)\n"
        ),
        (
            "for epoch in range(3):\n    for x in loader: train(x)\n    model.eval()\n    with"
            " torch.no_grad(): print(sum(model(x).sum().item() for x in valid))\n"
            "    model.train()\n"
        ),
    ),
    "broken off": loading(
        loop=(
            "for epoch in range(8):\n    for n, x in enumerate(loader):\n        train(x)\n"
            "        if n == 10: break\n"
        )
    ),
    "shuffled": loading(
        "loader = torch.utils.data.DataLoader(Data(), batch_size=8, shuffle=True,"
        " generator=torch.Generator().manual_seed(1))\n"
    ),
    "workers": loading(
        "loader = torch.utils.data.DataLoader(Data(), batch_size=8, num_workers=1)\n"
    ),
    "persistent workers": loading(
        (
            "loader = torch.utils.data.DataLoader(Data(), batch_size=8, num_workers=1,"
            " persistent_workers=True)\n"
        ),
        after="del loader\n",
    ),
    "curriculum": loading(
        (
            "data = Data(); data.level = 0\nseen = []\n"
            "class Data2(torch.utils.data.Dataset):\n    level = 0\n    def __len__(self): return 8"
            " * STEPS // 4\n    def __getitem__(self, n): time.sleep(PAUSE_S / 4); return"
            " torch.full((16,), float(self.level))\ndata = Data2()\n"
            "loader = torch.utils.data.DataLoader(data, batch_size=8)\n"
        ),
        (
            "stale = 0\nfor epoch in range(6):\n    data.level = epoch\n    for x in loader: stale"
            " += int((x != epoch).any(1).sum()); train(x)\nprint('stale', stale)\n"
        ),
    ),
    "open file": loading(
        "class Records(torch.utils.data.Dataset):\n    def __init__(self): self.file ="
        " open('records', 'rb')\n    def __len__(self): return 8 * STEPS // 4\n    def"
        " __getitem__(self, n):\n        self.file.seek(n * 8); time.sleep(PAUSE_S / 4); value ="
        " int.from_bytes(self.file.read(8), 'little'); assert value == n, (value, n); return"
        " torch.full((16,), float(n % 9))\n"
        "open('records', 'wb').write(b''.join(n.to_bytes(8, 'little') for n in range(8 * STEPS)))\n"
        "loader = torch.utils.data.DataLoader(Records(), batch_size=8)\n"
    ),
    "zip file": loading(
        "import zipfile\nwith zipfile.ZipFile('data.zip', 'w') as z:\n    for n in range(8 * STEPS"
        " // 4): z.writestr(str(n), str(n) * 50)\n"
        "class Zipped(torch.utils.data.Dataset):\n    def __init__(self): self.z ="
        " zipfile.ZipFile('data.zip')\n    def __len__(self): return 8 * STEPS // 4\n    def"
        " __getitem__(self, n): time.sleep(PAUSE_S / 4); assert self.z.read(str(n)) == (str(n) *"
        " 50).encode(); return torch.full((16,), float(n % 9))\n"
        "loader = torch.utils.data.DataLoader(Zipped(), batch_size=8)\n"
    ),
    "sqlite": loading(
        "import sqlite3\nc = sqlite3.connect('d.db'); c.execute('create table t (n int)');"
        " c.executemany('insert into t values (?)', [(n,) for n in range(8 * STEPS)]); c.commit();"
        " c.close()\nclass Rows(torch.utils.data.Dataset):\n    def __init__(self): self.c ="
        " sqlite3.connect('d.db')\n    def __len__(self): return 8 * STEPS // 4\n    def"
        " __getitem__(self, n): time.sleep(PAUSE_S / 4); return torch.full((16,),"
        " float(self.c.execute('select n from t where n = ?', (n,)).fetchone()[0] % 9))\n"
        "loader = torch.utils.data.DataLoader(Rows(), batch_size=8)\n"
    ),
    "memory map": loading(
        "import numpy\nnumpy.arange(STEPS * 32, dtype='float32').tofile('m.bin')\n"
        "class Mapped(torch.utils.data.Dataset):\n    def __init__(self): self.m ="
        " numpy.memmap('m.bin', dtype='float32', mode='r')\n    def __len__(self): return 8 * STEPS"
        " // 4\n    def __getitem__(self, n): time.sleep(PAUSE_S / 4); return"
        " torch.from_numpy(self.m[n:n + 16] % 7)\n"
        "loader = torch.utils.data.DataLoader(Mapped(), batch_size=8)\n"
    ),
    "random augmentation": loading(
        "import random, numpy\nclass Noisy(torch.utils.data.Dataset):\n    def __len__(self):"
        " return 8 * STEPS // 4\n    def __getitem__(self, n): time.sleep(PAUSE_S / 4); return"
        " torch.randn(16) + random.random() + numpy.random.rand()\n"
        "loader = torch.utils.data.DataLoader(Noisy(), batch_size=8)\n"
    )._replace(asks=True),
    "counter in the dataset": loading(
        (
            "class Counted(torch.utils.data.Dataset):\n    seen = 0\n    def __len__(self): return"
            " 8 * STEPS // 4\n    def __getitem__(self, n): self.seen += 1; time.sleep(PAUSE_S /"
            " 4); return torch.full((16,), float(n % 9))\ndata = Counted()\n"
            "loader = torch.utils.data.DataLoader(data, batch_size=8)\n"
        ),
        after="print(data.seen)\n",
    )._replace(asks=True),
    "lock in the dataset": loading(
        "import threading\nclass Locked(Data):\n    def __init__(self): self.lock ="
        " threading.Lock()\n    def __getitem__(self, n):\n        with self.lock: return"
        " super().__getitem__(n)\nloader = torch.utils.data.DataLoader(Locked(), batch_size=8)\n"
    ),
    "iterable dataset": loading(
        "class Stream(torch.utils.data.IterableDataset):\n    def __iter__(self):\n        for n in"
        " range(8 * STEPS // 4): time.sleep(PAUSE_S / 4); yield torch.full((16,), float(n % 9))\n"
        "loader = torch.utils.data.DataLoader(Stream(), batch_size=8)\n"
    ),
    "batches as dictionaries": loading(
        (
            "class Named(Data):\n    def __getitem__(self, n): return {'x': super().__getitem__(n),"
            " 'n': n}\nloader = torch.utils.data.DataLoader(Named(), batch_size=8)\n"
        ),
        "for epoch in range(4):\n    for b in loader: train(b['x'])\n",
    ),
    "batches of an odd class": loading(
        (
            "class Bag(dict):\n    __getattr__ = dict.__getitem__\n"
            "loader = torch.utils.data.DataLoader(Data(), batch_size=8, collate_fn=lambda items:"
            " Bag(x=torch.stack(items)))\n"
        ),
        "for epoch in range(4):\n    for b in loader: train(b.x)\n",
    ),
    "signature of DataLoader": loading(
        (
            "import inspect\ngiven = {'dataset': Data(), 'batch_size': 8, 'shuffle': False,"
            " 'unknown': 1}\nnames = inspect.getfullargspec(torch.utils.data.DataLoader.__init__)"
            ".args\nloader = torch.utils.data.DataLoader(**{k: v for k, v in given.items() if k in"
            " names})\n"
        ),
        after="print(loader.batch_size, len(names))\n",
    ),
    "subclass of DataLoader": loading(
        "class Mine(torch.utils.data.DataLoader):\n    def __iter__(self): return"
        " super().__iter__()\nloader = Mine(Data(), batch_size=8)\n"
    ),
    "batch sampler": loading(
        "loader = torch.utils.data.DataLoader(Data(), batch_sampler=[[n, n + 1] for n in range(0, 2"
        " * STEPS // 2, 2)])\n"
    ),
    "sampler that remembers": loading(
        (
            "class Order(torch.utils.data.Sampler):\n    def __init__(self): self.epoch = 0\n"
            "    def __iter__(self): self.epoch += 1; return iter(range(0, 8 * STEPS // 4))\n"
            "    def __len__(self): return 8 * STEPS // 4\norder = Order()\n"
            "loader = torch.utils.data.DataLoader(Data(), batch_size=8, sampler=order)\n"
        ),
        after="print(order.epoch)\n",
    ),
    "distributed sampler": loading(
        (
            "sampler = torch.utils.data.DistributedSampler(range(8 * STEPS // 4), num_replicas=1,"
            " rank=0)\nloader = torch.utils.data.DataLoader(Data(), batch_size=8,"
            " sampler=sampler)\n"
        ),
        "for epoch in range(4):\n    sampler.set_epoch(epoch)\n    for x in loader: train(x)\n",
    ),
    "children joined at the end": loading(
        "import multiprocessing\n",
        "loader = torch.utils.data.DataLoader(Data(), batch_size=8)\n" + EPOCHS,
        "for p in multiprocessing.active_children(): p.join()\n",
    ),
    "stateful loader": loading(
        "from torchdata.stateful_dataloader import StatefulDataLoader\n"
        "loader = StatefulDataLoader(Data(), batch_size=8)\n"
    )._replace(needs=("torchdata",)),
    # --- processes, threads, signals --------------------------------------------------------------
    "thread beside": plain(
        (
            "import threading\nn = []\nstop = threading.Event()\n"
            "def work():\n    while not stop.is_set(): n.append(1); time.sleep(0.005)\n"
            "t = threading.Thread(target=work, name='beside'); t.start()\n"
        ),
        "stop.set(); t.join(); print(len(n) > 1)\n",
    ),
    "trained in a thread": plain(
        "import threading\n",
        loop=(
            "def go():\n    torch.manual_seed(1)\n    for step in range(STEPS):"
            " train(torch.randn(8, 16))\nt = threading.Thread(target=go); t.start(); t.join()\n"
        ),
    ),
    "thread pool": plain(
        "from concurrent.futures import ThreadPoolExecutor\n",
        loop=(
            "with ThreadPoolExecutor(2) as pool:\n    for step in range(STEPS): pool.submit(lambda:"
            " None).result(); train(torch.randn(8, 16))\n"
        ),
    ),
    "asyncio": plain(
        "import asyncio\n",
        loop=(
            "async def main():\n    for step in range(STEPS): train(torch.randn(8, 16)); await"
            " asyncio.sleep(0)\nasyncio.run(main())\n"
        ),
    ),
    "fork": plain(
        loop=(
            "for step in range(STEPS):\n    train(torch.randn(8, 16))\n    if step == 60:\n"
            "        pid = os.fork()\n        if pid == 0: train(torch.randn(8, 16)); os._exit(3)\n"
            "        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
        )
    ),
    "fork that ends in order": plain(
        loop=(
            "for step in range(STEPS):\n    train(torch.randn(8, 16))\n    if step == 60 and"
            " os.fork() == 0: print('child'); sys.stdout.flush(); sys.exit(0)\nos.wait()\n"
        )
    ),
    "spawned process": whole(
        "import multiprocessing\ndef child(q): q.put(7)\nif __name__ == '__main__':"
        + (
            BEGIN
            + LOOP
            + (
                "q = multiprocessing.get_context('spawn').Queue()\n"
                "p = multiprocessing.get_context('spawn').Process(target=child, args=(q,));"
                " p.start(); print(q.get()); p.join(); print(p.exitcode)\ndel q"
            )
            + END
        ).replace("\n", "\n    ")
        + "\n"
    ),
    "pool of processes": plain(
        "import multiprocessing\n",
        loop=(
            "with multiprocessing.get_context('fork').Pool(2) as pool: print(pool.map(abs, [-1,"
            " -2]))\n"
        )
        + LOOP,
    ),
    "subprocess": plain(
        "import subprocess\n",
        (
            "print(subprocess.run([sys.executable, '-c', 'print(5)'], capture_output=True,"
            " text=True).stdout)\n"
        ),
    ),
    "python that trains in a subprocess": plain(
        "import subprocess\n",
        (
            "print(subprocess.run([sys.executable, '-c', 'import torch; m = torch.nn.Linear(1, 1);"
            " o = torch.optim.SGD(m.parameters(), lr=.1); m(torch.ones(1, 1)).sum().backward();"
            " o.step(); print(m.bias.grad)'], capture_output=True, text=True).stdout)\n"
        ),
    ),
    "exec": whole(
        (
            "import os, sys\nif os.environ.get('AGAIN') != '1': os.environ['AGAIN'] = '1';"
            " os.execv(sys.executable, [sys.executable, *sys.argv])\n"
        )
        + BEGIN
        + LOOP
        + END
    ),
    "exit code": plain(after="facts.end(model=model)\nsys.exit(5)\n"),
    "exit at once": plain(after="facts.end(model=model)\nsys.stdout.flush(); os._exit(4)\n"),
    "exception at the end": plain(after="facts.end(model=model)\nraise ValueError('bad data')\n"),
    "exception with a cause": plain(
        after=(
            "facts.end(model=model)\ntry: 1 / 0\nexcept ZeroDivisionError as e: raise"
            " RuntimeError('outer') from e\n"
        )
    ),
    "killed by a signal": plain(
        after=(
            "facts.end(model=model)\nsys.stdout.flush(); import signal; os.kill(os.getpid(),"
            " signal.SIGTERM); time.sleep(5)\n"
        )
    ),
    "interrupted": plain(
        "import signal, _thread\n",
        loop=(
            "try:\n    for step in range(STEPS):\n        train(torch.randn(8, 16))\n        if"
            " step == 100: signal.raise_signal(signal.SIGINT)\n"
            "except KeyboardInterrupt: print('interrupted at', step)\n"
        ),
    ),
    "preempted by an exception": plain(
        (
            "import signal\nclass Preempt(Exception): pass\ndef stop(*_): raise Preempt\n"
            "signal.signal(signal.SIGALRM, stop)\n"
        ),
        loop=(
            "caught = 0\nfor n in range(60):\n    signal.setitimer(signal.ITIMER_REAL, 0.004 + n %"
            " 7 * 0.0005)\n    try:\n        for _ in range(10): train(torch.randn(8, 16))\n"
            "    except Preempt: caught += 1\n    else: signal.setitimer(signal.ITIMER_REAL, 0)\n"
            "print('caught', caught)\nmodel = torch.nn.Linear(1, 1, bias=False);"
            " model.weight.data.zero_()\noptimizer = torch.optim.SGD(model.parameters(), lr=1)\n"
            "torch.manual_seed(0)\n"
        ),
    ),
    "checkpoint on a signal": plain(
        "import signal\nsaved = []\nsignal.signal(signal.SIGUSR1, lambda *_: saved.append(1))\n",
        "print(len(saved))\n",
        loop=(
            "for step in range(STEPS):\n    train(torch.randn(8, 16))\n    if step % 30 == 0:"
            " os.kill(os.getpid(), signal.SIGUSR1)\n"
        ),
    ),
    "timer": plain(
        (
            "import signal\nticks = []\nsignal.signal(signal.SIGPROF, lambda *_: ticks.append(1))\n"
            "signal.setitimer(signal.ITIMER_PROF, 0.05, 0.05)\n"
        ),
        "signal.setitimer(signal.ITIMER_PROF, 0); print(len(ticks) > 0)\n",
    ),
    "at exit": plain("import atexit\natexit.register(lambda: print('bye'))\n"),
    "printed while Python ends": plain(
        "class Last:\n    def __del__(self): print('gone')\nlast = Last()\n"
    ),
    "daemon": plain(
        after="facts.end(model=model)\nsys.stdout.flush()\nif os.fork(): os._exit(0)\nos.setsid()\n"
    ),
    "descriptors closed": plain("os.closerange(3, 64)\n"),
    "few descriptors": plain("import resource as _r\n_r.setrlimit(_r.RLIMIT_NOFILE, (24, 24))\n"),
    # --- output, logging, debuggers ---------------------------------------------------------------
    "printed frames": plain(
        (
            "class Out:\n    def __init__(self, o): self.o = o\n    def write(self, t):"
            " self.o.write(t if not t.strip() else f'[{sys._getframe(1).f_code.co_name}] {t}')\n"
            "    def flush(self): self.o.flush()\nsys.stdout = Out(sys.stdout)\n"
        ),
        "sys.stdout = sys.stdout.o\n",
    ),
    "print of its own": plain(
        (
            "import builtins\nshow = builtins.print\n"
            "builtins.print = lambda *a, **k: show('>', *a, **k)\n"
        ),
        "builtins.print = show\n",
    ),
    "logging": plain(
        (
            "import logging\nlogging.basicConfig(level=logging.INFO, stream=sys.stdout,"
            " format='%(name)s %(funcName)s %(lineno)d %(message)s')\n"
        ),
        loop=(
            "for step in range(STEPS):\n    loss = train(torch.randn(8, 16))\n    if step % 20 =="
            " 0: logging.info('step %d', step)\n"
        ),
    ),
    "logger of its own": plain(
        (
            "import logging\nclass Mine(logging.Logger):\n    def handle(self, record):"
            " print('handled', record.getMessage()); super().handle(record)\n"
            "logging.setLoggerClass(Mine)\nlog = logging.getLogger('mine');"
            " log.addHandler(logging.StreamHandler(sys.stdout)); log.setLevel(10)\n"
        ),
        loop=(
            "for step in range(STEPS):\n    train(torch.randn(8, 16))\n    if step % 40 == 0:"
            " log.info('x')\n"
        ),
    ),
    "caller of a log line": plain(
        (
            "import logging, inspect\nclass Find(logging.Handler):\n    def emit(self, record):\n"
            "        frame, depth = inspect.currentframe(), 0\n        while frame and (depth == 0"
            " or frame.f_code.co_filename == logging.__file__): frame = frame.f_back; depth += 1\n"
            "        print(frame.f_code.co_name, record.getMessage())\n"
            "logging.basicConfig(handlers=[Find()], level=0)\n"
        ),
        loop=(
            "def main():\n    for step in range(STEPS):\n        train(torch.randn(8, 16))\n"
            "        if step % 40 == 0: logging.info('step %d', step)\nmain()\n"
        ),
    ),
    "output captured": plain(
        "import contextlib, io\n",
        loop=(
            "kept = io.StringIO()\nwith contextlib.redirect_stdout(kept):\n    for step in"
            " range(STEPS): print(step, train(torch.randn(8, 16)))\nprint(len(kept.getvalue()))\n"
        ),
    ),
    "stdout closed": plain(after="facts.end(model=model)\nsys.stdout.close()\n"),
    "binary output": plain(after="sys.stdout.buffer.write(bytes(range(256)))\n"),
    "input to its end": plain(after="print(len(sys.stdin.read()))\n"),
    "warnings as errors": plain("import warnings\nwarnings.simplefilter('error')\n"),
    "every warning": plain("import warnings\nwarnings.simplefilter('always')\n"),
    "exception hook": plain(
        "sys.excepthook = lambda t, v, tb: print('hooked', t.__name__)\n",
        "facts.end(model=model)\nraise ValueError\n",
    ),
    "trace function": plain(
        (
            "seen = set()\ndef tracer(frame, event, arg):"
            " seen.add(frame.f_code.co_filename.rsplit('/', 1)[-1]); return None\n"
            "sys.settrace(tracer)\n"
        ),
        "sys.settrace(None)\nprint(sorted(n for n in seen if 'gpuconsole' in n))\n",
    ),
    "profile function": plain(
        (
            "n = []\nsys.setprofile(lambda f, e, a: n.append(1) if f.f_code.co_name == 'train' and"
            " e == 'call' else None)\n"
        ),
        "sys.setprofile(None)\nprint(len(n))\n",
    ),
    "import hook": plain(
        (
            "import builtins\nreal, n = builtins.__import__, []\n"
            "def hooked(name, *a, **k): n.append(name); return real(name, *a, **k)\n"
            "builtins.__import__ = hooked\n"
        ),
        "builtins.__import__ = real\nprint([x for x in n if 'gpuconsole' in x])\n",
    ),
    "finder": plain(
        (
            "class F:\n    @staticmethod\n    def find_spec(name, path=None, target=None): return"
            " None\nsys.meta_path.insert(0, F)\n"
        ),
        "print(sys.meta_path[0] is F)\n",
    ),
    "module of the name resource": plain(
        "open('resource.py', 'w').write('print(\"mine\")\\n')\n",
        loop="for step in range(STEPS * 3): train(torch.randn(8, 16))\n",
    ),
    "collector off": plain("import gc\ngc.disable()\n"),
    "collector frozen": plain("import gc\ngc.freeze()\n"),
    "collector debugged": plain(
        "import gc\ngc.callbacks.append(lambda *a: None)\n", "print(len(gc.callbacks))\n"
    ),
    "folder changed": plain("os.makedirs('sub', exist_ok=True); os.chdir('sub')\n"),
    "folder removed": plain(
        (
            "here = os.getcwd(); os.makedirs('gone', exist_ok=True); os.chdir('gone');"
            " os.rmdir('../gone')\n"
        ),
        "os.chdir(here)\n",
    ),
    "script removed": plain("os.remove(__file__)\n"),
    "environment cleared": plain(
        "facts_file = os.environ['FACTS']\nos.environ.clear()\n",
        "os.environ['FACTS'] = facts_file\n",
    ),
    "environment shown": plain(
        after=(
            "print(sorted(n for n in os.environ if 'GPUCONSOLE' not in n and n not in"
            " ('PYTHONPATH', 'FACTS')))\n"
        )
    ),
    "weak references": plain(
        "import weakref\nref = weakref.ref(model[0])\n", "layer = model[0]; print(ref() is layer)\n"
    ),
    "tensors freed": plain(
        "import weakref\nalive = []\n",
        loop=(
            "for step in range(STEPS):\n    x = torch.randn(8, 16); alive.append(weakref.ref(x));"
            " train(x); del x\nprint(sum(r() is not None for r in alive))\n"
        ),
    ),
    "memory of the loop": plain(
        "import gc\n",
        "gc.collect(); print(sum(isinstance(o, torch.Tensor) for o in gc.get_objects()))\n",
    ),
    # --- libraries, where they are installed ------------------------------------------------------
    "coverage": whole(
        "import coverage\ncov = coverage.Coverage(source=['.'], data_file=None); cov.start()\n"
        + BEGIN
        + LOOP
        + "cov.stop()\n"
        + END,
        "coverage",
    ),
    "loguru": plain(
        (
            "from loguru import logger\nlogger.remove(); logger.add(sys.stdout, format='{function}"
            " {message}')\n"
        ),
        loop=(
            "for step in range(STEPS):\n    train(torch.randn(8, 16))\n    if step % 40 == 0:"
            " logger.info('step {}', step)\n"
        ),
    )._replace(needs=("loguru",)),
    "tqdm": plain(
        "from tqdm import tqdm\n",
        loop="for step in tqdm(range(STEPS), file=open('bar', 'w')): train(torch.randn(8, 16))\n",
    )._replace(needs=("tqdm",)),
    "rich": plain(
        "from rich.progress import track\n",
        loop="for step in track(range(STEPS), disable=True): train(torch.randn(8, 16))\n",
    )._replace(needs=("rich",)),
    "numba": whole(
        "import numba\n@numba.njit\ndef add(n): print(n); return n + 1\n"
        + BEGIN
        + LOOP
        + "print(add(1))\n"
        + END,
        "numba",
    ),
    "accelerate": plain(
        "from accelerate import Accelerator\nacc = Accelerator(cpu=True)\n"
        "model, optimizer = acc.prepare(model, optimizer)\n"
    )._replace(needs=("accelerate",)),
    "lightning": whole(BEGIN + "import lightning\n" + LOOP + END, "lightning"),
    "tensorboard": plain(
        "from torch.utils.tensorboard import SummaryWriter\nw = SummaryWriter('tb')\n",
        "w.close()\n",
        loop="for step in range(STEPS): w.add_scalar('loss', train(torch.randn(8, 16)), step)\n",
    )._replace(needs=("tensorboard",)),
    "HDF5": loading(
        "import h5py\nwith h5py.File('d.h5', 'w') as f: f['x'] = [float(n % 9) for n in range(8 *"
        " STEPS)]\nclass H(torch.utils.data.Dataset):\n    def __init__(self): self.f ="
        " h5py.File('d.h5')\n    def __len__(self): return 8 * STEPS // 4\n    def"
        " __getitem__(self, n): time.sleep(PAUSE_S / 4); return torch.full((16,),"
        " float(self.f['x'][n]))\nloader = torch.utils.data.DataLoader(H(), batch_size=8)\n"
    )._replace(needs=("h5py",)),
}
