# torch.func: per-sample gradients by vmap of grad, functional_call, jvp, an ensemble, and an optimizer that is fed by hand.
import hashlib

import torch
from torch.func import functional_call, grad, jvp, stack_module_state, vmap

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
params = {name: value.detach() for name, value in model.named_parameters()}


def loss_of(params, sample, target):
    return (functional_call(model, params, (sample[None],))[0, 0] - target).square()


per_sample = vmap(grad(loss_of), in_dims=(None, 0, 0))
for _ in range(80):
    inputs = torch.randn(16, 8)
    gradients = per_sample(params, inputs, inputs.sum(1).tanh())
    for name, value in model.named_parameters():
        clipped = gradients[name] / gradients[name].flatten(1).norm(dim=1).clamp(min=1.0).view(-1, *[1] * (gradients[name].dim() - 1))
        value.grad = clipped.mean(0)
    optimizer.step()
    optimizer.zero_grad()
nets = [torch.nn.Linear(8, 1) for _ in range(3)]
stacked, buffers = stack_module_state(nets)
outputs = vmap(lambda p, b, x: functional_call(nets[0], (p, b), (x,)), in_dims=(0, 0, None))(stacked, buffers, torch.ones(2, 8))
value, tangent = jvp(lambda x: model(x).sum(), (torch.ones(2, 8),), (torch.ones(2, 8),))
print(
    outputs.shape,
    round(value.item(), 5),
    round(tangent.item(), 5),
    hashlib.sha1(model[0].weight.detach().numpy().tobytes()).hexdigest()[:12],
)
