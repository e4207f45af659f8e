"""A small Llama with random weights and a tokenizer of single characters:
`python make_model.py FOLDER`. Needs an environment with transformers."""

from __future__ import annotations

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 128
SPECIAL = ("<s>", "</s>", "<unk>")
CHARACTERS = (
    [chr(code) for code in range(32, 127)]
    + ["\n"]
    + [chr(code) for code in range(192, 192 + VOCABULARY - 96 - len(SPECIAL))]
)
"""One character for each id of the model: an id without text would be streamed as an empty chunk
and hide its time."""


def main() -> None:
    folder = sys.argv[1]
    vocabulary = {token: n for n, token in enumerate((*SPECIAL, *CHARACTERS))}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    raw.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[: len(SPECIAL)] = 0.0  # never the likeliest: they too are no text
    model.save_pretrained(folder)


if __name__ == "__main__":
    main()
