"""What the Python scripts share: where the service is, and how a receipt is told."""

import json
import os
import urllib.request

URL = os.environ["REEF_URL"]
TOKEN = os.environ["REEF_TOKEN"]
HEADERS = {"x-reef-scenario": "s"}
QUESTION = [{"role": "user", "content": "What is six times seven?"}]


def found(receipt, **what):
    assert receipt, "no receipt"
    print(json.dumps({"receipt": receipt, **what}), flush=True)
    return receipt


def expect(error, call):
    """The call fails with exactly this kind of error, which is returned."""
    try:
        call()
    except Exception as caught:
        assert type(caught) is error, f"expected {error.__name__}, got {caught!r}"
        return caught
    raise AssertionError(f"expected {error.__name__}")


def report(receipt, score):
    request = urllib.request.Request(
        f"{URL}/reef/report",
        json.dumps({"references": [receipt], "score": score}).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {TOKEN}", **HEADERS},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        body = json.load(response)
    assert body["request_type"] == "report" and body["agent_record_id"], body
