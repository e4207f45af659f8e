# A GAN with two optimizers, five critic steps for each generator step, a gradient penalty, and gradients that are frozen in turn.
import hashlib

import torch

torch.manual_seed(0)
generator = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
critic = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LeakyReLU(0.2), torch.nn.Linear(16, 1))
of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
for step in range(150):
    real, noise = torch.randn(16, 8) + 1, torch.randn(16, 4)
    critic.requires_grad_(True)
    fake = generator(noise).detach()
    mixed = (real + torch.rand(16, 1) * (fake - real)).requires_grad_(True)
    (gradient,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    loss_critic = critic(fake).mean() - critic(real).mean() + 10 * (gradient.norm(dim=1) - 1).square().mean()
    of_critic.zero_grad()
    loss_critic.backward()
    of_critic.step()
    if step % 5 == 4:
        critic.requires_grad_(False)
        loss_generator = -critic(generator(noise)).mean()
        of_generator.zero_grad()
        loss_generator.backward()
        of_generator.step()
print(round(loss_critic.item(), 6), round(loss_generator.item(), 6), [p.grad is None for p in critic.parameters()])
print(*(hashlib.sha1(m[0].weight.detach().numpy().tobytes()).hexdigest()[:12] for m in (generator, critic)))
