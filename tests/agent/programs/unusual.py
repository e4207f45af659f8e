"""More training loops as users write them, with stamps by hand. The command line is that of loops.py, and runs its loops too."""

import collections
import contextlib
import copy
import dataclasses
import itertools
import os
import queue
import random
import sys
import threading
import time
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from loops import GPT, LOOPS, LOSSES, Images, batches, convnet, main
from stamps import answered, phase, stamps, step


def network(wide=256, inputs=432, outputs=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, outputs))


def usual_step(model, optimizer, x, y):
    """Forward, backward and update of one batch."""
    with phase("forward"):
        out = model(x)
        loss = F.cross_entropy(answered(out) if isinstance(model, nn.Module) else out, y)
    with phase("optimizer"):
        optimizer.zero_grad()
    with phase("backward"):
        loss.backward()
    with phase("optimizer"):
        optimizer.step()
    step()
    LOSSES.append(loss.item())


# --- waits, and reinforcement learning ----------------------------------------------------------------------


def rate_limited(steps):
    """A pause after each step."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in itertools.islice(batches(DataLoader(Images(cost_s=0.00003), 16)), steps):
        usual_step(model, optimizer, x, y)
        time.sleep(0.01)
    return model


class Simulator:
    """An environment in Python."""

    def __init__(self):
        self.state, self.random = np.zeros(16, dtype=np.float32), np.random.default_rng(1)

    def step(self, action):
        until = time.perf_counter() + 0.0003
        self.state = np.tanh(self.state + 0.1 * action + self.random.standard_normal(16, dtype=np.float32))
        while time.perf_counter() < until:
            pass
        return self.state, float(self.state.sum())


def ppo(steps):
    """32 steps of the environment, then 2 epochs of 4 minibatches over the collected samples. The passes of the policy belong to forward."""
    policy, value = network(64, 16, 4), network(64, 16, 1)
    optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], lr=3e-4)
    world, state, done = Simulator(), np.zeros(16, dtype=np.float32), 0
    while done < steps:
        kept = []
        with phase("data_wait"):
            for _ in range(32):
                with torch.no_grad():
                    seen = torch.from_numpy(state).unsqueeze(0)
                    with phase("generation"):
                        logits = policy(seen)
                    chances = torch.distributions.Categorical(logits=logits)
                    action = chances.sample()
                    with phase("generation"):
                        worth = value(seen)
                    kept.append((seen, action, chances.log_prob(action), worth[0]))
                state, _ = world.step(action.item())
            states, actions, before, worths = (torch.cat(parts) for parts in zip(*kept, strict=True))
            gain = worths.roll(-1) - worths
        for _ in range(2):
            for at in torch.randperm(32).split(8):
                with phase("optimizer"):
                    optimizer.zero_grad()
                with phase("forward"):
                    chances = torch.distributions.Categorical(logits=policy(states[at]))
                    ratio = (chances.log_prob(actions[at]) - before[at]).exp()
                    loss = -torch.min(ratio * gain[at], ratio.clamp(0.8, 1.2) * gain[at]).mean()
                    loss = loss + 0.5 * (answered(value(states[at])).squeeze(-1) - gain[at]).pow(2).mean()
                with phase("backward"):
                    loss.backward()
                with phase("optimizer"):
                    nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
                    optimizer.step()
                step()
                done += 1
                LOSSES.append(loss.item())
    return policy


def reinforce(steps):
    """Passes with gradients in turn with a simulator in Python: its time is no part of the forward pass."""
    policy = network(64, 16, 4)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
    state = torch.ones(1, 16)
    for _ in range(steps):
        logs = []
        with phase("forward"):
            for turn in range(8):
                chances = policy(state)
                # what follows the last call of the model is the loss, whatever it is
                with stamps.only("loss") if turn == 7 else contextlib.nullcontext():
                    chances = torch.distributions.Categorical(logits=chances)
                    action = chances.sample()
                    logs.append(chances.log_prob(action))
                    with phase("data_wait"):
                        state = torch.full((1, 16), simulated(action.item()))
            answered(state)
            loss = torch.stack(logs).sum()
        with phase("optimizer"):
            optimizer.zero_grad()
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
        step()
        LOSSES.append(loss.item())
    return policy


def simulated(number, turns=20_000):
    """A number after some turns of pure Python."""
    for turn in range(turns):
        number = (number * 31 + turn) % 1009
    return number / 1009


def dqn(steps):
    """One step of the environment, one sample of the memory, one update; the target network is copied now and then."""
    online = network(512, 16, 4)
    target = copy.deepcopy(online)
    optimizer = torch.optim.AdamW(online.parameters(), lr=1e-3)
    memory, world, state = collections.deque(maxlen=1000), Simulator(), torch.zeros(16)
    for _ in range(64):
        memory.append((torch.randn(16), 0, 0.0, torch.randn(16)))
    for n in range(steps):
        with phase("data_wait"):
            action = random.randrange(4)
            if random.random() > 0.1:
                with torch.no_grad(), phase("forward"):
                    values = online(state.unsqueeze(0))
                action = values.argmax(1).item()
            after, reward = world.step(action)
            after = torch.from_numpy(after.copy())
            memory.append((state, action, reward, after))
            state = after
            states, actions, rewards, later = zip(*random.sample(memory, 64), strict=True)
            states, later = torch.stack(states), torch.stack(later)
            actions, rewards = torch.tensor(actions), torch.tensor(rewards)
        with phase("forward"):
            chosen = online(states).gather(1, actions.unsqueeze(1)).squeeze(1)
            with torch.no_grad():
                best = rewards + 0.99 * answered(target(later)).max(1).values
            loss = F.smooth_l1_loss(chosen, best)
        with phase("optimizer"):
            optimizer.zero_grad()
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
        step()
        with phase("data_wait"):  # without a loader, all lines up to the next pass
            LOSSES.append(loss.item())
            if n % 20 == 0:
                target.load_state_dict(online.state_dict())
    return online


def distilled(steps):
    """The gradients are zeroed between the pass of the teacher and that of the model. An evaluation comes now and then."""
    old, model = network(384).eval(), network(64)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    test = DataLoader(Images(64), 32)
    for n, (x, _) in zip(range(1, steps + 1), batches(DataLoader(Images(), 16)), strict=False):
        with phase("forward"), torch.no_grad():
            wanted = old(x).softmax(-1)
        with phase("optimizer"):
            optimizer.zero_grad()
        with phase("forward"):
            loss = F.kl_div(answered(model(x)).log_softmax(-1), wanted, reduction="batchmean")
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
        step()
        LOSSES.append(loss.item())
        if n % 20 == 0:
            with phase("eval"), torch.no_grad():
                print("right", sum((model(vx).argmax(-1) == vy).sum().item() for vx, vy in test))
    return model


# --- updates ------------------------------------------------------------------------------------------------


def manual_sgd(steps):
    """No optimizer: the program updates the weights."""
    model = network()
    for x, y in itertools.islice(batches(DataLoader(Images(), 32)), steps):
        with phase("forward"):
            loss = F.cross_entropy(answered(model(x)), y)
        with phase("backward"):
            loss.backward()
        with phase("optimizer"), torch.no_grad():
            for p in model.parameters():
                p -= 0.01 * p.grad
                p.grad = None
        step()
        LOSSES.append(loss.item())
    return model


def functional(steps):
    """torch.func: gradients of a function of the weights, and an update of the program's own."""
    model = network()
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}

    def compute(weights, x, y):
        return F.cross_entropy(torch.func.functional_call(model, weights, (x,)), y)

    gradient = torch.func.grad_and_value(compute)
    for x, y in itertools.islice(batches(DataLoader(Images(), 32)), steps):
        with phase("forward"):
            gradients, loss = gradient(weights, x, y)
        with phase("optimizer"):
            weights = {name: w - 0.01 * gradients[name] for name, w in weights.items()}
        step()
        LOSSES.append(loss.item())
    model.load_state_dict(weights)
    return model


