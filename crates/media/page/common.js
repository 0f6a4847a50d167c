// What the scripts of all pages share.
"use strict";

const at = (id) => document.getElementById(id);

function show(element, text) {
  element.textContent = text;
  element.hidden = !text;
}

const say = (text) => show(at("trouble"), text);

// What the server says of a request that it refuses.
const refusal = async (response) => (await response.text()).trim() || `HTTP ${response.status}`;

async function get(path) {
  const response = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(15000) });
  if (response.status === 401) location.assign(`/login${location.hash}`);
  if (!response.ok) throw new Error(await refusal(response));
  return response.json();
}

// Sends JSON, as nothing but our own pages does.
const post = (path, body) =>
  fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(30000),
  });
