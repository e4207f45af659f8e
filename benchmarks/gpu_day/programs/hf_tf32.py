"""Hugging Face's Trainer with tf32=True, and with workers: a small Llama of random weights. Ends with the code 3 where transformers is missing."""

import os
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", DISABLE_MLFLOW_INTEGRATION="TRUE")
try:
    from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainingArguments, set_seed
except ImportError as error:
    print(f"{error}", file=sys.stderr)
    sys.exit(3)
import torch
from torch.utils.data import Dataset

STEPS = 100


class Texts(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        ids = torch.randint(0, 256, (128,), generator=torch.Generator().manual_seed(int(index)))
        return {"input_ids": ids, "labels": ids}


set_seed(0)
has_cuda = torch.version.cuda is not None
if not has_cuda:  # the tests' simulated device: transformers refuses tf32 there, so this is what its tf32=True does
    torch.backends.fp32_precision = "tf32"
config = LlamaConfig(
    vocab_size=256, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4
)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=16, max_steps=STEPS, tf32=has_cuda, dataloader_num_workers=2, logging_steps=50, save_strategy="no",
        report_to=[], seed=0, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=Texts())
    trainer.remove_callback(PrinterCallback)  # it prints durations, which differ from run to run
    trainer.train()
for entry in trainer.state.log_history:
    if "loss" in entry:
        print(f"step {entry['step']}: loss {float(entry['loss']):.6g}", flush=True)
