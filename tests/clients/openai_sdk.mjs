// The OpenAI SDK for JavaScript: whole and streamed, tools, responses, errors.
import assert from "node:assert/strict";
import OpenAI from "openai";

const url = process.env.REEF_URL;
const apiKey = process.env.REEF_TOKEN;
const defaultHeaders = { "x-reef-scenario": "s" };
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey, defaultHeaders, maxRetries: 1 });
const messages = [{ role: "user", content: "What is six times seven?" }];
const found = (receipt, what) => {
  assert.ok(receipt, "no receipt");
  console.log(JSON.stringify({ receipt, ...what }));
};

const { data, response } = await client.chat.completions.create({ model: "text", messages }).withResponse();
assert.equal(data.choices[0].message.content, "forty-two");
assert.equal(data.usage.total_tokens, 12);
found(response.headers.get("x-reef-agent-record-id"), { text: "forty-two" });

let text = "";
let receipt;
for await (const chunk of await client.chat.completions.create({ model: "text", messages, stream: true })) {
  text += chunk.choices[0]?.delta?.content ?? "";
  receipt = chunk.reef?.agent_record_id ?? receipt;
}
assert.equal(text, "forty-two");
found(receipt, { text });

const parameters = { type: "object", properties: { city: { type: "string" } } };
const tools = [{ type: "function", function: { name: "weather", description: "d", parameters } }];
const called = await client.chat.completions.create({ model: "text", messages, tools }).withResponse();
assert.deepEqual(JSON.parse(called.data.choices[0].message.tool_calls[0].function.arguments), { city: "Paris" });
found(called.response.headers.get("x-reef-agent-record-id"), { tool: "weather" });
const final = await client.chat.completions.stream({ model: "text", messages, tools }).finalChatCompletion();
assert.equal(final.choices[0].message.tool_calls[0].function.name, "weather");

const answered = await client.responses.create({ model: "text", input: "hi" }).withResponse();
assert.equal(answered.data.output_text, "forty-two");
found(answered.response.headers.get("x-reef-agent-record-id"), { text: "forty-two" });
receipt = undefined;
for await (const event of await client.responses.create({ model: "text", input: "hi", stream: true })) {
  if (event.type === "response.completed") receipt = event.reef?.agent_record_id;
}
found(receipt, { text: "forty-two" });

const fails = (call, kind, status) =>
  assert.rejects(call, (error) => error instanceof kind && error.status === status);
const create = (model) => client.chat.completions.create({ model, messages });
await fails(() => create("limited"), OpenAI.RateLimitError, 429);
await fails(() => create("broken"), OpenAI.InternalServerError, 502);
await fails(() => create("bad"), OpenAI.BadRequestError, 400);
const stranger = new OpenAI({ baseURL: `${url}/v1`, apiKey: "wrong", defaultHeaders, maxRetries: 0 });
await fails(() => stranger.chat.completions.create({ model: "text", messages }), OpenAI.AuthenticationError, 401);
