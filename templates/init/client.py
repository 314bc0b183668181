"""Asks a question through Reef and reports on the answer. Standard library only: python3 client.py"""

import json
import os
import pathlib
import re
import sys
import urllib.error
import urllib.request

SCENARIO = "first-steps"


def service():
    """Where the service listens: REEF_URL, or what serve.toml beside this file says."""
    if url := os.environ.get("REEF_URL"):
        return url.rstrip("/")
    file = pathlib.Path(__file__).with_name("serve.toml")
    text = file.read_text("utf-8-sig") if file.exists() else ""
    section = re.search(r"^\[reef\]\s*$(.*?)(?=^\[|\Z)", text, re.MULTILINE | re.DOTALL)
    settings = dict(re.findall(r'^\s*(host|port)\s*=\s*"?([^"#\s]+)', section[1] if section else "", re.MULTILINE))
    host = settings.get("host", "127.0.0.1")
    host = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.get('port', 8900)}"


REEF = service()


def post(path, body):
    headers = {"content-type": "application/json", "x-reef-scenario": SCENARIO}
    if token := os.environ.get("REEF_TOKEN"):
        headers["authorization"] = f"Bearer {token}"
    request = urllib.request.Request(REEF + path, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            return json.load(response), response.headers
    except urllib.error.HTTPError as error:
        sys.exit(f"{REEF}{path} answered {error.code}: {error.read().decode(errors='replace')[:400]}")
    except OSError as error:
        reason = getattr(error, "reason", error)
        sys.exit(f"no service answers at {REEF}: {reason}. Start it with: reef serve -c serve.toml")


question = {"messages": [{"role": "user", "content": "What is 17 + 25? Answer with the number only."}]}
answer, headers = post("/v1/chat/completions", question)
text = answer["choices"][0]["message"]["content"] or ""
receipt = headers["x-reef-agent-record-id"]
print(f"answer:  {text}\nreceipt: {receipt}")
if receipt is None:
    sys.exit("the answer was not recorded, so there is nothing to report on: see reef doctor")

score = 1.0 if "42" in text else 0.0
report, _ = post("/reef/report", {"references": [receipt], "score": score, "feedback": "the sum is 42"})
print(f"report:  {report['agent_record_id']} with score {score}")
