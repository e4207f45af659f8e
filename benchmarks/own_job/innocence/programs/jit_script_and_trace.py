# TorchScript: a scripted and a traced model, trained, saved and loaded; scripting again in the middle of a training.
import hashlib
import warnings

import torch

warnings.simplefilter("ignore")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.steps = 0

    def forward(self, inputs):
        if inputs.shape[0] > 4:
            return self.layer(inputs).relu().sum(1)
        return self.layer(inputs).sum(1)

    @torch.jit.export
    def count(self, n: int) -> int:
        self.steps += n
        return self.steps


torch.manual_seed(0)
plain = Net()
for name, model in (("script", torch.jit.script(Net())), ("trace", torch.jit.trace(Net(), torch.ones(8, 8))), ("plain", plain)):
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(60):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 8)).square().mean()
        loss.backward()
        optimizer.step()
    if name != "plain":
        model.save(f"{name}.pt")
        loaded = torch.jit.load(f"{name}.pt")
        print(name, round(loaded(torch.ones(8, 8)).sum().item(), 5), len(model.code), hashlib.sha1(model.code.encode()).hexdigest()[:10])
        import os

        os.remove(f"{name}.pt")
    print(name, round(loss.item(), 6))
again = torch.jit.script(plain)
print(again.count(3), sorted(name for name, _ in again.named_parameters()), torch.jit.trace(plain, torch.ones(8, 8)).code.count("\n"))
