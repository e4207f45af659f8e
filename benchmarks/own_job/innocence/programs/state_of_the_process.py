# What a program can see of its process that is not the agent's own: handlers, hooks, finders, limits, switches, codes of torch.
import builtins
import locale
import os
import resource
import signal
import sys
import threading
import time

import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters())
intervals = set()
for _ in range(200):
    intervals.add(sys.getswitchinterval())
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    time.sleep(0.003)
handlers = {
    number.name: str(getattr(signal.getsignal(number), "__name__", signal.getsignal(number)))
    for number in signal.valid_signals()
    if hasattr(number, "name")
}
print(sorted((name, handler) for name, handler in handlers.items() if not name.startswith("SIGRT") and "DFL" not in handler))
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getitimer(signal.ITIMER_REAL), signal.getitimer(signal.ITIMER_PROF))
print(
    [resource.getrlimit(kind) for kind in (resource.RLIMIT_CORE, resource.RLIMIT_STACK)],
    os.getpriority(os.PRIO_PROCESS, 0),
    len(os.sched_getaffinity(0)),
)
# by design the switch interval is short while the agent waits for a sample of the stack: only the usual one is compared
print("interval", max(intervals), "recursion", sys.getrecursionlimit(), "int digits", sys.get_int_max_str_digits())
print(
    sys.gettrace(),
    sys.getprofile(),
    threading.gettrace(),
    threading.getprofile(),
    sys.excepthook is sys.__excepthook__,
    sys.displayhook is sys.__displayhook__,
)
print(
    builtins.print is print,
    builtins.__import__.__module__,
    builtins.open.__module__,
    threading.excepthook.__name__,
    sys.unraisablehook.__name__,
)
print(
    sys.argv[0].rsplit("/", 1)[-1],
    sys.orig_argv[1:],
    sys.flags,
    locale.setlocale(locale.LC_ALL),
    os.getcwd() == sys.path[0],
    __name__,
    __spec__,
)
print(
    torch.get_num_threads(),
    torch.is_grad_enabled(),
    torch.get_default_dtype(),
    torch.backends.mkldnn.enabled,
    torch._C._get_tracing_state(),
)
print(
    sorted(name for name in vars(torch) if "console" in name), [len(threading.enumerate()), threading.active_count()], round(loss.item(), 6)
)
