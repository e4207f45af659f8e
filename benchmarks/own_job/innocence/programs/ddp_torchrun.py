# command: torchrun --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:0 --log-dir /tmp {program}
# DDP by torchrun on gloo: no_sync, a reduced loss, a join of uneven data, and a communication hook that counts buckets.
import hashlib
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)))
buckets = []


def reduced(state, bucket):
    buckets.append(bucket.index())
    future = dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


model.register_comm_hook(None, reduced)
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(320, 8))
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=4, sampler=sampler)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for number, (inputs,) in enumerate(loader):
        if number % 4:
            with model.no_sync():
                model(inputs).square().mean().backward()
            continue
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
total = loss.detach().clone()
dist.all_reduce(total)
gathered = [None, None]
dist.all_gather_object(gathered, (rank, len(buckets), hashlib.sha1(model.module[0].weight.detach().numpy().tobytes()).hexdigest()[:12]))
if rank == 0:
    print(gathered, round(total.item(), 6), sorted(n for n in os.environ if n in ("RANK", "WORLD_SIZE", "LOCAL_RANK")))
dist.destroy_process_group()
