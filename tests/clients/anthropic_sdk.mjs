// The Anthropic SDK for JavaScript: whole and streamed, tools, token counting, errors.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const baseURL = process.env.REEF_URL;
const apiKey = process.env.REEF_TOKEN;
const defaultHeaders = { "x-reef-scenario": "s" };
const client = new Anthropic({ baseURL, apiKey, defaultHeaders, maxRetries: 1 });
const ask = { model: "text", max_tokens: 100, messages: [{ role: "user", content: "What is six times seven?" }] };
const found = (receipt, what) => {
  assert.ok(receipt, "no receipt");
  console.log(JSON.stringify({ receipt, ...what }));
};

const { data, response } = await client.messages.create(ask).withResponse();
assert.equal(data.content[0].text, "forty-two");
found(response.headers.get("x-reef-agent-record-id"), { text: "forty-two" });

let receipt;
for await (const event of await client.messages.create({ ...ask, stream: true })) {
  if (event.type === "message_stop") receipt = event.reef?.agent_record_id;
}
found(receipt, { text: "forty-two" });
assert.equal(await client.messages.stream(ask).finalText(), "forty-two");

const tools = [{ name: "weather", description: "d", input_schema: { type: "object", properties: { city: { type: "string" } } } }];
const called = await client.messages.create({ ...ask, tools }).withResponse();
assert.deepEqual(called.data.content[0].input, { city: "Paris" });
found(called.response.headers.get("x-reef-agent-record-id"), { tool: "weather" });
const final = await client.messages.stream({ ...ask, tools }).finalMessage();
assert.deepEqual(final.content[0].input, { city: "Paris" });

const counted = await client.messages.countTokens({ model: "text", messages: ask.messages }).withResponse();
assert.equal(counted.data.input_tokens, 11);
found(counted.response.headers.get("x-reef-agent-record-id"), {});

const fails = (call, kind, status) =>
  assert.rejects(call, (error) => error instanceof kind && error.status === status);
await fails(() => client.messages.create({ ...ask, model: "limited" }), Anthropic.RateLimitError, 429);
await fails(() => client.messages.create({ ...ask, model: "broken" }), Anthropic.InternalServerError, 502);
await fails(() => client.messages.create({ ...ask, model: "bad" }), Anthropic.BadRequestError, 400);
const stranger = new Anthropic({ baseURL, apiKey: "wrong", defaultHeaders, maxRetries: 0 });
await fails(() => stranger.messages.create(ask), Anthropic.AuthenticationError, 401);
