# Mixed precision on a CPU: autocast in bfloat16 and a GradScaler that finds infinite gradients now and then.
import hashlib

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=20)
scales, skipped = [], 0
for step in range(120):
    inputs, targets = torch.randn(8, 16), torch.randint(0, 4, (8,))
    with torch.autocast("cpu", torch.bfloat16):
        out = model(inputs)
        loss = torch.nn.functional.cross_entropy(out.float(), targets)
    optimizer.zero_grad()
    scaler.scale(loss * (float("inf") if step % 40 == 39 else 1)).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    before = optimizer.state_dict()["state"].get(0, {}).get("step", torch.tensor(0.0)).item()
    scaler.step(optimizer)
    scaler.update()
    skipped += optimizer.state_dict()["state"].get(0, {}).get("step", torch.tensor(0.0)).item() == before
    scales.append(scaler.get_scale())
print(out.dtype, skipped, scales[::20], scaler.state_dict(), torch.is_autocast_enabled("cpu"))
print(round(loss.item(), 6), hashlib.sha1(model[0].weight.detach().numpy().tobytes()).hexdigest()[:12])
