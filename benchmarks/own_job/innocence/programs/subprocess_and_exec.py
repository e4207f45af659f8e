# The job starts a preprocessing script and an evaluation as subprocesses, then replaces itself by its next stage (os.execv).
import os
import subprocess
import sys

stage = int(os.environ.get("STAGE", "0"))
code = "import sys, os; print('prepared', len(sys.argv), sorted(t for t in os.listdir('.') if t.endswith('.py'))[:3])"
print("stage", stage, subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip(), flush=True)
import torch

torch.manual_seed(stage)
model = torch.nn.Linear(8, 1)
if stage:
    model.load_state_dict(torch.load("stage.pt"))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(80):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), "stage.pt")
evaluate = "import torch; m = torch.nn.Linear(8, 1); m.load_state_dict(torch.load('stage.pt')); print(round(m(torch.ones(1, 8)).item(), 5))"
done = subprocess.run([sys.executable, "-I", "-c", evaluate], capture_output=True, text=True, check=False)
print(done.returncode, done.stdout.strip(), done.stderr, round(loss.item(), 6), flush=True)
if stage < 1:
    os.environ["STAGE"] = str(stage + 1)
    os.execv(sys.executable, [sys.executable, *sys.argv])
