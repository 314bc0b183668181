#!/usr/bin/env python3
"""Measures a running `reef serve` with an embedded model. Needs only the standard library.

Tokens are counted by the server's own usage chunk; times are the client's. `gap` is the time between two events of a
stream, the figure that tells whether a long prompt stalls others.
"""

import http.client
import json
import sys
import threading
import time
import urllib.parse

URL = urllib.parse.urlparse(sys.argv[1])


def stream(text, tokens, out):
    body = {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 1.0,
        "seed": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = http.client.HTTPConnection(URL.hostname, URL.port, timeout=600)
    started = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"x-reef-scenario": "bench"})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    times, usage = [], None
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        if chunk.get("usage"):
            usage = chunk["usage"]
        elif chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
            times.append(time.perf_counter())
    out.append({"started": started, "times": times, "usage": usage})


def together(n, tokens, text="Tell me about number %d."):
    out = []
    threads = [threading.Thread(target=stream, args=(text % i if "%d" in text else text, tokens, out)) for i in range(n)]
    begin = time.perf_counter()
    [t.start() for t in threads]
    [t.join() for t in threads]
    return out, time.perf_counter() - begin


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))] if values else None


def report(name, runs, seconds):
    tokens = sum(r["usage"]["completion_tokens"] for r in runs)
    first = [r["times"][0] - r["started"] for r in runs if r["times"]]
    gaps = [b - a for r in runs for a, b in zip(r["times"], r["times"][1:])]
    print(
        json.dumps(
            {
                "measurement": name,
                "tokens_per_second": round(tokens / seconds, 2),
                "first_token_ms_p50": round(1e3 * quantile(first, 0.5), 1),
                "gap_ms_p50": round(1e3 * quantile(gaps, 0.5), 2),
                "gap_ms_p99": round(1e3 * quantile(gaps, 0.99), 2),
                "tokens": tokens,
            }
        ),
        flush=True,
    )


together(1, 8)  # warm up
report("one stream", *together(1, 128))
report("eight streams", *together(8, 128))
long_prompt = " ".join(f"word{i}" for i in range(450))
runs, beside = [], []
worker = threading.Thread(target=lambda: runs.append(together(4, 96, "Short question %d.")))
worker.start()
time.sleep(0.5)
stream(long_prompt, 4, beside)
worker.join()
report("four streams beside a long prompt", *runs[0])
prompt, seconds = together(1, 1, "Once more: " + long_prompt + " end")
n = prompt[0]["usage"]["prompt_tokens"] - prompt[0]["usage"]["prompt_tokens_details"]["cached_tokens"]
print(json.dumps({"measurement": "prompt", "tokens_per_second": round(n / seconds, 1), "tokens": n}))
