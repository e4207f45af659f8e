# needs: tensorboard, tqdm
# Scalars, histograms and a graph by SummaryWriter, read back; tqdm bars with a postfix, into a text that is compared.
import io
import shutil
import warnings

import torch
from tqdm import tqdm, trange

warnings.simplefilter("ignore")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters())
text, updates = io.StringIO(), 0
with SummaryWriter("runs") as writer:
    writer.add_graph(model, torch.ones(1, 8))
    for epoch in trange(3, file=text, bar_format="{n}/{total} {desc}", mininterval=0):
        bar = tqdm(range(40), file=text, bar_format="{desc} {n}/{total}{postfix}", leave=False, mininterval=0, miniters=1)
        for step in bar:
            loss = model(torch.randn(4, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            writer.add_scalar("loss", loss, epoch * 40 + step)
            bar.set_postfix(loss=f"{loss.item():.5f}")
        writer.add_histogram("weights", model[0].weight, epoch)
read = EventAccumulator("runs", size_guidance={"scalars": 0})
read.Reload()
scalars = read.Scalars("loss")
print(len(scalars), [round(one.value, 5) for one in scalars[::30]], len(read.Histograms("weights")), read.Tags()["graph"])
print(len(text.getvalue().split("\r")), text.getvalue().split("\r")[-3:])
print([round(loss.item(), 6)], tqdm.monitor_interval, len(tqdm._instances))
shutil.rmtree("runs")