class Lion(torch.optim.Optimizer):
    """An optimizer of the program's own."""

    def __init__(self, params, lr=1e-4):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                    p.add_(mean.lerp(p.grad, 0.1).sign_(), alpha=-group["lr"])
                    mean.lerp_(p.grad, 0.01)


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                g = p.grad / (p.grad.norm() + 1e-7)
                for _ in range(2):
                    a = g @ g.T
                    g = 1.5 * g - 0.5 * a @ g
                p.add_(g, alpha=-group["lr"])


def own_optimizer(steps):
    model = network()
    optimizer = Lion(model.parameters())
    for x, y in itertools.islice(batches(DataLoader(Images(), 32)), steps):
        usual_step(model, optimizer, x, y)
    return model


def muon_and_adam(steps):
    """Matrices by one optimizer, the rest by another, in a loop over both."""
    model = network(96)
    matrices = [p for p in model.parameters() if p.ndim == 2]
    optimizers = [torch.optim.AdamW([p for p in model.parameters() if p.ndim != 2], lr=1e-3), Muon(matrices)]
    for x, y in itertools.islice(batches(DataLoader(Images(), 32)), steps):
        with phase("forward"):
            loss = F.cross_entropy(answered(model(x)), y)
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            for optimizer in optimizers:
                optimizer.step()
        step()
        with phase("optimizer"):
            model.zero_grad(set_to_none=True)
        LOSSES.append(loss.item())
    return model


