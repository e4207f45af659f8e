# needs: accelerate
# An Accelerate loop: accumulation, gather_for_metrics, clipping, a scheduler, state saved, and a skipped first part after resuming.
import hashlib
import shutil

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

set_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 20)
loader = DataLoader(TensorDataset(torch.randn(240, 8), torch.randint(0, 3, (240,))), batch_size=4, shuffle=True)
model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)


def epoch(batches):
    right = stepped = 0
    for inputs, targets in batches:
        with accelerator.accumulate(model):
            out = model(inputs)
            loss = torch.nn.functional.cross_entropy(out, targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            stepped += accelerator.sync_gradients
        right += (accelerator.gather_for_metrics(out.argmax(1)) == targets).sum().item()
    return right, stepped, round(loss.item(), 6)


print(epoch(loader), epoch(loader))
accelerator.save_state("state")
print(epoch(loader))
accelerator.load_state("state")
print(epoch(accelerator.skip_first_batches(loader, 30)), scheduler.get_last_lr())
print(
    hashlib.sha1(accelerator.unwrap_model(model)[0].weight.detach().numpy().tobytes()).hexdigest()[:12],
    type(model).__name__,
    type(loader).__name__,
)
shutil.rmtree("state")
