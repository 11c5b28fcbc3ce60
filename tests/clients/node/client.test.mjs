// OpenAI's client for Node as a stranger before a gateway. What the answers must be comes in a file, named by EXPECTED.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import OpenAI from "openai";

const { url, key, limit, prompt, messages, texts } = JSON.parse(readFileSync(process.env.EXPECTED, "utf8"));
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0, timeout: 20_000 });
const ask = { model: "toy", prompt, temperature: 0 };
const chat = { model: "toy", messages, temperature: 0 };

async function open() {
  const told = await (await fetch(`${url}/metrics`, { headers: { authorization: `Bearer ${key}` } })).text();
  return Number(told.match(/^diptych_requests_open (\S+)$/m)[1]);
}

async function rest() {
  const end = Date.now() + 10_000;
  while ((await open()) > 0) {
    assert.ok(Date.now() < end, "requests stay open");
    await new Promise((go) => setTimeout(go, 20));
  }
}

async function refused(promise, kind, status) {
  const error = await promise.then(
    () => assert.fail("it was not refused"),
    (error) => error,
  );
  assert.ok(error instanceof kind, `${error.constructor.name}: ${error.message}`);
  assert.ok(error instanceof OpenAI.APIError);
  assert.equal(error.status, status);
  return error;
}

before(rest);
after(rest);

test("models", async () => {
  const found = [];
  for await (const model of client.models.list()) found.push(model.id);
  assert.deepEqual(found, ["toy"]);
});

test("a completion", async () => {
  const found = await client.completions.create({ ...ask, max_tokens: 12 });
  assert.equal(found.object, "text_completion");
  assert.equal(found.choices[0].text, texts.completion);
  assert.equal(found.choices[0].finish_reason, "length");
  assert.equal(found.usage.prompt_tokens, prompt.length);
  assert.equal(found.usage.completion_tokens, 12);
  assert.equal(found.usage.total_tokens, prompt.length + 12);
});

test("a streamed completion says the same, then its usage", async () => {
  const parts = [];
  const how = { ...ask, max_tokens: 12, stream: true, stream_options: { include_usage: true } };
  for await (const part of await client.completions.create(how)) parts.push(part);
  assert.equal(parts.flatMap((part) => part.choices.map((choice) => choice.text)).join(""), texts.completion);
  assert.ok(parts.length > 6, `${parts.length} parts of 12 tokens are no stream`);
  assert.equal(parts.at(-2).choices[0].finish_reason, "length");
  assert.deepEqual(parts.at(-1).choices, []);
  assert.equal(parts.at(-1).usage.completion_tokens, 12);
  assert.ok(parts.slice(0, -1).every((part) => part.usage === null));
});

test("several answers, and a seed that repeats them", async () => {
  const how = { model: "toy", prompt, temperature: 1, seed: 7, n: 3, max_tokens: 12 };
  const [one, two] = [await client.completions.create(how), await client.completions.create(how)];
  const said = one.choices.map((choice) => choice.text);
  assert.deepEqual(one.choices.map((choice) => choice.index), [0, 1, 2]);
  assert.deepEqual(said, two.choices.map((choice) => choice.text));
  assert.equal(said[0], texts.seeded);
  assert.equal(new Set(said).size, 3);
});

test("a stop string ends an answer and is not told", async () => {
  const how = { ...ask, max_tokens: 200, stop: ["never said, that is sure", texts.stop] };
  const found = await client.completions.create(how);
  assert.equal(found.choices[0].text, texts.stopped);
  assert.equal(found.choices[0].finish_reason, "stop");
  let said = "";
  for await (const part of await client.completions.create({ ...how, stream: true })) said += part.choices[0].text;
  assert.equal(said, texts.stopped);
});

test("log probabilities of an answer and of an echoed prompt", async () => {
  const found = await client.completions.create({ ...ask, max_tokens: 4, logprobs: 2, echo: true });
  const told = found.choices[0].logprobs;
  assert.ok(found.choices[0].text.startsWith(prompt));
  assert.equal(told.tokens.length, prompt.length + 4);
  assert.equal(told.token_logprobs[0], null);
  assert.ok(told.token_logprobs.slice(1).every((value) => value <= 0));
  assert.ok(told.top_logprobs.slice(1).every((top) => Object.keys(top).length === 2));
  assert.deepEqual(told.text_offset.slice(0, 3), [0, 1, 2]);
});

test("a chat, with either name of its length", async () => {
  for (const how of [{ max_tokens: 10 }, { max_completion_tokens: 10 }]) {
    const found = await client.chat.completions.create({ ...chat, ...how });
    assert.equal(found.choices[0].message.role, "assistant");
    assert.equal(found.choices[0].message.content, texts.chat);
    assert.equal(found.choices[0].finish_reason, "length");
    assert.equal(found.usage.completion_tokens, 10);
  }
});