class Engine(nn.Module):
    """As DeepSpeed does it: the engine has the model and the optimizer, and the program calls `backward` and `step` of the engine."""

    def __init__(self, model, optimizer):
        super().__init__()
        self.module, self.optimizer = model, optimizer

    def forward(self, *args):
        return self.module(*args)

    def backward(self, loss):
        loss.backward()

    def step(self):
        nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def engine(steps):
    model = network()
    whole = Engine(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    for x, y in itertools.islice(batches(DataLoader(Images(), 32)), steps):
        with phase("forward"):
            loss = F.cross_entropy(answered(whole(x)), y)
        with phase("backward"):
            whole.backward(loss)
        with phase("optimizer"):
            whole.step()
        step()
        LOSSES.append(loss.item())
    return model


class PlainSGD:
    """An optimizer that is no subclass of torch's."""

    def __init__(self, params, lr=0.01):
        self.params, self.lr = list(params), lr

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        for p in self.params:
            p.sub_(p.grad, alpha=self.lr)


def no_subclass(steps):
    model = network()
    optimizer = PlainSGD(model.parameters())
    for x, y in itertools.islice(batches(DataLoader(Images(), 32)), steps):
        usual_step(model, optimizer, x, y)
    return model


# --- passes -------------------------------------------------------------------------------------------------


def several_roots(steps):
    """Encoder, decoder and a loss with weights of its own: the program calls each of them."""

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, made, wanted):
            return ((made - wanted) ** 2).mean() * self.scale.exp()

    encoder, decoder, criterion = network(256, 432, 32), network(256, 32, 432), Loss()
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters(), *criterion.parameters()], lr=1e-4)
    for x, _ in itertools.islice(batches(DataLoader(Images(), 32)), steps):
        with phase("forward"):
            hidden = encoder(x)
            hidden = hidden + 0.01 * torch.randn_like(hidden)
            loss = answered(criterion(decoder(hidden), x.flatten(1)))
        with phase("optimizer"):
            optimizer.zero_grad()
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
        step()
        LOSSES.append(loss.item())
    return encoder


