# needs: safetensors
# Checkpoints by torch.save, safetensors and torch.distributed.checkpoint; the training is resumed from each and must go on alike.
import hashlib
import os
import random
import shutil
import warnings

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

warnings.simplefilter("ignore")


def made():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
    return model, torch.optim.AdamW(model.parameters())


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8) + random.random()).square().mean()
        loss.backward()
        optimizer.step()
    return round(loss.item(), 6)


random.seed(0)
model, optimizer = made()
print(train(model, optimizer, 60))
rng = torch.get_rng_state(), random.getstate()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": rng}, "last.pt")
save_file(model.state_dict(), "last.safetensors", metadata={"step": "60"})
dcp.save({"model": model.state_dict()}, checkpoint_id="last")
print(hashlib.sha1(open("last.safetensors", "rb").read()).hexdigest()[:12], os.path.getsize("last.pt"), sorted(os.listdir("last")))
for kind in ("pt", "safetensors", "dcp"):
    other, of_other = made()
    state = torch.load("last.pt", weights_only=False)
    of_other.load_state_dict(state["optimizer"])
    if kind == "pt":
        other.load_state_dict(state["model"])
    elif kind == "safetensors":
        other.load_state_dict(load_file("last.safetensors"))
    else:
        loaded = {"model": other.state_dict()}
        dcp.load(loaded, checkpoint_id="last")
        other.load_state_dict(loaded["model"])
    torch.set_rng_state(state["rng"][0])
    random.setstate(state["rng"][1])
    print(kind, train(other, of_other, 40))
shutil.rmtree("last")
