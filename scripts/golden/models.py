#!/usr/bin/env python3
"""Golden outputs of small models of every architecture variant, by transformers and peft.

Needs torch 2.13, transformers and peft; none of them is needed to run the tests. The weights come from the same
function of name, index and seed as `engine::models::write_synthetic`, so only configurations and outputs are kept.

    python scripts/golden/models.py tests/fixtures/models
"""
import json
import os
import sys

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

MASK = (1 << 64) - 1
BASE = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu",
}
VARIANTS = {
    "llama": {},
    "llama-tied": {"tie_word_embeddings": True},
    "llama-biased-mha": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4},
    "llama-rope-linear": {"rope_scaling": {"rope_type": "linear", "factor": 3.0}},
    "llama-rope-dynamic": {"max_position_embeddings": 32, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "llama-rope-llama3": {
        "head_dim": 32, "rope_theta": 500.0,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    },
    "llama-rope-yarn": {
        "head_dim": 32, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    },
    "qwen2": {"model_type": "qwen2", "rope_theta": 1000000.0},
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "rope_theta": 1000000.0},
    "qwen3-biased": {"model_type": "qwen3", "head_dim": 24, "attention_bias": True},
}
SEED = 20260101
PROMPT = [(i * 37 + 11) % 256 for i in range(24)]
POSITIONS = [0, 9, 23]


def fnv1a(name):
    h = 0xCBF29CE484222325
    for b in name.encode():
        h = ((h ^ b) * 0x100000001B3) & MASK
    return h


def values(name, shape, seed):
    n_in = shape[-1]
    if name.endswith("norm.weight"):
        centre, scale = 1.0, 0.1
    elif name.endswith("bias"):
        centre, scale = 0.0, 0.1
    elif "embed_tokens" in name:
        centre, scale = 0.0, 0.25
    else:
        centre, scale = 0.0, np.sqrt(3.0 / n_in)
    with np.errstate(over="ignore"):
        z = np.uint64(fnv1a(name) ^ seed) + np.arange(int(np.prod(shape)), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    unit = (z >> np.uint64(40)).astype(np.float32) / np.float32(1 << 23) - np.float32(1)
    out = np.float32(centre) + np.float32(scale) * unit
    return torch.from_numpy(out.astype(np.float32).reshape(shape))


def build(config):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), attn_implementation="eager")
    model = model.float().eval()
    state = model.state_dict()
    filled = {name: values(name, list(t.shape), SEED) for name, t in state.items()}
    if config["tie_word_embeddings"]:
        filled["lm_head.weight"] = filled["model.embed_tokens.weight"]
    model.load_state_dict(filled)
    return model


def rounded(tensor):
    return [float(np.float32(x)) for x in tensor.detach().flatten().tolist()]


@torch.no_grad()
def greedy(model, prompt, n):
    out = model.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=n, min_new_tokens=n, use_cache=True, pad_token_id=0,
        eos_token_id=None, bos_token_id=None,
    )
    return out[0, len(prompt):].tolist()


def plain(out_dir):
    for name, changes in VARIANTS.items():
        config = {**BASE, **changes}
        model = build(config)
        with torch.no_grad():
            logits = model(torch.tensor([PROMPT])).logits[0]
        fixture = {
            "config": config, "seed": SEED, "prompt": PROMPT, "positions": POSITIONS,
            "logits": [rounded(logits[p]) for p in POSITIONS], "greedy": greedy(model, PROMPT, 64),
        }
        with open(os.path.join(out_dir, f"{name}.json"), "w") as f:
            json.dump(fixture, f)
            f.write("\n")
        print(name, len(set(fixture["greedy"])), fixture["greedy"][:8])


def lora(out_dir):
    """An adapter as peft writes it, the logits with it, and the gradients of the mean next-token loss."""
    from safetensors.torch import load_file, save_file

    for name, config in [("llama", BASE), ("qwen3", {**BASE, **VARIANTS["qwen3"]})]:
        model = build(config)
        targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        spec = LoraConfig(r=4, lora_alpha=6, target_modules=targets, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM")
        model = get_peft_model(model, spec)
        for parameter, tensor in model.named_parameters():
            if "lora_" in parameter:
                short = parameter.replace(".default", "")
                tensor.data.copy_(values(short, list(tensor.shape), SEED) * (0.3 if "lora_B" in short else 1.0))
        tokens = torch.tensor([PROMPT, PROMPT[::-1]])
        logits = model(tokens).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        folder = os.path.join(out_dir, f"lora-{name}")
        model.save_pretrained(folder)
        os.remove(os.path.join(folder, "README.md"))
        path = os.path.join(folder, "adapter_config.json")
        with open(path) as f:
            saved = json.load(f)
        saved["base_model_name_or_path"] = name
        saved["target_modules"] = sorted(saved["target_modules"])
        with open(path, "w") as f:
            json.dump(saved, f, indent=2, sort_keys=True)
            f.write("\n")
        grads = {
            p.replace(".default", ""): t.grad.contiguous() for p, t in model.named_parameters() if t.grad is not None
        }
        assert set(grads) == set(load_file(os.path.join(folder, "adapter_model.safetensors")))
        save_file(grads, os.path.join(folder, "gradients.safetensors"))
        model.eval()
        fixture = {
            "config": config, "seed": SEED, "tokens": tokens.tolist(), "loss": float(loss.detach()),
            "positions": POSITIONS, "logits": [rounded(logits[0, p]) for p in POSITIONS],
            "greedy": greedy(model, PROMPT, 32),
        }
        with open(os.path.join(folder, "expected.json"), "w") as f:
            json.dump(fixture, f)
            f.write("\n")
        print("lora", name, float(loss.detach()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    target = sys.argv[1]
    os.makedirs(target, exist_ok=True)
    plain(target)
    lora(target)
