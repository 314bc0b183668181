"""The Anthropic SDK: messages whole and streamed, tools, token counting, errors."""

import anthropic
from check import HEADERS, QUESTION, TOKEN, URL, expect, found, report

client = anthropic.Anthropic(base_url=URL, api_key=TOKEN, default_headers=HEADERS, max_retries=1, timeout=60)
RECEIPT = "x-reef-agent-record-id"
ASK = {"model": "text", "max_tokens": 100, "messages": QUESTION}

# whole
raw = client.messages.with_raw_response.create(**ASK)
message = raw.parse()
assert message.content[0].text == "forty-two" and message.usage.output_tokens == 3
report(found(raw.headers[RECEIPT], text="forty-two"), 0.5)

# streamed, as events and through the SDK's accumulator
text, receipt = "", None
for event in client.messages.create(**ASK, stream=True):
    if event.type == "content_block_delta":
        text += event.delta.text
    if event.type == "message_stop":
        receipt = (event.model_extra or {}).get("reef", {}).get("agent_record_id")
assert text == "forty-two"
found(receipt, text="forty-two")
with client.messages.stream(**ASK) as stream:
    assert "".join(stream.text_stream) == "forty-two"
    final = stream.get_final_message()
assert final.stop_reason == "end_turn" and final.usage.output_tokens == 3

# tools
tools = [{"name": "weather", "description": "d", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}]
raw = client.messages.with_raw_response.create(**ASK, tools=tools)
call = raw.parse().content[0]
assert call.type == "tool_use" and call.input == {"city": "Paris"}
found(raw.headers[RECEIPT], tool="weather")
with client.messages.stream(**ASK, tools=tools) as stream:
    receipts = [(event.model_extra or {}).get("reef") for event in stream if event.type == "message_stop"]
    final = stream.get_final_message()
assert final.content[0].input == {"city": "Paris"} and final.stop_reason == "tool_use"
turns = [*QUESTION, {"role": "assistant", "content": [call.model_dump()]}]
turns.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}]})
raw = client.messages.with_raw_response.create(model="text", max_tokens=100, messages=turns, tools=tools)
assert raw.parse().content[0].text == "the tool says sunny"
found(raw.headers[RECEIPT], text="the tool says sunny")

# counting
raw = client.messages.with_raw_response.count_tokens(model="text", messages=QUESTION)
assert raw.parse().input_tokens == 11
found(raw.headers[RECEIPT])

# the other slot for the credential
bearer = anthropic.Anthropic(base_url=URL, auth_token=TOKEN, api_key=None, default_headers=HEADERS, max_retries=0)
raw = bearer.messages.with_raw_response.create(**ASK)
found(raw.headers[RECEIPT], text="forty-two")

# errors keep their kind and words
ask = lambda model: client.messages.create(**{**ASK, "model": model})
error = expect(anthropic.RateLimitError, lambda: ask("limited"))
assert error.status_code == 429 and "slow down" in str(error)
assert expect(anthropic.InternalServerError, lambda: ask("broken")).status_code == 502
assert "the scripted fault" in str(expect(anthropic.BadRequestError, lambda: ask("bad")))
stranger = anthropic.Anthropic(base_url=URL, api_key="wrong", default_headers=HEADERS, max_retries=0)
error = expect(anthropic.AuthenticationError, lambda: stranger.messages.create(**ASK))
assert error.body["type"] == "error", error.body