test("log probabilities of a chat", async () => {
  const found = await client.chat.completions.create({ ...chat, max_tokens: 5, logprobs: true, top_logprobs: 3 });
  const entries = found.choices[0].logprobs.content;
  assert.equal(entries.length, 5);
  assert.ok(entries.every((entry) => entry.top_logprobs.length === 3 && entry.bytes.length === 1));
  assert.equal(entries[0].top_logprobs[0].token, entries[0].token);
});

test("a streamed chat, by the client's own accumulator", async () => {
  const stream = client.chat.completions.stream({ ...chat, max_tokens: 10, stream_options: { include_usage: true } });
  const deltas = [];
  stream.on("content", (delta) => deltas.push(delta));
  const found = await stream.finalChatCompletion();
  assert.equal(found.choices[0].message.content, texts.chat);
  assert.equal(found.choices[0].message.role, "assistant");
  assert.equal(deltas.join(""), texts.chat);
  assert.equal((await stream.totalUsage()).completion_tokens, 10);
});

test("mistakes are the client's own classes, with the field at fault", async () => {
  const { BadRequestError, NotFoundError, AuthenticationError } = OpenAI;
  const wrong = await refused(client.chat.completions.create({ ...chat, temperature: 9 }), BadRequestError, 400);
  assert.deepEqual([wrong.param, wrong.code, wrong.type], ["temperature", "invalid_value", "invalid_request_error"]);
  const long = await refused(client.completions.create({ ...ask, max_tokens: 10 ** 9 }), BadRequestError, 400);
  assert.equal(long.code, "context_length_exceeded");
  const other = await refused(client.completions.create({ ...ask, model: "gpt-5" }), NotFoundError, 404);
  assert.equal(other.code, "model_not_found");
  const stranger = new OpenAI({ baseURL: `${url}/v1`, apiKey: "wrong", maxRetries: 0 });
  const unknown = await refused(stranger.completions.create(ask), AuthenticationError, 401);
  assert.equal(unknown.code, "invalid_api_key");
});

test("what is not done here is refused by name, what asks for nothing is taken", async () => {
  const tool = { type: "function", function: { name: "f", parameters: { type: "object", properties: {} } } };
  const meant = [
    [{ tools: [tool] }, "tools"],
    [{ tool_choice: "required" }, "tool_choice"],
    [{ response_format: { type: "json_object" } }, "response_format"],
    [{ audio: { voice: "alloy", format: "wav" } }, "audio"],
    [{ kv_transfer_params: { remote_host: "10.0.0.1" } }, "kv_transfer_params"],
  ];
  for (const [field, name] of meant) {
    const error = await refused(
      client.chat.completions.create({ ...chat, ...field, max_tokens: 3 }), OpenAI.BadRequestError, 400,
    );
    assert.equal(error.param, name);
  }
  const empty = { tools: [], tool_choice: "none", response_format: { type: "text" }, user: "me", store: false };
  const found = await client.chat.completions.create({ ...chat, ...empty, max_tokens: 10 });
  assert.equal(found.choices[0].message.content, texts.chat);
  assert.equal(found.choices[0].message.tool_calls, undefined);
});

test("a client that leaves in the middle is not worked for", async () => {
  const stream = await client.completions.create({ ...ask, max_tokens: 2000, stream: true });
  for await (const part of stream) {
    assert.equal(part.choices.length, 1);
    break;
  }
  const second = await client.chat.completions.create({ ...chat, max_tokens: 2000, stream: true });
  setTimeout(() => second.controller.abort(), 100);
  for await (const part of second) assert.equal(part.choices[0].finish_reason, null);
  const controller = new AbortController();
  setTimeout(() => controller.abort(), 100);
  await assert.rejects(
    client.completions.create({ ...ask, max_tokens: 2000 }, { signal: controller.signal }), OpenAI.APIUserAbortError,
  );
  await assert.rejects(
    client.completions.create({ ...ask, max_tokens: 2000 }, { timeout: 150 }), OpenAI.APIConnectionTimeoutError,
  );
  await rest();
});

test("too many are told when to come back, and the client does", async () => {
  const controllers = [];
  for (let place = 0; place < limit; place++) {
    const stream = await client.completions.create({ ...ask, max_tokens: 2000, stream: true });
    controllers.push(stream.controller);
  }
  const error = await refused(client.completions.create({ ...ask, max_tokens: 3 }), OpenAI.RateLimitError, 429);
  assert.equal(error.code, "too_many_requests");
  assert.ok(Number(error.headers.get("retry-after")) >= 1);
  setTimeout(() => controllers.forEach((each) => each.abort()), 300);
  const found = await client.completions.create({ ...ask, max_tokens: 12 }, { maxRetries: 2 });
  assert.equal(found.choices[0].text, texts.completion);
});