def two_towers(steps):
    """Contrastive: two towers, and a dictionary as batch."""

    class Pairs(Images):
        def __getitem__(self, index):
            image, label = super().__getitem__(index)
            return {"image": image, "text": torch.arange(12) + label}

    images, words, texts = network(256, 432, 64), nn.EmbeddingBag(32, 256), network(128, 256, 64)
    scale = nn.Parameter(torch.tensor(1.0))
    optimizer = torch.optim.AdamW([*images.parameters(), *words.parameters(), *texts.parameters(), scale], lr=1e-3)
    for batch in itertools.islice(batches(DataLoader(Pairs(), 32)), steps):
        with phase("forward"):
            first = F.normalize(images(batch["image"]), dim=-1)
            second = F.normalize(answered(texts(words(batch["text"]))), dim=-1)
            logits, wanted = scale.exp() * first @ second.T, torch.arange(32)
            loss = (F.cross_entropy(logits, wanted) + F.cross_entropy(logits.T, wanted)) / 2
        with phase("optimizer"):
            optimizer.zero_grad()
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
        step()
        LOSSES.append(loss.item())
    return images


def checkpoint_call(steps):
    """The program itself calls torch.utils.checkpoint with modules."""
    first, second = network(384, 432, 256), network(384, 256, 10)
    optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()], lr=1e-3)
    for x, y in itertools.islice(batches(DataLoader(Images(), 32)), steps):
        with phase("forward"):
            hidden = torch.utils.checkpoint.checkpoint(first, x, use_reentrant=False)
            loss = F.cross_entropy(answered(torch.utils.checkpoint.checkpoint(second, hidden, use_reentrant=False)), y)
        with phase("optimizer"):
            optimizer.zero_grad()
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
        step()
        LOSSES.append(loss.item())
    return first


class Methods(nn.Module):
    """A model with methods that the program calls in place of the model."""

    def __init__(self):
        super().__init__()
        self.net = convnet()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch):
        x, y = batch
        return F.cross_entropy(answered(self(x)), y)


def method_called(steps):
    model = Methods()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in itertools.islice(batches(DataLoader(Images(), 16)), steps):
        with phase("forward"):
            loss = model.training_step(batch)
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        step()
        LOSSES.append(loss.item())
    return model


class Generating(GPT):
    @torch.no_grad()
    def generate(self, tokens, more):
        for _ in range(more):
            logits, _ = self(tokens[:, -32:])
            tokens = torch.cat((tokens, torch.multinomial(logits[:, -1].softmax(-1), 1)), 1)
        return tokens


def rlhf(steps):
    """Each step generates text, scores it, and then trains on it, with a reference model for the divergence."""
    model = Generating(width=48)
    reference = copy.deepcopy(model).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    prompts = torch.randint(0, 256, (1000, 8))
    for (x,) in itertools.islice(batches(DataLoader(torch.utils.data.TensorDataset(prompts), 8)), steps):
        with phase("generation"):
            text = model.generate(x, 8)
        reward = (text[:, 8:] % 7).float().mean(1)
        with phase("forward"):
            with torch.no_grad():
                usual = reference(text)[0].log_softmax(-1)
            chances = answered(model(text))[0].log_softmax(-1)
            loss = -(chances.gather(-1, text.unsqueeze(-1)).mean((1, 2)) * reward).mean() + 0.1 * (chances.exp() * (chances - usual)).mean()
        with phase("optimizer"):
            optimizer.zero_grad()
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
        step()
        LOSSES.append(loss.item())
    return model


# --- accounting ---------------------------------------------------------------------------------------------


def last_group(steps):
    """Gradient accumulation over an epoch whose last group is smaller; both ways to write it, in one condition."""
    model, every, done = network(), 4, 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = DataLoader(Images(16 * 10), 16)
    while done < steps:
        source = batches_of_epoch(data)
        for i, (x, y) in enumerate(source):
            with phase("forward"):
                loss = F.cross_entropy(answered(model(x)), y) / every
            with phase("backward"):
                loss.backward()
            if (i + 1) % every == 0 or i + 1 == len(data):
                with phase("optimizer"):
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=False)
                step()
                done += 1
                LOSSES.append(loss.item())
    return model


def batches_of_epoch(loader):
    with phase("data_wait"):
        iterator = iter(loader)
    while True:
        with phase("data_wait"):
            batch = next(iterator, None)
        if batch is None:
            return
        yield batch


