"""The OpenAI, Anthropic and LiteLLM SDKs against the embedded model, whose words nobody knows beforehand: a greedy
answer is the same whole and streamed, in every dialect, and the clients' own objects accept it."""

import json

import anthropic
import litellm
import openai
from check import HEADERS, QUESTION, TOKEN, URL, expect, found, report

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=TOKEN, default_headers=HEADERS, max_retries=0, timeout=120)
RECEIPT = "x-reef-agent-record-id"
GREEDY = {"model": client.models.list().data[0].id, "messages": QUESTION, "max_tokens": 16, "temperature": 0}

# chat: whole, streamed, the SDK's accumulator
raw = client.chat.completions.with_raw_response.create(**GREEDY)
completion = raw.parse()
said = completion.choices[0].message.content
assert said and completion.usage.completion_tokens <= 16, completion
assert completion.choices[0].finish_reason in ("length", "stop")
report(found(raw.headers[RECEIPT], text=said), 0.5)
pieces, usage, receipt = "", None, None
for chunk in client.chat.completions.create(**GREEDY, stream=True, stream_options={"include_usage": True}):
    pieces += "".join(choice.delta.content or "" for choice in chunk.choices)
    usage = chunk.usage or usage
    receipt = ((chunk.model_extra or {}).get("reef") or {}).get("agent_record_id") or receipt
assert pieces == said, (pieces, said)
assert usage.completion_tokens == completion.usage.completion_tokens
found(receipt, text=said)
with client.chat.completions.stream(**GREEDY) as stream:
    for _ in stream:
        pass
    assert stream.current_completion_snapshot.choices[0].message.content == said
    if completion.choices[0].finish_reason == "length":
        expect(openai.LengthFinishReasonError, stream.get_final_completion)

# sampling, choices, log-probabilities, stop texts
sampled = client.chat.completions.create(**{**GREEDY, "temperature": 1.0}, n=2, seed=7, logprobs=True, top_logprobs=2)
assert [choice.index for choice in sampled.choices] == [0, 1]
assert all(len(token.top_logprobs) == 2 for token in sampled.choices[0].logprobs.content)
again = client.chat.completions.create(**{**GREEDY, "temperature": 1.0}, n=2, seed=7)
assert [c.message.content for c in again.choices] == [c.message.content for c in sampled.choices]
cut = client.chat.completions.create(**GREEDY, stop=[said[3:5]])
assert cut.choices[0].message.content == said[: said.index(said[3:5])] and cut.choices[0].finish_reason == "stop"

# an answer that must follow a schema does
schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
formed = client.chat.completions.create(
    **{**GREEDY, "max_tokens": 64},
    response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}},
)
assert json.loads(formed.choices[0].message.content)["n"] in (1, 2), formed

# responses
ask = {"model": GREEDY["model"], "input": QUESTION[0]["content"], "max_output_tokens": 16, "temperature": 0}
raw = client.responses.with_raw_response.create(**ask)
assert raw.parse().output_text == said
found(raw.headers[RECEIPT], text=said)
pieces, last = "", None
for last in client.responses.create(**ask, stream=True):
    pieces += last.delta if last.type == "response.output_text.delta" else ""
ended = "completed" if raw.parse().status == "completed" else "incomplete"
assert pieces == said and last.type == f"response.{ended}" and last.response.output_text == said, last

# a prompt that does not fit is the caller's fault, with the code that clients know
error = expect(
    openai.BadRequestError,
    lambda: client.chat.completions.create(**{**GREEDY, "messages": [{"role": "user", "content": "word " * 4000}]}),
)
assert error.code == "context_length_exceeded", error

# Anthropic
claude = anthropic.Anthropic(base_url=URL, api_key=TOKEN, default_headers=HEADERS, max_retries=0, timeout=120)
turn = {"model": GREEDY["model"], "messages": QUESTION, "max_tokens": 16, "extra_body": {"temperature": 0}}
raw = claude.messages.with_raw_response.create(**turn)
message = raw.parse()
assert message.content[0].text == said and message.stop_reason in ("max_tokens", "end_turn")
found(raw.headers[RECEIPT], text=said)
with claude.messages.stream(**turn) as stream:
    assert "".join(stream.text_stream) == said
    assert stream.get_final_message().usage.output_tokens == message.usage.output_tokens
counted = claude.messages.count_tokens(model=GREEDY["model"], messages=QUESTION).input_tokens
usage = message.usage
assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)

# LiteLLM, both ways
common = {"api_key": TOKEN, "messages": QUESTION, "max_tokens": 16, "temperature": 0, "extra_headers": HEADERS}
for model, base in ((f"openai/{GREEDY['model']}", f"{URL}/v1"), (f"anthropic/{GREEDY['model']}", URL)):
    assert litellm.completion(model=model, api_base=base, **common).choices[0].message.content == said, model
    chunks = list(litellm.completion(model=model, api_base=base, stream=True, **common))
    assert litellm.stream_chunk_builder(chunks).choices[0].message.content == said, model
