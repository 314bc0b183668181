#!/usr/bin/env python3
"""Kills the real program with SIGKILL, spread over ten kinds of work, and checks what is left.

    scripts/experiments/kill.py [--kills 200] [--seed 1] [--reef target/debug/reef] [--out FILE] [--page]

`--page` writes the table of `docs/design/loop.md` from the files in `docs/design/data` that runs wrote with `--out`.

Half of the kills are at named points (a build with the feature `failpoints`), half at random moments. What was asked of
a killed command is asked again, so that each recovery is gone through. At the end: no receipt lost, each report used
once, one head, no step or publication open, every release verified, no file left. Prints its seed, and ends with 1
where anything of that does not hold.
"""

import argparse
import collections
import http.client
import json
import os
import random
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PUBLISH = [f"release::{at}" for at in ("after_intent", "after_objects", "after_commit", "before_ref", "after_ref", "after_settle")]
POINTS = {
    "training": [f"loop::{at}" for at in ("before_seal", "after_seal", "before_step", "after_step", "before_trained", "after_trained")],
    "gate": [f"loop::{at}" for at in ("before_judge", "before_judged", "after_judged")],
    "publication": ["loop::before_publish", *PUBLISH, "loop::before_load", "loop::before_end"],
    "promotion": PUBLISH,
    "rollback": PUBLISH,
    "collection": [f"release::gc_{at}" for at in ("before_mark", "before_delete", "each", "before_pack")],
    "import": PUBLISH,
    "pull": ["release::pull_before_refs"],
    "install": ["harness::staged", "harness::recorded", "harness::switched"],
    "update": ["harness::staged", "harness::recorded", "harness::switched"],
}

TRAINER = r"""
read -r ask
field() { printf '%s' "$ask" | sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"; }
out=$(field output); batch=$(field batch)
printf '{"peft_type": "LORA", "r": 1}' > "$out/adapter_config.json"
{
  printf '\216\000\000\000\000\000\000\000'
  printf '%s' '{"q.lora_A.weight":{"dtype":"U8","shape":[1,34],"data_offsets":[0,34]},"q.lora_B.weight":{"dtype":"U8","shape":[34,1],"data_offsets":[34,68]}}'
  sha256sum < "$batch"
} > "$out/adapter_model.safetensors"
mkdir "$out/training"; { cat "$batch"; head -c 100000 /dev/zero; } > "$out/training/optimizer.safetensors"
echo '{"event":"done","metrics":{"loss":0.5,"tokens":10}}'
"""
GATE = r"""
read -r begin
echo '{"event":"tasks","tasks":[{"id":"a"},{"id":"b"},{"id":"c"}]}'
while read -r line; do
  case "$line" in *'"event":"end"'*) exit 0 ;; esac
  index=$(printf '%s' "$line" | sed 's/.*"index":\([0-9]*\).*/\1/')
  echo "{\"event\":\"score\",\"index\":$index,\"candidate\":0.9,\"current\":0.1}"
done
"""
RECIPE = """format = 1
name = "scripted"
[processor]
kind = "reported"
tokens = false
[batch]
size = 1
max-staleness = 100000
[trainer]
backend = "program"
command = ["sh", "train.sh"]
[gate]
selector = "paired"
evaluator = "program"
command = ["sh", "gate.sh"]
spending = "candidate"
[surface]
kind = "lora-adapter"
"""
# Few releases, so that each collection has something to take.
SERVE = """[recipe]
implementation = "recipe.toml"
[release]
retention = 3
retention-older = "none"
retention-states = 1
gc-grace-h = 0.0
"""


