"""LiteLLM: both dialects, whole and streamed, tools, errors."""

import json

import litellm
from check import HEADERS, QUESTION, TOKEN, URL, expect, found

litellm.telemetry = False
litellm.suppress_debug_info = True
OPENAI = {"model": "openai/text", "api_base": f"{URL}/v1"}
ANTHROPIC = {"model": "anthropic/text", "api_base": URL, "max_tokens": 100}


def ask(where, **more):
    return litellm.completion(
        **{**where, "messages": QUESTION, "api_key": TOKEN, "extra_headers": HEADERS, "timeout": 60, "max_retries": 0, **more}
    )


tools = [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]
for where in (OPENAI, ANTHROPIC):
    response = ask(where)
    assert response.choices[0].message.content == "forty-two", response
    assert response.usage.completion_tokens == 3
    receipt = response._hidden_params["additional_headers"]["llm_provider-x-reef-agent-record-id"]
    found(receipt, text="forty-two")
    text = "".join(chunk.choices[0].delta.content or "" for chunk in ask(where, stream=True) if chunk.choices)
    assert text == "forty-two", text
    call = ask(where, tools=tools).choices[0].message.tool_calls[0]
    assert call.function.name == "weather" and json.loads(call.function.arguments) == {"city": "Paris"}
    rebuilt = litellm.stream_chunk_builder(list(ask(where, tools=tools, stream=True)))
    call = rebuilt.choices[0].message.tool_calls[0]
    assert call.function.name == "weather" and json.loads(call.function.arguments) == {"city": "Paris"}
    limited = where["model"].replace("text", "limited")
    error = expect(litellm.RateLimitError, lambda: ask(where, model=limited))
    assert "slow down" in str(error)
    expect(litellm.BadRequestError, lambda: ask(where, model=where["model"].replace("text", "bad")))
    expect(litellm.AuthenticationError, lambda: ask(where, api_key="wrong"))
