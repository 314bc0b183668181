#!/usr/bin/env python3
"""The main job: a server that learns while it serves, measured on tickets it never trains on.

    scripts/quickstart.py --reef target/release/reef --model smollm2 --dir /tmp/run --seed 1

Starts `reef serve` on the quickstart recipe, sends support tickets through /v1/chat/completions, reports for each receipt
whether the answer was right, and measures the held-out tickets before the first step and after every release: sampled as
the traffic is, and at temperature 0. Another client keeps asking all the time, so that every hot update happens under
traffic. When enough releases have passed the gate, the grader breaks: it rewards the wrong answers, and the gate has to
refuse what is learnt from that. Then the first release is put back in service by `reef release rollback`, and the best one
again.

Writes curve.csv (a row per measurement, round and step), summary.json and curve.svg. Standard library only.

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
import threading
import time
import urllib.error
import urllib.request

sys.dont_write_bytecode = True
import plot_learning  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "recipes/sao/examples/quickstart"
SHOTS = json.loads((EXAMPLE / "messages.json").read_text())
SCENARIO = "tickets"
STEP_TIMEOUT = 1800


def rows(name):
    return [json.loads(line) for line in (EXAMPLE / name).read_text().splitlines()]


class Service:
    """A running `reef serve`, and the clients that talk to it."""

    def __init__(self, args):
        self.args = args
        self.lock = threading.Lock()
        self.failed = 0
        self.sent = 0
        self.failures = []
        self.pool = concurrent.futures.ThreadPoolExecutor(16)
        command = [args.reef, "-c", str(EXAMPLE / "serve.toml"), "--dir", str(args.dir), "serve", "--json", "--port", "0"]
        if args.model:
            command += ["--inference.model-path", args.model]
        if args.control == "frozen":
            command += ["--training.enabled", "false"]
        for setting in args.set:
            key, _, value = setting.partition("=")
            command += ["--" + key, value]
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
        with urllib.request.urlopen(request, timeout=600) as response:
            return response.headers, json.loads(response.read())

    def ask(self, text, temperature, seed):
        """The receipt and the answer; a failure is counted and gives neither."""
        body = {
            "messages": SHOTS + [{"role": "user", "content": "Ticket: " + text}],
            "temperature": temperature, "max_tokens": 4, "seed": seed,
        }
        failure = None
        try:
            headers, answer = self.request("POST", "/v1/chat/completions", body)
        except (urllib.error.URLError, OSError) as error:
            failure = str(error)
        with self.lock:
            self.sent += 1
            if failure is not None:
                self.failed += 1
                self.failures.append(failure)
        if failure is not None:
            return None, ""
        return headers.get("x-reef-agent-record-id"), answer["choices"][0]["message"]["content"] or ""

    def measure(self, tickets):
        """The mean reward of an answer sampled as the traffic is, with one seed for each ticket, and of the likeliest one."""
        means = []
        for temperature in (self.args.temperature, 0.0):
            ask = lambda numbered: self.ask(numbered[1]["text"], temperature, numbered[0])
            answers = self.pool.map(ask, enumerate(tickets))
            scores = [score(answer, row["label"]) for (_, answer), row in zip(answers, tickets)]
            means.append(sum(scores) / len(scores))
        return tuple(means)

    def scenario(self):
        return self.request("GET", "/reef/status")[1]["scenarios"].get(SCENARIO, {})

    def wait_for_step(self, after, deadline):
        """The state of the scenario once a step later than `after` is committed and what it released is served."""
        while time.monotonic() < deadline:
            state = self.scenario()
            if state.get("scenario_step", 0) > after and state["artifact_head_sync"]["state"] == "synchronized":
                return state
            time.sleep(0.3)
        return None

    def cli(self, *arguments):
        command = [self.args.reef, "--dir", str(self.args.dir), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout

    def stop(self):
        self.process.terminate()
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.pool.shutdown()
        self.log.close()
        return code


class Passerby(threading.Thread):
    """A client that asks again and again, whatever the server is doing."""

    def __init__(self, service, tickets, seed):
        super().__init__(daemon=True)
        self.service, self.tickets, self.random = service, tickets, random.Random(seed)
        self.over = threading.Event()

    def run(self):
        while not self.over.wait(1.0):
            self.service.ask(self.random.choice(self.tickets)["text"], 0.7, self.random.randrange(1 << 31))

    def stop(self):
        self.over.set()
        self.join(600)


def score(answer, label):
    word = answer.split()[0].strip(".,:;!*\"'").lower() if answer.split() else ""
    return float(word == label)


class Notes:
    """Everything worth a line: on the terminal and in curve.csv."""

    def __init__(self, directory, quiet):
        self.began = time.monotonic()
        self.quiet = quiet
        self.file = open(directory / "curve.csv", "w", newline="")
        self.table = csv.writer(self.file)
        self.table.writerow(["seconds", "kind", "step", "outcome", "train_reward", "heldout_reward", "heldout_greedy", "release", "reason"])

    def seconds(self):
        return time.monotonic() - self.began

    def note(self, kind, step="", outcome="", train="", heldout=("", ""), release="", reason=""):
        now = self.seconds()
        digits = lambda value: "" if value == "" else f"{value:.4f}"
        sampled, greedy = heldout
        self.table.writerow([f"{now:.1f}", kind, step, outcome, digits(train), digits(sampled), digits(greedy), release, reason])
        self.file.flush()
        if self.quiet:
            return
        words = {
            "measure": f"held-out reward {sampled:.3f} {bar(sampled)} (at temperature 0: {greedy:.3f})" if sampled != "" else "",
            "round": f"reward of the traffic {train:.2f}" if train != "" else "",
            "step": f"step {step} {outcome}: {reason}",
        }.get(kind, reason)
        print(f"{now:6.0f} s  {words}", flush=True)


def bar(value, width=30):
    full = round(value * width)
    return "█" * full + "░" * (width - full)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--reef", required=True)
    parser.add_argument("--model", default="", help="name or folder of the model [that of serve.toml]")
    parser.add_argument("--dir", type=pathlib.Path, required=True, help="a fresh directory for everything this run writes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=10.0, help="begin no round later than this")
    parser.add_argument("--rounds", type=int, default=1000, help="at most so many rounds of traffic")
    parser.add_argument("--releases", type=int, default=3, help="go on to the broken grader after so many releases; 0: never")
    parser.add_argument("--round", type=int, default=32, help="tickets sent in a round; the recipe's batch size")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the training traffic")
    parser.add_argument("--control", choices=["none", "frozen", "shuffled"], default="none")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the deployment")
    parser.add_argument("--show", action="store_true", help="print reef status and the release log at the end")
    args = parser.parse_args()
    args.dir.mkdir(parents=True, exist_ok=True)
    random_ = random.Random(args.seed)
    train, test = rows("train.jsonl"), rows("test.jsonl")
    service = Service(args)
    notes = Notes(args.dir, quiet=False)
    deck, outcomes, curve, releases = [], [], [], []
    passerby = None

    def traffic(number, grade):
        """One round: ask, grade, report."""
        batch = []
        while len(batch) < args.round:
            if not deck:
                # Every ticket once before any comes again.
                deck.extend(random_.sample(train, len(train)))
            batch.append(deck.pop())
        seeds = [random_.randrange(1 << 31) for _ in batch]
        ask = lambda pair: service.ask(pair[0]["text"], args.temperature, pair[1])
        answers = list(service.pool.map(ask, zip(batch, seeds)))
        scores = [score(answer, row["label"]) for (_, answer), row in zip(answers, batch)]
        notes.note("round", number, train=sum(scores) / len(scores))
        for (receipt, _), value in zip(answers, grade(scores)):
            if receipt:
                service.request("POST", "/reef/report", {"score": value, "references": [receipt]})

    def shuffled(scores):
        return random_.sample(scores, len(scores))

    def learn(after, number):
        """Waits for the step of a round and notes it."""
        state = service.wait_for_step(after, time.monotonic() + STEP_TIMEOUT)
        if state is None:
            notes.note("timeout", number, reason=json.dumps(service.scenario().get("training", {})))
            sys.exit(f"no step within {STEP_TIMEOUT} s; see {args.dir}/serve.log")
        step = state["last_committed_step"]
        reason = step["reason"] or ""
        spent = [f"{word} {step['metrics'][key]:.1f} s" for word, key in (("trained in", "train_seconds"), ("judged in", "gate_seconds"))
                 if key in step["metrics"]]
        reason += f" ({', '.join(spent)})" if spent else ""
        notes.note("step", state["scenario_step"], step["outcome"], release=state["release_id"], reason=reason)
        return state["scenario_step"], step["outcome"], state["release_id"]

    try:
        first = service.measure(test)
        curve.append(first)
        notes.note("measure", 0, "base", heldout=first)
        passerby = Passerby(service, train, args.seed)
        passerby.start()
        seen, number = 0, 0
        while notes.seconds() < args.minutes * 60 and number < args.rounds:
            number += 1
            traffic(number, shuffled if args.control == "shuffled" else lambda scores: scores)
            if args.control == "frozen":
                continue
            seen, outcome, release = learn(seen, number)
            outcomes.append(outcome)
            if outcome == "released":
                releases.append(release)
                curve.append(service.measure(test))
                notes.note("measure", seen, "released", heldout=curve[-1], release=release)
                if args.releases and len(releases) >= args.releases:
                    break
        learned = service.measure(test) if args.control != "none" or not releases else curve[-1]
        if args.control != "none":
            notes.note("measure", seen, "end", heldout=learned)
        broken, rolled_back, restored = None, None, None
        if args.control == "none" and args.releases:
            notes.note("grader", number + 1, reason="the grader breaks: it rewards wrong answers")
            traffic(number + 1, lambda scores: [1.0 - value for value in scores])
            seen, broken, _ = learn(seen, number + 1)
        if len(releases) >= 2:
            service.cli("release", "rollback", releases[0], "--scenario", SCENARIO, "--note", "back to the first release")
            seen = service.wait_for_step(seen, time.monotonic() + 60)["scenario_step"]
            rolled_back = service.measure(test)
            notes.note("measure", seen, "rollback", heldout=rolled_back, reason="the first release again")
            service.cli("release", "rollback", releases[-1], "--scenario", SCENARIO, "--note", "forward to the best release")
            seen = service.wait_for_step(seen, time.monotonic() + 60)["scenario_step"]
            restored = service.measure(test)
            notes.note("measure", seen, "rollforward", heldout=restored, reason="the last release again")
        passerby.stop()
        if args.show:
            for command in (["status"], ["release", "log", "--scenario", SCENARIO]):
                print(f"\n$ reef {' '.join(command)}\n{service.cli(*command)}", end="")
    finally:
        if passerby is not None:
            passerby.over.set()
        code = service.stop()
        notes.file.close()
    summary = {
        "seed": args.seed, "control": args.control, "rounds": number, "tickets_per_round": args.round,
        "seconds": round(notes.seconds(), 1), "heldout_first": first[0], "heldout_last": learned[0],
        "heldout_curve": [sampled for sampled, _ in curve],
        "greedy_first": first[1], "greedy_last": learned[1], "greedy_curve": [greedy for _, greedy in curve],
        "steps": len(outcomes), "releases": outcomes.count("released"), "refused": outcomes.count("rejected"),
        "broken_grader": broken, "heldout_rolled_back": rolled_back and rolled_back[0], "heldout_restored": restored and restored[0],
        "requests": service.sent, "failed_requests": service.failed, "failures": service.failures[:5], "exit_code": code,
    }
    (args.dir / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    (args.dir / "curve.svg").write_text(plot_learning.run_svg(args.dir / "curve.csv"))
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
