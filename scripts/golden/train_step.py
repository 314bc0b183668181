#!/usr/bin/env python3
"""Makes tests/fixtures/training: a tiny decoder, an adapter as peft draws it, and that adapter after three steps of
supervised training in PyTorch + peft + torch.optim.AdamW. Run with torch==2.13.0, transformers and peft."""
import json
import pathlib
import shutil
import tempfile

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "training"
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ROWS = [
    {"prompt": [1, 5, 9], "response": [2, 3, 11, 7], "mask": [1, 1, 1, 1]},
    {"prompt": [4], "response": [8, 8, 1, 0, 12, 6], "mask": [1, 0, 0, 1, 1, 1]},
    {"prompt": [10, 2], "response": [13], "mask": [1]},
]


def keep(folder, target):
    target.mkdir(parents=True, exist_ok=True)
    for name in ["adapter_config.json", "adapter_model.safetensors"]:
        shutil.copy(pathlib.Path(folder) / name, target / name)
    path = target / "adapter_config.json"
    config = json.loads(path.read_text())
    config["base_model_name_or_path"] = "tiny"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def main():
    torch.manual_seed(5)
    shutil.rmtree(OUT, ignore_errors=True)
    config = LlamaConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, vocab_size=14, max_position_embeddings=64, rms_norm_eps=1e-5,
                         rope_theta=10000.0, tie_word_embeddings=True, initializer_range=0.3)
    model = LlamaForCausalLM(config)
    base = OUT / "base"
    base.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as made:
        model.save_pretrained(made)
        tensors = load_file(pathlib.Path(made) / "model.safetensors")
    save_file({k: v.contiguous() for k, v in tensors.items()}, base / "model.safetensors", metadata={"format": "pt"})
    (base / "config.json").write_text(json.dumps({
        "model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 14, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True, "torch_dtype": "float32",
    }, indent=2) + "\n")
    lora = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=TARGETS, task_type="CAUSAL_LM")
    peft = get_peft_model(model, lora)
    peft.train()
    with tempfile.TemporaryDirectory() as made:
        peft.save_pretrained(made)
        keep(made, OUT / "before")
    parameters = [p for p in peft.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=0.01, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.05)
    losses, norms = [], []
    for _ in range(3):
        total, count = 0.0, sum(sum(r["mask"]) for r in ROWS)
        for row in ROWS:
            ids = torch.tensor([row["prompt"] + row["response"]])
            logp = torch.log_softmax(peft(input_ids=ids, use_cache=False).logits[0], -1)
            first = len(row["prompt"])
            for t, (token, used) in enumerate(zip(row["response"], row["mask"])):
                if used:
                    total = total - logp[first + t - 1, token] / count
        optimizer.zero_grad()
        total.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, 0.5).item())
        optimizer.step()
        losses.append(total.item())
    with tempfile.TemporaryDirectory() as made:
        peft.save_pretrained(made)
        keep(made, OUT / "after")
    (OUT / "step.json").write_text(json.dumps({"made_by": "scripts/golden/train_step.py", "rows": ROWS,
                                               "losses": losses, "norms": norms}) + "\n")


if __name__ == "__main__":
    main()
