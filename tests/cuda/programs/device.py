"""What torch does on one simulated card; prints the results as JSON. Values are computed."""

from __future__ import annotations

import json
import time

import torch
import torch.nn.functional as F

GPU = torch.device("cuda", 0)
found: dict[str, object] = {"name": torch.cuda.get_device_name(), "count": torch.cuda.device_count()}


def trained(device: str) -> list[float]:
    """Losses of a small network with all that a training step uses."""
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(144, 32), torch.nn.LayerNorm(32)]
    model = torch.nn.Sequential(*layers, torch.nn.GELU(), torch.nn.Linear(32, 5)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    images, labels = torch.randn(8, 3, 8, 8).to(device), torch.arange(8).remainder(5).to(device)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


found["losses"] = {device: trained(device) for device in ("cpu", "cuda")}

query = torch.randn(2, 4, 16, 8, device=GPU, requires_grad=True)
F.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()
host = query.detach().cpu().requires_grad_()
F.scaled_dot_product_attention(host, host, host, is_causal=True).sum().backward()
assert query.grad is not None and host.grad is not None
found["attention_error"] = (query.grad.cpu() - host.grad).abs().max().item()

begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
torch.cuda.synchronize()
start = time.perf_counter()
begin.record()
torch.cuda._sleep(int(0.1 * 1.98e9))
end.record()
found["launch_s"] = time.perf_counter() - start
end.synchronize()
found["event_s"] = begin.elapsed_time(end) * 1e-3
found["waited_s"] = time.perf_counter() - start

side = torch.cuda.Stream()
torch.cuda._sleep(int(0.1 * 1.98e9))
pinned, pageable = torch.zeros(2_500_000, pin_memory=True), torch.zeros(2_500_000)
start = time.perf_counter()
with torch.cuda.stream(side):
    moved = pinned.to(GPU, non_blocking=True)
found["pinned_host_s"] = time.perf_counter() - start
side.synchronize()
found["overlapped_s"] = time.perf_counter() - start
torch.cuda.current_stream().wait_stream(side)
moved.record_stream(torch.cuda.current_stream())
torch.cuda.synchronize()
start = time.perf_counter()
copied = pageable.to(GPU, non_blocking=True)
found["pageable_host_s"] = time.perf_counter() - start

before = torch.cuda.memory_allocated()
block = torch.empty(30 * 2**20, dtype=torch.uint8, device=GPU)
view = block[:100].view(10, 10)
found["allocated"] = torch.cuda.memory_allocated() - before
found["view_shares"] = view.untyped_storage().data_ptr() == block.untyped_storage().data_ptr()
del block
found["kept_by_the_view"] = torch.cuda.memory_allocated() - before
del view
found["freed"] = torch.cuda.memory_allocated() - before
try:
    torch.empty(100 * 2**30, dtype=torch.uint8, device=GPU)
except torch.OutOfMemoryError as error:
    found["out_of_memory"] = str(error)

state = torch.cuda.get_rng_state()
first = torch.rand(3, device=GPU)
torch.cuda.set_rng_state(state)
found["random_repeats"] = torch.equal(first, torch.rand(3, device=GPU))

linear = torch.nn.Linear(1024, 1024).to(GPU)
held = torch.cuda.memory_allocated()
linear.to(torch.bfloat16)
found["freed_by_a_swap"] = held - torch.cuda.memory_allocated()
print(json.dumps(found))
