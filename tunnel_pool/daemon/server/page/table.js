// The table of downloads: sorted, filtered, and with several of them selected.

import { ask } from "./api.js";
import * as details from "./details.js";
import { byId, follow, make, setText } from "./dom.js";
import { bytes, duration, percent, rate } from "./format.js";
import { rpc } from "./rpc.js";
import { act, answer, say } from "./say.js";
import { heard, t } from "./texts.js";
import { chosen, labelsOf, ratio } from "./view.js";

const STEP = 250; // so many rows are made at first, and more when asked for
const STATES = ["downloading", "seeding", "stopped", "queued", "checking", "moving", "no room", "failed"];

const torrents = new Map();
const rows = new Map();
const selected = new Set();
const filter = { search: "", state: "", label: "", hops: "" };
const order = { by: "position", descending: false };
let most = STEP;
let shown = [];

export function change({ changed, removed }, isFirst) {
  if (isFirst) torrents.clear();
  for (const infohash of removed) torrents.delete(infohash);
  for (const torrent of changed) torrents.set(torrent.infohash, torrent);
  show();
  details.change(torrents);
}

function show() {
  const all = [...torrents.values()];
  const found = chosen(all, filter, order);
  shown = found.slice(0, most).map((torrent) => torrent.infohash);
  const matching = new Set(found.map((torrent) => torrent.infohash));
  for (const infohash of selected) if (!matching.has(infohash)) selected.delete(infohash); // nothing unseen is changed
  follow(byId("torrents"), shown, rows, makeRow);
  for (const infohash of shown) rows.get(infohash).show(torrents.get(infohash));
  byId("table").hidden = !found.length;
  byId("none").hidden = found.length > 0;
  setText(byId("none"), t(all.length ? "downloads.nothing" : "downloads.none"));
  byId("more").hidden = found.length <= most;
  setText(byId("more"), t("downloads.more", { count: Math.min(STEP, found.length - most) }));
  setText(byId("count"), t("downloads.shown", { shown: found.length, all: all.length }));
  offer(byId("by-label"), labelsOf(all));
  showSelected();
}

function showSelected() {
  byId("chosen").hidden = !selected.size;
  setText(byId("chosen-count"), t("selected", { count: selected.size }));
  byId("select-all").checked = shown.length > 0 && shown.every((infohash) => selected.has(infohash));
}

/** Has a select offer these values after its first. */
function offer(select, values) {
  const offered = [...select.options].slice(1).map((option) => option.value);
  if (offered.join("\n") === values.join("\n")) return;
  select.replaceChildren(select.options[0], ...values.map((value) => make("option", { value }, value)));
  select.value = values.includes(filter.label) ? filter.label : "";
  filter.label = select.value;
}

function makeRow(infohash) {
  const check = make("input", { type: "checkbox", onchange: () => select(infohash, check.checked) });
  const name = make("button", { type: "button", class: "name", "data-name": infohash, onclick: () => details.open(infohash) });
  const why = make("span", { class: "why" });
  const bar = make("progress", { max: 1 });
  const state = make("span");
  const cells = Array.from({ length: 7 }, () => make("td", { class: "number" }));
  const element = make("tr", {},
    make("td", {}, check), make("th", { scope: "row" }, name, why), make("td", {}, state, bar), ...cells);
  let last = null;

  function showRow(torrent) {
    check.checked = selected.has(infohash);
    if (torrent === last) return;
    last = torrent;
    setText(name, torrent.name);
    setText(why, heard(torrent.error || torrent.standstill));
    check.setAttribute("aria-label", t("select", { name: torrent.name }));
    bar.value = torrent.progress;
    bar.setAttribute("aria-label", `${torrent.name}: ${percent(torrent.progress)}`);
    setText(state, `${t(`state.${torrent.state}`)}, ${percent(torrent.progress)}`);
    const peers = torrent.hidden_peers ? ` (${t("peer.hidden", { count: torrent.hidden_peers })})` : "";
    const texts = [
      torrent.size_bytes ? bytes(torrent.size_bytes) : "–",
      torrent.down_bytes_per_s ? rate(torrent.down_bytes_per_s) : "",
      torrent.up_bytes_per_s ? rate(torrent.up_bytes_per_s) : "",
      torrent.eta_s === null ? "" : duration(torrent.eta_s),
      `${torrent.peers}${peers}`,
      torrent.hops ? String(torrent.hops) : t("plain"),
      ratio(torrent).toFixed(2),
    ];
    texts.forEach((text, place) => setText(cells[place], text));
    element.dataset.state = torrent.state;
  }
  return { element, show: showRow };
}