def closure_sgd(steps):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in itertools.islice(batches(DataLoader(Images(), 32)), steps):

        def closure(x=x, y=y):
            with phase("optimizer"):
                optimizer.zero_grad(set_to_none=False)
            with phase("forward"):
                loss = F.cross_entropy(answered(model(x)), y)
            with phase("backward"):
                loss.backward()
            return loss

        with phase("optimizer"):
            loss = optimizer.step(closure)
        step()
        LOSSES.append(loss.item())
    return model


def zipped(steps):
    """Two loaders zipped, made anew for each epoch, in a generator without end."""

    def cycle():
        while True:
            labelled = DataLoader(Images(160), 16, shuffle=True)
            unlabelled = DataLoader(Images(320), batch_sampler=BatchSampler(RandomSampler(range(320)), 32, drop_last=True))
            yield from zip(labelled, unlabelled, strict=True)

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    source = cycle()
    for _ in range(steps):
        with phase("data_wait"):
            (x, y), (u, _) = next(source)
        with phase("forward"):
            loss = F.cross_entropy(model(x), y)
            with torch.no_grad():
                guess = model(u).argmax(-1)
            loss = loss + 0.1 * F.cross_entropy(answered(model(u + 0.1 * torch.randn_like(u))), guess)
        with phase("optimizer"):
            optimizer.zero_grad()
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
        step()
        LOSSES.append(loss.item())
    return model


@dataclasses.dataclass
class Batch:
    tokens: torch.Tensor
    values: torch.Tensor


class Output(NamedTuple):
    loss: torch.Tensor
    logits: torch.Tensor


class Wrapped(nn.Module):
    """A model that takes a dataclass and returns its loss in a named tuple."""

    def __init__(self):
        super().__init__()
        self.gpt = GPT(width=48)

    def forward(self, batch):
        logits, loss = self.gpt(batch.tokens, batch.values)
        return Output(loss, logits)


