# A prefetcher of a public repository: a background thread wraps any loader, with a queue, and hands exceptions over.
import hashlib
import queue
import threading

import torch
from torch.utils.data import DataLoader, TensorDataset


class Background(threading.Thread):
    def __init__(self, source, room=4):
        super().__init__(daemon=True)
        self.queue, self.source = queue.Queue(room), source
        self.start()

    def run(self):
        try:
            for batch in self.source:
                self.queue.put(tuple(part.clone() for part in batch))
            self.queue.put(StopIteration())
        except BaseException as error:
            self.queue.put(error)

    def __iter__(self):
        return self

    def __next__(self):
        batch = self.queue.get(timeout=30)
        if isinstance(batch, BaseException):
            self.join()
            raise batch
        return batch


class Prefetched(DataLoader):
    def __iter__(self):
        return Background(super().__iter__())


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters())
loader = Prefetched(
    TensorDataset(torch.randn(400, 8), torch.randint(0, 2, (400,))), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3)
)
order = []
for epoch in range(3):
    for inputs, targets in loader:
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        order.append(round(inputs.sum().item(), 4))
print(len(order), hashlib.sha1(str(order).encode()).hexdigest()[:12], threading.active_count(), round(loss.item(), 6))
