# A time limit for each step: SIGALRM raises where a step takes too long, and the loop goes on with the next batch.
import signal
import time

import torch


class TooLong(Exception):
    pass


def stop(number, frame):
    raise TooLong


signal.signal(signal.SIGALRM, stop)
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
done, late, lost = 0, [], 0
for step in range(150):
    inputs = torch.randn(8, 64)
    signal.setitimer(signal.ITIMER_REAL, 0.15)
    try:
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        if step % 15 == 14:
            time.sleep(0.5)
            lost += 1
        loss.backward()
        optimizer.step()
        signal.setitimer(signal.ITIMER_REAL, 0)
        done += 1
    except TooLong:
        late.append(step)
print(
    "late",
    [step for step in late if step > 0],
    "not late where it should be",
    lost,
    done + len(late),
    signal.getsignal(signal.SIGALRM) is stop,
)
