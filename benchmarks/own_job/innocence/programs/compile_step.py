# The whole step is compiled: forward, loss, backward and the optimizer in one function, then compiled autograd and an inference copy.
import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounter

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
of_step, of_update, of_eval = CompileCounter(), CompileCounter(), CompileCounter()


@torch.compile(backend=of_step)
def step(inputs):
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    return loss


for _ in range(30):
    loss = step(torch.randn(4, 8))
print("step", of_step.frame_count, of_step.op_count, round(loss.item(), 6))
update = torch.compile(optimizer.step, backend=of_update)
for _ in range(30):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    update()
print("update", of_update.frame_count, of_update.op_count)
evaluate = torch.compile(model.eval(), backend=of_eval, dynamic=True)
with torch.no_grad():
    print([round(evaluate(torch.ones(n, 8)).sum().item(), 5) for n in (2, 3, 5)], of_eval.frame_count)
