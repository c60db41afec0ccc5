"""Write a small random Llama of three million weights, with the tiny model's tokenizer, into a folder.

python random_model.py FOLDER
"""

import sys

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from ratchet.models.model_files import locate


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(locate("tiny").source)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(sys.argv[1])
    tokenizer.save_pretrained(sys.argv[1])


if __name__ == "__main__":
    main()
