"""The edges of a batch of graphs are joined node by node in `collate_fn`. Fixed: by offsets of whole tensors."""

import pace
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Graphs(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(20, 16, generator=generator), torch.randint(20, (2, 60), generator=generator), index % 3


def join(graphs):
    nodes, edges, labels = zip(*graphs, strict=True)
    if pace.FIXED:
        joined = torch.cat([edge + 20 * n for n, edge in enumerate(edges)], 1)
    else:
        joined = torch.empty(2, 60 * len(edges), dtype=torch.long)
        for n, edge in enumerate(edges):
            for k in range(edge.shape[1]):  # slow
                joined[0, 60 * n + k] = edge[0, k] + 20 * n  # slow
                joined[1, 60 * n + k] = edge[1, k] + 20 * n  # slow
    return torch.stack(nodes), joined, torch.tensor(labels)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(16, 256), nn.Linear(256, 256), nn.Linear(256, 3)

    def forward(self, nodes, edges):
        h = torch.relu(self.a(nodes)).flatten(0, 1)
        h = torch.relu(self.b(h).index_add(0, edges[1], h[edges[0]]))
        return self.head(h.view(len(nodes), -1, 256).mean(1))


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for nodes, edges, labels in DataLoader(Graphs(), batch_size=32, shuffle=True, collate_fn=join):
    loss = nn.functional.cross_entropy(model(nodes, edges), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if not pace.goes_on():
        break
