"""A Hugging Face Trainer whose samples come from slow storage: `python hf_starved.py STEPS`. For the pictures of a user's job."""

import os
import sys
import tempfile
import time

import torch
from torch import nn
from transformers import Trainer, TrainingArguments


class Reviews(torch.utils.data.Dataset):
    """Each sample is read from slow storage."""

    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        time.sleep(0.003)
        g = torch.Generator().manual_seed(i)
        return {"x": torch.randn(64, generator=g), "labels": torch.tensor(i % 4)}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 4))

    def forward(self, x, labels):
        out = self.net(x)
        return {"loss": nn.functional.cross_entropy(out, labels), "logits": out}


if __name__ == "__main__":
    torch.set_num_threads(1)
    args = TrainingArguments(
        output_dir=os.path.join(tempfile.gettempdir(), "gpuconsole-pictures"),
        per_device_train_batch_size=8,
        max_steps=int(sys.argv[1]),
        logging_steps=200,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        optim="adamw_torch",
        dataloader_pin_memory=False,
    )
    Trainer(model=Classifier(), args=args, train_dataset=Reviews()).train()
