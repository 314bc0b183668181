"""Asks a question through Reef and reports on the answer. Standard library only: python3 client.py"""

import json
import os
import urllib.request

REEF = os.environ.get("REEF_URL", "http://127.0.0.1:8900")
SCENARIO = "first-steps"


def post(path, body):
    headers = {"content-type": "application/json", "x-reef-scenario": SCENARIO}
    if token := os.environ.get("REEF_TOKEN"):
        headers["authorization"] = f"Bearer {token}"
    request = urllib.request.Request(REEF + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response), response.headers


question = {"messages": [{"role": "user", "content": "What is 17 + 25? Answer with the number only."}]}
answer, headers = post("/v1/chat/completions", question)
text = answer["choices"][0]["message"]["content"]
receipt = headers["x-reef-agent-record-id"]
print(f"answer:  {text}\nreceipt: {receipt}")

score = 1.0 if "42" in text else 0.0
report, _ = post("/reef/report", {"references": [receipt], "score": score, "feedback": "the sum is 42"})
print(f"report:  {report['agent_record_id']} with score {score}")
