# needs: coverage
# A script that measures its own coverage, of every file that is not a library, and prints the lines.
import coverage

measured = coverage.Coverage(branch=True, data_file=None, omit=["*/site-packages/*"])
measured.start()
import torch


def loss_of(model, inputs):
    out = model(inputs)
    if out.shape[0] == 3:
        return out.sum()
    return out.square().mean()


def train(steps):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        loss = loss_of(model, torch.randn(4, 8))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


print(round(train(120), 6))
measured.stop()
data = measured.get_data()
for name in sorted(data.measured_files()):
    if "/lib/python" not in name:
        print(name.rsplit("/", 1)[-1], len(data.lines(name)), len(data.arcs(name)))
