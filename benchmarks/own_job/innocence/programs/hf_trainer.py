# needs: transformers, accelerate
# Hugging Face Trainer with a tiny model made from its configuration, a callback, evaluation, and a checkpoint that is resumed.
import hashlib
import os
import shutil

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", WANDB_DISABLED="true")
import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

transformers.logging.set_verbosity_error()
transformers.set_seed(0)


class Data(torch.utils.data.Dataset):
    def __init__(self, count):
        self.rows = torch.randint(0, 64, (count, 16))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, number):
        return {"input_ids": self.rows[number], "labels": self.rows[number]}


class Count(TrainerCallback):
    calls = {}

    def on_step_begin(self, *_, **__):
        self.calls["begin"] = self.calls.get("begin", 0) + 1

    def on_pre_optimizer_step(self, *_, **__):
        self.calls["pre"] = self.calls.get("pre", 0) + 1

    def on_log(self, *_, logs=None, **__):
        print({name: round(value, 4) for name, value in logs.items() if name in ("loss", "eval_loss", "grad_norm", "epoch")})


def trainer(steps):
    arguments = TrainingArguments(
        "out",
        max_steps=steps,
        per_device_train_batch_size=4,
        logging_steps=20,
        save_steps=40,
        eval_strategy="steps",
        eval_steps=40,
        gradient_accumulation_steps=2,
        use_cpu=True,
        disable_tqdm=True,
        report_to=[],
        seed=0,
        learning_rate=1e-3,
    )
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2))
    made = Trainer(model, arguments, train_dataset=Data(200), eval_dataset=Data(16), callbacks=[Count()])
    made.remove_callback(transformers.PrinterCallback)
    return made


first = trainer(40)
first.train()
second = trainer(60)
second.train(resume_from_checkpoint="out/checkpoint-40")
print(Count.calls, second.state.global_step)
print(hashlib.sha1(second.model.transformer.wte.weight.detach().numpy().tobytes()).hexdigest()[:12])
shutil.rmtree("out")
