# Hogwild: two forked processes train the same shared model in turn, by a lock.
import hashlib

import torch
import torch.multiprocessing as mp


def train(rank, model, turns, done):
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(60):
        with turns[rank]:
            optimizer.zero_grad()
            loss = model(torch.full((4, 8), (rank * 60 + step) / 120)).square().mean()
            loss.backward()
            optimizer.step()
        done[rank] = loss.item()


def main():
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    model.share_memory()
    context = mp.get_context("fork")
    lock, done = context.Lock(), context.Array("d", 2)
    for rank in range(2):
        process = context.Process(target=train, args=(rank, model, (lock, lock), done))
        process.start()
        process.join()
        print(rank, process.exitcode, round(done[rank], 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
    print(round(loss.item(), 6), hashlib.sha1(model.weight.detach().numpy().tobytes()).hexdigest()[:12], model.weight.is_shared())


main()
