# A pool of forked processes evaluates checkpoints while the loop trains; results in order, and no process is left.
import multiprocessing

import torch

torch.set_num_threads(1)
model = None


def evaluate(job):
    step, state = job
    net = torch.nn.Linear(8, 1)
    net.load_state_dict({name: torch.tensor(value) for name, value in state.items()})
    with torch.no_grad():
        return step, round(net(torch.ones(16, 8)).sum().item(), 5)


def main():
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    waiting = []
    for part in range(2):
        with multiprocessing.get_context("fork").Pool(2) as pool:
            for step in range(60):
                optimizer.zero_grad()
                loss = net(torch.randn(4, 8)).square().mean()
                loss.backward()
                optimizer.step()
                if step % 20 == 19:
                    state = {name: value.tolist() for name, value in net.state_dict().items()}
                    waiting.append(pool.apply_async(evaluate, ((part * 60 + step, state),)))
            print([result.get(30) for result in waiting])
            waiting.clear()
    print(len(multiprocessing.active_children()), round(loss.item(), 6))


main()
