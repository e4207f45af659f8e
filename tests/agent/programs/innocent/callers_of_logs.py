"""Log records and prints show which line has made them: the handler and the output ask the stack."""

import inspect
import logging
import sys

import torch


class Intercepts(logging.Handler):
    """As in the documentation of loguru, in its older and its newer form."""

    def emit(self, record):
        frame = sys._getframe(0)
        while frame.f_code.co_filename in (logging.__file__, __file__) and frame.f_code.co_name != "train":
            frame = frame.f_back
        print("older:", frame.f_code.co_name, frame.f_lineno, record.getMessage())
        frame, depth = inspect.currentframe(), 0
        while frame:
            is_frozen = "importlib" in frame.f_code.co_filename and "_bootstrap" in frame.f_code.co_filename
            if depth > 0 and not (frame.f_code.co_filename == logging.__file__ or is_frozen):
                break
            frame, depth = frame.f_back, depth + 1
        print("newer:", frame.f_code.co_name, frame.f_lineno)


class Stamped:
    """An output that shows who writes."""

    def __init__(self, plain):
        self.plain = plain

    def write(self, text):
        frame = sys._getframe(1)
        self.plain.write(f"[{frame.f_code.co_name}:{frame.f_lineno}]{text}" if text.strip() else text)

    def flush(self):
        self.plain.flush()


logging.basicConfig(handlers=[Intercepts()], level=logging.INFO)
torch.manual_seed(0)


def train():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(60):
        optimizer.zero_grad()
        loss = model(torch.randn(2, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        if i % 10 == 0:
            logging.getLogger("job").info("step %d", i)
            sys.stdout, plain = Stamped(sys.stdout), sys.stdout
            print("step", i)
            sys.stdout = plain
    print(loss.item())


train()
