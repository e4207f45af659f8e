# LBFGS with a closure: the number of evaluations is a figure of the program, and the closure is a method.
import torch


class Fit:
    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        self.optimizer = torch.optim.LBFGS(self.model.parameters(), lr=0.5, max_iter=6, line_search_fn="strong_wolfe")
        self.x = torch.linspace(-1, 1, 64).reshape(16, 4)
        self.y = self.x.sin().sum(1, keepdim=True)
        self.calls = []

    def closure(self):
        self.optimizer.zero_grad()
        loss = (self.model(self.x) - self.y).square().mean()
        loss.backward()
        self.calls[-1] += 1
        return loss

    def run(self):
        for _ in range(25):
            self.calls.append(0)
            loss = self.optimizer.step(self.closure)
        return loss.item()


fit = Fit()
print(round(fit.run(), 7), fit.calls, fit.optimizer.state_dict()["state"][0]["func_evals"])
