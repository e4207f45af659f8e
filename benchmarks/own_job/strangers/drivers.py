"""Small trainings with the libraries that programs train with, after their quick starts, on random
data: `python drivers.py NAME`."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

VOCABULARY = 200


class Tokens(Dataset):
    def __init__(self, count: int, length: int = 64) -> None:
        self.rows = torch.from_numpy(
            np.random.default_rng(0).integers(0, VOCABULARY, (count, length))
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def small_gpt() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=128, n_layer=3, n_head=4)
    )


def hf_trainer() -> None:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        "out",
        max_steps=300,
        per_device_train_batch_size=8,
        logging_steps=50,
        save_steps=150,
        use_cpu=True,
        report_to=[],
    )
    Trainer(small_gpt(), arguments, train_dataset=Tokens(4000)).train()


def word_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = {
        word: place
        for place, word in enumerate(
            ["[PAD]", "[UNK]", "[EOS]", *(f"w{number}" for number in range(VOCABULARY - 3))]
        )
    }
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", eos_token="[EOS]", unk_token="[UNK]"
    )


def texts(count: int) -> list[str]:
    chance = np.random.default_rng(0)
    return [
        " ".join(f"w{number}" for number in chance.integers(0, VOCABULARY - 3, 50))
        for _ in range(count)
    ]


def trl_sft() -> None:
    from datasets import Dataset as Table
    from trl import SFTConfig, SFTTrainer

    arguments = SFTConfig(
        "out", max_steps=200, per_device_train_batch_size=8, logging_steps=50, use_cpu=True,
        report_to=[], max_length=64, bf16=False, gradient_checkpointing=False,
    )  # fmt: skip
    table = Table.from_dict({"text": texts(2000)})
    SFTTrainer(
        small_gpt(), args=arguments, train_dataset=table, processing_class=word_tokenizer()
    ).train()


def peft_lora() -> None:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    model = get_peft_model(
        small_gpt(), LoraConfig(target_modules=["c_attn"], task_type="CAUSAL_LM")
    )
    optimizer = torch.optim.AdamW(
        [weight for weight in model.parameters() if weight.requires_grad], 1e-3
    )
    for number, batch in enumerate(DataLoader(Tokens(3200), 8, shuffle=True)):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if number % 100 == 0:
            print(number, f"{loss.item():.6f}")


def sentence_transformers() -> None:
    from datasets import Dataset as Table
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
        losses,
        models,
    )
    from transformers import BertConfig, BertModel

    tokenizer = word_tokenizer()
    BertModel(
        BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=256,
        )
    ).save_pretrained("bert")
    tokenizer.save_pretrained("bert")
    words = models.Transformer("bert", max_seq_length=64)
    model = SentenceTransformer(modules=[words, models.Pooling(128)], device="cpu")
    table = Table.from_dict({"anchor": texts(4000), "positive": texts(4000)})
    arguments = SentenceTransformerTrainingArguments(
        "out",
        max_steps=500,
        per_device_train_batch_size=8,
        logging_steps=50,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
    )
    SentenceTransformerTrainer(
        model, arguments, train_dataset=table, loss=losses.MultipleNegativesRankingLoss(model)
    ).train()


def diffusers_unet() -> None:
    from diffusers import DDPMScheduler, UNet2DModel

    torch.manual_seed(0)
    model = UNet2DModel(
        16, 3, 3, block_out_channels=(32, 64), layers_per_block=1,
        down_block_types=("DownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
    )  # fmt: skip
    noise = DDPMScheduler(100)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    loader = DataLoader(torch.randn(1200, 3, 16, 16), 8, shuffle=True)
    for epoch in range(2):
        for images in loader:
            added, times = torch.randn_like(images), torch.randint(0, 100, (len(images),))
            loss = nn.functional.mse_loss(
                model(noise.add_noise(images, added, times), times).sample, added
            )
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        print(epoch, f"{loss.item():.6f}")


def fastai_learner() -> None:
    from fastai.data.core import DataLoaders
    from fastai.learner import Learner

    torch.manual_seed(0)
    rows = torch.randn(12_000, 128)
    data = [(row, torch.tensor(int(row.sum() > 0))) for row in rows]
    loaders = DataLoaders(DataLoader(data, 32, shuffle=True), DataLoader(data[:1000], 64))
    model = nn.Sequential(
        nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 2)
    )
    Learner(loaders, model, loss_func=nn.CrossEntropyLoss()).fit(25, 1e-3)


def stable_baselines3() -> None:
    from stable_baselines3 import PPO

    PPO("MlpPolicy", "CartPole-v1", n_steps=512, seed=0, device="cpu", verbose=1).learn(40_000)


def torch_geometric() -> None:
    from torch_geometric.datasets import FakeDataset
    from torch_geometric.loader import DataLoader as GraphLoader
    from torch_geometric.nn import GCNConv, global_mean_pool

    torch.manual_seed(0)
    np.random.seed(0)
    graphs = FakeDataset(600, avg_num_nodes=60, num_classes=4)
    graphs.download = graphs.process = lambda: None

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = (
                GCNConv(graphs.num_features, 96),
                GCNConv(96, 96),
                nn.Linear(96, 4),
            )

        def forward(self, batch: Any) -> torch.Tensor:
            hidden = self.first(batch.x, batch.edge_index).relu()
            hidden = self.second(hidden, batch.edge_index).relu()
            return self.head(global_mean_pool(hidden, batch.batch))

    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(30):
        for batch in GraphLoader(graphs, 32, shuffle=True):
            loss = nn.functional.cross_entropy(model(batch), batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"{loss.item():.4f}")


def ultralytics_yolo() -> None:
    os.environ |= {
        "YOLO_OFFLINE": "true",
        "YOLO_AUTOINSTALL": "false",
        "YOLO_CONFIG_DIR": os.getcwd(),
    }  # nothing is downloaded or installed
    from PIL import Image
    from ultralytics import YOLO

    chance = np.random.default_rng(0)
    for part, count in (("train", 160), ("val", 8)):
        for kind in ("images", "labels"):
            os.makedirs(f"boxes/{kind}/{part}", exist_ok=True)
        for number in range(count):
            pixels = chance.integers(0, 90, (96, 96, 3)).astype(np.uint8)
            left, top = chance.integers(0, 48, 2)
            pixels[top : top + 40, left : left + 40] = 220
            Image.fromarray(pixels).save(f"boxes/images/{part}/{number}.jpg")
            with open(f"boxes/labels/{part}/{number}.txt", "w", encoding="utf-8") as file:
                file.write(
                    f"0 {(left + 20) / 96:.5f} {(top + 20) / 96:.5f} {40 / 96:.5f} {40 / 96:.5f}\n"
                )
    with open("boxes.yaml", "w", encoding="utf-8") as file:
        file.write(
            f"path: {os.getcwd()}/boxes\ntrain: images/train\nval: images/val\nnames: [box]\n"
        )
    YOLO("yolo11n.yaml").train(
        data="boxes.yaml",
        epochs=12,
        imgsz=96,
        batch=8,
        workers=1,
        device="cpu",
        val=False,
        plots=False,
        project="out",
        name="yolo",
    )


def composer_trainer() -> None:
    from composer import Trainer
    from composer.models import ComposerClassifier

    torch.manual_seed(0)
    images = torch.randn(1200, 3, 24, 24)
    rows = [(image, int(image.mean() > 0)) for image in images]
    module = nn.Sequential(
        nn.Conv2d(3, 24, 3),
        nn.ReLU(),
        nn.Conv2d(24, 48, 3, 2),
        nn.ReLU(),
        nn.Conv2d(48, 48, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(2),
    )
    module(images[:1])
    trainer = Trainer(
        model=ComposerClassifier(module, num_classes=2),
        train_dataloader=DataLoader(rows, 16, shuffle=True), max_duration="10ep",
        optimizers=torch.optim.AdamW(module.parameters(), 1e-3), device="cpu", progress_bar=False,
        seed=0,
    )  # fmt: skip
    trainer.fit()
    trainer.close()
    print(f"{sum(weights.sum().item() for weights in module.parameters()):.6f}")


class Rows(Dataset):
    def __len__(self) -> int:
        return 6000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((256,), float(index % 7))


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return (torch.full((256,), float(number % 7)) for number in range(20_000))


def _fit(loader: Any, epochs: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(256, 700), nn.ReLU(), nn.Linear(700, 700), nn.ReLU(), nn.Linear(700, 256)
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for epoch in range(epochs):
        for rows in loader:
            loss = nn.functional.mse_loss(model(rows), rows)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        print(epoch, f"{loss.item():.6f}")


def spawned_workers() -> None:
    _fit(
        DataLoader(
            Rows(), 32, num_workers=1, multiprocessing_context="spawn", persistent_workers=True
        ),
        14,
    )


def iterable_stream() -> None:
    _fit(DataLoader(Stream(), 32, num_workers=1), 5)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