class Texts(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        time.sleep(0.0001)
        return (torch.arange(32) + index) % 256


def dataclass_batch(steps):
    model = Wrapped()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def collate(rows):
        rows = torch.stack(rows)
        return Batch(rows[:, :-1], rows[:, 1:])

    for batch in itertools.islice(batches(DataLoader(Texts(), 8, collate_fn=collate)), steps):
        with phase("forward"):
            out = model(batch)
        with phase("optimizer"):
            optimizer.zero_grad()
        with phase("backward"):
            out.loss.backward()
        with phase("optimizer"):
            optimizer.step()
        step()
        LOSSES.append(out.loss.item())
    return model


def two_backwards(steps):
    """`backward` twice on one graph, and once more for several losses together."""
    model, second = network(), network()
    optimizer = torch.optim.SGD([*model.parameters(), *second.parameters()], lr=0.01)
    for n, (x, y) in zip(range(steps), batches(DataLoader(Images(), 32)), strict=False):
        with phase("forward"):
            logits = model(x)
            loss, other = F.cross_entropy(logits, y), logits.square().mean()
            third = F.cross_entropy(answered(second(x)), y)
        with phase("optimizer"):
            optimizer.zero_grad()
        if n % 2:
            with phase("backward"):
                loss.backward(retain_graph=True)
                other.backward()
                third.backward()
        else:
            with phase("backward"):
                torch.autograd.backward([loss, other, third])
        with phase("optimizer"):
            optimizer.step()
        step()
        LOSSES.append(loss.item() + other.item() + third.item())
    return model


# --- sizes --------------------------------------------------------------------------------------------------


def growing(steps):
    """Texts whose length varies by a factor of 10."""
    model = GPT(length=160, width=48)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    random.seed(1)

    def get_batch():
        with phase("data_wait"):
            length = random.choice((16, 32, 64, 160))
            text = torch.randint(0, 256, (8, length))
            return text, text.roll(-1, 1)

    for _ in range(steps):
        x, y = get_batch()
        with phase("forward"):
            _, loss = model(x, y)
        with phase("optimizer"):
            optimizer.zero_grad()
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
        step()
        LOSSES.append(loss.item())
    return model


class Maker(nn.Module):
    """A generator of the program's own."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 700), nn.ReLU(), nn.Linear(700, 700), nn.ReLU(), nn.Linear(700, 432), nn.Tanh())

    def forward(self, noise):
        return self.layers(noise)


def own_generator(steps):
    """A GAN whose batch of generated samples is made by a module of the program, between two passes of the discriminator."""
    maker, judge = Maker(), nn.Sequential(nn.Linear(432, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1))
    of_judge, of_maker = torch.optim.Adam(judge.parameters(), 2e-4), torch.optim.Adam(maker.parameters(), 2e-4)
    right, wrong = torch.ones(512, 1), torch.zeros(512, 1)
    for n, (x, _) in enumerate(itertools.islice(batches(DataLoader(Images(cost_s=0.00003), 32)), steps)):
        with phase("optimizer"):
            judge.zero_grad()
        with phase("forward"):
            loss = F.binary_cross_entropy_with_logits(answered(judge(x.flatten(1))), right[:32])
        with phase("backward"):
            loss.backward()
        with phase("forward"):
            made = maker(torch.randn(512, 16))
            loss2 = F.binary_cross_entropy_with_logits(answered(judge(made.detach())), wrong)
        with phase("backward"):
            loss2.backward()
        with phase("optimizer"):
            of_judge.step()
            maker.zero_grad()
        with phase("forward"):
            loss3 = F.binary_cross_entropy_with_logits(answered(judge(made)), right)
            if n < 3:  # the agent looks at the program as soon as the second optimizer has stepped
                time.sleep(0.3)
        with phase("backward"):
            loss3.backward()
        with phase("optimizer"):
            of_maker.step()
        step()
        LOSSES.append(loss.item() + loss2.item() + loss3.item())
    return maker


class Products(nn.Module):
    """Two layers without a module for either."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(432, 1500) / 20), nn.Parameter(torch.randn(1500, 10) / 40)

    def forward(self, x):
        return torch.mm(torch.relu(torch.mm(x, self.first)), self.second)


def zeroed_before_backward(steps):
    """The program calls `model.forward`, and sets the gradients to zero just before the backward pass."""
    model = Products()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, y = torch.randn(32, 432), torch.randint(0, 10, (32,))
    for _ in range(steps):
        usual_step(model.forward, optimizer, x, y)
    return model


def zeroed_after_batch(steps):
    """A queue gives the batches, and no function of the program. The gradients are zeroed between a batch and its pass."""
    ready = queue.Queue(maxsize=2)

    def make():
        for _ in range(steps):
            time.sleep(0.004)
            ready.put((torch.randn(16, 432), torch.randint(0, 10, (16,))))

    threading.Thread(target=make).start()
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(steps):
        with phase("data_wait"):
            x, y = ready.get()
        with phase("optimizer"):
            optimizer.zero_grad()
        with phase("forward"):
            loss = F.cross_entropy(answered(model(x)), y)
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
        step()
        with phase("data_wait"):
            LOSSES.append(loss.item())
    return model


def scored_before_zeroing(steps):
    """A figure in Python over the outputs of each step, between the update and `zero_grad`."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in itertools.islice(batches(DataLoader(Images(cost_s=0.00003), 16)), steps):
        with phase("forward"):
            loss = F.cross_entropy(answered(model(x)), y)
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
        step()
        LOSSES.append(loss.item() + simulated(1))
        with phase("optimizer"):
            optimizer.zero_grad()
    return model


def scored_before_backward(steps):
    """The same between the loss and the backward pass."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in itertools.islice(batches(DataLoader(Images(cost_s=0.00003), 16)), steps):
        with phase("optimizer"):
            optimizer.zero_grad()
        with phase("forward"):
            out = model(x)
            loss = F.cross_entropy(answered(out), y)
            right = simulated((out.detach().numpy().argmax(1) == y.numpy()).sum().item())
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
        step()
        LOSSES.append(loss.item() + right)
    return model


def evaluated_with_gradients(steps):
    """An evaluation now and then, in eval mode, without no_grad, on tensors that no DataLoader gives."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, y = torch.randn(256, 432), torch.randint(10, (256,))
    for number in range(steps):
        at = slice(16 * (number % 16), 16 * (number % 16) + 16)
        with phase("data_wait"):
            part, wanted = x[at], y[at]
        usual_step(model, optimizer, part, wanted)
        if number % 6 == 4:
            with phase("eval"):
                model.eval()
                LOSSES.append(
                    sum(F.cross_entropy(model(part), wanted).item() for part, wanted in zip(x.split(16), y.split(16), strict=True))
                )
                model.train()
    return model


def trained_in_eval_mode(steps):
    """Fine tuning with all layers in eval mode, as many do to keep the statistics of batch normalization."""
    model = network().eval()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in itertools.islice(batches(DataLoader(Images(), 16)), steps):
        usual_step(model, optimizer, x, y)
    return model


# --- a loss by hand, generation, and work after a step ------------------------------------------------------


def matched(steps):
    """A loss with a search in Python over the outputs of the model, in two functions; no DataLoader."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, y = torch.randn(512, 432), torch.randint(0, 10, (512,))

    def match(out):
        return [simulated(row, 2000) for row in out.detach().argmax(1).tolist()]

    def criterion(out, wanted):
        weights = torch.tensor(match(out), dtype=torch.float32)
        return (F.cross_entropy(out, wanted, reduction="none") * weights).mean()

    for number in range(steps):
        with phase("data_wait"):
            at = slice(16 * (number % 32), 16 * (number % 32) + 16)
            part, wanted = x[at], y[at]
        with phase("forward"):
            loss = criterion(answered(model(part)), wanted)
        with phase("optimizer"):
            optimizer.zero_grad()
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
        step()
        LOSSES.append(loss.item())
    return model


def contrastive(steps):
    """Two views of each sample, two calls of the model, and a loss over both with a loop in Python; no DataLoader."""
    model = network(256, 432, 64)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = torch.randn(512, 432)
    for number in range(steps):
        with phase("data_wait"):
            rows = data[32 * (number % 16) : 32 * (number % 16) + 32]
        with phase("forward"):
            first = F.normalize(model(rows + 0.1 * torch.randn_like(rows)), dim=-1)
            second = F.normalize(answered(model(rows + 0.1 * torch.randn_like(rows))), dim=-1)
            losses = []
            for row in range(len(first)):
                losses.append(torch.logsumexp(first[row] @ second.T / 0.1, 0) - first[row] @ second[row] / 0.1)
            loss = torch.stack(losses).mean()
        with phase("optimizer"):
            optimizer.zero_grad()
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
        step()
        LOSSES.append(loss.item())
    return model


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(64, 96), nn.GRU(96, 96, batch_first=True), nn.Linear(96, 64)

    def forward(self, ids):
        return self.head(self.cell(self.embed(ids))[0])

    @torch.no_grad()
    def generate(self, ids, more):
        for _ in range(more):
            ids = torch.cat([ids, torch.multinomial(self(ids)[:, -1].softmax(-1), 1)], 1)
        return ids


def generated(steps):
    """Each step trains on what the model has generated; no DataLoader."""
    model = Writer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(steps):
        with phase("data_wait"):
            prompts = torch.randint(64, (8, 4))
        with phase("generation"):
            ids = model.generate(prompts, 12)
        with phase("data_wait"):
            reward = (ids[:, 4:] % 7 == 0).float().mean(1)
            gain = (reward - reward.mean()) / (reward.std() + 1e-4)
        with phase("forward"):
            chances = answered(model(ids[:, :-1])).log_softmax(-1).gather(-1, ids[:, 1:, None])[:, 3:, 0]
            loss = -(gain[:, None] * chances).mean()
        with phase("optimizer"):
            optimizer.zero_grad()
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
        step()
        LOSSES.append(loss.item())
    return model


def averaged(steps):
    """A moving average of the weights after each step, over a loop; no DataLoader."""
    model = nn.Sequential(nn.Linear(432, 128), *[nn.Linear(128, 128) for _ in range(20)], nn.Linear(128, 10))
    average = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(512, 432), torch.randint(0, 10, (512,))

    def update():
        with torch.no_grad():
            kept = average.state_dict()
            for name, value in model.state_dict().items():
                kept[name].mul_(0.999)
                kept[name].add_(0.001 * value)

    for _ in range(steps):
        with phase("data_wait"):
            at = torch.randint(512, (32,))
            part, wanted = x[at], y[at]
        usual_step(model, optimizer, part, wanted)
        update()
    return average


class Layers:
    """A network without any module: functions over tensors."""

    def __init__(self):
        sizes = ((432, 256), (256, 256), (256, 10))
        self.weights = [(torch.randn(size) / size[0] ** 0.5).requires_grad_() for size in sizes]

    def __call__(self, x):
        for weight in self.weights[:-1]:
            x = torch.relu(x @ weight)
        return x @ self.weights[-1]

    def parameters(self):
        return self.weights


def functions(steps):
    """No module and no DataLoader: the loss counts as forward, as nothing says where the model ends. A figure in Python comes after each step."""
    model = Layers()
    optimizer = torch.optim.Adam(model.weights, lr=1e-3)
    x, y = torch.randn(512, 432), torch.randint(0, 10, (512,))
    for number in range(steps):
        at = slice(64 * (number % 8), 64 * (number % 8) + 64)
        usual_step(model, optimizer, x[at], y[at])
        simulated(number, 8000)
    return model


def closures(steps):
    """L-BFGS with a line search, and no DataLoader."""
    model = nn.Sequential(nn.Linear(432, 96), nn.Tanh(), nn.Linear(96, 10))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5, line_search_fn="strong_wolfe")
    data, labels = torch.randn(512, 432), torch.randint(0, 10, (512,))
    for number in range(steps):
        with phase("data_wait"):
            at = slice(64 * (number % 8), 64 * (number % 8) + 64)
            x, y = data[at], labels[at]

        def closure(x=x, y=y):
            with phase("optimizer"):
                optimizer.zero_grad()
            with phase("forward"):
                out = answered(model(x))
                loss = F.cross_entropy(out, y) + 0.01 * sum(p.square().sum() for p in model.parameters())
            with phase("backward"):
                loss.backward()
            return loss

        with phase("optimizer"):
            loss = optimizer.step(closure)
        step()
        LOSSES.append(loss.item())
    return model


