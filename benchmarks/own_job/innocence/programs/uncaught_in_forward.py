# Ends by an exception in forward that nobody catches, with a cause: the whole traceback is compared.
# exit: 1
import torch


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = torch.nn.Linear(8, 8), 0

    def forward(self, inputs):
        self.calls += 1
        try:
            if self.calls == 90:
                inputs = inputs[:, :4]
            return self.layer(inputs)
        except RuntimeError as error:
            raise ValueError(f"block got {tuple(inputs.shape)}") from error


torch.manual_seed(0)
model = torch.nn.Sequential(Block(), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())


def train():
    for step in range(200):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        if step % 30 == 0:
            print(step, round(loss.item(), 6), flush=True)


train()
