# Spawned and forkserver children: an actor that sends rollouts through a queue, and a learner that trains on them.
import multiprocessing

import torch


def act(seed, count, results):
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        results.put(torch.randn(4, 8, generator=generator).numpy())
    results.put(None)


def main(kind):
    context = multiprocessing.get_context(kind)
    results = context.Queue(4)
    actor = context.Process(target=act, args=(1, 60, results), name="actor")
    actor.start()
    torch.manual_seed(0)
    policy = torch.nn.Linear(8, 2)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    while (batch := results.get(timeout=60)) is not None:
        loss = -policy(torch.from_numpy(batch)).log_softmax(-1)[:, 0].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    actor.join()
    print(kind, actor.exitcode, round(loss.item(), 6), [child.name for child in multiprocessing.active_children()])


if __name__ == "__main__":
    for kind in ("spawn", "forkserver"):
        main(kind)
