"""Lightning logs eleven metrics in each step. Fixed: each twentieth."""

import warnings

import lightning
import pace
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 4))

    def training_step(self, batch, at):
        loss = nn.functional.cross_entropy(self.body(batch[0]), batch[1])
        for k in range(0 if pace.FIXED and at % 20 else 11):
            self.log(f"metric{k}", loss.detach() + k)
        if not pace.goes_on():
            self.trainer.should_stop = True
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    torch.manual_seed(0)
    data = DataLoader(TensorDataset(torch.randn(200_000, 32), torch.randint(0, 4, (200_000,))), batch_size=64)
    logger = CSVLogger("logs", flush_logs_every_n_steps=50)
    trainer = lightning.Trainer(
        max_epochs=100,
        logger=logger,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_checkpointing=False,
        accelerator="cpu",
    )
    trainer.fit(Model(), data)
