#!/usr/bin/env python3
"""The measurement of `reef bench model`, done by transformers in eager mode: model_transformers.py DIR f32|bf16 THREADS"""
import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM

PROMPT, TOKENS, REPEATS = 512, 64, 3


@torch.no_grad()
def decode(model, prompt, batch):
    ids = prompt[:, : PROMPT // 8].expand(batch, -1)
    cache = model(ids, use_cache=True).past_key_values
    token = torch.ones(batch, 1, dtype=torch.long)
    started = time.perf_counter()
    for _ in range(TOKENS):
        out = model(token, past_key_values=cache, use_cache=True)
        cache, token = out.past_key_values, out.logits[:, -1:].argmax(-1)
    return batch * TOKENS / (time.perf_counter() - started)


@torch.no_grad()
def prefill(model, prompt):
    started = time.perf_counter()
    model(prompt, use_cache=True, logits_to_keep=1)
    return PROMPT / (time.perf_counter() - started)


def main():
    folder, dtype, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(threads)
    kind = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=kind).eval()
    prompt = torch.tensor([[(i * 7919 + 13) % model.config.vocab_size for i in range(PROMPT)]])
    best = lambda measure: max(measure() for _ in range(REPEATS))
    print(json.dumps({
        "kind": "transformers", "dtype": dtype, "threads": threads, "prefill": best(lambda: prefill(model, prompt)),
        "decode": [[b, best(lambda: decode(model, prompt, b))] for b in (1, 8)],
    }))


if __name__ == "__main__":
    main()
