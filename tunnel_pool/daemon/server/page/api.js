// The daemon's API; /api/openapi.json says what there is.

export async function ask(method, path, body) {
  const options = { method, headers: {} };
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const response = await fetch(path, options);
  if (response.status === 204) return null;
  const isJson = (response.headers.get("Content-Type") ?? "").startsWith("application/json");
  const answer = isJson ? await response.json() : { error: (await response.text()).trim() };
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

/** Calls `on[name](data)` for each event; `onConnection(true or false)` when it comes or goes. */
export function listen(on, onConnection) {
  const source = new EventSource("api/events");
  source.addEventListener("open", () => onConnection(true));
  source.addEventListener("error", () => {
    onConnection(false);
    if (source.readyState === EventSource.CLOSED) setTimeout(() => listen(on, onConnection), 3000);
  });
  for (const [name, hear] of Object.entries(on)) {
    source.addEventListener(name, (event) => hear(JSON.parse(event.data)));
  }
}
