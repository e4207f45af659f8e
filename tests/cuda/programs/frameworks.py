"""Loops that belong to a library, on a GPU, with workers and a validation: `python frameworks.py NAME`. Prints a digest of the weights, and writes the
times of the device by CUDA events of its own, at hooks of torch: passes (forward and backward), optimizer, and the rest of a step."""

import hashlib
import itertools
import json
import logging
import os
import sys
import warnings

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", DISABLE_MLFLOW_INTEGRATION="TRUE")
warnings.filterwarnings("ignore")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

STEPS, BATCH, SKIPPED = 120, 64, 40


def report(*values):
    """Print one line. In one piece: the lines of two processes must not mix."""
    print(" ".join(map(str, values)) + "\n", end="", flush=True)


class Samples(Dataset):
    def __len__(self):
        return STEPS * BATCH // 2

    def __getitem__(self, index):
        return torch.randn(256, generator=torch.Generator().manual_seed(index)), index % 10


class Texts(Dataset):
    def __len__(self):
        return STEPS * 4

    def __getitem__(self, index):
        ids = torch.randint(0, 256, (64,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


class Events:
    """Events at the start of each training pass of the model, and around each step of the optimizer."""

    def __init__(self):
        self.steps = []

    def watch(self, model, optimizer, closure=False):
        """`closure`: the passes run within the optimizer's step, and the caller says when the update begins."""
        model.register_forward_pre_hook(self.pass_begins)
        if not closure:
            optimizer.register_step_pre_hook(self.optimizer_begins)
        optimizer.register_step_post_hook(self.optimizer_ended)

    def record(self):
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def pass_begins(self, module, args):
        if torch.is_grad_enabled():
            self.steps.append([self.record()])

    def optimizer_begins(self, *_):
        self.steps[-1].append(self.record())

    def optimizer_ended(self, *_):
        self.steps[-1].append(self.record())

    def write(self):
        torch.cuda.synchronize()
        sums = {"passes": 0.0, "optimizer": 0.0, "rest": 0.0}
        for before, (start, passed, ended) in itertools.pairwise(step for step in self.steps[SKIPPED:] if len(step) == 3):
            sums["passes"] += start.elapsed_time(passed)
            sums["optimizer"] += passed.elapsed_time(ended)
            sums["rest"] += before[2].elapsed_time(start)
        total = sum(sums.values())
        rank = os.environ.get("RANK", "0")
        with open(f"{os.environ['STAMPS']}.{rank}", "w") as file:
            json.dump({name: value / total for name, value in sums.items()}, file)


events = Events()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), *[nn.Linear(1024, 1024), nn.ReLU()] * 3, nn.Linear(1024, 10))


def train_plain(device="cuda", wrap=None):
    model = network().to(device)
    model = model if wrap is None else wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    events.watch(model, optimizer)
    for _ in range(2):
        for x, y in DataLoader(Samples(), BATCH, shuffle=wrap is None, num_workers=2, pin_memory=True):
            loss = F.cross_entropy(model(x.to(device, non_blocking=True)), y.to(device, non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            right = sum(
                (model(x.to(device)).argmax(1) == y.to(device)).sum()
                for x, y in itertools.islice(DataLoader(Samples(), BATCH, num_workers=1), 4)
            )
        report(loss.item(), right.item())
    return model


def ranks():
    torch.distributed.init_process_group("nccl")
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    model = train_plain(f"cuda:{rank}", lambda inner: nn.parallel.DistributedDataParallel(inner, device_ids=[rank]))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return model


def hf_trainer():
    import transformers
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    transformers.set_seed(0)
    transformers.utils.logging.set_verbosity_error()
    config = LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        max_position_embeddings=64,
    )  # fmt: skip

    class Watch(TrainerCallback):
        def on_train_begin(self, args, state, control, model=None, optimizer=None, **kwargs):
            events.watch(model, getattr(optimizer, "optimizer", optimizer))

    arguments = TrainingArguments(
        "hf", per_device_train_batch_size=8, per_device_eval_batch_size=8, max_steps=STEPS, logging_steps=20, eval_strategy="steps",
        eval_steps=50, save_strategy="no", report_to=[], seed=0, disable_tqdm=True, dataloader_num_workers=2, tf32=None, bf16=True,
    )  # fmt: skip
    trainer = Trainer(
        model=LlamaForCausalLM(config),
        args=arguments,
        train_dataset=Texts(),
        eval_dataset=torch.utils.data.Subset(Texts(), range(16)),
        callbacks=[Watch()],
    )
    trainer.train()
    report([round(entry["loss"], 4) for entry in trainer.state.log_history if "loss" in entry])
    return trainer.model


def lightning():
    import lightning.pytorch as pl

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, batch, index):
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, index):
            self.log("val", F.cross_entropy(self.net(batch[0]), batch[1]))

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
            events.watch(self.net, optimizer, closure=True)
            return optimizer

        def on_before_optimizer_step(self, optimizer):
            events.optimizer_begins()

    pl.seed_everything(0, verbose=False)
    module = Module()
    trainer = pl.Trainer(
        max_steps=STEPS, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, val_check_interval=40, limit_val_batches=4,
    )  # fmt: skip
    loader = DataLoader(Samples(), BATCH, shuffle=True, num_workers=2)
    trainer.fit(module, loader, DataLoader(Samples(), BATCH, num_workers=1))
    report(f"{trainer.callback_metrics['val'].item():.4f}")
    return module


def accelerated():
    from accelerate import Accelerator

    # the values of the simulated device are those of the CPU: without AVX-512 a step in bf16 takes seconds there
    accelerator = Accelerator(mixed_precision="bf16" if torch.cpu._is_avx512_supported() else "no")
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Samples(), BATCH, shuffle=True, num_workers=2))
    events.watch(model, optimizer.optimizer)
    for _ in range(2):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        report(round(loss.item(), 4))
    return model


LOOPS = {"plain": train_plain, "ranks": ranks, "hf_trainer": hf_trainer, "lightning": lightning, "accelerate": accelerated}
if __name__ == "__main__":
    trained = LOOPS[sys.argv[1]]()
    events.write()
    weights = b"".join(parameter.detach().cpu().float().numpy().tobytes() for parameter in trained.parameters())
    report(hashlib.sha256(weights).hexdigest()[:16])
