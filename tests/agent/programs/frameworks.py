"""The same as loops.py for loops that belong to a library: HF Trainer, Lightning, accelerate. `python frameworks.py NAME STEPS`.

The stamps sit in subclasses and callbacks, where a user of the library can put them.
"""

import itertools
import os
import sys

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", DISABLE_MLFLOW_INTEGRATION="TRUE")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import time

import loops
import stamps as by_hand
import torch
import torch.nn.functional as F
from loops import LOSSES, Images, batches, checkpoint, convnet
from stamps import answered, phase, step
from torch.utils.data import DataLoader, Dataset

FOLDER = os.environ.get("STAMPS", ".")


class Texts(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        time.sleep(0.0005)
        ids = torch.randint(0, 256, (32,), generator=torch.Generator().manual_seed(int(index)))
        return {"input_ids": ids, "labels": ids}


def hf_trainer(steps):
    import transformers
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    transformers.set_seed(0)
    transformers.utils.logging.set_verbosity_error()
    config = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=32,
    )  # fmt: skip

    class Stamped(Trainer):
        def get_batch_samples(self, *args, **kwargs):
            with phase("data_wait"):
                return super().get_batch_samples(*args, **kwargs)

        def compute_loss(self, *args, **kwargs):
            with phase("forward"):
                return super().compute_loss(*args, **kwargs)

        def training_step(self, *args, **kwargs):
            plain = self.accelerator.backward

            def backward(*a, **k):
                with phase("backward"):
                    return plain(*a, **k)

            self.accelerator.backward = backward
            try:
                loss = super().training_step(*args, **kwargs)
            finally:
                self.accelerator.backward = plain
            LOSSES.append(float(loss))
            return loss

        def evaluate(self, *args, **kwargs):
            with by_hand.stamps.only("eval"):
                return super().evaluate(*args, **kwargs)

        def _save_checkpoint(self, *args, **kwargs):
            with by_hand.stamps.only("checkpoint"):
                return super()._save_checkpoint(*args, **kwargs)

        def _clip_grad_norm(self, *args, **kwargs):
            with phase("optimizer"):
                return super()._clip_grad_norm(*args, **kwargs)

        def log(self, *args, **kwargs):
            with phase("logging"):
                return super().log(*args, **kwargs)

    class Steps(TrainerCallback):
        def on_pre_optimizer_step(self, *args, **kwargs):
            self.block = phase("optimizer")
            self.block.__enter__()

        def on_optimizer_step(self, *args, **kwargs):
            self.block.__exit__(None, None, None)
            step()

    arguments = TrainingArguments(
        os.path.join(FOLDER, "hf"), per_device_train_batch_size=8, per_device_eval_batch_size=8, max_steps=steps, logging_steps=10,
        eval_strategy="steps", eval_steps=40, save_steps=40, report_to=[], use_cpu=True, seed=0, disable_tqdm=True,
    )  # fmt: skip
    trainer = Stamped(
        model=LlamaForCausalLM(config), args=arguments, train_dataset=Texts(2048), eval_dataset=Texts(32), callbacks=[Steps()]
    )
    trainer.train()
    return trainer.model


def lightning(steps):
    import logging
    import warnings

    import lightning.pytorch as pl

    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = convnet()

        def training_step(self, batch, index):
            with phase("forward"):
                loss = F.cross_entropy(answered(self.net(batch[0])), batch[1])
                with phase("logging"):
                    self.log("loss", loss)
                LOSSES.append(loss.item())
                return loss

        def validation_step(self, batch, index):
            self.log("val", F.cross_entropy(self.net(batch[0]), batch[1]))

        def backward(self, loss, *args, **kwargs):
            with phase("backward"):
                super().backward(loss, *args, **kwargs)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

        def optimizer_step(self, epoch, index, optimizer, closure):
            def stamped():
                with phase("other"):
                    return closure()

            with phase("optimizer"):
                optimizer.step(stamped)
            step()

        def optimizer_zero_grad(self, *args):
            with phase("optimizer"):
                super().optimizer_zero_grad(*args)

    class Loader(DataLoader):
        """Stamps the wait for a batch."""

        def __iter__(self):
            iterator = super().__iter__()
            while True:
                with phase("data_wait"):
                    batch = next(iterator, None)
                if batch is None:
                    return
                yield batch

    class Evaluates(pl.Callback):
        def on_validation_start(self, *args):
            self.block = by_hand.stamps.only("eval")
            self.block.__enter__()

        def on_validation_end(self, *args):
            self.block.__exit__(None, None, None)

    trainer = pl.Trainer(
        max_steps=steps, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        val_check_interval=40, callbacks=[Evaluates()], num_sanity_val_steps=0, default_root_dir=FOLDER,
    )  # fmt: skip
    module = Module()
    trainer.fit(module, Loader(Images(), 16, shuffle=True), DataLoader(Images(64), 16))
    return module


def accelerate(steps):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = convnet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, DataLoader(Images(), 16, shuffle=True), schedule)
    source = batches(loader)
    for n in range(1, steps + 1):
        for x, y in itertools.islice(source, 2):
            with accelerator.accumulate(model):
                with phase("forward"):
                    loss = F.cross_entropy(answered(model(x)), y)
                with phase("backward"):
                    accelerator.backward(loss)
                with phase("optimizer"):
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                if accelerator.sync_gradients:
                    step()
                schedule.step()
                with phase("optimizer"):
                    optimizer.zero_grad()
        LOSSES.append(loss.item())
        if n % 40 == 0:
            checkpoint("accelerate", model=model)
    return model


loops.LOOPS.update({loop.__name__: loop for loop in (hf_trainer, lightning, accelerate)})

if __name__ == "__main__":
    name, count = sys.argv[1], int(sys.argv[2])
    sys.argv[0] = name
    loops.run(name, count)
