# Logging with the caller, stack_info, stacklevel and a factory that counts frames, from forward, hooks, a closure and collate.
import logging
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

depths = set()
make = logging.getLogRecordFactory()


def factory(*args, **kwargs):
    depth, frame = 0, sys._getframe()
    while frame:
        depth, frame = depth + 1, frame.f_back
    depths.add(depth)
    return make(*args, **kwargs)


logging.setLogRecordFactory(factory)
logging.basicConfig(
    stream=sys.stdout, level=logging.INFO, format="%(levelname)s %(module)s.%(funcName)s:%(lineno)d %(threadName)s %(message)s"
)
log = logging.getLogger("train")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = torch.nn.Linear(8, 1), 0

    def forward(self, inputs):
        self.calls += 1
        if self.calls in (1, 30, 90):
            log.info("forward %d", self.calls, stack_info=True)
            log.info("two levels up", stacklevel=4)
        return self.layer(inputs)


def collate(items):
    if items[0][0].item() == 0:
        log.warning("first batch", stack_info=True)
    return torch.stack([torch.full((8,), float(number)) for (number,) in items]) / 100


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for batch in DataLoader(TensorDataset(torch.arange(200)), batch_size=4, collate_fn=collate):

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            if model.calls == 70:
                log.info("closure", stack_info=True)
            return loss

        loss = optimizer.step(closure)
    log.info("epoch %d loss %.6f", epoch, loss.item())
print(sorted(depths), [type(handler).__name__ for handler in logging.getLogger().handlers], logging.getLogger().filters)
