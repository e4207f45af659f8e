# Gradient accumulation over uneven microbatches, clipping, a warm-up, groups with different rates, and a last partial step.
import hashlib

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.AdamW(
    [{"params": model[0].parameters(), "lr": 1e-3}, {"params": [*model[1].parameters(), *model[3].parameters()], "lr": 5e-3}]
)
scheduler = torch.optim.lr_scheduler.SequentialLR(
    optimizer,
    [torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10), torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 90)],
    [10],
)
loader = DataLoader(TensorDataset(torch.randn(1003, 8), torch.randint(0, 4, (1003,))), batch_size=7, shuffle=True)
norms, steps = [], 0
for epoch in range(2):
    for number, (inputs, targets) in enumerate(loader, 1):
        loss = torch.nn.functional.cross_entropy(model(inputs), targets) / 4
        loss.backward()
        if number % 4 == 0 or number == len(loader):
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad(set_to_none=epoch == 0)
            steps += 1
print(steps, round(sum(norms), 5), scheduler.get_last_lr(), round(loss.item(), 6))
print(hashlib.sha1(model[0].weight.detach().numpy().tobytes()).hexdigest()[:12], sorted(vars(scheduler)))
