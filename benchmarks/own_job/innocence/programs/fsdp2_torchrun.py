# command: torchrun --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:0 --log-dir /tmp {program}
# FSDP2 by torchrun on gloo: sharded blocks, clipping, and a distributed checkpoint that is saved and loaded.
import hashlib
import shutil
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

warnings.simplefilter("ignore")
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU()) for _ in range(3)), torch.nn.Linear(16, 1))
for block in model:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(steps):
    torch.manual_seed(rank)
    for _ in range(steps):
        loss = model(torch.randn(4, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return round(loss.item(), 5)


def digest():
    whole = [p.full_tensor().detach().numpy().tobytes() for p in model.parameters()]
    return hashlib.sha1(b"".join(whole)).hexdigest()[:12]


first = train(40)
state = get_model_state_dict(model)
checkpoint.save(state, checkpoint_id="sharded")
saved = digest()
second = train(20)
state = get_model_state_dict(model)
checkpoint.load(state, checkpoint_id="sharded")
set_model_state_dict(model, state)
again, last = digest(), digest()
if rank == 0:
    print(first, second, saved == again, last, type(model).__name__, type(model).__mro__[1].__name__)
    shutil.rmtree("sharded")
dist.barrier()
dist.destroy_process_group()
