#!/usr/bin/env python3
"""Loads a released adapter with transformers + peft and compares what it says with what Reef serves.

    PYTHON scripts/interop/peft-adapter.py --reef target/release/reef --dir RUN --model FOLDER [--scenario tickets] [--release head]

RUN is the folder of a service (`reef --dir`), for example of scripts/quickstart.sh; it is only read. The release is
exported, served once more without learning, and asked a few tickets with log-probabilities. peft, on the same base model
and the exported adapter, must give each served token the same log-probability. Needs a Python
with torch, transformers and peft: python3 -m venv /tmp/peft && /tmp/peft/bin/pip install torch==2.13.0 transformers peft
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import urllib.request

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "recipes/sao/examples/quickstart"
TOLERANCE = 2e-3


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--reef", required=True)
    parser.add_argument("--dir", type=pathlib.Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--scenario", default="tickets")
    parser.add_argument("--release", default="head")
    args = parser.parse_args()
    shots = json.loads((EXAMPLE / "messages.json").read_text())
    tickets = [json.loads(line)["text"] for line in (EXAMPLE / "test.jsonl").read_text().splitlines()][:6]
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        # A copy, so that serving it leaves the run as it is.
        shutil.copytree(args.dir, work / "reef", ignore=shutil.ignore_patterns("models", "run"))
        adapter = work / "adapter"
        reef = lambda *words: [args.reef, "--dir", str(work / "reef"), *words]
        subprocess.run(reef("release", "export", args.release, str(adapter), "--scenario", args.scenario), check=True, stdout=sys.stderr)
        service = subprocess.Popen(
            reef("-c", str(EXAMPLE / "serve.toml"), "serve", "--json", "--port", "0", "--inference.model-path", args.model,
                 "--training.enabled", "false"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            url = next(event["url"] for event in map(json.loads, service.stdout) if event.get("event") == "listening")
            served = []
            for seed, ticket in enumerate(tickets):
                messages = shots + [{"role": "user", "content": "Ticket: " + ticket}]
                body = {"messages": messages, "max_tokens": 8, "temperature": 1.0, "seed": seed, "logprobs": True}
                request = urllib.request.Request(
                    url + "/v1/chat/completions", json.dumps(body).encode(),
                    {"content-type": "application/json", "x-reef-scenario": args.scenario})
                choice = json.load(urllib.request.urlopen(request, timeout=300))["choices"][0]
                served.append((messages, choice["message"]["content"] or "", [t["logprob"] for t in choice["logprobs"]["content"]]))
        finally:
            service.terminate()
            service.wait(60)
        tokenizer = AutoTokenizer.from_pretrained(args.model)
        base = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
        model = PeftModel.from_pretrained(base, adapter).eval()
        worst, compared, moved = 0.0, 0, 0.0
        for messages, text, log_probs in served:
            prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            before = tokenizer(prompt, add_special_tokens=False)["input_ids"]
            after = tokenizer(text, add_special_tokens=False)["input_ids"][: len(log_probs)]
            ids = torch.tensor([before + after])
            with torch.no_grad():
                lines = torch.log_softmax(model(ids).logits[0].float(), -1)
                with model.disable_adapter():
                    plain = torch.log_softmax(model(ids).logits[0].float(), -1)
            for n, token in enumerate(after):
                at = len(before) + n - 1
                worst = max(worst, abs(lines[at, token].item() - log_probs[n]))
                moved = max(moved, abs(lines[at, token].item() - plain[at, token].item()))
                compared += 1
        print(json.dumps({"tokens": compared, "largest_difference": worst, "largest_difference_from_base": moved, "tolerance": TOLERANCE}))
        if not compared or worst > TOLERANCE or moved <= TOLERANCE:
            sys.exit("the exported adapter does not say what Reef serves, or changes nothing")


if __name__ == "__main__":
    main()
