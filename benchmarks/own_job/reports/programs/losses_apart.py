"""Each of two losses runs backward through the whole network, with `retain_graph`. Fixed: the sum of the losses does so once."""

import pace
import torch
from torch import nn

torch.manual_seed(0)

body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, 2, 1), nn.ReLU())
style, content = nn.Conv2d(32, 8, 1), nn.Conv2d(32, 3, 1)
optimizer = torch.optim.Adam([*body.parameters(), *style.parameters(), *content.parameters()], lr=1e-3)
pictures = torch.rand(512, 3, 32, 32)
while pace.goes_on():
    x = pictures[torch.randint(512, (24,))]
    hidden = body(x)
    gram = style(hidden).flatten(2)
    style_loss = (gram @ gram.mT / gram.shape[2]).pow(2).mean()
    content_loss = (content(hidden) - nn.functional.avg_pool2d(x, 4)).pow(2).mean()
    optimizer.zero_grad()
    if pace.FIXED:
        (style_loss + content_loss).backward()
    else:
        with pace.part():
            style_loss.backward(retain_graph=True)  # slow
        content_loss.backward()  # slow
    optimizer.step()
