# needs: lightning
# Lightning: a Trainer with callbacks, early stopping, a checkpoint, validation, two loggers' worth of log(), and accumulation.
import hashlib
import logging
import warnings

import lightning
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))

    def training_step(self, batch, number):
        loss = self.layers(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, number):
        self.log("valid", self.layers(batch[0]).abs().mean(), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class Count(Callback):
    calls = {}

    def note(name):
        def call(self, *_):
            self.calls[name] = self.calls.get(name, 0) + 1

        return call

    on_train_batch_start, on_train_batch_end = note("start"), note("end")
    on_before_backward, on_before_optimizer_step, on_validation_end = note("backward"), note("step"), note("valid")


lightning.seed_everything(0, verbose=False)
loaders = [DataLoader(TensorDataset(torch.randn(n, 8)), batch_size=4, shuffle=n > 100) for n in (240, 40)]
trainer = lightning.Trainer(
    max_epochs=4,
    accelerator="cpu",
    accumulate_grad_batches=2,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    gradient_clip_val=1.0,
    callbacks=[Count(), EarlyStopping("valid", patience=2), ModelCheckpoint(".", monitor="valid", filename="best")],
)
model = Net()
trainer.fit(model, *loaders)
print(
    trainer.global_step,
    trainer.current_epoch,
    Count.calls,
    {name: round(value.item(), 5) for name, value in trainer.callback_metrics.items()},
)
print(hashlib.sha1(model.layers[0].weight.detach().numpy().tobytes()).hexdigest()[:12])
import os

os.remove("best.ckpt")
