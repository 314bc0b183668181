#!/usr/bin/env python3
"""What learning costs the traffic, and how soon it helps: a running service, measured from outside.

Two figures, with the quickstart's recipe on SmolLM2-135M-Instruct and every candidate released (so that each step has a
release to wait for):

- served latency of a token while a step is made against the same while nothing is trained (p50, p95; one client that
  streams answers of 24 tokens without a pause);
- from the last score of a batch to the release it made being served, against the step and gate time the service reports.

Prints one JSON object. Standard library only.
"""
import argparse
import http.client
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "recipes/sao/examples/quickstart"
SHOTS = json.loads((EXAMPLE / "messages.json").read_text())
TICKETS = [json.loads(line) for line in (EXAMPLE / "train.jsonl").read_text().splitlines()]


class Stream(threading.Thread):
    """A client that streams one answer after the other and keeps the time between tokens."""

    def __init__(self, url):
        super().__init__(daemon=True)
        self.url = urllib.parse.urlparse(url)
        self.gaps, self.failed, self.over = [], 0, threading.Event()

    def run(self):
        while not self.over.is_set():
            body = {"messages": [{"role": "user", "content": "Count to one hundred."}], "max_tokens": 24, "ignore_eos": True,
                    "temperature": 0.7, "stream": True}
            connection = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=600)
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"x-reef-scenario": "bystander"})
            response = connection.getresponse()
            self.failed += response.status != 200
            last = None
            for line in response:
                if line.startswith(b"data: {") and b'"content"' in line:
                    now = time.perf_counter()
                    if last is not None:
                        self.gaps.append((now, now - last))
                    last = now
            connection.close()


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))] if values else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--reef", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--idle", type=float, default=20.0, help="seconds of the idle measurement")
    parser.add_argument("--training-threads", default="1")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        recipe = (EXAMPLE / "recipe.toml").read_text().split("[gate]")[0] + '[gate]\nselector = "always"\n'
        (work / "recipe.toml").write_text(recipe)
        size = int(next(line for line in recipe.splitlines() if line.startswith("size = ")).split("=")[1])
        log = open(work / "serve.log", "w")
        service = subprocess.Popen(
            [args.reef, "-c", str(EXAMPLE / "serve.toml"), "--dir", str(work / "reef"), "serve", "--json", "--port", "0",
             "--inference.model-path", args.model, "--recipe.implementation", str(work / "recipe.toml"),
             "--inference.threads", "1", "--training.threads", args.training_threads],
            stdout=subprocess.PIPE, stderr=log, text=True)
        url = next(event["url"] for event in map(json.loads, service.stdout) if event.get("event") == "listening")

        def call(path, body=None):
            request = urllib.request.Request(url + path, None if body is None else json.dumps(body).encode(),
                                             {"content-type": "application/json", "x-reef-scenario": "tickets"})
            with urllib.request.urlopen(request, timeout=600) as response:
                return response.headers.get("x-reef-agent-record-id"), json.loads(response.read())

        try:
            stream = Stream(url)
            stream.start()
            time.sleep(3)
            begun = time.perf_counter()
            time.sleep(args.idle)
            idle = [gap for at, gap in stream.gaps if at >= begun]
            chosen, lags, spans = random.Random(1), [], []
            for step in range(1, args.steps + 1):
                receipts = []
                for _ in range(size):
                    ticket = chosen.choice(TICKETS)
                    messages = SHOTS + [{"role": "user", "content": "Ticket: " + ticket["text"]}]
                    receipt, answer = call("/v1/chat/completions", {"messages": messages, "max_tokens": 4, "temperature": 1.0})
                    receipts.append((receipt, float(answer["choices"][0]["message"]["content"].strip() == ticket["label"])))
                for receipt, score in receipts:
                    call("/reef/report", {"score": score, "references": [receipt]})
                reported = time.perf_counter()
                while True:
                    state = call("/reef/status")[1]["scenarios"]["tickets"]
                    if state["scenario_step"] >= step and state["artifact_head_sync"]["state"] == "synchronized":
                        break
                    time.sleep(0.1)
                live = time.perf_counter()
                metrics = state["last_committed_step"]["metrics"]
                known = metrics.get("train_seconds", 0) + metrics.get("gate_seconds", 0)
                lags.append({"seconds": live - reported, "step_and_gate": known, "over": live - reported - known})
                spans.append((reported, live))
            stream.over.set()
            stream.join(60)
        finally:
            service.terminate()
            service.wait(60)
        busy = [gap for at, gap in stream.gaps if any(a <= at <= b for a, b in spans)]
        figures = lambda gaps: {"tokens": len(gaps), "p50_ms": 1e3 * quantile(gaps, 0.5), "p95_ms": 1e3 * quantile(gaps, 0.95)}
        print(json.dumps({
            "kind": "learning", "idle": figures(idle), "training": figures(busy),
            "p95_ratio": quantile(busy, 0.95) / quantile(idle, 0.95), "score_to_live": lags, "failed_requests": stream.failed,
        }, indent=2))


if __name__ == "__main__":
    main()
