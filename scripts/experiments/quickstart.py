#!/usr/bin/env python3
"""The quickstart as an experiment: a server that learns while it serves, measured on tickets it never trains on.

    scripts/experiments/quickstart.py --reef target/release/reef --model smollm2 --dir /tmp/run --seed 1 --minutes 8

Starts `reef serve` on the quickstart recipe, sends training tickets through /v1/chat/completions, reports a score for
each receipt (1 for the right label, 0 otherwise), and measures the held-out tickets at temperature 0 at the beginning and
after every release. Writes one CSV row per measurement and per step, and a summary as JSON. Standard library only.

`--control frozen` serves the same traffic without learning; `--control shuffled` reports each score for another ticket
of the same round, so that rewards say nothing. Neither may rise.
"""
import argparse
import concurrent.futures
import csv
import json
import pathlib
import random
import subprocess
import sys
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "recipes/sao/examples/quickstart"
SCENARIO = "tickets"


def rows(name):
    return [json.loads(line) for line in (EXAMPLE / name).read_text().splitlines()]


class Service:
    def __init__(self, args):
        self.failed = 0
        self.sent = 0
        command = [args.reef, "-c", str(EXAMPLE / "serve.toml"), "--dir", str(args.dir), "serve", "--json", "--port", "0"]
        if args.model:
            command += ["--inference.model-path", args.model]
        if args.control == "frozen":
            command += ["--training.enabled", "false"]
        self.log = open(args.dir / "serve.log", "w")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True, cwd=ROOT)
        self.url = None
        for line in self.process.stdout:
            event = json.loads(line)
            if event.get("event") == "listening":
                self.url = event["url"]
                break
        if self.url is None:
            sys.exit(f"reef did not start; see {args.dir}/serve.log")

    def request(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json", "x-reef-scenario": SCENARIO}
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.headers, json.loads(response.read())

    def ask(self, text, temperature, seed):
        self.sent += 1
        body = {
            "messages": SHOTS + [{"role": "user", "content": "Ticket: " + text}],
            "temperature": temperature, "max_tokens": 4, "seed": seed,
        }
        try:
            headers, answer = self.request("POST", "/v1/chat/completions", body)
        except (urllib.error.URLError, OSError):
            self.failed += 1
            return None, ""
        return headers.get("x-reef-agent-record-id"), answer["choices"][0]["message"]["content"] or ""

    def scenario(self):
        return self.request("GET", "/reef/status")[1]["scenarios"].get(SCENARIO, {})

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()


SHOTS = json.loads((EXAMPLE / "messages.json").read_text())


def score(answer, label):
    word = answer.split()[0].strip(".,:;!*\"'").lower() if answer.split() else ""
    return float(word == label)


def measure(service, pool, tickets):
    answers = pool.map(lambda row: service.ask(row["text"], 0.0, 1), tickets)
    scores = [score(answer, row["label"]) for (_, answer), row in zip(answers, tickets)]
    return sum(scores) / len(scores)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--reef", required=True)
    parser.add_argument("--model", default="", help="name or folder of the model [that of serve.toml]")
    parser.add_argument("--dir", type=pathlib.Path, required=True, help="a fresh directory for everything this run writes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--round", type=int, default=24, help="tickets sent in a round; the recipe's batch size")
    parser.add_argument("--temperature", type=float, default=0.8, help="of the training traffic")
    parser.add_argument("--control", choices=["none", "frozen", "shuffled"], default="none")
    args = parser.parse_args()
    args.dir.mkdir(parents=True, exist_ok=True)
    rng = random.Random(args.seed)
    train, test = rows("train.jsonl"), rows("test.jsonl")
    service = Service(args)
    began = time.monotonic()
    out = open(args.dir / "curve.csv", "w", newline="")
    table = csv.writer(out)
    table.writerow(["seconds", "kind", "step", "outcome", "train_reward", "heldout_reward", "release", "reason"])

    def note(kind, step="", outcome="", reward="", heldout="", release="", reason=""):
        table.writerow([f"{time.monotonic() - began:.1f}", kind, step, outcome, reward, heldout, release, reason])
        out.flush()
        print(f"{time.monotonic() - began:7.1f} s  {kind:9} {step!s:>4} {outcome:12} "
              f"{'train ' + format(reward, '.2f') if reward != '' else '':11} "
              f"{'held out ' + format(heldout, '.3f') if heldout != '' else ''} {reason}", flush=True)

    curve, outcomes = [], []
    try:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            first = measure(service, pool, test)
            curve.append(first)
            note("measure", 0, "base", heldout=first, release=service.scenario().get("release_id", ""))
            seen, number = 0, 0
            while time.monotonic() - began < args.minutes * 60:
                batch = [rng.choice(train) for _ in range(args.round)]
                seeds = [rng.randrange(1 << 31) for _ in batch]
                answers = list(pool.map(lambda pair: service.ask(pair[0]["text"], args.temperature, pair[1]), zip(batch, seeds)))
                scores = [score(answer, row["label"]) for (_, answer), row in zip(answers, batch)]
                if args.control == "shuffled":
                    rng.shuffle(scores)
                for (receipt, _), value in zip(answers, scores):
                    if receipt:
                        service.request("POST", "/reef/report", {"score": value, "references": [receipt]})
                number += 1
                note("round", number, reward=sum(scores) / len(scores))
                if args.control == "frozen":
                    continue
                # The next round waits for the step, so that samples are fresh. Traffic of other clients would not.
                deadline = time.monotonic() + 300
                while time.monotonic() < deadline:
                    state = service.scenario()
                    step = state.get("last_committed_step") or {}
                    if state.get("scenario_step", 0) > seen:
                        break
                    time.sleep(0.5)
                else:
                    note("timeout", reason=json.dumps(state.get("training", {})))
                    continue
                seen = state["scenario_step"]
                outcome = step["outcome"]
                outcomes.append(outcome)
                metrics = step.get("metrics", {})
                note("step", seen, outcome, release=state.get("release_id", ""), reason=str(metrics.get("gate_outcome", "")))
                if outcome == "released":
                    held = measure(service, pool, test)
                    curve.append(held)
                    note("measure", seen, "released", heldout=held, release=state.get("release_id", ""))
            last = measure(service, pool, test)
            note("measure", seen, "end", heldout=last)
    finally:
        service.stop()
        out.close()
    summary = {
        "seed": args.seed, "control": args.control, "minutes": args.minutes, "heldout_first": first, "heldout_last": last,
        "heldout_curve": curve, "releases": outcomes.count("released"), "refused": outcomes.count("rejected"),
        "steps": len(outcomes), "requests": service.sent, "failed_requests": service.failed,
    }
    (args.dir / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
