#!/usr/bin/env python3
"""A provider for the quickstart: answers OpenAI chat requests, whole or streamed, on a free port of this machine.

It stands in for a real one, so that the quickstart needs no account and no model: it adds up the numbers it is asked
about, and is wrong about large ones. Prints its URL, then serves until it is stopped.
"""

import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def reply_to(question):
    numbers = [int(digits) for digits in re.findall(r"\d+", question)]
    total = sum(numbers)
    return f"The answer is {total if total < 100 else total + 1}."


class Provider(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = reply_to(str(body["messages"][-1]["content"]))
        base = {"id": "chatcmpl-quickstart", "created": 0, "model": "adder"}
        if body.get("stream"):
            chunks = [{"role": "assistant"}, *({"content": word + " "} for word in text.split()), {}]
            events = [
                {**base, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": None if delta else "stop"}]}
                for delta in chunks
            ]
            data = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
            return self.send("text/event-stream", data)
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        self.send("application/json", json.dumps({**base, "object": "chat.completion", "choices": choices, "usage": usage}))

    def do_GET(self):
        models = [{"id": "adder", "object": "model", "created": 0, "owned_by": "quickstart"}]
        self.send("application/json", json.dumps({"object": "list", "data": models}))

    def send(self, kind, text):
        data = text.encode()
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
