# A sample that cannot be read, in a worker: the message of the worker, and the loop that goes on with a new iterator.
import torch
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, number):
        if number == 117:
            raise KeyError(f"sample {number}")
        return torch.full((8,), number / 200)


torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for workers in (0, 2):
    for epoch in range(2):
        steps = 0
        try:
            for inputs in DataLoader(Data(), batch_size=4, num_workers=workers):
                optimizer.zero_grad()
                loss = model(inputs).square().mean()
                loss.backward()
                optimizer.step()
                steps += 1
        except KeyError as error:
            names = [
                line.strip().split(" in ")[-1] for line in str(error).replace("\\n", "\n").splitlines() if line.strip().startswith("File")
            ]
            print(workers, epoch, steps, names, str(error)[:60])
print(round(loss.item(), 6))
