#!/usr/bin/env python3
"""Times one LoRA step (r=8, 4 x 256 tokens, f32) of `reef __train-step` against PyTorch + peft in eager mode.

Both sides run alternately, each in a process of its own, on the same tokens and the same frozen weights, with the same
number of threads. The first update of each process is warm-up. Peak memory is the resident set of the process. The first
loss of both sides must agree, or the comparison is void. Prints one JSON object.
"""
import argparse
import json
import os
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time

ROWS, TOKENS, RANK, ALPHA = 4, 256, 8, 16.0
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]
LEARNING_RATE = 1e-4


def sequences(vocabulary):
    rng = random.Random(7)
    return [[rng.randrange(vocabulary) for _ in range(TOKENS)] for _ in range(ROWS)]


def make_model(directory):
    """A decoder of SmolLM2-135M's shape with random weights: speed does not depend on their values."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
        vocab_size=49152, max_position_embeddings=8192, rms_norm_eps=1e-5, rope_theta=100000.0, tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    path = pathlib.Path(directory) / "config.json"
    text = json.loads(path.read_text())
    text.setdefault("rope_theta", 100000.0)
    path.write_text(json.dumps(text))


def job(model, vocabulary, updates, threads, output, precision, recompute):
    rows = [
        {"sources": [f"r{i}"], "prompt": ids[:1], "response": ids[1:], "loss_mask": [True] * (TOKENS - 1),
         "log_probs": None, "temperature": 1.0, "spans": [], "truncated": False}
        for i, ids in enumerate(sequences(vocabulary))
    ]
    return {
        "step": 1, "batch": {"id": "bench", "scenario": "bench", "rows": rows}, "base": str(model), "base_name": "bench",
        "parent": None, "output": str(output),
        "settings": {
            "objective": {"surrogate": {"family": "sft"}, "advantage": {"estimator": "none"},
                          "reduction": {"kind": "token-mean"}, "epochs": updates},
            "optimizer": {"learning_rate": LEARNING_RATE, "max_grad_norm": 1.0},
            "method": {"kind": "lora", "rank": RANK, "alpha": ALPHA, "targets": TARGETS, "seed": 1},
            "precision": precision,
            "limits": {"token_budget": ROWS * TOKENS, "head_chunk": ROWS * TOKENS, "threads": threads, "niceness": 0,
                       "recompute": recompute},
        },
    }


def environment(threads):
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def cpu_seconds(pid):
    """Processor time of a process so far: on a busy machine it says more than the clock."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def differences(marks):
    """Wall and processor seconds of every update but the first."""
    return [[b[0] - a[0], b[1] - a[1]] for a, b in zip(marks, marks[1:])][1:]


def peak_mib():
    # Of the children waited for; each side is a process of its own, so that is one child.
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def side_reef(args):
    """Runs as a process of its own, so that its children's peak memory is reef's."""
    with tempfile.TemporaryDirectory() as work:
        text = json.dumps(job(args.model, args.vocabulary, args.updates, args.threads, pathlib.Path(work) / "out",
                              args.precision, args.recompute))
        child = subprocess.Popen([args.reef, "__train-step"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                 env=environment(args.threads))
        child.stdin.write(text + "\n")
        child.stdin.flush()
        times, metrics = [], None
        for line in child.stdout:
            said = json.loads(line)
            event = said.get("event")
            if event and event["event"] in ("started", "update"):
                times.append((time.perf_counter(), cpu_seconds(child.pid)))
            if "outcome" in said:
                metrics = said["outcome"]["metrics"]
            if "error" in said:
                sys.exit(said["error"])
            if event is None:
                break
        child.stdin.close()
        child.wait()
        print(json.dumps({"steps": differences(times), "peak_mib": peak_mib(), "mean_loss": metrics["loss"]}))


def side_torch(args):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    kind = torch.float32 if args.precision == "f32" else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=kind, attn_implementation="sdpa")
    if args.recompute:
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=TARGETS))
    model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=0.0)
    ids = torch.tensor(sequences(args.vocabulary))
    times, losses = [(time.perf_counter(), cpu_seconds("self"))], []
    for _ in range(args.updates):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        times.append((time.perf_counter(), cpu_seconds("self")))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"steps": differences(times), "peak_mib": peak, "mean_loss": sum(losses) / len(losses)}))


def run_side(args, side):
    command = [sys.executable, __file__, "--side", side, "--model", str(args.model), "--reef", args.reef,
               "--updates", str(args.updates), "--threads", str(args.threads), "--precision", args.precision,
               "--vocabulary", str(args.vocabulary)] + (["--recompute"] if args.recompute else [])
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment(args.threads))
    return json.loads(out.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reef", default="target/release/reef", help="the release binary")
    parser.add_argument("--model", help="a Hugging Face folder; random weights of SmolLM2-135M's shape without it")
    parser.add_argument("--updates", type=int, default=4, help="updates per process, the first one is warm-up")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each side, alternating")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--recompute", action="store_true", help="recompute activations (gradient checkpointing)")
    parser.add_argument("--side", choices=["reef", "torch"], help=argparse.SUPPRESS)
    parser.add_argument("--vocabulary", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        return side_reef(args) if args.side == "reef" else side_torch(args)
    with tempfile.TemporaryDirectory() as made:
        if not args.model:
            make_model(made)
            args.model = made
        args.vocabulary = json.loads((pathlib.Path(args.model) / "config.json").read_text())["vocab_size"]
        results = {"reef": [], "torch": []}
        for _ in range(args.rounds):
            for side in results:
                results[side].append(run_side(args, side))
    summary = {"rows": ROWS, "tokens": TOKENS, "rank": RANK, "threads": args.threads, "precision": args.precision,
               "recompute": args.recompute, "load_average": os.getloadavg()[0]}
    for side, runs in results.items():
        steps = [wall for run in runs for wall, _ in run["steps"]]
        cpu = [cpu for run in runs for _, cpu in run["steps"]]
        summary[side] = {"median_s": round(statistics.median(steps), 3), "min_s": round(min(steps), 3),
                         "max_s": round(max(steps), 3), "median_cpu_s": round(statistics.median(cpu), 3), "steps": len(steps),
                         "peak_mib": round(max(run["peak_mib"] for run in runs)), "mean_loss": runs[0]["mean_loss"]}
    summary["time_ratio"] = round(summary["reef"]["median_s"] / summary["torch"]["median_s"], 3)
    summary["cpu_ratio"] = round(summary["reef"]["median_cpu_s"] / summary["torch"]["median_cpu_s"], 3)
    summary["memory_ratio"] = round(summary["reef"]["peak_mib"] / summary["torch"]["peak_mib"], 3)
    # The adapters start from different random numbers but change nothing at first, so losses differ by what a few
    # updates of a small rate can do.
    gap = abs(summary["reef"]["mean_loss"] / summary["torch"]["mean_loss"] - 1)
    summary["loss_gap"] = round(gap, 6)
    print(json.dumps(summary, indent=2))
    if gap > (1e-3 if args.precision == "f32" else 2e-2):
        sys.exit("the two sides do not compute the same loss; the comparison is void")


if __name__ == "__main__":
    main()
