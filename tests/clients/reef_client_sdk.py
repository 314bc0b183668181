"""reef-client: receipts, reports, errors, its SSE accumulator, and its sidecar in front of an agent."""

import json
import socket
import subprocess
import sys
import time
import urllib.request

import openai
from check import HEADERS, QUESTION, TOKEN, URL, expect, found
from reef_client.client import ReefClient, ReefClientError
from reef_client.sse import SSEAccumulator

client = ReefClient(URL, token=TOKEN, timeout_s=60)
ASK = {"model": "text", "messages": QUESTION}

# a receipt, a report that quotes it
body, receipt = client.inference_with_record("s", "/v1/chat/completions", ASK)
assert body["choices"][0]["message"]["content"] == "forty-two"
found(receipt, text="forty-two")
answer = client.report("s", {"score": 1.0, "feedback": "right"}, references=[receipt])
assert answer["request_type"] == "report" and answer["scenario"] == "s", answer

# errors carry status and body
error = expect(ReefClientError, lambda: client.report("s", {"score": 1.0}, references=["nonsense"]))
assert error.status == 400 and "nonsense" in error.body, (error.status, error.body)
assert expect(ReefClientError, lambda: ReefClient(URL, token="wrong").inference("s", "/v1/chat/completions", ASK)).status == 401
assert expect(ReefClientError, lambda: client.get("/reef/scenarios/none/contract")).status == 404

# its accumulator reads the raw stream, in pieces of any size
request = urllib.request.Request(
    f"{URL}/v1/chat/completions",
    json.dumps({**ASK, "stream": True}).encode(),
    {"content-type": "application/json", "authorization": f"Bearer {TOKEN}", **HEADERS},
)
with urllib.request.urlopen(request, timeout=60) as response:
    stream = response.read()
for size in (1, 7, len(stream)):
    accumulator = SSEAccumulator()
    for at in range(0, len(stream), size):
        accumulator.feed(stream[at : at + size])
    accumulator.finish()
    assert accumulator.done and accumulator.completion["choices"][0]["message"]["content"] == "forty-two"
found(accumulator.agent_record_id, text="forty-two")

# the sidecar: an agent that knows nothing of Reef
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
sidecar = subprocess.Popen(
    [sys.executable, "-m", "reef_client.serve", "--listen", str(port), "--upstream", URL, "--session-header", "x-reef-tag-session"],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
)
try:
    base = f"http://127.0.0.1:{port}"

    def control(path, body=None):
        request = urllib.request.Request(base + path, json.dumps(body).encode() if body is not None else None)
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)

    for _ in range(600):
        try:
            control("/_sessions")
            break
        except OSError:
            assert sidecar.poll() is None, "the sidecar ended"
            time.sleep(0.1)
    session = control("/_sessions", {"id": "episode-1"})
    agent = openai.OpenAI(base_url=f"{session['url']}/v1", api_key=TOKEN, default_headers=HEADERS, max_retries=0, timeout=60)
    assert agent.chat.completions.create(model="text", messages=QUESTION).choices[0].message.content == "forty-two"
    chunks = agent.chat.completions.create(model="text", messages=QUESTION, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "forty-two"
    # The sidecar keeps a stream's capture a moment after the stream has ended.
    for _ in range(600):
        captures = control("/_sessions/episode-1/captures")["turns"]
        if len(captures) == 2:
            break
        time.sleep(0.1)
    assert len(captures) == 2, captures
    for capture in captures:
        assert capture["response"]["choices"][0]["message"]["content"] == "forty-two"
        found(capture["receipt"], text="episode-1")
finally:
    sidecar.kill()
    sidecar.wait()
