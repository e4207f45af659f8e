# design on 3.11: stdout: the agent registers a function before and after the steps of all optimizers
# Hooks of all kinds, counted in each step and listed: of modules, globally, of gradients, of the graph, and of saved tensors.
import collections

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

counts = collections.Counter()


def count(name):
    def hook(*_):
        counts[name] += 1

    return hook


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
registries = torch.nn.modules.module
model.register_forward_pre_hook(count("forward pre"))
model.register_forward_hook(count("forward"))
model[0].register_full_backward_hook(count("backward"))
model[0].weight.register_hook(count("gradient"))
model[0].weight.register_post_accumulate_grad_hook(count("accumulated"))
handle = registries.register_module_forward_hook(lambda module, *_: counts.update([f"global {type(module).__name__}"]))
optimizer = torch.optim.AdamW(model.parameters())
optimizer.register_step_pre_hook(count("step pre"))
optimizer.register_step_post_hook(count("step post"))
optimizer.register_state_dict_post_hook(count("state dict"))
per_step = collections.Counter()
for step in range(100):
    before = sum(counts.values())
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: (counts.update(["packed"]), tensor)[1], lambda tensor: tensor):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.grad_fn.register_hook(count("node"))
        loss.backward()
        optimizer.step()
    per_step[sum(counts.values()) - before] += 1
    if step == 50:
        handle.remove()
print(sorted(counts.items()), sorted(per_step.items()))
for module in model.modules():
    print(type(module).__name__, {name: len(value) for name, value in sorted(vars(module).items()) if name.endswith("hooks") and value})
print({name: len(getattr(registries, name)) for name in sorted(vars(registries)) if name.startswith("_global") and name.endswith("hooks")})
print({name: len(value) for name, value in sorted(vars(optimizer).items()) if "hooks" in name}, round(loss.item(), 6))
print(len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks))
