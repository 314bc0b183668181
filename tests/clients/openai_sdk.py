"""The OpenAI SDK: chat and responses, whole and streamed, tools, errors, retries, usage, models."""

import json

import openai
from check import HEADERS, QUESTION, TOKEN, URL, expect, found, report

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=TOKEN, default_headers=HEADERS, max_retries=1, timeout=60)
RECEIPT = "x-reef-agent-record-id"
WEATHER = {"name": "weather", "description": "d", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}

# whole
raw = client.chat.completions.with_raw_response.create(model="text", messages=QUESTION)
completion = raw.parse()
assert completion.choices[0].message.content == "forty-two"
assert completion.usage.total_tokens == 12
report(found(raw.headers[RECEIPT], text="forty-two"), 1.0)


def streamed(**more):
    """Text, tool calls, usage and receipt of one stream."""
    text, calls, usage, receipt = "", {}, None, None
    for chunk in client.chat.completions.create(model="text", stream=True, **more):
        assert isinstance(chunk, openai.types.chat.ChatCompletionChunk)
        usage = chunk.usage or usage
        if (chunk.model_extra or {}).get("reef"):
            # The finish chunk carries it, unless the client asked for usage, whose chunk has no choices either.
            asked_for_usage = "stream_options" in more
            assert receipt is None
            assert asked_for_usage or chunk.choices[0].finish_reason, chunk
            receipt = chunk.model_extra["reef"]["agent_record_id"]
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for call in choice.delta.tool_calls or []:
                name, arguments = calls.get(call.index, ("", ""))
                calls[call.index] = (name + (call.function.name or ""), arguments + (call.function.arguments or ""))
    return text, calls, usage, receipt


text, calls, usage, receipt = streamed(messages=QUESTION)
assert (text, calls, usage) == ("forty-two", {}, None), (text, calls, usage)
found(receipt, text="forty-two")
text, calls, usage, receipt = streamed(messages=QUESTION, stream_options={"include_usage": True})
assert text == "forty-two" and usage.total_tokens == 12
found(receipt, text="forty-two")

# the SDK's own accumulator
with client.chat.completions.stream(model="text", messages=QUESTION) as stream:
    for _ in stream:
        pass
    assert stream.get_final_completion().choices[0].message.content == "forty-two"

# tools, whole and streamed, and the turn after the tool
tools = [{"type": "function", "function": WEATHER}]
raw = client.chat.completions.with_raw_response.create(model="text", messages=QUESTION, tools=tools)
message = raw.parse().choices[0].message
assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Paris"}
found(raw.headers[RECEIPT], tool="weather")
text, calls, _, receipt = streamed(messages=QUESTION, tools=tools)
assert calls == {0: ("weather", '{"city": "Paris"}')}, calls
found(receipt, tool="weather")
answered = [*QUESTION, message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}]
raw = client.chat.completions.with_raw_response.create(model="text", messages=answered, tools=tools)
assert raw.parse().choices[0].message.content == "the tool says sunny"
found(raw.headers[RECEIPT], text="the tool says sunny")

# responses
raw = client.responses.with_raw_response.create(model="text", input="What is six times seven?")
response = raw.parse()
assert response.output_text == "forty-two" and response.usage.total_tokens == 12
found(raw.headers[RECEIPT], text="forty-two")
text, receipt = "", None
for event in client.responses.create(model="text", input="What is six times seven?", stream=True):
    if event.type == "response.output_text.delta":
        text += event.delta
    if event.type == "response.completed":
        receipt = (event.model_extra or {}).get("reef", {}).get("agent_record_id")
assert text == "forty-two"
found(receipt, text="forty-two")
tools = [{"type": "function", **WEATHER}]
with client.responses.stream(model="text", input="What is six times seven?", tools=tools) as stream:
    kinds = [event.type for event in stream]
    final = stream.get_final_response()
assert final.output[0].type == "function_call" and final.output[0].name == "weather", kinds
raw = client.responses.with_raw_response.create(model="text", input="What is six times seven?", tools=tools)
assert raw.parse().output[0].arguments == '{"city": "Paris"}'
found(raw.headers[RECEIPT], tool="weather")

# a moment's fault is retried out of the client's sight
raw = client.chat.completions.with_raw_response.create(model="flaky", messages=QUESTION)
assert raw.parse().choices[0].message.content == "forty-two" and raw.retries_taken <= 1
found(raw.headers[RECEIPT], text="forty-two")

# errors keep their kind and words
create = client.chat.completions.create
error = expect(openai.RateLimitError, lambda: create(model="limited", messages=QUESTION))
assert error.status_code == 429 and "slow down" in str(error), error
assert expect(openai.InternalServerError, lambda: create(model="broken", messages=QUESTION)).status_code == 502
error = expect(openai.BadRequestError, lambda: create(model="bad", messages=QUESTION))
assert "the scripted fault" in str(error)
error = expect(openai.RateLimitError, lambda: create(model="limited", messages=QUESTION, stream=True))
assert error.status_code == 429
stranger = openai.OpenAI(base_url=f"{URL}/v1", api_key="wrong", default_headers=HEADERS, max_retries=0)
error = expect(openai.AuthenticationError, lambda: stranger.chat.completions.create(model="text", messages=QUESTION))
assert error.status_code == 401
nameless = openai.OpenAI(base_url=f"{URL}/v1", api_key=TOKEN, max_retries=0)
error = expect(openai.BadRequestError, lambda: nameless.chat.completions.create(model="text", messages=QUESTION))
assert "x-reef-scenario" in str(error), error

# many at once, each with a receipt of its own
import concurrent.futures

with concurrent.futures.ThreadPoolExecutor(8) as pool:
    asked = [pool.submit(client.chat.completions.with_raw_response.create, model="text", messages=QUESTION) for _ in range(24)]
    receipts = {future.result().headers[RECEIPT] for future in asked}
assert len(receipts) == 24
found(receipts.pop(), text="forty-two")

assert [model.id for model in client.models.list()]
