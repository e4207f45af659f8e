# Reinforcement learning: episodes of a small environment, a replay buffer, a target network, several updates for each step.
import collections
import hashlib
import random

import torch

random.seed(0)
torch.manual_seed(0)


class Line:
    def reset(self):
        self.place, self.time = 0, 0
        return self.state()

    def state(self):
        return torch.tensor([self.place / 5, self.time / 20])

    def step(self, action):
        self.place += 1 if action else -1
        self.time += 1
        done = self.time == 20 or abs(self.place) == 5
        return self.state(), float(self.place == 5), done


Step = collections.namedtuple("Step", "state action reward following done")
online, target = (torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2)) for _ in range(2))
target.load_state_dict(online.state_dict())
optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
memory, place, rewards = collections.deque(maxlen=500), Line(), []
for episode in range(25):
    state, done, total = place.reset(), False, 0.0
    while not done:
        with torch.no_grad():
            action = random.randrange(2) if random.random() < 0.3 else online(state).argmax().item()
        following, reward, done = place.step(action)
        memory.append(Step(state, action, reward, following, done))
        state, total = following, total + reward
        if len(memory) >= 16:
            batch = Step(*zip(*random.sample(memory, 16), strict=True))
            values = online(torch.stack(batch.state)).gather(1, torch.tensor(batch.action)[:, None])[:, 0]
            with torch.no_grad():
                best = target(torch.stack(batch.following)).max(1).values * (1 - torch.tensor(batch.done).float())
            loss = torch.nn.functional.smooth_l1_loss(values, torch.tensor(batch.reward) + 0.9 * best)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    rewards.append(total)
    if episode % 5 == 4:
        target.load_state_dict(online.state_dict())
print(
    sum(rewards),
    len(memory),
    round(loss.item(), 6),
    random.random(),
    hashlib.sha1(online[0].weight.detach().numpy().tobytes()).hexdigest()[:12],
)
