# needs: pytest
# command: {python} -m pytest -q -p no:cacheprovider {program}
# Tests of a training, as the job: threads, tracebacks, frames, warnings. (The agent's callback of gc: gc_and_weakrefs.)
import inspect
import threading
import traceback
import warnings

import pytest
import torch


class Net(torch.nn.Module):
    def __init__(self, bad=False):
        super().__init__()
        self.layer, self.bad, self.frames = torch.nn.Linear(8, 1), bad, set()

    def forward(self, inputs):
        self.frames.add(tuple(frame.function for frame in inspect.stack(0)[:4]))
        if self.bad:
            raise ValueError("bad")
        return self.layer(inputs)


def fit(model, steps=30):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).mean()
        loss.backward()
        optimizer.step()
    return loss.item()


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Net()


def test_no_thread_is_left(model):
    fit(model)
    assert [thread.name for thread in threading.enumerate()] == ["MainThread"]


def test_frames_in_forward(model):
    fit(model)
    assert model.frames == {("forward", "_call_impl", "_wrapped_call_impl", "fit")}


def test_traceback_of_forward():
    with pytest.raises(ValueError) as caught:
        fit(Net(bad=True))
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[1:] == ["fit", "_wrapped_call_impl", "_call_impl", "forward"]


def test_no_warning(model):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit(model) < 1


@pytest.mark.parametrize("seed", range(4))
def test_same_twice(seed):
    losses = []
    for _ in range(2):
        torch.manual_seed(seed)
        losses.append(fit(Net()))
    assert losses[0] == losses[1]