function select(infohash, isSelected) {
  if (isSelected) selected.add(infohash);
  else selected.delete(infohash);
  showSelected();
}

export function wireTable() {
  for (const state of STATES) byId("by-state").append(make("option", { value: state }, t(`state.${state}`)));
  for (const [id, name] of [["search", "search"], ["by-state", "state"], ["by-label", "label"], ["by-hops", "hops"]]) {
    byId(id).addEventListener(id === "search" ? "input" : "change", () => {
      filter[name] = byId(id).value;
      most = STEP;
      show();
    });
  }
  byId("more").addEventListener("click", () => {
    most += STEP;
    show();
  });
  byId("select-all").addEventListener("change", () => {
    for (const infohash of shown) select(infohash, byId("select-all").checked);
    show();
  });
  for (const button of document.querySelectorAll("#table thead button")) {
    button.addEventListener("click", () => sortBy(button));
  }
  byId("start").addEventListener("click", () => act(() => each((infohash) => stop(infohash, false))));
  byId("stop").addEventListener("click", () => act(() => each((infohash) => stop(infohash, true))));
  byId("verify").addEventListener("click", () => act(verify));
  byId("remove").addEventListener("click", () => act(remove));
  for (const where of ["top", "up", "down", "bottom"]) {
    byId(`queue-${where}`).addEventListener("click", () => act(() => rpc(`queue_move_${where}`, { ids: [...selected] })));
  }
}

function sortBy(button) {
  const by = button.dataset.by;
  const isThird = order.by === by && order.descending; // back to the order of the queue
  order.descending = order.by === by && !order.descending;
  order.by = isThird ? "position" : by;
  for (const head of document.querySelectorAll("#table thead th[aria-sort]")) head.removeAttribute("aria-sort");
  if (!isThird) button.closest("th").setAttribute("aria-sort", order.descending ? "descending" : "ascending");
  show();
}

const stop = (infohash, stopped) => ask("PATCH", `api/torrents/${infohash}`, { stopped });

/** Does it for each of those that are selected, and says at the end what failed. */
async function each(work) {
  const failed = [];
  for (const infohash of [...selected]) {
    const { name } = torrents.get(infohash) ?? { name: infohash };
    await work(infohash).catch((error) => failed.push(`${name}: ${error.message}`));
  }
  if (failed.length) throw new Error(failed.slice(0, 5).join("; ") + (failed.length > 5 ? " …" : ""));
}

async function verify() {
  await rpc("torrent_verify", { ids: [...selected] });
  say(t("verify.started", { count: selected.size }));
}

async function remove() {
  const dialog = byId("removing");
  setText(byId("removing-title"), t("remove.title", { count: selected.size }));
  const names = [...selected].slice(0, 10).map((infohash) => make("li", {}, torrents.get(infohash).name));
  byId("removing-names").replaceChildren(...names, ...(selected.size > 10 ? [make("li", {}, "…")] : []));
  byId("removing-files").checked = false;
  const isMeant = await answer(dialog) === "remove";
  const withFiles = byId("removing-files").checked;
  if (isMeant) await each((infohash) => ask("DELETE", `api/torrents/${infohash}?files=${withFiles}`));
  byId("downloads-title").focus();
}