class Provider(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        choice = {"index": 0, "message": {"role": "assistant", "content": "an answer"}, "finish_reason": "stop"}
        self.answer({"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]})

    def do_GET(self):
        self.answer({"object": "list", "data": [{"id": "m", "object": "model"}]})

    def answer(self, value):
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


class Experiment:
    def __init__(self, reef, seed, root):
        self.reef, self.seed, self.root = str(Path(reef).resolve()), seed, Path(root)
        self.random = random.Random(seed)
        self.one, self.two = self.root / "one", self.root / "two"
        self.three = self.root / "three"
        for path in (self.one, self.two, self.three, self.root / "home", self.root / "vendor"):
            path.mkdir(parents=True)
        self.files = self.one / ".reef"
        self.receipts, self.reports, self.imports = [], [], 0
        self.killed, self.done, self.faults = collections.Counter(), collections.Counter(), []
        for name, text in (("recipe.toml", RECIPE), ("train.sh", TRAINER), ("gate.sh", GATE), ("serve.toml", SERVE)):
            (self.one / name).write_text(text)
        (self.two / "serve.toml").write_text("")
        (self.three / "serve.toml").write_text('[harness]\nadapter = "pi"\nseed = "tree"\n')
        self.tree(0)
        agent = self.root / "vendor/pi"
        agent.write_text('#!/bin/sh\ncase "$1" in --version) echo 0.84.2 ;; rules) cat "$PI_CODING_AGENT_DIR/AGENTS.md" ;; esac\n')
        agent.chmod(0o755)
        provider = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
        threading.Thread(target=provider.serve_forever, daemon=True).start()
        self.upstream = f"http://127.0.0.1:{provider.server_port}"
        self.remote = self.root / "remote.git"
        subprocess.run(["git", "init", "-q", "--bare", str(self.remote)], check=True)

    def start(self, args, point=None, where=None):
        env = {"PATH": os.environ["PATH"], "HOME": str(self.root / "home")}
        if "LD_LIBRARY_PATH" in os.environ:
            env["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        if point:
            env["FAILPOINTS"] = f"{point}=return(kill)"
        return subprocess.Popen(
            [self.reef, "-c", "serve.toml", *args], cwd=where or self.one, env=env,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )

    def run(self, args, codes=(0,), where=None):
        child = self.start(args, where=where)
        out, err = child.communicate(timeout=300)
        if child.returncode not in codes:
            raise RuntimeError(f"{' '.join(args)} ended with {child.returncode}: {err.strip()[-600:]}")
        return out

    def json(self, args, **more):
        return json.loads(self.run([*args, "--json"], **more))

    def kill(self, kind, args, where=None):
        """Runs a command and kills it; False where it ended before."""
        points = POINTS[kind]
        by_name = self.random.random() < 0.5
        point = self.random.choice(points) if by_name else None
        child = self.start(args, point, where)
        if point is None:
            # Most commands take less than this, so that many moments are met.
            time.sleep(self.random.uniform(0.005, 0.35))
            child.send_signal(signal.SIGKILL)
        child.communicate(timeout=300)
        if child.returncode == -signal.SIGKILL:
            self.killed[kind] += 1
            return True
        return False

    # Traffic, with a service of its own.

    def serve(self, *args, where=None):
        child = self.start(["serve", "--json", "--port", "0", "--upstream-url", self.upstream, "--upstream-model", "m",
                            "--training.enabled", "false", *args], where=where)
        for line in child.stdout:
            event = json.loads(line)
            if event.get("event") == "listening":
                threading.Thread(target=child.stderr.read, daemon=True).start()
                return child, event["address"]
        raise RuntimeError(f"the service did not start: {child.stderr.read()[-600:]}")

    def ask(self, address, path, body, scenario="s"):
        connection = http.client.HTTPConnection(address, timeout=60)
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json", "x-reef-scenario": scenario})
        answer = connection.getresponse()
        return answer, json.loads(answer.read() or b"null")

    def traffic(self, pairs):
        child, address = self.serve()
        try:
            for n in range(pairs):
                body = {"model": "m", "messages": [{"role": "user", "content": f"question {len(self.receipts)}"}]}
                answer, _ = self.ask(address, "/v1/chat/completions", body)
                receipt = answer.getheader("x-reef-agent-record-id")
                if not receipt:
                    raise RuntimeError(f"no receipt: {answer.status}")
                self.receipts.append(receipt)
                answer, said = self.ask(address, "/reef/report", {"references": [receipt], "score": n % 2})
                if answer.status // 100 != 2:
                    raise RuntimeError(f"a report was refused: {said}")
                self.reports.append(said["agent_record_id"])
        finally:
            # Receipts have to outlive this as well.
            child.send_signal(signal.SIGKILL)
            child.wait()

    def adapter(self, number):
        tree = self.one / "adapter"
        shutil.rmtree(tree, ignore_errors=True)
        (tree / "training").mkdir(parents=True)
        (tree / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 1}')
        for path, size in (("adapter_model.safetensors", 20_000), ("training/optimizer.safetensors", 40_000)):
            half = size // 2
            header = json.dumps({
                "q.lora_A.weight": {"dtype": "U8", "shape": [1, half], "data_offsets": [0, half]},
                "q.lora_B.weight": {"dtype": "U8", "shape": [half, 1], "data_offsets": [half, size]},
            }).encode()
            data = struct.pack("<I", number) * (size // 4)
            (tree / path).write_bytes(struct.pack("<Q", len(header)) + header + data)
        return str(tree)

    def next_import(self):
        self.imports += 1
        return self.adapter(self.imports)

    # The ten kinds: what is killed, and what a person does next.

    def training(self, kind):
        if len(self.reports) - self.trained < 3:
            self.traffic(8)
        killed = self.kill(kind, ["train", "--steps", "2", "--json"])
        if self.random.random() < 0.3:
            self.run(["train", "--steps", "1", "--json"], codes=(0, 3))
        self.trained = self.consumed()
        return killed

    gate = publication = training

    def promotion(self, kind):
        tree = self.next_import()
        held = self.json(["release", "import", tree, "--hold"])["release_id"]
        killed = self.kill(kind, ["release", "promote", held])
        self.run(["release", "promote", held])
        return killed

    def rollback(self, kind):
        # Going back twice in the same words is going back once, so there is something new to go back from.
        self.run(["release", "import", self.next_import()])
        killed = self.kill(kind, ["release", "rollback", "head~1"])
        self.run(["release", "rollback", "head~1"])
        return killed

    def collection(self, kind):
        for _ in range(2):
            self.run(["release", "import", self.next_import()])
        killed = self.kill(kind, ["release", "gc"])
        self.run(["release", "verify", "--json"])
        if self.random.random() < 0.5:
            self.run(["release", "gc", "--json"])
        return killed

    def import_(self, kind):
        tree = self.next_import()
        killed = self.kill(kind, ["release", "import", tree])
        self.run(["release", "import", tree])
        return killed

    def pull(self, kind):
        self.run(["release", "push", str(self.remote), "--json"])
        killed = self.kill(kind, ["release", "pull", str(self.remote), "--json"], where=self.two)
        if (self.two / ".reef/artifacts.git/HEAD").exists():
            self.run(["release", "verify", "--json"], where=self.two)
        self.run(["release", "pull", str(self.remote), "--json"], where=self.two)
        self.run(["release", "import", self.next_import()])
        return killed

    def tree(self, number):
        tree = self.three / "tree"
        tree.mkdir(exist_ok=True)
        (tree / "AGENTS.md").write_text(f"rule {number}\n")
        return str(tree)

    def installing(self, kind):
        agent, url = str(self.root / "vendor/pi"), f"http://{self.address}"
        args = ["harness", "install", "--json", "--adapter", "pi", "--scenario", "t", "--agent-program", agent, "--url", url]
        if kind == "install":
            self.run(["harness", "uninstall", "--adapter", "pi", "--scenario", "t"], codes=(0, 3))
        else:
            self.run(args)
            self.change_rules()
        killed = self.kill(kind, args)
        self.run(args)
        found = subprocess.run([str(self.root / "home/.local/bin/reef-pi"), "rules"], capture_output=True, text=True,
                               env={"PATH": os.environ["PATH"], "HOME": str(self.root / "home")})
        if f"rule {self.rules}" not in found.stdout:
            self.faults.append(f"after a kill in {kind} the agent has {found.stdout!r}, {found.stderr[-300:]!r}")
        return killed

    install = update = installing

    def change_rules(self):
        """Another tree, and the service follows."""
        self.rules += 1
        # In the layout that a release of a tree has, where the agent reads it.
        tree = self.three / "changed"
        (tree / "pi-agent").mkdir(parents=True, exist_ok=True)
        (tree / "pi-agent/AGENTS.md").write_text(f"rule {self.rules}\n")
        self.run(["release", "import", str(tree), "--kind", "harness-tree", "--scenario", "t"], where=self.three)
        for _ in range(200):
            if f"rule {self.rules}" in self.served_tree():
                return
            time.sleep(0.05)
        raise RuntimeError("the service does not follow")

    def served_tree(self):
        connection = http.client.HTTPConnection(self.address, timeout=60)
        connection.request("GET", "/reef/harness", headers={"x-reef-scenario": "t"})
        return connection.getresponse().read().decode()

    # What must hold.

    def rows(self, sql, where=None):
        with sqlite3.connect((where or self.files) / "experience.db") as store:
            return store.execute(sql).fetchall()

    def consumed(self):
        return self.rows("SELECT count(DISTINCT batch_id) FROM step WHERE batch_id IS NOT NULL")[0][0]

    def hold(self, fact, what):
        if not fact:
            self.faults.append(what)

    def finish(self):
        """Ends what was begun, as the next start would."""
        while True:
            child = self.start(["train", "--json"])
            _, err = child.communicate(timeout=900)
            if child.returncode in (3,):
                break
            if child.returncode != 0:
                self.faults.append(f"train ended with {child.returncode}: {err[-400:]}")
                break
        for dir in (self.one, self.two):
            if (dir / ".reef/artifacts.git/HEAD").exists():
                self.run(["release", "gc", "--json"], where=dir)

    def verify(self):
        # The rows first: a command would mend some of what is looked for.
        self.rows_hold()
        listing = self.json(["release", "list", "--all", "--scenario", "s"])
        current = [row for row in listing["releases"] if row["current"]]
        self.hold(len(current) == 1 and current[0]["release_id"] == listing["head"], f"heads: {current}")
        sequence = sorted(row["sequence"] for row in listing["releases"] if row["state"] == "released")
        self.hold(sequence == list(range(len(sequence))), f"the chain has gaps: {sequence[:20]}")
        git = subprocess.run(["git", "-C", str(self.files / "artifacts.git"), "rev-parse", "refs/heads/s"], capture_output=True, text=True)
        self.hold(git.stdout.strip() == listing["head"], "git has another head than the store")
        for dir in (self.one, self.two):
            if not (dir / ".reef/artifacts.git/HEAD").exists():
                continue
            verified = self.json(["release", "verify"], where=dir, codes=(0, 40))
            self.hold(verified["damaged"] == [], f"damage in {dir.name}: {verified['damaged'][:3]}")
        self.no_file_left()

    def rows_hold(self):
        stored = {row[0] for row in self.rows("SELECT record_id FROM record")}
        lost = [id for id in self.receipts + self.reports if id not in stored]
        self.hold(not lost, f"receipts lost: {lost[:5]}")
        used = collections.Counter(row[0] for row in self.rows(
            "SELECT r.record_id FROM consumption c JOIN record r ON r.sequence = c.record_sequence WHERE c.consumer = 'trainer'"))
        wrong = {id: used[id] for id in self.reports if used[id] != 1}
        self.hold(not wrong, f"reports not used once: {list(wrong.items())[:5]}")
        twice = self.rows("SELECT batch_id FROM step WHERE batch_id IS NOT NULL GROUP BY scenario_id, batch_id HAVING count(*) > 1")
        self.hold(not twice, f"batches with two steps: {twice[:3]}")
        # A use has one row whatever happens, so that training twice shows only in what came of it: a step and a release for
        # each report, since a batch is one report and the gate lets every candidate pass.
        steps = self.rows("SELECT count(*) FROM step WHERE batch_id IS NOT NULL")[0][0]
        made = self.rows("SELECT count(*) FROM release WHERE operation = 'training'")[0][0]
        self.hold(steps == made == len(self.reports), f"{len(self.reports)} reports made {steps} steps and {made} releases")
        for dir in (self.one, self.two):
            if not (dir / ".reef/artifacts.git/HEAD").exists():
                continue
            for name in ("job WHERE ended_us IS NULL", "intent WHERE state = 'open'"):
                left = self.rows(f"SELECT count(*) FROM {name}", dir / ".reef")[0][0]
                self.hold(left == 0, f"{left} open in {dir.name}: {name}")

    def no_file_left(self):
        # Temporary files belong to nobody after an hour: their clock is put back instead of waiting for that.
        old = time.time() - 7200
        for dir in (self.one, self.two):
            files = dir / ".reef"
            for path in [*files.glob("artifacts.git/lfs/tmp/*"), *files.glob("cache/.part-*")]:
                os.utime(path, (old, old))
            if (files / "artifacts.git/HEAD").exists():
                self.run(["release", "gc", "--json", "--grace", "0"], where=dir)
            # Empty ones are no files, and are counted.
            incoming = files / "artifacts.git/refs/reef/incoming"
            left = [path.name for path in incoming.rglob("*") if path.is_file()]
            self.hold(not left, f"refs of pulls left in {dir.name}: {left[:3]}")
            self.empty += sum(1 for path in incoming.glob("*"))
            for pattern in ("work/training/*/*", "artifacts.git/lfs/tmp/*", "cache/.part-*", "artifacts.git/reef-holds/*",
                            "run/publishers/*", "*.part-*", "artifacts.git/*.part-*"):
                left = [path.name for path in files.glob(pattern)]
                self.hold(not left, f"left in {dir.name}/{pattern}: {len(left)}, such as {left[:2]}")
        home = self.root / "home/.local/share/reef"
        for pattern in ("**/.removed-*", "**/*.part*"):
            left = [str(path.relative_to(home)) for path in home.glob(pattern)]
            self.hold(not left, f"left of installations: {left[:3]}")


ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- written by scripts/experiments/kill.py -->", "<!-- end -->"


def page():
    """The table, from the rows that runs wrote."""
    runs = [json.loads(path.read_text()) for path in sorted((ROOT / "docs/design/data").glob("kill-*.json"))]
    lines = ["| seed | kills | of each kind | receipts | reports | seconds | what did not hold |", "|---|---|---|---|---|---|---|"]
    for run in runs:
        each = sorted(set(run["by_kind"].values()))
        shown = str(each[0]) if len(each) == 1 else f"{each[0]} to {each[-1]}"
        faults = "; ".join(run["faults"]) or "nothing"
        lines.append(f"| {run['seed']} | {run['kills']} | {shown} | {run['receipts']} | {run['reports']} | {run['seconds']} | {faults} |")
    path = ROOT / "docs/design/loop.md"
    text = path.read_text()
    before, rest = text.split(BEGIN)
    path.write_text(before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + rest.split(END, 1)[1])


def main():
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("--kills", type=int, default=200)
    ask.add_argument("--seed", type=int, default=1)
    ask.add_argument("--reef", default="target/debug/reef")
    ask.add_argument("--kinds", default=",".join(POINTS))
    ask.add_argument("--out", help="write the figures into this file, as JSON")
    ask.add_argument("--page", action="store_true", help="write the table of the page from what runs wrote, and end")
    args = ask.parse_args()
    if args.page:
        page()
        return 0
    kinds = args.kinds.split(",")
    print(f"seed {args.seed}", flush=True)
    with tempfile.TemporaryDirectory() as root:
        it = Experiment(args.reef, args.seed, root)
        it.trained, it.rules, it.empty = 0, 0, 0
        it.run(["scenario", "create", "s", "--json"])
        # Something to roll back to, and to pull.
        for _ in range(2):
            it.run(["release", "import", it.next_import(), "--scenario", "s"])
        began, service = time.time(), None
        if {"install", "update"} & set(kinds):
            it.run(["scenario", "create", "t", "--json"], where=it.three)
            service, it.address = it.serve(where=it.three)
        each = -(-args.kills // len(kinds))
        for kind in kinds:
            tries = 0
            while it.killed[kind] < each and sum(it.killed.values()) < args.kills and tries < each * 12:
                tries += 1
                getattr(it, kind + "_" if kind == "import" else kind)(kind)
            print(f"{kind}: {it.killed[kind]} kills in {tries} runs", flush=True)
        if service:
            service.terminate()
            service.wait()
        it.finish()
        it.verify()
        figures = {"seed": args.seed, "kills": sum(it.killed.values()), "by_kind": dict(it.killed), "seconds": round(time.time() - began),
                   "receipts": len(it.receipts), "reports": len(it.reports), "empty_directories_of_pulls": it.empty, "faults": it.faults}
        if args.out:
            Path(args.out).write_text(json.dumps(figures, indent=2) + "\n")
        print(json.dumps(figures, indent=2))
        return 1 if it.faults else 0


if __name__ == "__main__":
    sys.exit(main())
