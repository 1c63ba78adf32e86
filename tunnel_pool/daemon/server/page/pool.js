// The pool as a picture: a box for each process, with its circuits, and the hops of each.

import { ask } from "./api.js";
import { byId, follow, make, setText } from "./dom.js";
import { bytes, percent, rate } from "./format.js";
import { act } from "./say.js";
import { t } from "./texts.js";

const boxes = new Map();
let before = new Map(); // bytes of each circuit, and when
let isEdited = false;

export function show({ pool, circuits, sample }) {
  const speeds = speedsOf(circuits, sample.time_s);
  const of = new Map(pool.children.map((child) => [String(child.slot), child]));
  follow(byId("pool"), [...of.keys()], boxes, makeBox);
  for (const [slot, child] of of) {
    const own = circuits.filter((circuit) => String(circuit.child) === slot);
    boxes.get(slot).show(child, own, speeds);
  }
  byId("scale").hidden = pool.workers === null;
  if (pool.workers && !isEdited) {
    byId("least").value = pool.workers.least;
    byId("most").value = pool.workers.most;
  }
}

export function wireScaling() {
  const form = byId("scale");
  form.addEventListener("input", () => { isEdited = true; });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    act(async () => {
      await ask("PUT", "api/pool/workers", { least: Number(byId("least").value), most: Number(byId("most").value) });
      isEdited = false;
    });
  });
}

function speedsOf(circuits, now) {
  const speeds = new Map();
  const seen = new Map();
  for (const circuit of circuits) {
    const total = circuit.up_bytes + circuit.down_bytes;
    const last = before.get(circuit.circuit_id);
    seen.set(circuit.circuit_id, { total, now });
    if (last && now > last.now) speeds.set(circuit.circuit_id, (total - last.total) / (now - last.now));
  }
  before = seen;
  return speeds;
}

function makeBox(slot) {
  const title = make("h3", {}, slot === "null" ? t("pool.main") : t("pool.child", { slot }));
  const facts = make("span");
  const drain = make("button", { type: "button", onclick: () => act(() => ask("POST", `api/pool/children/${slot}/drain`)) });
  drain.textContent = t("pool.drain");
  drain.setAttribute("aria-label", t("pool.drain.child", { slot }));
  const bar = make("span");
  const list = make("ul", { class: "circuits" });
  const lines = new Map();
  const head = make("div", { class: "head" }, title, facts, ...(slot === "null" ? [] : [drain]));
  const element = make("li", {}, head, make("div", { class: "bar", "aria-hidden": "true" }, bar), list);

  function showBox(child, circuits, speeds) {
    const count = child.circuits ? `, ${t("pool.circuits", { count: child.circuits })}` : "";
    const restarts = child.restarts ? `, ${t("pool.restarts", { count: child.restarts })}` : "";
    setText(facts, `${child.state}, ${percent(child.cpu)} CPU, ${bytes(child.rss_bytes)}${count}${restarts}`);
    bar.style.width = `${Math.min(100, 100 * child.cpu)}%`;
    drain.disabled = child.state !== "running";
    const ids = circuits.map((circuit) => circuit.circuit_id);
    follow(list, ids, lines, makeLine);
    for (const circuit of circuits) lines.get(circuit.circuit_id).show(circuit, speeds.get(circuit.circuit_id) ?? 0);
  }
  return { element, show: showBox };
}

function makeLine() {
  const path = make("span", { class: "path" });
  const kind = make("span");
  const speed = make("span", { class: "rate" });
  const element = make("li", {}, path, kind, speed);

  function showLine(circuit, perSecond) {
    const hops = circuit.hops.map((node) => make("b", { title: `node ${node}` }, node.slice(0, 4)));
    while (hops.length < circuit.goal_hops) hops.push(make("b", { class: "wanted" }, "…"));
    const text = hops.map((hop) => hop.textContent).join(" → ");
    if (path.textContent !== text) path.replaceChildren(...hops.flatMap((hop, place) => (place ? [" → ", hop] : [hop])));
    const type = circuit.state === "READY" ? circuit.type.toLowerCase().replaceAll("_", " ") : circuit.state.toLowerCase();
    const streams = circuit.streams ? `, ${t("pool.streams", { count: circuit.streams })}` : "";
    setText(kind, type + streams + (circuit.found_at ? `, ${t("pool.found", { place: circuit.found_at })}` : ""));
    kind.className = circuit.state === "CLOSING" ? "closing" : "";
    setText(speed, rate(perSecond));
  }
  return { element, show: showLine };
}