class Listed(nn.Module):
    """A model that takes a list of images, as those of torchvision for detection do."""

    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, images):
        return self.net(torch.stack(images))


def images_in_list(steps):
    model = Listed()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(Images(), 16, collate_fn=lambda rows: ([x for x, _ in rows], torch.tensor([y for _, y in rows])))
    for x, y in itertools.islice(batches(loader), steps):
        usual_step(model, optimizer, x, y)
    return model


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.last = nn.LSTM(1, 64), nn.Linear(64, 10)

    def forward(self, x):
        return self.last(self.lstm(x)[0][-1])


def time_first(steps):
    """The first dimension of a batch is that of time, as torch.nn.LSTM has it."""
    model = Recurrent()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in itertools.islice(batches(DataLoader(Images(), 16)), steps):
        usual_step(model, optimizer, x.flatten(1)[:, :40].t().unsqueeze(-1), y)
    return model


LOOPS.update(
    (loop.__name__, loop)
    for loop in (
        rate_limited, ppo, dqn, distilled, manual_sgd, functional, own_optimizer, muon_and_adam, engine, no_subclass, several_roots,
        two_towers, checkpoint_call, method_called, rlhf, last_group, closure_sgd, zipped, dataclass_batch, two_backwards,
        growing, own_generator, zeroed_before_backward, reinforce, zeroed_after_batch, scored_before_zeroing, scored_before_backward, images_in_list, time_first,
        evaluated_with_gradients, trained_in_eval_mode, matched, contrastive, generated, averaged, functions, closures,
    )
)  # fmt: skip

if __name__ == "__main__":
    main()
