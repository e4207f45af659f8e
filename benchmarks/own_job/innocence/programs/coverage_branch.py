# needs: coverage
# command: bash -c "coverage run --branch {program} && coverage report --fail-under=80 && coverage json -q -o c.json && {python} -c 'import json; d = json.load(open(\"c.json\")); print(sorted(d[\"files\"])); print(d[\"totals\"][\"num_branches\"], d[\"totals\"][\"covered_branches\"]); import os; os.remove(\"c.json\"); os.remove(\".coverage\")'"
# A training script under coverage with branches, which fails where less than 80 % are covered.
import torch
from torch.utils.data import DataLoader, TensorDataset


def batch_loss(model, inputs, flip=False):
    if flip:
        inputs = inputs.flip(1)
    if inputs.shape[0] > 100:
        raise ValueError("too large")
    return model(inputs).square().mean()


def save(model, epoch):
    torch.save(model.state_dict(), f"epoch{epoch}.pt")


def train():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(torch.randn(400, 8)), batch_size=8)
    for epoch in range(3):
        for number, (inputs,) in enumerate(loader):
            loss = batch_loss(model, inputs, flip=number % 2 == 1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch == 2:
            save(model, epoch)
        print(epoch, round(loss.item(), 6))


if __name__ == "__main__":
    train()
