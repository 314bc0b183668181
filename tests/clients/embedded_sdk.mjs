// The OpenAI and Anthropic SDKs for JavaScript against the embedded model: a greedy answer is the same everywhere.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const apiKey = process.env.REEF_TOKEN;
const defaultHeaders = { "x-reef-scenario": "s" };
const openai = new OpenAI({ baseURL: `${process.env.REEF_URL}/v1`, apiKey, defaultHeaders, maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: process.env.REEF_URL, apiKey, defaultHeaders, maxRetries: 0 });
const messages = [{ role: "user", content: "What is six times seven?" }];
const found = (receipt, text) => {
  assert.ok(receipt, "no receipt");
  console.log(JSON.stringify({ receipt, text }));
};
const model = (await openai.models.list()).data[0].id;
const greedy = { model, messages, max_tokens: 16, temperature: 0 };

const { data, response } = await openai.chat.completions.create(greedy).withResponse();
const said = data.choices[0].message.content;
assert.ok(said);
found(response.headers.get("x-reef-agent-record-id"), said);
let pieces = "";
let receipt;
for await (const chunk of await openai.chat.completions.create({ ...greedy, stream: true })) {
  pieces += chunk.choices[0]?.delta?.content ?? "";
  receipt = chunk.reef?.agent_record_id ?? receipt;
}
assert.equal(pieces, said);
found(receipt, said);
const answer = await openai.responses.create({ model, input: messages[0].content, max_output_tokens: 16, temperature: 0 });
assert.equal(answer.output_text, said);
const whole = await anthropic.messages.create(greedy).withResponse();
assert.equal(whole.data.content[0].text, said);
found(whole.response.headers.get("x-reef-agent-record-id"), said);
assert.equal(await anthropic.messages.stream(greedy).finalText(), said);
