# A step that runs out of memory is caught, and repeated with half of the batch, with the state taken back.
import copy
import hashlib

import torch


class Net(torch.nn.Module):
    room = 64

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)

    def forward(self, inputs):
        if len(inputs) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return self.layer(inputs)


def step(inputs):
    optimizer.zero_grad()
    total = 0.0
    for part in inputs.split(size):
        loss = model(part).square().sum() / len(inputs)
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total


torch.manual_seed(0)
model, size, tries = Net(), 256, []
optimizer = torch.optim.AdamW(model.parameters())
for number in range(150):
    inputs = torch.randn(256, 16)
    Net.room = 64 if number < 70 else 16
    while True:
        before = copy.deepcopy(optimizer.state_dict())
        try:
            loss = step(inputs)
            break
        except torch.OutOfMemoryError as error:
            tries.append((number, size, str(error)[:10], error.__traceback__.tb_next is not None))
            optimizer.load_state_dict(before)
            size //= 2
print(tries, round(loss, 6), hashlib.sha1(model.layer.weight.detach().numpy().tobytes()).hexdigest()[:12])
